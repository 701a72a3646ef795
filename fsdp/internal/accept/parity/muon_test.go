package parity_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// muonFor makes Muon of the matrices of a GPT's blocks, its queries, keys and values by head, and
// AdamW of the rest.
func muonFor(muon optim.Muon, params []optim.Param) (optim.Optimizer, error) {
	hidden, rest := kit.HiddenMatrices(params)
	muon.Blocks = func(p optim.Param) int {
		if strings.Contains(p.Name, "qkv") {
			return 6
		}
		return 1
	}
	matrices, err := muon.New(hidden)
	if err != nil {
		return nil, err
	}
	others, err := optim.AdamW{WeightDecay: 0.1}.New(rest)
	if err != nil {
		return nil, err
	}
	return optim.Compose(matrices, others)
}

// trainMuon trains a GPT and returns its parameters and the state of the optimizer. Every step is
// on the same batches, whichever ranks have them.
func trainMuon(t require.TestingT, world int, muon optim.Muon, cfg fsdp.Config) kit.Bits {
	all := make([]kit.Bits, world)
	kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
		cfg := cfg
		cfg.Group, cfg.WrapPolicy = g, kit.Blocks
		m := kit.Wrap(t, kit.TinyGPT(2), cfg)
		opt, err := muonFor(muon, m.Params())
		require.NoError(t, err)
		for step := range 3 {
			kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step, g.Rank(), 2, kit.TinyContext))
			_, err := m.ClipGradNorm(ctx, 0.5)
			require.NoError(t, err)
			require.NoError(t, opt.Step(0.02))
			m.ZeroGrad()
		}
		all[g.Rank()] = muonBits(t, ctx, m, opt)
	})
	for r := range all {
		kit.RequireSameBits(t, all[0], all[r], "rank ", r)
	}
	return all[0]
}

// muonBits returns the parameters and the state of an optimizer.
func muonBits(t require.TestingT, ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer) kit.Bits {
	state, err := m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	b := kit.StateBits(t, ctx, m)
	for name, p := range state.Params {
		for entry, h := range p.Entries {
			for _, x := range h.F32 {
				b[entry+" of "+name] = append(b[entry+" of "+name], uint64(math.Float32bits(x)))
			}
		}
	}
	return b
}

// Muon has the same bits under every strategy and cut, by owners as by gathering.
func TestMuonKnobs(t *testing.T) {
	kit.Needs(t, kit.Matrices)
	want := trainMuon(t, 4, optim.Muon{WeightDecay: 0.1, Method: optim.Owner}, fsdp.Config{})
	for name, c := range map[string]struct {
		method optim.Method
		cfg    fsdp.Config
	}{
		"gather":       {optim.Gather, fsdp.Config{}},
		"grad op":      {optim.Owner, fsdp.Config{Strategy: fsdp.ShardGradOp}},
		"hybrid":       {optim.Owner, fsdp.Config{Strategy: fsdp.HybridShard, ShardRanks: 2}},
		"hybrid whole": {optim.Gather, fsdp.Config{Strategy: fsdp.HybridShard, ShardRanks: 2, Unit: kit.CutAll(shard.Cut{Block: shard.Whole})}},
		"no shard":     {optim.Owner, fsdp.Config{Strategy: fsdp.NoShard}},
		"rows":         {optim.Owner, fsdp.Config{Unit: kit.CutAll(shard.Cut{Block: shard.Rows(1)})}},
		"whole":        {optim.Owner, fsdp.Config{Unit: kit.CutAll(shard.Cut{Block: shard.Whole})}},
		"weights":      {optim.Owner, fsdp.Config{Unit: kit.CutAll(shard.Cut{Weights: []float64{1, 0, 3, 1}})}},
	} {
		kit.RequireSameBits(t, want, trainMuon(t, 4, optim.Muon{WeightDecay: 0.1, Method: c.method}, c.cfg), name)
	}
}

// Checkpoints with Muon's state load on other ranks and other cuts, and go on alike; a unit of
// experts steps in its own groups.
func TestMuonCheckpoints(t *testing.T) {
	kit.Needs(t, kit.Matrices)
	fsys := crashfs.New()
	run := func(ranks int, save bool, cut shard.Cut) (all kit.Bits) {
		kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Unit: kit.CutAll(cut), Seed: uint64(ranks)})
			opt, err := muonFor(optim.Muon{}, m.Params())
			require.NoError(t, err)
			if save {
				kit.ForwardBackward(t, ctx, m, kit.TinyBatch(0, g.Rank(), 2, kit.TinyContext))
				require.NoError(t, opt.Step(0.1))
				require.NoError(t, m.Save(kit.OnFS(ctx, fsys), kit.Ckpt, opt, &fsdp.SaveOptions{Step: 1}))
			} else {
				_, err := m.Load(kit.OnFS(ctx, fsys), kit.Ckpt, opt, nil)
				require.NoError(t, err)
			}
			if b := muonBits(t, ctx, m, opt); g.Rank() == 0 {
				all = b
			}
			require.NoError(t, m.Close())
		})
		return all
	}
	want := run(4, true, shard.Cut{})
	for _, ranks := range []int{1, 2, 3} {
		kit.RequireSameBits(t, want, run(ranks, false, shard.Cut{Block: shard.Rows(ranks)}), ranks, " ranks")
	}
}

