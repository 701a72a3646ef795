package fsdp_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
)

// running is y = x ⊙ w · (1 + mean) for x [n], with the running mean of x that it keeps, and a
// count of its forwards:
//
//	mean = (mean + mean(x))/2
//	count = count + 1
//
// after y, so that y and its gradient are those of the old mean.
type running struct{ n int }

func (m *running) Params() []fsdp.Param {
	return []fsdp.Param{
		{Name: "mean", Buffer: true, Init: fsdp.Constant(0.3)}, {Name: "w", Shape: []int{m.n}, Init: fsdp.Uniform(0.5, 1.5)},
		{Name: "count", Shape: []int{1}, Buffer: true},
	}
}

func (m *running) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	var nodes [3]*gorgonia.Node
	for i, p := range m.Params() {
		var err error
		if nodes[i], err = b.Param(p.Name); err != nil {
			return nil, err
		}
	}
	mean, w, count := nodes[0], nodes[1], nodes[2]
	must := func(n *gorgonia.Node, err error) *gorgonia.Node {
		if err != nil {
			panic(err)
		}
		return n
	}
	y := must(gorgonia.HadamardProd(in[0], w))
	y = must(gorgonia.HadamardProd(y, must(gorgonia.Add(mean, b.Const(1)))))
	next := must(gorgonia.Mul(must(gorgonia.Add(mean, must(gorgonia.Mean(in[0])))), b.Const(0.5)))
	return gorgonia.Nodes{y}, errors.Join(b.Update("mean", next), b.Update("count", must(gorgonia.Add(count, b.Const(1)))))
}

// average is the mean of its input.
var average = &module{build: func(_ *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
	loss, err := gorgonia.Mean(in[0])
	return gorgonia.Nodes{loss}, err
}}

// twice calls running twice with the same parameters.
var twice model = func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
	x := t.Call("r", &running{6}, in[0])
	x = t.Again("r", x)
	return []fsdp.Ref{t.Call("loss", average, x)}, nil
}

// replica is what one rank of twice should be.
type replica struct {
	mean, count float64
	w           []float64
}

// forward updates the buffers and returns the loss and the gradient of w.
func (r *replica) forward(x []float64) (loss float64, grad []float64) {
	before := 1 + r.mean
	r.mean = (r.mean + average1(x)) / 2
	between := 1 + r.mean
	h := make([]float64, len(x))
	for i := range h {
		h[i] = x[i] * r.w[i] * before
	}
	r.mean = (r.mean + average1(h)) / 2
	r.count += 2
	n := float64(len(x))
	for i := range x {
		loss += h[i] * r.w[i] * between / n
		grad = append(grad, 2*x[i]*r.w[i]*before*between/n)
	}
	return loss, grad
}

// eval returns the loss alone, with the buffers as they are.
func (r *replica) eval(x []float64) (loss float64) {
	for i := range x {
		loss += x[i] * r.w[i] * r.w[i] * (1 + r.mean) * (1 + r.mean) / float64(len(x))
	}
	return loss
}

func average1(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// runningBatch is a rank's batch.
func runningBatch(step, rank int) []fsdp.Tensor { return []fsdp.Tensor{floats(10*step+rank, 6)} }

// twiceOf wraps twice and returns the replica of every rank.
func twiceOf(t require.TestingT, ctx context.Context, g comm.Group, cfg fsdp.Config) (*fsdp.Sharded, []*replica) {
	cfg.Group, cfg.Precision, cfg.Poison = g, float64s, true
	m := wrap(t, twice, cfg)
	state, err := m.FullState(ctx)
	require.NoError(t, err)
	replicas := make([]*replica, g.Size())
	for r := range replicas {
		replicas[r] = &replica{mean: 0.3, w: elements(state["r.w"])}
	}
	return m, replicas
}

// requireBuffers compares this rank's buffers.
func requireBuffers(t require.TestingT, ctx context.Context, m *fsdp.Sharded, want *replica) {
	state, err := m.FullState(ctx)
	require.NoError(t, err)
	require.InDelta(t, want.mean, elements(state["r.mean"])[0], 1e-15)
	require.Equal(t, []float64{want.count}, elements(state["r.count"]))
	require.Equal(t, want.w, elements(state["r.w"]))
}

// recomputations are what may not change what a backward sees of a buffer.
var recomputations = map[string]fsdp.Config{
	"balanced":  {},
	"recompute": {Checkpoint: fsdp.WrapEach()},
	"keep":      {Keep: fsdp.WrapEach()},
	"frozen":    {Frozen: func(string) bool { return true }},
}

// TestBuffers trains with buffers that are updated twice in a pass, on every rank from its own
// batch, with evaluations, NoSync and passes put aside, and compares losses, gradients and buffers
// with plain arithmetic.
func TestBuffers(t *testing.T) {
	for name, knobs := range recomputations {
		for _, world := range []int{1, 2, 3, 4} {
			everyStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
				cfg.Checkpoint, cfg.Keep, cfg.Frozen, cfg.Wrap = knobs.Checkpoint, knobs.Keep, knobs.Frozen, fsdp.WrapEach()
				onRanks(t, world, func(ctx context.Context, g comm.Group) {
					m, ranks := twiceOf(t, ctx, g, cfg)
					plan, err := m.Plan(runningBatch(0, 0)...)
					require.NoError(t, err)
					var sum []float64
					forward := func(step int) {
						for r := range ranks {
							loss, grad := ranks[r].forward(elements(runningBatch(step, r)[0]))
							for i := range grad {
								if len(sum) <= i {
									sum = append(sum, 0)
								}
								sum[i] += grad[i] / float64(world)
							}
							if r == g.Rank() {
								got, err := m.Forward(ctx, runningBatch(step, r)...)
								require.NoError(t, err)
								require.InDelta(t, loss, got, 1e-14, name)
							}
						}
					}
					eval := func() {
						x := runningBatch(9, g.Rank())
						out, err := m.Eval(ctx, x...)
						require.NoError(t, err)
						require.InDelta(t, ranks[g.Rank()].eval(elements(x[0])), elements(out[0])[0], 1e-14)
						requireBuffers(t, ctx, m, ranks[g.Rank()])
					}
					m.ResetPeak()
					forward(0)
					require.NoError(t, m.Backward(ctx))
					require.Equal(t, plan.Peak(), m.Memory().Peak)
					requireBuffers(t, ctx, m, ranks[g.Rank()])
					eval()
					require.NoError(t, m.NoSync(func() error { forward(1); return m.Backward(ctx) }))
					forward(2)
					first := m.Hold()
					forward(3)
					second := m.Hold()
					requireBuffers(t, ctx, m, ranks[g.Rank()])
					eval()
					require.NoError(t, first.Backward(ctx))
					require.NoError(t, second.Backward(ctx))
					if cfg.Frozen == nil {
						requireNear(t, map[string][]float64{"r.w": sum}, gradsOf(t, ctx, m), 1e-13)
					}
					requireBuffers(t, ctx, m, ranks[g.Rank()])
					forward(4) // never gets a backward: buffers have seen its batch all the same
					requireIdle(t, ctx, m, runningBatch(0, 0))
					requireBuffers(t, ctx, m, ranks[g.Rank()])
				})
			})
		}
	}
}

