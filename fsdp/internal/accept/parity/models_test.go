package parity_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// The models of this file are shapes of computation that a chain of blocks does not have. Modules
// are made of stock Gorgonia operations, as a user's may be. Gradients are compared with central
// differences of the loss that Eval returns: of the forward pass alone, which shares neither code
// nor schedule with the backward pass.

// meanLoss returns the mean over the ranks of the first result of Eval.
func meanLoss(t require.TestingT, ctx context.Context, m *fsdp.Sharded, g comm.Group, batch []fsdp.Tensor) float64 {
	out, err := m.Eval(ctx, batch...)
	require.NoError(t, err)
	sum := []float64{kit.Elements(out[0])[0]}
	require.NoError(t, g.AllReduce(comm.Of(sum), comm.Avg).Wait(ctx))
	return sum[0]
}

// lossAt returns the mean loss with h added to element i of a parameter, which the rank that owns
// it does for the while.
func lossAt(t require.TestingT, ctx context.Context, m *fsdp.Sharded, g comm.Group, batch []fsdp.Tensor, name string, i int, h float64) float64 {
	for _, p := range m.Params() {
		if at := i - p.Offset; p.Name == name && at >= 0 && at < p.Value.Len() {
			old := kit.CopyOf(t, p.Value)
			defer func() { require.NoError(t, p.Value.Write(old)) }()
			kit.Edit(t, p.Value.Slice(at, at+1), func(_ int, x float64) float64 { return x + h })
		}
	}
	return meanLoss(t, ctx, m, g, batch)
}

// requireDifferences compares gradients with central differences, at up to three elements of each
// parameter.
func requireDifferences(t require.TestingT, ctx context.Context, m *fsdp.Sharded, g comm.Group, batch []fsdp.Tensor) {
	const h = 1e-5
	grads, err := m.FullGrads(ctx)
	require.NoError(t, err)
	var names []string
	for name := range grads {
		names = append(names, name)
	}
	slices.Sort(names) // every rank evaluates in the same order
	for k, name := range names {
		grad := kit.Elements(grads[name])
		for _, i := range []int{0, kit.U24(k, 1) % len(grad), len(grad) - 1} {
			up, down := lossAt(t, ctx, m, g, batch, name, i, h), lossAt(t, ctx, m, g, batch, name, i, -h)
			require.InDelta(t, (up-down)/(2*h), grad[i], 1e-7, "gradient of %s[%d]", name, i)
		}
	}
}

// TestModelShapes compares the gradients of every model with differences, at several world sizes
// and under every kind of wrapping, and the parameters after two steps between the policies, bit
// for bit.
func TestModelShapes(t *testing.T) {
	policies := map[string]fsdp.Policy{"root": nil, "each": fsdp.WrapEach(), "two": kit.EveryOther, "min": fsdp.WrapMinParams(40)}
	for name, shape := range kit.Shapes {
		for world := 1; world <= 3; world++ {
			t.Run(fmt.Sprintf("%s/%d ranks", name, world), func(t *testing.T) {
				want := map[int]kit.Bits{}
				for policy, wrapping := range policies {
					for _, checkpoint := range []fsdp.Policy{nil, fsdp.WrapEach()} {
						kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
							m := kit.Wrap(t, shape, fsdp.Config{Group: g, Precision: kit.Float64s, WrapPolicy: wrapping, Activations: fsdp.Activations{Recompute: checkpoint}, Poison: true, Seed: 5})
							update := kit.Updater(t, m, math.Inf(1))
							batch := kit.ShapeBatch(g.Rank())
							plan, err := m.Plan(batch...)
							require.NoError(t, err)
							m.ResetPeak()
							kit.ForwardBackward(t, ctx, m, batch)
							require.Equal(t, plan.Peak(), m.Memory().Peak)
							if checkpoint == nil {
								requireDifferences(t, ctx, m, g, batch)
							}
							update(ctx)
							kit.ForwardBackward(t, ctx, m, batch)
							update(ctx)
							if got := kit.StateBits(t, ctx, m); g.Rank() == 0 {
								if want[world] == nil {
									want[world] = got
								}
								kit.RequireSameBits(t, want[world], got, policy)
							}
						})
					}
				}
			})
		}
	}
}

// TestGPTDifferences compares gradients of a tied GPT, where the embedding's gradient comes from
// two groups.
func TestGPTDifferences(t *testing.T) {
	for world := 1; world <= 3; world++ {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, &nn.GPT{Vocab: 7, Context: 4, Layers: 1, Dim: 4, Heads: 2, Tied: true}, fsdp.Config{Group: g, Precision: kit.Float64s, WrapPolicy: fsdp.WrapEach(), Poison: true})
			batch := []fsdp.Tensor{kit.Tokens(g.Rank(), 7, 2, 3), kit.Tokens(g.Rank()+9, 7, 2, 3)}
			kit.ForwardBackward(t, ctx, m, batch)
			requireDifferences(t, ctx, m, g, batch)
		})
	}
}

// TestOneCallOrMany compares a chain of calls with the same chain in one module, bit for bit.
func TestOneCallOrMany(t *testing.T) {
	run := func(m kit.Model) (float64, map[string]*tensor.Dense) {
		s := kit.Wrap(t, m, fsdp.Config{Precision: kit.Float64s, WrapPolicy: fsdp.WrapEach()})
		for _, p := range s.Params() {
			kit.Edit(t, p.Value, func(i int, _ float64) float64 { return kit.Value(i+p.Offset, int(p.Name[len(p.Name)-3])) })
		}
		loss := kit.ForwardBackward(t, t.Context(), s, kit.ShapeBatch(0))
		grads, err := s.FullGrads(t.Context())
		require.NoError(t, err)
		return loss, grads
	}
	lossMany, many := run(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := in[0]
		for i := range 3 {
			x = t.Call(fmt.Sprint("l", i), &kit.Dense{Dim: kit.ShapeDim}, x)
		}
		return kit.Regress(t, in, x), nil
	})
	lossOne, one := run(kit.Shapes["all in one call"])
	require.Equal(t, lossMany, lossOne)
	require.Len(t, one, len(many))
	for name, want := range many {
		require.Equal(t, kit.Elements(want), kit.Elements(one["a."+name]), name)
	}
}

// TestSeveralResults checks shapes and values of what Eval returns, and that it belongs to the
// caller.
func TestSeveralResults(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Shapes["several outputs"], fsdp.Config{Group: g, Precision: kit.Float64s, WrapPolicy: fsdp.WrapEach(), Poison: true})
		batch := kit.ShapeBatch(g.Rank())
		first, err := m.Eval(ctx, batch...)
		require.NoError(t, err)
		require.Len(t, first, 4)
		var kept [][]float64
		mean := 0.0
		for _, d := range kit.Elements(first[1]) {
			mean += d * d / (kit.ShapeRows * kit.ShapeDim)
		}
		require.InDelta(t, mean, kit.Elements(first[0])[0], 1e-12)
		for i, r := range first {
			if i > 0 {
				require.Equal(t, tensor.Shape{kit.ShapeRows, kit.ShapeDim}, r.Shape())
			}
			kept = append(kept, slices.Clone(kit.Elements(r)))
		}
		second, err := m.Eval(ctx, batch...)
		require.NoError(t, err)
		for i := range first {
			require.Equal(t, kept[i], kit.Elements(first[i]), "result %d was overwritten", i)
			require.Equal(t, kept[i], kit.Elements(second[i]))
		}
	})
}