// Experts step in their own groups: each group has the bits that it has alone.
func TestMuonInOwnGroups(t *testing.T) {
	kit.Needs(t, kit.Matrices)
	states := make([]kit.Bits, 4)
	kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Shapes["chain"], kit.GroupedBy(t, ctx, g, "l1", 2))
		matrices := slices.DeleteFunc(m.Params(), func(p optim.Param) bool { return len(p.Shape) < 2 })
		opt, err := optim.Muon{}.New(matrices)
		require.NoError(t, err)
		kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
		require.NoError(t, opt.Step(0.1))
		state, err := kit.OwnState(ctx, m)
		require.NoError(t, err)
		states[g.Rank()] = kit.BitsOf(state)
	})
	for r, s := range states {
		for name := range s {
			require.Equal(t, name != "l1.w" || r/2 == 0, slices.Equal(states[0][name], s[name]), "%s of rank %d", name, r)
		}
	}
	require.Equal(t, states[2], states[3])
}

// A rank that does not step is told of by all, and a lost one ends the step of the others.
func TestMuonOnOneRank(t *testing.T) {
	kit.Needs(t, kit.Matrices, kit.GroupCollectives) // a GPU may learn of the loss in its pass
	for name, other := range map[string]func(context.Context, *fsdp.Sharded) error{
		"forward": func(ctx context.Context, m *fsdp.Sharded) error {
			_, err := m.Forward(ctx, kit.TinyBatch(1, 0, 2, kit.TinyContext)...)
			return err
		},
		"gone": func(context.Context, *fsdp.Sharded) error { return fmt.Errorf("gone") },
	} {
		passed := make(chan struct{}) // rank 0, whose pass the loss of rank 1 would end
		err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, WrapPolicy: kit.Blocks})
			opt, err := muonFor(optim.Muon{Method: optim.Owner}, m.Params())
			require.NoError(t, err)
			kit.ForwardBackward(t, ctx, m, kit.TinyBatch(0, g.Rank(), 2, kit.TinyContext))
			if g.Rank() == 1 {
				select {
				case <-passed:
				case <-ctx.Done():
				}
				return other(ctx, m)
			}
			close(passed)
			err = opt.Step(0.1)
			require.ErrorContains(t, err, "exchange of matrices", name)
			require.ErrorContains(t, err, "rank 1", name)
			return err
		})
		require.Error(t, err, name)
	}
}

// A plan of Muon needs no ranks: of a GPT of 124 million parameters on 8 ranks with 64k tokens a
// step, Muon is at most 5 % of the arithmetic, and its state is one number for an element.
func TestMuonShare(t *testing.T) {
	kit.Needs(t, kit.Processor)
	for _, world := range []int{8, 16} {
		var muon *optim.MuonPlan
		elements := 0
		plan, err := fsdp.Planner{Model: &nn.GPT{Vocab: 50257, Context: 1024, Layers: 12, Dim: 768, Heads: 12},
			Config: fsdp.Config{Group: comm.World{Ranks: world}, WrapPolicy: kit.Blocks}, NewOptimizer: func(params []optim.Param) (optim.Optimizer, error) {
				hidden, rest := kit.HiddenMatrices(params)
				for _, p := range rest {
					elements += 2 * p.Value.Len()
				}
				for _, p := range hidden {
					elements += p.Value.Len()
				}
				var err error
				if muon, err = (optim.Muon{}).Plan(hidden); err != nil {
					return nil, err
				}
				return muonFor(optim.Muon{}, params)
			}, Batch: []fsdp.Shape{fsdp.Ints(1, 1024), fsdp.Ints(1, 1024)}}.Plan()
		require.NoError(t, err)
		pass := float64(plan.FLOPs) * 64 / float64(world) // 64 sequences of 1,024 tokens
		share := muon.Mine / pass
		t.Logf("%d ranks: %.1f GFLOPs of Muon on rank 0 (%.1f on all), %.0f of passes, %.2f %%; %.1f MB sent", world, muon.Mine/1e9, muon.FLOPs/1e9, pass/1e9, 100*share, float64(muon.Sent)/1e6)
		require.Less(t, share, 0.05)
		require.InDelta(t, 4*elements, plan.StateBytes, 1e5)
	}
}
