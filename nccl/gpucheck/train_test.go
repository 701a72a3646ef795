//go:build gpu && linux && cgo

package gpucheck

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/optim"
)

// TestCurve trains a GPT of 124M parameters in bfloat16, and PyTorch the same from the same weights and
// batches. The losses of all steps are the same within 1e-2.
func TestCurve(t *testing.T) {
	z := scale().curve
	weights := filepath.Join(t.TempDir(), "weights.safetensors")
	g := newTrainer(t, z)
	defer g.close()
	require.NoError(t, g.model.Export(t.Context(), weights))
	p := startTorch(t, job{size: z, Weights: weights})
	ours := g.run(scale().curveSteps)
	first, last := ours.Losses[0], ours.Losses[len(ours.Losses)-1]
	if p == nil {
		report("curve", "%v: loss %.4f to %.4f in %d steps. No PyTorch to compare with", g, first, last, len(ours.Losses))
		return
	}
	theirs := p.run(scale().curveSteps)
	p.end()
	most := 0.0
	for i, l := range ours.Losses {
		most = max(most, math.Abs(l-theirs.Losses[i]))
		if i%20 == 0 {
			fmt.Printf("  step %3d: loss %.4f, PyTorch %.4f\n", i, l, theirs.Losses[i])
		}
	}
	report("curve", "%v: loss %.4f to %.4f in %d steps, PyTorch's %.4f to %.4f: at most %.4f apart", g, first, last,
		len(ours.Losses), theirs.Losses[0], theirs.Losses[len(theirs.Losses)-1], most)
	require.LessOrEqual(t, most, 1e-2, "losses of a step apart")
}

// TestTraining measures steps of a GPT of 1.5B parameters in bfloat16, beside PyTorch's FSDP2 with and
// without its compiler if it is there. They take turns in one run.
func TestTraining(t *testing.T) {
	z := scale().training
	ours := newTrainer(t, z)
	defer ours.close()
	type contestant struct {
		name  string
		run   func(steps int) reply
		times []float64
		last  reply
	}
	list := []*contestant{{name: "gofsdp", run: ours.run}}
	for _, compile := range []bool{true, false} {
		if p := startTorch(t, job{size: z, Compile: compile}); p != nil {
			defer p.end()
			name := "FSDP2"
			if compile {
				name += ", compiled"
			}
			list = append(list, &contestant{name: name, run: p.run})
		}
	}
	for turn := range scale().turns + 1 {
		for _, c := range list {
			c.last = c.run(scale().trainingSteps)
			if turn > 0 { // the first warms up
				c.times = append(c.times, c.last.Seconds...)
			}
		}
	}
	tokens := float64(z.Batch * z.Context)
	flops := tokens * (6*float64(ours.parameters()) + 12*float64(z.Layers*z.Context*z.Dim))
	for _, c := range list {
		slices.Sort(c.times)
		s := c.times[len(c.times)/2]
		report("training", "%v, %-15s %8.1f ms a step (%.1f to %.1f), %7.0f tokens/s, %5.1f %% of 989 TFLOP/s, %5.1f GiB, loss %.4f", ours, c.name,
			s*1e3, c.times[0]*1e3, c.times[len(c.times)-1]*1e3, tokens/s, flops/s/989e12*100, gib(c.last.Peak), c.last.Losses[len(c.last.Losses)-1])
	}
	if len(list) == 1 {
		report("training", "no PyTorch to compare with")
	}
}

// A trainer trains on GPU 0.
type trainer struct {
	t     *testing.T
	z     size
	dev   *nccl.Device
	model *fsdp.Sharded
	opt   optim.Optimizer
	step  int
}

func newTrainer(t *testing.T, z size) *trainer {
	g := &trainer{t: t, z: z}
	var err error
	g.dev, err = nccl.OpenDevice(0)
	require.NoError(t, err)
	gpt := &nn.GPT{Vocab: z.Vocab, Context: z.Context, Layers: z.Layers, Dim: z.Dim, Heads: z.Heads, Act: nn.GELUTanh, Tied: true}
	g.model, err = fsdp.WrapContext(t.Context(), gpt, fsdp.Config{
		Device: &gpu.Device{Device: g.dev}, Wrap: fsdp.WrapTypes(&nn.Block{}), Precision: fsdp.BF16(),
	})
	require.NoError(t, err)
	g.opt, err = optim.AdamW{Beta2: 0.95, WeightDecay: 0.1}.New(g.model.Shards())
	require.NoError(t, err)
	return g
}

