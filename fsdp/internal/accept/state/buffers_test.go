package state_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
)

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
func runningBatch(step, rank int) []fsdp.Tensor { return []fsdp.Tensor{kit.Floats(10*step+rank, 6)} }

// twiceOf wraps twice and returns the replica of every rank.
func twiceOf(t require.TestingT, ctx context.Context, g comm.Group, cfg fsdp.Config) (*fsdp.Sharded, []*replica) {
	cfg.Group, cfg.Precision, cfg.Poison = g, kit.Float64s, true
	m := kit.Wrap(t, kit.Twice, cfg)
	state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	replicas := make([]*replica, g.Size())
	for r := range replicas {
		replicas[r] = &replica{mean: 0.3, w: kit.Elements(state["r.w"])}
	}
	return m, replicas
}

// requireBuffers compares this rank's buffers.
func requireBuffers(t require.TestingT, ctx context.Context, m *fsdp.Sharded, want *replica) {
	state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	require.InDelta(t, want.mean, kit.Elements(state["r.mean"])[0], 1e-15)
	require.Equal(t, []float64{want.count}, kit.Elements(state["r.count"]))
	require.Equal(t, want.w, kit.Elements(state["r.w"]))
}

// recomputations are what may not change what a backward sees of a buffer.
var recomputations = map[string]fsdp.Config{
	"balanced":  {},
	"recompute": {Activations: fsdp.Activations{Recompute: fsdp.WrapEach()}},
	"keep":      {Activations: fsdp.Activations{Save: fsdp.WrapEach()}},
	"frozen":    {Frozen: func(string) bool { return true }},
}

// TestBuffers trains with buffers that are updated twice in a pass, on every rank from its own
// batch, with evaluations, NoSync and passes put aside, and compares losses, gradients and buffers
// with plain arithmetic.
func TestBuffers(t *testing.T) {
	for name, knobs := range recomputations {
		for _, world := range []int{1, 2, 3, 4} {
			kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
				cfg.Activations.Recompute, cfg.Activations.Save, cfg.Frozen, cfg.WrapPolicy = knobs.Activations.Recompute, knobs.Activations.Save, knobs.Frozen, fsdp.WrapEach()
				kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
					m, ranks := twiceOf(t, ctx, g, cfg)
					plan, err := m.Plan(runningBatch(0, 0)...)
					require.NoError(t, err)
					var sum []float64
					forward := func(step int) {
						for r := range ranks {
							loss, grad := ranks[r].forward(kit.Elements(runningBatch(step, r)[0]))
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
						require.InDelta(t, ranks[g.Rank()].eval(kit.Elements(x[0])), kit.Elements(out[0])[0], 1e-14)
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
						kit.RequireNear(t, map[string][]float64{"r.w": sum}, kit.GradsOf(t, ctx, m), 1e-13)
					}
					requireBuffers(t, ctx, m, ranks[g.Rank()])
					forward(4) // never gets a backward: buffers have seen its batch all the same
					kit.RequireIdle(t, ctx, m, runningBatch(0, 0))
					requireBuffers(t, ctx, m, ranks[g.Rank()])
				})
			})
		}
	}
}

// TestBuffersAreNoParameters checks that buffers are neither sharded, nor sent, nor trained, nor
// rounded, and that Freeze leaves them alone.
func TestBuffersAreNoParameters(t *testing.T) {
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Twice, fsdp.Config{Group: g, Precision: fsdp.Precision{Gather: fsdp.BFloat16, Reduce: fsdp.BFloat16}})
		names := map[string]bool{}
		for _, p := range m.Params() {
			names[p.Name] = true
		}
		require.NotContains(t, names, "r.mean")
		require.NotContains(t, names, "r.count")
		x := kit.Filled(6, func(i int) float32 { return float32(i + g.Rank()) })
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
		kit.ForwardBackward(t, ctx, m, []fsdp.Tensor{x})
		state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		mean := kit.Elements(state["r.mean"])[0]
		require.NotEqual(t, float64(kit.Rounded(float32(mean), fsdp.BFloat16)), mean)
		require.Len(t, kit.GradsOf(t, ctx, m), 1)
		before := kit.StateBits(t, ctx, m)
		for _, frozen := range []bool{true, false} {
			_, err := m.Freeze(ctx, func(string) bool { return frozen }, nil)
			require.NoError(t, err)
			kit.RequireSameBits(t, before, kit.StateBits(t, ctx, m))
		}
		kit.ForwardBackward(t, ctx, m, []fsdp.Tensor{x})
		state, err = m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		require.Equal(t, 4., kit.Elements(state["r.count"])[0])
	})
}

// TestAverageBuffers checks the means, that parameters stay as they are, and what LoadStateDict and Full
// make of buffers.
func TestAverageBuffers(t *testing.T) {
	for _, world := range []int{1, 2, 3, 4} {
		kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				m, ranks := twiceOf(t, ctx, g, cfg)
				mean := 0.0
				for r := range ranks {
					ranks[r].forward(kit.Elements(runningBatch(0, r)[0]))
					mean += ranks[r].mean / float64(world)
				}
				kit.ForwardBackward(t, ctx, m, runningBatch(0, g.Rank()))
				requireBuffers(t, ctx, m, ranks[g.Rank()])
				grads := kit.GradBits(t, ctx, m)
				require.NoError(t, m.AverageBuffers(ctx))
				requireBuffers(t, ctx, m, &replica{mean: mean, count: 2, w: ranks[0].w})
				kit.RequireSameBits(t, grads, kit.GradBits(t, ctx, m))
				require.NoError(t, m.Summon(ctx, []string{"r.mean"}, func(p kit.Params) error {
					kit.Elements(p["r.mean"])[0] = float64(g.Rank())
					return nil
				}, fsdp.WriteBack(world-1)))
				requireBuffers(t, ctx, m, &replica{mean: float64(world - 1), count: 2, w: ranks[0].w})
				require.NoError(t, m.LoadStateDict(ctx, 0, kit.Params{"r.count": tensor.New(tensor.FromScalar(5.))}))
				requireBuffers(t, ctx, m, &replica{mean: float64(world - 1), count: 5, w: ranks[0].w})
				kit.RequireIdle(t, ctx, m, runningBatch(0, 0))
			})
		})
	}
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) { // no buffers, and ranks that do different things
		m := kit.Chain64(t, g)
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
