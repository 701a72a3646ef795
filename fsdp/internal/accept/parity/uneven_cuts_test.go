package parity_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// Tensors lie where the cut says, of parameters and of the state, and so in what ranks own.
func TestCutsAreKept(t *testing.T) {
	weights := []float64{2, 0, 1}
	owned := make([]int, 3)
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		whole := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Unit: kit.CutAll(shard.Cut{Block: shard.Whole})})
		rows := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Unit: kit.CutAll(shard.Cut{Block: shard.Rows(1)})})
		uneven := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Unit: kit.CutAll(shard.Cut{Weights: weights})})
		for _, p := range whole.Params() {
			if n := p.Value.Len(); n > 0 {
				require.Equal(t, shard.Param{Shape: p.Shape}.Len(), n, p.Name)
			}
		}
		for _, p := range rows.Params() {
			row := shard.Rows(1)(shard.Param{Shape: p.Shape})
			require.Zero(t, p.Offset%row, p.Name)
			require.Zero(t, p.Value.Len()%row, p.Name)
		}
		for _, p := range uneven.Params() {
			owned[g.Rank()] += p.Value.Len()
		}
		plan, err := uneven.Plan(kit.TinyBatch(0, 0, 2, kit.TinyContext)...)
		require.NoError(t, err)
		equal, err := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks}).Plan(kit.TinyBatch(0, 0, 2, kit.TinyContext)...)
		require.NoError(t, err)
		require.Positive(t, plan.CutBytes)
		require.Equal(t, plan.ShardBytes-equal.ShardBytes, plan.CutBytes)
		require.Contains(t, plan.String(), "of these padding, as Config.Unit cuts units")
		require.NotContains(t, equal.String(), "CutOf")
	})
	require.Zero(t, owned[1])
	require.Greater(t, owned[0], owned[2])
}

// Unequal ranks train to the bits of equal ones, also over part of the ranks and in a group of a
// unit's own.
func TestWeightsDoNotChangeBits(t *testing.T) {
	model := kit.TinyGPT(2)
	for name, cfg := range map[string]fsdp.Config{
		"full":   {Unit: kit.CutAll(shard.Cut{Weights: []float64{3, 1, 0, 2}})},
		"blocks": {Unit: kit.CutAll(shard.Cut{Weights: []float64{3, 1, 0, 2}, Block: shard.Rows(1)})},
		"hybrid": {Unit: kit.CutAll(shard.Cut{Weights: []float64{1, 3}}), Strategy: fsdp.HybridShard, ShardRanks: 2},
		"none":   {Unit: kit.CutAll(shard.Cut{Weights: []float64{1, 3}}), Strategy: fsdp.NoShard},
	} {
		cfg.WrapPolicy = kit.Blocks
		kit.RequireSameBits(t, kit.Train(t, model, 4, 0, 1, fsdp.Config{WrapPolicy: kit.Blocks}), kit.Train(t, model, 4, 0, 1, cfg), name, ": drawn")
		kit.RequireSameBits(t, kit.Train(t, model, 4, 5, 0.5, fsdp.Config{WrapPolicy: kit.Blocks}), kit.Train(t, model, 4, 5, 0.5, cfg), name)
	}
	states := make([][2]kit.Bits, 4)
	kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
		for i, cut := range []shard.Cut{{}, {Block: shard.Whole, Weights: []float64{1, 2}}} {
			cfg := kit.GroupedBy(t, ctx, g, "l1", 2)
			cfg.Unit = kit.Units(cfg.Unit, kit.CutOf(func(u fsdp.UnitConfig) shard.Cut {
				if u.Name == "l1" {
					return cut
				}
				return shard.Cut{}
			}))
			m := kit.Wrap(t, kit.Shapes["chain"], cfg)
			update := kit.Updater(t, m, 1)
			for range 3 {
				kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
				update(ctx)
			}
			states[g.Rank()][i] = kit.StateBits(t, ctx, m)
		}
	})
	for r, s := range states {
		kit.RequireSameBits(t, s[0], s[1], "rank ", r)
	}
}

// A checkpoint of one cut is loaded under another, over other ranks, and goes on with the bits of
// equal cuts.
func TestCheckpointsUnderOtherCuts(t *testing.T) {
	fsys := crashfs.New()
	resume := func(ranks int, save bool, c shard.Cut) kit.Bits {
		var state kit.Bits
		kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Seed: uint64(ranks), Unit: kit.CutAll(c)})
			opt, err := optim.AdamW{}.New(m.Params())
			require.NoError(t, err)
			if save {
				kit.ForwardBackward(t, ctx, m, kit.TinyBatch(0, g.Rank(), 2, kit.TinyContext))
				require.NoError(t, opt.Step(0.1))
				require.NoError(t, m.Save(kit.OnFS(ctx, fsys), kit.Ckpt, opt, &fsdp.SaveOptions{Step: 1}))
				return
			}
			_, err = m.Load(kit.OnFS(ctx, fsys), kit.Ckpt, opt, nil)
			require.NoError(t, err)
			m.ZeroGrad()
			kit.ForwardBackward(t, ctx, m, kit.TinyBatch(1, g.Rank(), 2, kit.TinyContext))
			require.NoError(t, opt.Step(0.1))
			all := kit.StateBits(t, ctx, m)
			if g.Rank() == 0 {
				state = all
			}
		})
		return state
	}
	resume(4, true, shard.Cut{Block: shard.Whole})
	for _, ranks := range []int{1, 3} {
		want := resume(ranks, false, shard.Cut{})
		weights := slices.Repeat([]float64{1}, ranks)
		weights[0] = 3
		for _, c := range []shard.Cut{{Block: shard.Whole}, {Block: shard.Rows(1)}, {Weights: weights}} {
			kit.RequireSameBits(t, want, resume(ranks, false, c), fmt.Sprint(ranks, " ranks, ", c.Weights))
		}
	}
}

// Ranks that cut elsewhere, and weights for other ranks than a unit's, are errors that say so.
func TestCutsDiffer(t *testing.T) {
	kit.OnRanks(t, 2, func(_ context.Context, g comm.Group) {
		_, err := fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Group: g, Unit: kit.CutAll(shard.Cut{Block: shard.Rows(1 + g.Rank())})})
		require.ErrorContains(t, err, "cut at blocks of [")
	})
	kit.OnRanks(t, 2, func(_ context.Context, g comm.Group) {
		_, err := fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Group: g, Unit: kit.CutAll(shard.Cut{Weights: []float64{1, 2, 3}})})
		require.ErrorContains(t, err, "group root: shard: 3 weights for 2 ranks")
	})
}
