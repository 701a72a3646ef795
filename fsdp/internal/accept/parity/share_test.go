package parity_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// rowsOf returns rows of a batch.
func rowsOf(t require.TestingT, batch []fsdp.Tensor, from, to int) (part []fsdp.Tensor) {
	for _, x := range batch {
		s, err := x.Slice(tensor.S(from, to))
		require.NoError(t, err)
		d := s.Materialize().(*tensor.Dense)
		require.NoError(t, d.Reshape(append([]int{to - from}, x.Shape()[1:]...)...))
		part = append(part, d)
	}
	return part
}

// TestShare cuts the rows of a step into ranks and batches at random, some of them without a row, and
// with targets that do not count. By Share the gradients are those of all rows on one rank, whatever
// Divide, NoSync, precision and strategy are.
func TestShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.IntRange(1, 4).Draw(t, "ranks")
		micros := rapid.IntRange(1, 3).Draw(t, "micros")
		parts := make([][]int, world*micros)
		for i := range parts {
			parts[i] = rapid.SliceOfN(rapid.IntRange(0, 6), 0, 3).Draw(t, fmt.Sprintf("part %d", i))
			if i < micros { // some rank has a batch, and some target counts
				parts[i] = append(parts[i], 6)
			}
		}
		cfg := fsdp.Config{
			WrapPolicy: kit.Blocks, Precision: kit.Float64s, Seed: 3,
			GradAverage: rapid.SampledFrom([]fsdp.GradAverage{fsdp.ByRanks, fsdp.ByOne}).Draw(t, "divide"),
			Strategy:    rapid.SampledFrom([]fsdp.Strategy{fsdp.FullShard, fsdp.NoShard}).Draw(t, "strategy"),
		}
		noSync := rapid.Bool().Draw(t, "NoSync")
		var want map[string]*tensor.Dense
		whole := kit.Masked(slices.Concat(parts...)...)
		kit.OnRanks(t, 1, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, Precision: kit.Float64s, Seed: 3})
			_, err := m.Forward(ctx, whole...)
			require.NoError(t, err)
			require.NoError(t, m.Backward(ctx))
			want, err = m.FullGrads(ctx)
			require.NoError(t, err)
		})
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			cfg := cfg
			cfg.Group = g
			m := kit.Wrap(t, kit.TinyGPT(1), cfg)
			var step, data [][]fsdp.Tensor
			at := 0
			for i, p := range parts {
				if i/micros == g.Rank() {
					var batch []fsdp.Tensor
					if len(p) > 0 {
						batch = rowsOf(t, whole, at, at+len(p))
						step = append(step, batch)
					}
					data = append(data, batch)
				}
				at += len(p)
			}
			k := 0
			for batch, err := range m.Join(ctx, fsdp.Batches(data...)) {
				require.NoError(t, err)
				pass := func() error {
					_, err := m.Forward(ctx, batch...)
					require.NoError(t, err)
					return m.Backward(ctx, fsdp.Share(step...))
				}
				if k++; noSync && k < micros {
					require.NoError(t, m.NoSync(pass))
				} else {
					require.NoError(t, pass())
				}
			}
			got, err := m.FullGrads(ctx)
			require.NoError(t, err)
			for name, w := range want {
				if g.Rank() == 0 {
					require.InDeltaSlice(t, w.Float64s(), got[name].Float64s(), 1e-12, name)
				}
			}
		})
	})
}

// TestShareByRows weighs losses without targets by rows.
func TestShareByRows(t *testing.T) {
	whole := kit.ShapeBatch(0)
	n := whole[0].Shape()[0]
	require.Greater(t, n, 2)
	grads := func(world int, cuts ...int) (got map[string]*tensor.Dense) {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Group: g, Precision: kit.Float64s})
			batch := rowsOf(t, whole, cuts[g.Rank()], cuts[g.Rank()+1])
			_, err := m.Forward(ctx, batch...)
			require.NoError(t, err)
			require.NoError(t, m.Backward(ctx, fsdp.Share(batch), fsdp.Scale(2)))
			all, err := m.FullGrads(ctx)
			require.NoError(t, err)
			if g.Rank() == 0 {
				got = all
			}
		})
		return got
	}
	want, got := grads(1, 0, n), grads(2, 0, 1, n)
	require.NotEmpty(t, want)
	for name, w := range want {
		require.InDeltaSlice(t, w.Float64s(), got[name].Float64s(), 1e-12, name)
	}
}