// TestBuffersAreNoParameters checks that buffers are neither sharded, nor sent, nor trained, nor
// rounded, and that Freeze leaves them alone.
func TestBuffersAreNoParameters(t *testing.T) {
	onRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := wrap(t, twice, fsdp.Config{Group: g, Precision: fsdp.Precision{Gather: fsdp.BFloat16, Reduce: fsdp.BFloat16}})
		names := map[string]bool{}
		for _, p := range m.Shards() {
			names[p.Name] = true
		}
		require.NotContains(t, names, "r.mean")
		require.NotContains(t, names, "r.count")
		x := filled(6, func(i int) float32 { return float32(i + g.Rank()) })
		plan, err := m.Plan(x)
		require.NoError(t, err)
		require.Len(t, plan.Groups, 2)
		require.Equal(t, "root (buffers)", plan.Groups[1].Name)
		require.True(t, plan.Groups[1].Buffers)
		require.False(t, plan.Groups[1].Frozen)
		require.Equal(t, plan.Groups[0].Len, plan.Params)
		require.Equal(t, 1, plan.Groups[1].Ranks)
		require.Equal(t, 1, plan.Gathers)
		require.Equal(t, 1, plan.Reduces)
		forwardBackward(t, ctx, m, []fsdp.Tensor{x})
		state, err := m.FullState(ctx)
		require.NoError(t, err)
		mean := elements(state["r.mean"])[0]
		require.NotEqual(t, float64(rounded(float32(mean), fsdp.BFloat16)), mean)
		require.Len(t, gradsOf(t, ctx, m), 1)
		before := stateBits(t, ctx, m)
		for _, frozen := range []bool{true, false} {
			_, err := m.Freeze(ctx, func(string) bool { return frozen }, nil)
			require.NoError(t, err)
			requireSameBits(t, before, stateBits(t, ctx, m))
		}
		forwardBackward(t, ctx, m, []fsdp.Tensor{x})
		state, err = m.FullState(ctx)
		require.NoError(t, err)
		require.Equal(t, 4., elements(state["r.count"])[0])
	})
}

// TestAverageBuffers checks the means, that parameters stay as they are, and what SetFull and Full
// make of buffers.
func TestAverageBuffers(t *testing.T) {
	for _, world := range []int{1, 2, 3, 4} {
		everyStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			onRanks(t, world, func(ctx context.Context, g comm.Group) {
				m, ranks := twiceOf(t, ctx, g, cfg)
				mean := 0.0
				for r := range ranks {
					ranks[r].forward(elements(runningBatch(0, r)[0]))
					mean += ranks[r].mean / float64(world)
				}
				forwardBackward(t, ctx, m, runningBatch(0, g.Rank()))
				requireBuffers(t, ctx, m, ranks[g.Rank()])
				grads := gradBits(t, ctx, m)
				require.NoError(t, m.AverageBuffers(ctx))
				requireBuffers(t, ctx, m, &replica{mean: mean, count: 2, w: ranks[0].w})
				requireSameBits(t, grads, gradBits(t, ctx, m))
				require.NoError(t, m.Full(ctx, []string{"r.mean"}, func(p params) error {
					elements(p["r.mean"])[0] = float64(g.Rank())
					return nil
				}, fsdp.WriteBack(world-1)))
				requireBuffers(t, ctx, m, &replica{mean: float64(world - 1), count: 2, w: ranks[0].w})
				require.NoError(t, m.SetFull(ctx, 0, params{"r.count": tensor.New(tensor.FromScalar(5.))}))
				requireBuffers(t, ctx, m, &replica{mean: float64(world - 1), count: 5, w: ranks[0].w})
				requireIdle(t, ctx, m, runningBatch(0, 0))
			})
		})
	}
	onRanks(t, 2, func(ctx context.Context, g comm.Group) { // no buffers, and ranks that do different things
		m := chain64(t, g)
		require.NoError(t, m.AverageBuffers(ctx))
		var err error
		if g.Rank() == 0 {
			err = m.AverageBuffers(ctx)
		} else {
			err = m.SyncGrads(ctx)
		}
		require.ErrorContains(t, err, "ranks disagree: rank 0 runs AverageBuffers as call 2, rank 1 runs SyncGrads as call 2")
	})
}
