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
	g := newTrainer(t, z, nil)
	defer g.end()
	g.warmup = scale().curveSteps / 5
	require.NoError(t, g.model.Export(t.Context(), weights, nil))
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

// TestTraining measures steps of a GPT of 1.5B parameters in bfloat16, and steps of FSDP2 if there
// is PyTorch. The contestants run one after another, as the GPU has memory for one, and each
// reports when it ends. By default our backward recomputes norms, activations and residuals. FSDP2
// recomputes nothing, and neither do we with Keep.
func TestTraining(t *testing.T) {
	z := scale().training
	z.Batch = cmp.Or(*batch, z.Batch)
	dry, err := fsdp.Planner{Model: z.gpt(), Config: config(nil), Batch: []fsdp.Shape{z.shape(), z.shape()}}.Plan()
	require.NoError(t, err)
	what := describeModel(dry.Params, z)
	tokens := float64(z.Batch * z.Context)
	flops := tokens * (6*float64(dry.Params) + 12*float64(z.Layers*z.Context*z.Dim))
	for _, c := range []struct {
		name  string
		keep  fsdp.Policy
		torch *job // nil for our own training
	}{
		{name: "gofsdp"},
		{name: "gofsdp, Keep", keep: fsdp.WrapEach()},
		{name: "FSDP2", torch: &job{size: z}},
		{name: "FSDP2, compiled", torch: &job{size: z, Compile: true}},
		{name: "FSDP2, compiled, cuDNN", torch: &job{size: z, Compile: true, CuDNN: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			begin := time.Now()
			var run contestant
			if c.torch == nil {
				run = newTrainer(t, z, c.keep)
			} else if p := startTorch(t, *c.torch); p != nil {
				run = p
			} else {
				report("training", "no PyTorch to compare with: %s", c.name)
				return
			}
			defer run.end()
			run.run(scale().trainingSteps)
			fmt.Printf("  %s: %v until it was warm\n", c.name, time.Since(begin).Round(time.Millisecond))
			var times []float64
			var last reply
			for range scale().turns {
				last = run.run(scale().trainingSteps)
				times = append(times, last.Seconds...)
			}
			slices.Sort(times)
			s := times[len(times)/2]
			report("training", "%s, %-22s %8.1f ms a step (%.1f to %.1f), %7.0f tokens/s, %5.1f %% of 989 TFLOP/s, %5.1f GiB, loss %.4f", what, c.name,
				s*1e3, times[0]*1e3, times[len(times)-1]*1e3, tokens/s, flops/s/989e12*100, gib(last.Peak), last.Losses[len(last.Losses)-1])
			if g, ok := run.(*trainer); ok {
				report("training", "%s, %-22s ms of phases, each waited for: %s", what, c.name, g.split(scale().trainingSteps))
			}
		})
	}
}

// A contestant trains.
type contestant interface {
	run(steps int) reply
	end()
}

// gpt returns the model of a size.
func (z size) gpt() *nn.GPT {
	return &nn.GPT{Vocab: z.Vocab, Context: z.Context, Layers: z.Layers, Dim: z.Dim, Heads: z.Heads, Act: nn.GELUTanh, Tied: true}
}

// shape returns the shape of the tokens of a batch.
func (z size) shape() fsdp.Shape { return fsdp.Ints(z.Batch, z.Context) }

// describeModel returns the parameters of a model and its batch as text.
func describeModel(parameters int, z size) string {
	return fmt.Sprintf("GPT of %.4gM, %d x %d", float64(parameters)/1e6, z.Batch, z.Context)
}

// config returns the configuration of all trainings. keep is Config.Activations.Save. A training
// that saves activations also keeps a copy of parameters in bfloat16.
func config(keep fsdp.Policy) fsdp.Config {
	cfg := fsdp.Config{Device: new(gpu.Device), WrapPolicy: fsdp.WrapTypes(&nn.Block{}), Precision: fsdp.BF16(), Activations: fsdp.Activations{Save: keep}}
	if keep != nil {
		cfg.Strategy = fsdp.ShardGradOp
	}
	return cfg
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

// newTrainer returns a trainer whose Config.Activations.Save is keep.
func newTrainer(t *testing.T, z size, keep fsdp.Policy) *trainer {
	g := &trainer{t: t, z: z}
	var err error
	g.dev, err = nccl.OpenDevice(0)
	require.NoError(t, err)
	cfg := config(keep)
	cfg.Device = &gpu.Device{Device: g.dev}
	g.model, err = fsdp.WrapContext(t.Context(), z.gpt(), cfg)
	require.NoError(t, err)
	g.opt, err = optim.AdamW{Beta2: 0.95, WeightDecay: 0.1}.New(g.model.Params())
	require.NoError(t, err)
	return g
}

func (g *trainer) end() {
	require.NoError(g.t, g.model.Close())
	require.NoError(g.t, g.dev.Close())
}

// parameters is how many there are.
func (g *trainer) parameters() (n int) {
	for _, p := range g.model.Params() {
		n += p.Value.Len()
	}
	return n
}

// String returns what is trained.
func (g *trainer) String() string { return describeModel(g.parameters(), g.z) }

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
	require.NoError(g.t, g.model.Params()[0].Value.Slice(0, 1).Read(optim.Host{F32: make([]float32, 1)}))
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