// TestShareRefuses checks the mistakes that Share can be combined with: every rank returns an error, and
// the model can be used on.
func TestShareRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		divide fsdp.GradAverage
		opts   func(batch []fsdp.Tensor) []fsdp.BackwardOption
		want   string
	}{
		"weights": {fsdp.ByWeights, func(b []fsdp.Tensor) []fsdp.BackwardOption {
			return []fsdp.BackwardOption{fsdp.Share(b), fsdp.Weight(2)}
		},
			"Share already averages over the targets of the step, but Config.GradAverage is ByWeights: use only one of them"},
		"active": {fsdp.ByActive, func(b []fsdp.Tensor) []fsdp.BackwardOption { return []fsdp.BackwardOption{fsdp.Share(b)} },
			"Share already averages over the targets of the step, but Config.GradAverage is ByActive: use only one of them"},
		"a weight": {fsdp.ByRanks, func(b []fsdp.Tensor) []fsdp.BackwardOption {
			return []fsdp.BackwardOption{fsdp.Share(b), fsdp.Weight(2)}
		},
			"Weight needs Config.GradAverage = ByWeights, but it is ByRanks"},
		"another step": {fsdp.ByRanks, func([]fsdp.Tensor) []fsdp.BackwardOption {
			return []fsdp.BackwardOption{fsdp.Share(kit.Masked(1), kit.Masked(2))}
		}, "the batch of the Forward is not among the 2 batches that Share got: give Share the batches of the step, " +
			"or call Share of a data.Loader before it returns the next batch"},
		"a broken batch": {fsdp.ByRanks, func(b []fsdp.Tensor) []fsdp.BackwardOption {
			return []fsdp.BackwardOption{fsdp.Share(b, []fsdp.Tensor{b[0], tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(2))})}
		}, "Share: batch tensor 1 (targets): targets are float32, want integers"},
	} {
		t.Run(name, func(t *testing.T) {
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, GradAverage: c.divide})
				batch := kit.Masked(1, 3)
				_, err := m.Forward(ctx, batch...)
				require.NoError(t, err)
				require.ErrorContains(t, m.Backward(ctx, c.opts(batch)...), c.want)
			})
		})
	}
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g})
		batch := kit.Masked(1, 3)
		_, err := m.Forward(ctx, batch...)
		require.NoError(t, err)
		var opts []fsdp.BackwardOption
		if g.Rank() == 0 {
			opts = append(opts, fsdp.Share(batch))
		}
		require.ErrorContains(t, m.Backward(ctx, opts...), "ranks disagree: rank 0 runs Backward as call 2 with Share")
		require.ErrorContains(t, m.JoinCalls(ctx, func() error {
			if _, err := m.Forward(ctx, batch...); err != nil {
				return err
			}
			return m.Backward(ctx, fsdp.Share(batch))
		}), "inside JoinCalls each rank runs its own passes")
	})
}

// TestShareOfTwoTargets refuses masks where the loss is a mean over targets of two tensors, and weighs
// by rows where all count.
func TestShareOfTwoTargets(t *testing.T) {
	two := kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("wte", &nn.Embedding{Rows: 7, Dim: 4}, in[0])
		a := t.Call("a", &nn.Head{Dim: 4, Classes: 7, Fused: true}, x, in[1])
		b := t.Call("b", &nn.Head{Dim: 4, Classes: 7, Smoothing: 0.1}, x, in[2])
		return []fsdp.Ref{t.Call("sum", &nn.Add{}, a, b.At(0))}, nil
	})
	m := kit.Wrap(t, two, fsdp.Config{})
	for n, want := range map[int]string{6: "", 4: "the loss is a mean over targets of 2 tensors, but in batch tensor 2 only 4 of 6 count"} {
		batch := append(kit.Masked(6), kit.Masked(n)[1])
		loss, err := m.Forward(t.Context(), batch...)
		require.NoError(t, err)
		require.False(t, math.IsNaN(loss))
		if err := m.Backward(t.Context(), fsdp.Share(batch)); want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
}
