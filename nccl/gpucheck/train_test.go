//go:build gpu && linux && cgo

package gpucheck

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"
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

// TestCurve trains a GPT of 124M parameters in bfloat16, and PyTorch the same from the same weights
// and batches, with and without its compiler. Where the loss falls fast, roundings grow: so losses
// of all steps are at most twice as far from PyTorch's as those of its own two ways are from each
// other, or within 1e-2.
func TestCurve(t *testing.T) {
	z := scale().curve
	weights := filepath.Join(t.TempDir(), "weights.safetensors")
	g := newTrainer(t, z)
	defer g.close()
	g.warmup = scale().curveSteps / 5
	require.NoError(t, g.model.Export(t.Context(), weights))
	begin := time.Now()
	ours := g.run(scale().curveSteps).Losses
	fmt.Printf("  %v: %v\n", g, time.Since(begin).Round(time.Millisecond))
	first, last := ours[0], ours[len(ours)-1]
	var theirs [2][]float64
	for i := range theirs {
		p := startTorch(t, job{size: z, Weights: weights, Compile: i > 0, Warmup: g.warmup})
		if p == nil {
			report("curve", "%v: loss %.4f to %.4f in %d steps. No PyTorch to compare with", g, first, last, len(ours))
			return
		}
		theirs[i] = p.run(scale().curveSteps).Losses
		p.end()
	}
	eager, compiled := theirs[0], theirs[1]
	for i, l := range ours {
		if i < 30 || i%20 == 0 {
			fmt.Printf("  step %3d: loss %.4f, PyTorch %.4f, compiled %.4f\n", i, l, eager[i], compiled[i])
		}
	}
	most, at := apart(ours, eager)
	own, ownAt := apart(compiled, eager)
	report("curve", "%v: loss %.4f to %.4f in %d steps, PyTorch's %.4f to %.4f: at most %.4f apart (step %d), PyTorch's own two ways %.4f (step %d)",
		g, first, last, len(ours), eager[0], eager[len(eager)-1], most, at, own, ownAt)
	require.LessOrEqual(t, most, max(1e-2, 2*own), "losses of a step apart")
}

// apart returns the largest distance between losses of a step, and which step that is.
func apart(a, b []float64) (most float64, step int) {
	for i, l := range a {
		if d := math.Abs(l - b[i]); !(d <= most) {
			most, step = d, i
		}
	}
	return most, step
}

// TestTraining measures steps of a GPT of 1.5B parameters in bfloat16, beside PyTorch's FSDP2 with
// and without its compiler if it is there. They run one after another, as the GPU has memory for
// one.
func TestTraining(t *testing.T) {
	z := scale().training
	z.Batch = cmp.Or(*batch, z.Batch)
	type contestant struct {
		name  string
		start func() (run func(steps int) reply, end func()) // run is nil if it is not there
		times []float64
		last  reply
	}
	var what string
	parameters := 0
	ours := &contestant{name: "gofsdp", start: func() (func(int) reply, func()) {
		g := newTrainer(t, z)
		what, parameters = g.String(), g.parameters()
		return g.run, func() {
			report("training", "%v, gofsdp, ms of phases that are waited for: %s", what, g.split(scale().trainingSteps))
			g.close()
		}
	}}
	torch := func(name string, compile bool) *contestant {
		return &contestant{name: name, start: func() (func(int) reply, func()) {
			p := startTorch(t, job{size: z, Compile: compile})
			if p == nil {
				return nil, nil
			}
			return p.run, p.end
		}}
	}
	list := []*contestant{ours, torch("FSDP2", false), torch("FSDP2, compiled", true)}
	for _, c := range list {
		begin := time.Now()
		run, end := c.start()
		if run == nil {
			continue
		}
		run(scale().trainingSteps) // warms up
		fmt.Printf("  %s: %v until it was warm\n", c.name, time.Since(begin).Round(time.Millisecond))
		for range scale().turns {
			c.last = run(scale().trainingSteps)
			c.times = append(c.times, c.last.Seconds...)
		}
		end()
		fmt.Printf("  %s: %.1f ms a step\n", c.name, slices.Min(c.times)*1e3)
	}
	tokens := float64(z.Batch * z.Context)
	flops := tokens * (6*float64(parameters) + 12*float64(z.Layers*z.Context*z.Dim))
	for _, c := range list {
		if c.times == nil {
			report("training", "no PyTorch to compare with: %s", c.name)
			continue
		}
		slices.Sort(c.times)
		s := c.times[len(c.times)/2]
		report("training", "%v, %-15s %8.1f ms a step (%.1f to %.1f), %7.0f tokens/s, %5.1f %% of 989 TFLOP/s, %5.1f GiB, loss %.4f", what, c.name,
			s*1e3, c.times[0]*1e3, c.times[len(c.times)-1]*1e3, tokens/s, flops/s/989e12*100, gib(c.last.Peak), c.last.Losses[len(c.last.Losses)-1])
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

	warmup int                  // steps in which the learning rate grows to what it is
	apart  map[string][]float64 // of phases that are waited for, when they were over
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
	for range steps {
		tokens, targets := g.z.batch(g.step)
		begin := time.Now()
		for _, p := range phases {
			loss, err := p.do(g, tokens, targets)
			require.NoError(g.t, err, p.name)
			if p.name == "forward" {
				r.Losses = append(r.Losses, loss)
			}
			if g.apart != nil {
				g.wait()
				g.apart[p.name] = append(g.apart[p.name], time.Since(begin).Seconds())
			}
		}
		g.wait()
		r.Seconds = append(r.Seconds, time.Since(begin).Seconds())
		g.step++
	}
	r.Peak = g.model.Memory().Peak
	return r
}

// phases are those of a step.
var phases = []struct {
	name string
	do   func(g *trainer, tokens, targets fsdp.Tensor) (loss float64, err error)
}{
	{"forward", func(g *trainer, tokens, targets fsdp.Tensor) (float64, error) {
		return g.model.Forward(g.t.Context(), tokens, targets)
	}},
	{"backward", func(g *trainer, _, _ fsdp.Tensor) (float64, error) { return 0, g.model.Backward(g.t.Context()) }},
	{"clip", func(g *trainer, _, _ fsdp.Tensor) (float64, error) { return g.model.ClipGradNorm(g.t.Context(), 1) }},
	{"update", func(g *trainer, _, _ fsdp.Tensor) (float64, error) {
		defer g.model.ZeroGrad()
		return 0, g.opt.Step(3e-4 * min(1, float64(g.step+1)/float64(max(g.warmup, 1))))
	}},
}

// wait waits until the GPU has done all that it was given.
func (g *trainer) wait() {
	require.NoError(g.t, g.model.Shards()[0].Value.Slice(0, 1).Read(optim.Host{F32: make([]float32, 1)}))
}

// split says how long the phases of steps take that wait for the GPU after each.
func (g *trainer) split(steps int) (text string) {
	g.apart = make(map[string][]float64)
	defer func() { g.apart = nil }()
	g.run(steps)
	before := 0.0
	for _, p := range phases {
		times := g.apart[p.name]
		slices.Sort(times)
		until := times[len(times)/2]
		text += fmt.Sprintf(", %s %.1f", p.name, (until-before)*1e3)
		before = until
	}
	return text[2:]
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
