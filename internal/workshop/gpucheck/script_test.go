//go:build !gpu && linux && cgo

package gpucheck

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/internal/blaslt"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
	"github.com/gofsdp/gofsdp/nccl"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(built{m}) }

// built removes the test programs after the tests.
type built struct{ *testing.M }

func (b built) Run() int {
	status := b.M.Run()
	if programs.dir != "" {
		_ = os.RemoveAll(programs.dir) // it is only in the way
	}
	return status
}

// programs are the test programs, which the script builds once.
var programs = struct {
	sync.Once
	dir string
}{}

// script runs the script with variables and arguments. It returns its output and its exit status.
func script(t *testing.T, variables []string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	file, err := filepath.Abs("run.sh")
	require.NoError(t, err)
	c := exec.CommandContext(ctx, file, args...)
	c.Dir = t.TempDir() // nothing of the source is needed
	c.WaitDelay = time.Second
	c.Env = append(os.Environ(), "VIRTUAL_ENV=", "CONDA_PREFIX=")
	c.Env = append(c.Env, variables...)
	out, err := c.CombinedOutput()
	require.NoError(t, ctx.Err(), "%s", out)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return string(out), c.ProcessState.ExitCode()
}

// doubles returns the variables that name the doubles, and the directory of the test programs.
func doubles(t *testing.T) (variables []string, dir string) {
	t.Helper()
	libs := gpudouble.Build(t)
	programs.Do(func() {
		var err error
		programs.dir, err = os.MkdirTemp("", "gpucheck")
		require.NoError(t, err)
		out, status := script(t, nil, "build", programs.dir)
		require.Zero(t, status, out)
	})
	return []string{
		nccl.EnvCUDA + "=" + libs.CUDA, nccl.EnvLibrary + "=" + libs.NCCL, blaslt.EnvLibrary + "=" + libs.CUBLASLT,
		"FSDP_DOUBLE_DEVICES=2", "FSDP_DOUBLE_VERBOSE=1",
	}, programs.dir
}

// gpucheck runs the test program with the doubles, unless a variable overrides them.
func gpucheck(t *testing.T, variables []string, args ...string) (string, int) {
	t.Helper()
	own, dir := doubles(t)
	program := filepath.Join(dir, "gpucheck")
	if _, err := os.Stat(program); err != nil {
		out, err := exec.Command("gzip", "-dk", program+".gz").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return script(t, slices.Concat(own, []string{"GPUCHECK_BIN=" + program}, variables), args...)
}

// TestScript builds the programs and runs all parts with the doubles, on sizes of no use.
func TestScript(t *testing.T) {
	variables, dir := doubles(t)
	results := filepath.Join(t.TempDir(), "results")
	out, status := script(t, append(variables, "GPUCHECK_SCALE=tiny"), "parts", dir, results)
	require.Zero(t, status, out)
	t.Log(out)
	require.NotContains(t, out, "double: ", "what was done wrong")
	require.Regexp(t, `(?m)^driver  CUDA \d+\.\d`, out)
	require.Regexp(t, `(?m)^NCCL    2\.\d+\.\d+ `, out)
	require.Regexp(t, `(?m)^GPU 1 .* GiB free`, out)
	for _, ranks := range []string{"one rank", "two ranks on one GPU", "two ranks on one GPU by NCCL's leave", "a rank on each of 2 GPUs"} {
		require.Regexp(t, `(?m)^Contract, `+ranks+`\n  done in`, out)
		require.Regexp(t, `(?m)^Step, `+ranks+`\n  done in`, out)
		require.Regexp(t, `(?m)^Bandwidth, `+ranks+`\n.*all-gather.*\n +1( +[0-9.e+-]+){5}\n +4 .*\n  done in`, out)
	}
	require.Regexp(t, `(?m)^device\nPASS\nblaslt\nPASS\ngpu\nPASS\nops\nPASS\n== kernels: passed`, out)
	requireCluster(t, filepath.Join(results, "GPU.json"))
	log, err := os.ReadFile(filepath.Join(results, "log"))
	require.NoError(t, err)
	require.Contains(t, out, string(log))
	table, list := requireEnded(t, results, "machine passed", "training passed", "rates passed", "kernels passed", "pytorch passed",
		"parity passed", "collectives passed", "curve passed", "contract passed")
	require.Contains(t, out, "\n\n"+list, "the last lines")
	require.Len(t, regexp.MustCompile(`(?m)^parity +(GPT|Llama|T5) .* 2 ranks, 2 steps: losses differ by`).FindAllString(table, -1), 36)
	require.Regexp(t, `(?m)^pytorch +`, table)
	require.Regexp(t, `(?m)^curve +GPT of .* in 3 steps`, table)
	for _, c := range []string{"gofsdp", "gofsdp, Keep"} {
		require.Regexp(t, `(?m)^training +GPT of [^,]*, 1 x 16, `+c+` +[0-9.]+ ms a step .* tokens/s, .* TFLOP/s`, table)
		require.Regexp(t, `(?m)^training +GPT of [^,]*, 1 x 16, `+c+` +ms of phases, each waited for: forward .*, update [0-9.]+$`, table)
	}
	require.Regexp(t, `(?m)^training +.*FSDP2, compiled, cuDNN`, table)
	for _, kernel := range []string{"linear qkv: ", "attention, causal: ", "layer norm: ", "rms norm: ", "rope: ", "embedding: ", "gelu: ", "cross-entropy: ",
		"shards: fill ", "shards: drain ", "shards: narrow ", "update: clip ", "update: AdamW ", "update: ZeroGrad "} {
		require.Regexp(t, `(?m)^rates +`+kernel+`.*( +[0-9.]+){3}$`, table)
	}
}

// requireEnded checks the last lines of the table in a directory, one for each part: its name, its
// time, and how it ended. It returns the table and these lines.
func requireEnded(t *testing.T, results string, want ...string) (table, list string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(results, "table"))
	require.NoError(t, err)
	table, list, found := strings.Cut(string(text), "\n\n")
	require.True(t, found, "%s", text)
	var got []string
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		require.Greater(t, len(fields), 3, line)
		require.Regexp(t, `^\d+ s$`, strings.Join(fields[1:3], " "))
		got = append(got, fields[0]+" "+strings.Join(fields[3:], " "))
	}
	require.Equal(t, want, got)
	return table, list
}

