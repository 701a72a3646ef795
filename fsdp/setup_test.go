package fsdp_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// TestMain runs the tests on another device than the host's if FSDP_TEST_DEVICE is "far" or "gpu".
func TestMain(m *testing.M) {
	switch d := os.Getenv("FSDP_TEST_DEVICE"); d {
	case "far":
		kit.UseFarDevice()
	case "gpu":
		os.Setenv("FSDP_DOUBLE_NCCL_TREE", "1") // sums over ranks as the host adds: strategies have the same bits
		kit.UseGPU()
		os.Exit(m.Run()) // models that tests do not close have goroutines there
	case "":
	default:
		panic("FSDP_TEST_DEVICE is " + d + ", want far or gpu")
	}
	goleak.VerifyTestMain(m)
}

// groupsCarryPasses tells whether the collectives of passes go through Config.Group, where tests
// see them: on GPUs they are NCCL's.
var groupsCarryPasses = os.Getenv("FSDP_TEST_DEVICE") != "gpu"

// lastStrategy is the last one that there is: a GPU keeps no second copy of parameters.
var lastStrategy = map[bool]fsdp.Strategy{true: fsdp.SecondaryShard, false: fsdp.HybridGradOp}[groupsCarryPasses]

// patience bounds every test with several ranks: what would hang becomes an error. A loaded
// machine, the race detector and doubles take their time.
const patience = 20 * time.Minute

// onRanks runs f on n ranks and requires that none fails.
func onRanks(t require.TestingT, n int, f func(ctx context.Context, g comm.Group)) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, comm.Run(ctx, n, func(ctx context.Context, g comm.Group) error {
		f(ctx, g)
		return nil
	}))
}

// errorsOf runs f on n ranks and returns the error of each. It requires that there are n, and that
// none is for want of time.
func errorsOf(t *testing.T, n int, f func(ctx context.Context, g comm.Group) error) []error {
	errs := make([]error, n)
	onRanks(t, n, func(ctx context.Context, g comm.Group) { errs[g.Rank()] = f(ctx, g) })
	for r, err := range errs {
		require.Error(t, err, "rank %d", r)
		require.NotErrorIs(t, err, context.DeadlineExceeded, "rank %d", r)
	}
	return errs
}

const (
	tinyVocab   = 13
	tinyContext = 6
)

// tinyGPT is a language model of a few thousand parameters.
func tinyGPT(layers int) *nn.GPT {
	return &nn.GPT{Vocab: tinyVocab, Context: tinyContext, Layers: layers, Dim: 8, Heads: 2}
}

// tokens returns ints [rows, cols] below vocab that are a function of the seed.
func tokens(seed, vocab, rows, cols int) *tensor.Dense {
	data := make([]int, rows*cols)
	for i := range data {
		data[i] = u24(i, seed) % vocab
	}
	return tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(data))
}

// tinyBatch returns the batch of a rank in a step: tokens and targets [rows, cols].
func tinyBatch(step, rank, rows, cols int) []fsdp.Tensor {
	seed := 2 * (1000*step + rank)
	return []fsdp.Tensor{tokens(seed, tinyVocab, rows, cols), tokens(seed+1, tinyVocab, rows, cols)}
}

// wrap wraps m and fails the test if that fails.
func wrap(t require.TestingT, m fsdp.Model, cfg fsdp.Config) *fsdp.Sharded {
	s, err := fsdp.Wrap(m, cfg)
	require.NoError(t, err)
	return s
}

// forwardBackward runs one forward and backward and returns the loss.
func forwardBackward(t require.TestingT, ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor, opts ...fsdp.BackwardOption) float64 {
	loss, err := m.Forward(ctx, batch...)
	require.NoError(t, err)
	require.NoError(t, m.Backward(ctx, opts...))
	return loss
}

// updater returns a function that makes one update of m with AdamW after clipping to limit.
func updater(t require.TestingT, m *fsdp.Sharded, limit float64) func(context.Context) {
	opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Shards())
	require.NoError(t, err)
	return func(ctx context.Context) {
		_, err := m.ClipGradNorm(ctx, limit)
		require.NoError(t, err)
		require.NoError(t, opt.Step(1e-2))
		m.ZeroGrad()
	}
}

// bits are the elements of named tensors as bit patterns, so that equal means equal to the last
// bit.
type bits map[string][]uint64

func bitsOf(state map[string]*tensor.Dense) bits {
	b := make(bits)
	for name, v := range state {
		for _, x := range elements(v) {
			b[name] = append(b[name], math.Float64bits(x))
		}
	}
	return b
}

// elements returns the elements of v as float64.
func elements(v fsdp.Tensor) []float64 {
	switch data := v.Data().(type) {
	case []float64:
		return data
	case []float32:
		out := make([]float64, len(data))
		for i, x := range data {
			out[i] = float64(x)
		}
		return out
	default:
		panic(fmt.Sprintf("tensor of %T", data))
	}
}

// copyOf returns the elements of v in ordinary memory.
func copyOf(t require.TestingT, v optim.Vec) optim.Host {
	h := optim.Host{F32: make([]float32, v.Len())}
	if v.Float64() {
		h = optim.Host{F64: make([]float64, v.Len())}
	}
	require.NoError(t, v.Read(h))
	return h
}

// numbers returns the elements of v as float64.
func numbers(t require.TestingT, v optim.Vec) []float64 { return asFloat64(copyOf(t, v)) }

// edit sets every element of v to f of it.
func edit(t require.TestingT, v optim.Vec, f func(i int, x float64) float64) {
	h := copyOf(t, v)
	setEach(h, f)
	require.NoError(t, v.Write(h))
}

// setEach is edit of ordinary memory.
func setEach(v optim.Host, f func(i int, x float64) float64) {
	for i, x := range v.F32 {
		v.F32[i] = float32(f(i, float64(x)))
	}
	for i, x := range v.F64 {
		v.F64[i] = f(i, x)
	}
}

// requireSameBits fails with the first element that differs.
func requireSameBits(t require.TestingT, want, got bits, msg ...any) {
	require.Len(t, got, len(want), msg...)
	for name, w := range want {
		require.Len(t, got[name], len(w), name)
		for i, g := range got[name] {
			if g != w[i] {
				require.Failf(t, "bits differ", "%s[%d] is %v, want %v (%s)",
					name, i, math.Float64frombits(g), math.Float64frombits(w[i]), fmt.Sprint(msg...))
			}
		}
	}
}

func stateBits(t require.TestingT, ctx context.Context, m *fsdp.Sharded) bits {
	state, err := m.FullState(ctx)
	require.NoError(t, err)
	return bitsOf(state)
}

func gradBits(t require.TestingT, ctx context.Context, m *fsdp.Sharded) bits {
	grads, err := m.FullGrads(ctx)
	require.NoError(t, err)
	return bitsOf(grads)
}

// module is a module made of functions, for tests.
type module struct {
	params []fsdp.Param
	build  func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error)
}

func (m *module) Params() []fsdp.Param { return m.params }
func (m *module) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	return m.build(b, in)
}

// model is a model made of a function, for tests.
type model func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error)

func (m model) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) { return m(t, in) }

// floats returns a float64 tensor whose elements are a function of the seed, in [-1, 1).
func floats(seed int, shape ...int) *tensor.Dense {
	n := 1
	for _, d := range shape {
		n *= d
	}
	data := make([]float64, n)
	for i := range data {
		data[i] = value(i, seed)
	}
	return tensor.New(tensor.WithShape(slices.Clone(shape)...), tensor.WithBacking(data))
}