func (g *trainer) close() {
	require.NoError(g.t, g.model.Close())
	require.NoError(g.t, g.dev.Close())
}

// parameters is how many there are.
func (g *trainer) parameters() (n int) {
	for _, p := range g.model.Shards() {
		n += p.Value.Len()
	}
	return n
}

// String says what is trained.
func (g *trainer) String() string {
	return fmt.Sprintf("GPT of %.3gM, %d x %d", float64(g.parameters())/1e6, g.z.Batch, g.z.Context)
}

// A reply is what steps have taken and found.
type reply struct {
	Seconds, Losses []float64
	Peak            int // bytes of the GPU
}

// run runs some steps. Each ends when the GPU has done all of it.
func (g *trainer) run(steps int) (r reply) {
	ctx := g.t.Context()
	for range steps {
		tokens, targets := g.z.batch(g.step)
		begin := time.Now()
		loss, err := g.model.Forward(ctx, tokens, targets)
		require.NoError(g.t, err)
		require.NoError(g.t, g.model.Backward(ctx))
		_, err = g.model.ClipGradNorm(ctx, 1)
		require.NoError(g.t, err)
		require.NoError(g.t, g.opt.Step(3e-4))
		g.model.ZeroGrad()
		require.NoError(g.t, g.model.Shards()[0].Value.Slice(0, 1).Read(optim.Host{F32: make([]float32, 1)}))
		r.Seconds, r.Losses = append(r.Seconds, time.Since(begin).Seconds()), append(r.Losses, loss)
		g.step++
	}
	r.Peak = g.model.Memory().Peak
	return r
}

// batch returns the tokens and targets of a step: sequences in which the next token is one of four.
func (z size) batch(step int) (tokens, targets fsdp.Tensor) {
	var x, y []int
	for row := step * z.Batch; row < (step+1)*z.Batch; row++ {
		state, token := uint32(row*2654435761), row%509
		for range z.Context {
			x = append(x, token)
			state = state*1664525 + 1013904223
			token = (7*token + 3 + int(state>>30)) % 509
			y = append(y, token)
		}
	}
	shape := tensor.WithShape(z.Batch, z.Context)
	return tensor.New(shape, tensor.WithBacking(x)), tensor.New(shape, tensor.WithBacking(y))
}

// envPython names a python with PyTorch; python3 if it is not set.
const envPython = "GPUCHECK_PYTHON"

//go:embed fsdp2.py
var torchScript string

// A job is what PyTorch is to train.
type job struct {
	size
	Weights string // the file with the initial weights, or ""
	Compile bool
	Meet    string
}

// torch is a process that trains with PyTorch.
type torch struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	said *strings.Builder
}

// startTorch starts one, or returns nil if there is no PyTorch.
func startTorch(t *testing.T, j job) *torch {
	python := cmp.Or(os.Getenv(envPython), "python3")
	if err := exec.Command(python, "-c", "import torch").Run(); err != nil {
		require.Empty(t, os.Getenv(envPython), "%s has no PyTorch: %v", python, err)
		return nil
	}
	dir := t.TempDir()
	j.Meet = filepath.Join(dir, "meet")
	script := filepath.Join(dir, "fsdp2.py")
	require.NoError(t, os.WriteFile(script, []byte(torchScript), 0o600))
	text, err := json.Marshal(j)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	p := &torch{t: t, cmd: exec.CommandContext(ctx, python, "-W", "ignore", script, string(text)), said: &strings.Builder{}}
	p.cmd.Stderr = p.said
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewReader(out)
	require.NoError(t, p.cmd.Start())
	return p
}

// run runs some steps.
func (p *torch) run(steps int) (r reply) {
	_, err := fmt.Fprintln(p.in, steps)
	require.NoError(p.t, err)
	line, err := p.out.ReadString('\n')
	if err != nil {
		_ = p.cmd.Wait() // for all that it has said
		require.NoError(p.t, err, "PyTorch: %s", p.said)
	}
	require.NoError(p.t, json.Unmarshal([]byte(line), &r), line)
	return r
}

func (p *torch) end() {
	require.NoError(p.t, p.in.Close())
	require.NoError(p.t, p.cmd.Wait(), "PyTorch: %s", p.said)
}