// TestParts runs the parts with programs that hang, fail or find no GPU, as their arguments say.
func TestParts(t *testing.T) {
	for name, x := range map[string]struct {
		program string // of a shell
		seconds string
		parts   []string
		status  int
		want    []string
		figure  string // in the table
	}{
		"a part fails": {
			program: `case "$*" in *Rates*) echo broken >&2; exit 7;; esac`, seconds: "570", status: 1,
			want: []string{"machine passed", "training passed", "rates failed with status 7", "kernels passed", "pytorch passed", "parity passed",
				"collectives passed", "curve passed", "contract passed"},
			figure: "gpucheck -test.count=1 -test.timeout=0 -scale=full -test.run=^TestContract$\n",
		},
		"a part hangs": {
			program: `case "$*" in *Training*) tail -f /dev/null & wait;; esac`, seconds: "8", status: 1, parts: []string{"training", "curve"},
			want:   []string{"machine passed", "training timed out", "curve not started, as 8 s are over"},
			figure: "gpucheck -test.count=1 -test.timeout=0 -scale=full -test.run=^TestTraining$/^gofsdp\n",
		},
		"some parts": {
			program: ":", seconds: "570", parts: []string{"curve", "parity"},
			want: []string{"machine passed", "parity passed", "curve passed"}, figure: "-test.run=^TestCurve$\n",
		},
		"no GPU":      {program: "exit 3", seconds: "570", status: 3, want: []string{"machine found no GPU"}, figure: "gpucheck -test.run=^$\n"},
		"other parts": {program: ":", seconds: "570", parts: []string{"curves"}, status: 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir, results := t.TempDir(), t.TempDir()
			for _, name := range []string{"gpucheck", "device.test", "blaslt.test", "gpu.test", "ops.test"} {
				text := "#!/bin/sh\necho \"  | " + name + " $*\"\n" + x.program + "\n"
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700))
			}
			none := []string{nccl.EnvCUDA + "=none", nccl.EnvLibrary + "=none", blaslt.EnvLibrary + "=none", "GPUCHECK_SECONDS=" + x.seconds}
			out, status := script(t, none, append([]string{"parts", dir, results}, x.parts...)...)
			require.Equal(t, x.status, status, out)
			if x.want == nil {
				require.Contains(t, out, "there is no part curves: want some of machine training")
				return
			}
			table, _ := requireEnded(t, results, x.want...)
			require.Contains(t, table+"\n", x.figure)
		})
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
	require.Equal(t, "GPU", c.Name)
	require.Zero(t, c.Cores)
	require.Equal(t, plan.Clusters()["h100"].Inside, c.Inside)
	require.Contains(t, c.Sources[0], c.Device.Name)
	require.Zero(t, c.Software.Step)
	model := &nn.GPT{Vocab: 64, Context: 16, Layers: 1, Dim: 32, Heads: 2}
	two := comm.World{Ranks: 2} // a GPU alone drains nothing
	p, err := fsdp.Planner{Model: model, Config: fsdp.Config{Group: two, Precision: fsdp.BF16()}, Batch: []fsdp.Shape{fsdp.Ints(1, 16), fsdp.Ints(1, 16)}}.Plan()
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
