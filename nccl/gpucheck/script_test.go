//go:build !gpu && linux && cgo

package gpucheck

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/internal/blaslt"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
	"github.com/gofsdp/gofsdp/nccl"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(built{m}) }

// built removes the test program after the tests.
type built struct{ *testing.M }

func (b built) Run() int {
	status := b.M.Run()
	if program.path != "" {
		_ = os.RemoveAll(filepath.Dir(program.path)) // it is only in the way
	}
	return status
}

// program builds the test program once.
var program = struct {
	sync.Once
	path string
}{}

// gpucheck runs the script with a built program, unless a variable says otherwise. It returns what
// it printed and its exit status.
func gpucheck(t *testing.T, variables []string, args ...string) (string, int) {
	t.Helper()
	libs := gpudouble.Build(t)
	program.Do(func() {
		dir, err := os.MkdirTemp("", "gpucheck")
		require.NoError(t, err)
		program.path = filepath.Join(dir, "gpucheck")
		out, err := exec.Command("go", "test", "-c", "-tags", "gpu", "-o", program.path, ".").CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	script, err := filepath.Abs("run.sh")
	require.NoError(t, err)
	c := exec.CommandContext(ctx, script, args...)
	c.Dir = t.TempDir() // nothing of the source is needed
	c.WaitDelay = time.Second
	c.Env = append(os.Environ(), "GPUCHECK_BIN="+program.path, nccl.EnvCUDA+"="+libs.CUDA, nccl.EnvLibrary+"="+libs.NCCL,
		blaslt.EnvLibrary+"="+libs.CUBLASLT,
		"FSDP_DOUBLE_DEVICES=2", "FSDP_DOUBLE_VERBOSE=1", "VIRTUAL_ENV=", "CONDA_PREFIX=")
	c.Env = append(c.Env, variables...)
	out, err := c.CombinedOutput()
	require.NoError(t, ctx.Err(), "%s", out)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return string(out), c.ProcessState.ExitCode()
}

// TestScript runs everything with the doubles.
func TestScript(t *testing.T) {
	file := filepath.Join(t.TempDir(), "here.json")
	out, status := gpucheck(t, []string{"RAPID_CHECKS=20"}, "-largest=4", "-scale=tiny", "-cluster="+file, "-like=h200")
	require.Zero(t, status, out)
	require.NotContains(t, out, "double: ", "what was done wrong")
	require.Regexp(t, `(?m)^driver  CUDA \d+\.\d`, out)
	require.Regexp(t, `(?m)^NCCL    2\.\d+\.\d+ `, out)
	require.Regexp(t, `(?m)^GPU 1 .* GiB free`, out)
	for _, ranks := range []string{"one rank", "two ranks on one GPU", "two ranks on one GPU by NCCL's leave", "a rank on each of 2 GPUs"} {
		require.Regexp(t, `(?m)^Contract, `+ranks+`\n  done in`, out)
		require.Regexp(t, `(?m)^Step, `+ranks+`\n  done in`, out)
		require.Regexp(t, `(?m)^Bandwidth, `+ranks+`\n.*all-gather.*\n +1( +[0-9.e+-]+){5}\n +4 .*\n  done in`, out)
	}
	requireCluster(t, file)
	require.Len(t, regexp.MustCompile(`(?m)^  \| parity +(GPT|Llama|T5) .* 2 ranks, 2 steps: losses differ by`).FindAllString(out, -1), 18)
	require.Regexp(t, `(?m)^  \| pytorch +`, out)
	require.Regexp(t, `(?m)^  \| curve +GPT of .* in 3 steps`, out)
	for _, c := range []string{"gofsdp", "gofsdp, Keep"} {
		require.Regexp(t, `(?m)^  \| training +GPT of [^,]*, 1 x 16, `+c+` +[0-9.]+ ms a step .* tokens/s, .* TFLOP/s`, out)
		require.Regexp(t, `(?m)^  \| training +GPT of [^,]*, 1 x 16, `+c+` +ms of phases, each waited for: forward .*, update [0-9.]+$`, out)
	}
	for _, kernel := range []string{"linear qkv: ", "attention, causal: ", "layer norm: ", "rms norm: ", "rope: ", "embedding: ", "gelu: ", "cross-entropy: ",
		"shards: fill ", "shards: drain ", "shards: narrow ", "update: clip ", "update: AdamW ", "update: ZeroGrad "} {
		require.Regexp(t, `(?m)^  \| rates +`+kernel+`.*( +[0-9.]+){3}$`, out)
	}
}

// requireCluster reads the file of a cluster, and has a step in bfloat16 take as long as its rates
// say.
func requireCluster(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	c, err := plan.Parse(text)
	require.NoError(t, err)
	require.Equal(t, "here", c.Name)
	require.Zero(t, c.Cores)
	require.Equal(t, plan.Clusters()["h200"].Inside, c.Inside)
	require.Contains(t, c.Sources[0], c.Device.Name)
	require.Zero(t, c.Software.Step)
	model := &nn.GPT{Vocab: 64, Context: 16, Layers: 1, Dim: 32, Heads: 2}
	p, err := fsdp.Dry(model, fsdp.Config{Precision: fsdp.BF16()}, nil, fsdp.Ints(1, 16), fsdp.Ints(1, 16))
	require.NoError(t, err)
	was := *p.Pass.Time(c, 1)
	for i := range c.Rates {
		r := &c.Rates[i]
		require.Positive(t, r.Fixed+r.FLOP+r.Byte+r.Score, r.Op)
		r.Fixed, r.FLOP, r.Byte, r.Score = 1000*r.Fixed, 1000*r.FLOP, 1000*r.Byte, 1000*r.Score
	}
	now := p.Pass.Time(c, 1)
	require.Greater(t, now.Compute, 100*was.Compute)
	require.Greater(t, now.Optimizer, 100*was.Optimizer)
	require.Greater(t, now.Exposed, 100*was.Exposed, "drains")
}

// TestWithoutGPU also lets the script build the program.
func TestWithoutGPU(t *testing.T) {
	out, status := gpucheck(t, []string{"GPUCHECK_BIN=", nccl.EnvCUDA + "=/nowhere/libcuda.so.1"})
	require.Equal(t, 3, status, out)
	require.Contains(t, out, "no GPU on this machine")
	require.Contains(t, out, "/nowhere/libcuda.so.1")

	out, status = gpucheck(t, []string{"FSDP_DOUBLE_DEVICES=0"})
	require.Equal(t, 3, status, out)
	require.Contains(t, out, "no GPU on this machine")
}

func TestWithoutNCCL(t *testing.T) {
	out, status := gpucheck(t, []string{nccl.EnvLibrary + "=/nowhere/libnccl.so.2"})
	require.Equal(t, 1, status, out)
	require.Contains(t, out, "/nowhere/libnccl.so.2")
}

// TestClusterLikeNoGPU: a cluster of GPUs is not like one whose cores compute.
func TestClusterLikeNoGPU(t *testing.T) {
	out, status := gpucheck(t, nil, "-cluster=x.json", "-like=epyc-2")
	require.Equal(t, 1, status, out)
	require.Contains(t, out, `-cluster needs -like: there is no cluster of GPUs "epyc-2"`)
}

// TestFailure checks that what fails in a rank fails the script.
func TestFailure(t *testing.T) {
	for call, arguments := range map[string][]string{
		"ncclAllGather":   {"-test.run=Bandwidth/one"},
		"ncclCommDestroy": {"-test.run=Bandwidth/two"},
		"cuMemAlloc":      {"-test.run=Bandwidth/one"},
	} {
		out, status := gpucheck(t, []string{"FSDP_DOUBLE_FAIL=" + call + ":1:2", "FSDP_DOUBLE_NCCL_TIMEOUT_MS=2000"}, append(arguments, "-largest=1")...)
		require.Equal(t, 1, status, out)
		require.Contains(t, out, call)
		require.Contains(t, out, "rank 0")
	}
}

// TestWheel checks that the NCCL of an active Python environment is found.
func TestWheel(t *testing.T) {
	home := t.TempDir()
	library := filepath.Join(home, "lib", "python3.12", "site-packages", "nvidia", "nccl", "lib", "libnccl.so.2")
	require.NoError(t, os.MkdirAll(filepath.Dir(library), 0o700))
	require.NoError(t, os.Symlink(gpudouble.Build(t).NCCL, library))
	out, status := gpucheck(t, []string{nccl.EnvLibrary + "=", "VIRTUAL_ENV=" + home}, "-test.run=^$")
	require.Zero(t, status, out)
	require.Contains(t, out, "("+library+")")
}
