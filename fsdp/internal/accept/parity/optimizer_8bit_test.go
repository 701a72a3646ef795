package parity_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// eightModel has a parameter that is in 8 bits by its size, one by a rule and one that is not.
var eightModel = kit.Calls(
	kit.Call("a", kit.Having(kit.Initial(kit.Weight("w", 61, 53)), kit.Initial(kit.Weight("b", 300)))),
	kit.Call("b", kit.Having(kit.Initial(kit.Weight("w", 70, 71)))),
)

var eightBits = optim.AdamW{WeightDecay: 0.1, Bits: 8, Rules: []optim.Rule{
	{Match: func(p optim.Param) bool { return p.Name == "a.w" }, Bits: new(8)},
}}

// makeSteps makes some updates from gradients that depend on step, parameter and element only.
func makeSteps(t require.TestingT, m *fsdp.Sharded, opt optim.Optimizer, from, to int) {
	for step := from; step < to; step++ {
		for _, p := range optim.Params(opt) {
			kit.Edit(t, p.Grad, func(i int, _ float64) float64 {
				return float64(kit.U24(p.Offset+i, step+100*int(p.Name[0]))%17-8) / 8
			})
		}
		require.NoError(t, opt.Step(0.01))
		m.ZeroGrad()
	}
}

// optimizer is a configuration of package optim.
type optimizer interface {
	New(params []optim.Param) (optim.Optimizer, error)
}

// eight wraps the model and makes an optimizer of it.
func eight(t require.TestingT, g comm.Group, cfg fsdp.Config, c optimizer) (*fsdp.Sharded, optim.Optimizer) {
	cfg.Group, cfg.Poison = g, true
	m := kit.Wrap(t, eightModel, cfg)
	params := m.Params()
	for i := range params {
		params[i].Absent = nil // there are no passes here
	}
	opt, err := c.New(params)
	require.NoError(t, err)
	return m, opt
}

// TestEightBitsResume breaks off and goes on with the same bits, on as many ranks, whatever the
// state was carried by, with every strategy and where the state lies out of reach.
func TestEightBitsResume(t *testing.T) {
	for _, far := range []bool{false, true} {
		for i, spread := range kit.Spreads {
			t.Run(spread.Name, func(t *testing.T) {
				if far {
					defer kit.UseFarDevice()()
				}
				dir := t.TempDir()
				kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
					m, opt := eight(t, g, kit.Spreads[i].Config(4), eightBits)
					makeSteps(t, m, opt, 0, 3)
					require.NoError(t, m.Save(ctx, filepath.Join(dir, "sync"), opt, nil))
					v, err := m.SaveAsync(ctx, filepath.Join(dir, "async"), opt, nil)
					require.NoError(t, err)
					file := filepath.Join(dir, "file")
					require.NoError(t, m.Export(ctx, file, &fsdp.ExportOptions{Optimizer: opt}))
					full, err := m.OptimStateDict(ctx, opt, nil)
					require.NoError(t, err)
					values, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
					require.NoError(t, err)
					state := kit.StateOfAll(t, ctx, m, opt)
					makeSteps(t, m, opt, 3, 5)
					require.NoError(t, v.Wait(ctx))
					want := kit.StateBits(t, ctx, m)
					for _, carrier := range []string{"sync", "async", "file", "full"} {
						again, next := eight(t, g, kit.Spreads[i].Config(4), eightBits)
						switch carrier {
						case "file":
							require.NoError(t, again.Import(ctx, file, &fsdp.ImportOptions{Optimizer: next}))
						case "full":
							require.NoError(t, again.LoadStateDict(ctx, 0, values))
							require.NoError(t, again.LoadOptimStateDict(ctx, 0, next, full, nil))
						default:
							_, err := again.Load(ctx, filepath.Join(dir, carrier), next, nil)
							require.NoError(t, err)
						}
						kit.RequireSameBits(t, state, kit.StateOfAll(t, ctx, again, next), carrier)
						makeSteps(t, again, next, 3, 5)
						kit.RequireSameBits(t, want, kit.StateBits(t, ctx, again), carrier)
						require.NoError(t, again.Close())
					}
					require.NoError(t, m.Close())
				})
			})
		}
	}
}

// TestEightBitsOtherRanks saves on 1 rank, loads and saves on 3, loads on 2. State that a rank has
// in 32 bits is that of the file to the bit. In 8 bits that is so but for the blocks that a cut goes
// through.
func TestEightBitsOtherRanks(t *testing.T) {
	dir, before := t.TempDir(), kit.Bits(nil)
	for at, world := range []int{1, 3, 2} {
		var now kit.Bits
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			cfg := fsdp.Config{WrapPolicy: fsdp.WrapEach()}
			m, opt := eight(t, g, cfg, eightBits)
			if at == 0 {
				makeSteps(t, m, opt, 0, 3)
			} else {
				_, err := m.Load(ctx, dir, opt, nil)
				require.NoError(t, err)
			}
			all := kit.StateOfAll(t, ctx, m, opt)
			cuts := make(map[int]bool)
			for r := range world {
				own := []int64{0}
				for _, p := range m.Params() {
					if p.Name == "b.w" {
						own[0] = int64(p.Offset / 256)
					}
				}
				require.NoError(t, g.Broadcast(comm.Of(own), r).Wait(ctx))
				cuts[int(own[0])] = true
			}
			if before != nil {
				for i, x := range all["exp_avg:b.w"] {
					want := before["exp_avg:b.w"][i]
					if !cuts[i/256] && at == 1 {
						require.Equal(t, want, x, "element %d of 3 ranks", i)
					}
					require.InDelta(t, math.Float32frombits(uint32(want)), math.Float32frombits(uint32(x)), 0.01)
				}
				wideModel, wide := eight(t, g, cfg, optim.AdamW{})
				_, err := wideModel.Load(ctx, dir, wide, nil)
				require.NoError(t, err)
				kit.RequireSameBits(t, before, kit.StateOfAll(t, ctx, wideModel, wide), "8 bits in 32")
				again, next := eight(t, g, cfg, eightBits)
				full, err := wideModel.OptimStateDict(ctx, wide, nil)
				require.NoError(t, err)
				require.NoError(t, again.LoadOptimStateDict(ctx, 0, next, full, nil))
				kit.RequireSameBits(t, all, kit.StateOfAll(t, ctx, again, next), "32 bits in 8")
			}
			require.NoError(t, m.Save(ctx, dir, opt, nil))
			require.NoError(t, m.Close()) // and gives up the directory
			if g.Rank() == 0 {
				now = all
			}
		})
		before = now
	}
}

// TestEightBitsFreeze unfreezes nothing and freezes one parameter: the state of the others is
// handed over, and makes the same blocks of what is cut as before.
func TestEightBitsFreeze(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m, opt := eight(t, g, fsdp.Config{WrapPolicy: fsdp.WrapEach()}, eightBits)
		makeSteps(t, m, opt, 0, 2)
		want := kit.StateOfAll(t, ctx, m, opt)
		kept, err := m.Freeze(ctx, func(name string) bool { return name == "a.b" }, opt)
		require.NoError(t, err)
		next, err := eightBits.New(m.Params())
		require.NoError(t, err)
		require.NoError(t, next.Adopt(opt.Steps(), kept))
		got := kit.StateOfAll(t, ctx, m, next)
		require.Equal(t, want["exp_avg:b.w"], got["exp_avg:b.w"])
		require.Equal(t, want["exp_avg_sq:b.w"], got["exp_avg_sq:b.w"])
		require.NotContains(t, got, "exp_avg:a.b")
	})
}

// TestEightBitsOnOneRank: ranks hear of it by name, from the next pass and from what collects state.
func TestEightBitsOnOneRank(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g})
		c := optim.AdamW{}
		if g.Rank() == 1 {
			c.Rules = []optim.Rule{{Match: func(p optim.Param) bool { return p.Name == "wte.weight" }, Bits: new(8)}}
		}
		opt, err := c.New(m.Params())
		require.NoError(t, err)
		kit.ForwardBackward(t, ctx, m, kit.TinyBatch(0, g.Rank(), 2, kit.TinyContext))
		require.NoError(t, opt.Step(0.1))
		m.ZeroGrad()
		_, err = m.Forward(ctx, kit.TinyBatch(1, g.Rank(), 2, kit.TinyContext)...)
		require.ErrorContains(t, err, "rank 0 has AdamW, rank 1 has AdamW8bit (parameter wte.weight, 1 in all)")
	})
	dir := t.TempDir()
	for call, collect := range map[string]func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer) error{
		"OptimStateDict": func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer) error {
			_, err := m.OptimStateDict(ctx, opt, nil)
			return err
		},
		"Save": func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer) error {
			return m.Save(ctx, dir, opt, nil)
		},
		"SaveAsync": func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer) error {
			_, err := m.SaveAsync(ctx, dir, opt, nil)
			return err
		},
	} {
		errs := kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
			c := eightBits
			if g.Rank() == 1 {
				c.Bits = 0
			}
			m, opt := eight(t, g, fsdp.Config{}, c)
			return collect(ctx, m, opt)
		})
		for rank, err := range errs {
			require.ErrorContains(t, err, fmt.Sprintf("fsdp: rank %d: %s: optimizers differ between ranks, so give all ranks the same optimizer: parameter b.w: rank 0 has exp_avg in 8 bits after 0 updates, "+
				"exp_avg_sq in 8 bits after 0 updates, rank 1 has exp_avg after 0 updates", rank, strings.TrimSuffix(call, "Async")))
		}
	}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, files, "nothing is written")
}

// TestFewerBitsMemory compares what plan and count say with 32 bits: of state, and of the copy that
// SaveAsync makes of it.
func TestFewerBitsMemory(t *testing.T) {
	model := &nn.GPT{Vocab: kit.TinyVocab, Context: kit.TinyContext, Layers: 2, Dim: 64, Heads: 2}
	dir := t.TempDir()
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		var plans [3]*fsdp.Plan
		for i, bits := range []int{0, 8, 16} {
			m := kit.Wrap(t, model, fsdp.Config{Group: g})
			before := m.Memory().Live
			opt, err := optim.AdamW{Bits: bits}.New(m.Params())
			require.NoError(t, err)
			v, err := m.SaveAsync(ctx, filepath.Join(dir, []string{"wide", "8", "16"}[i]), opt, nil)
			require.NoError(t, err)
			require.NoError(t, v.Wait(ctx))
			plans[i], err = m.Plan(kit.TinyBatch(0, g.Rank(), 2, kit.TinyContext)...)
			require.NoError(t, err)
			require.Equal(t, plans[i].StateBytes+plans[i].SnapshotBytes, m.Memory().Live-before)
			require.NoError(t, m.Close())
		}
		large := 0 // elements of this rank that have fewer bits
		m := kit.Wrap(t, model, fsdp.Config{Group: g})
		for _, p := range m.Params() {
			if n := p.Shape[0] * p.Shape[len(p.Shape)-1]; len(p.Shape) == 2 && n >= 4096 {
				large += p.Value.Len()
			}
		}
		for i, perElement := range []float64{1: 2.03125, 2: 4} {
			saved := plans[0].StateBytes - plans[i].StateBytes
			if i > 0 {
				require.InDelta(t, 8-perElement, float64(saved)/float64(large), 0.01, "bytes an element")
			}
			require.Equal(t, saved, plans[0].SnapshotBytes-plans[i].SnapshotBytes)
		}
	})
}

// TestEightBitsTrain trains a GPT with every strategy, and compares the loss in the end with that of
// state in 32 bits. All parameters are in 8 bits, small ones included.
func TestEightBitsTrain(t *testing.T) {
	model := &nn.GPT{Vocab: kit.TinyVocab, Context: kit.TinyContext, Layers: 2, Dim: 32, Heads: 2}
	train := func(bits int, strategy fsdp.Strategy, world int) (last float64) {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			cfg := fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Strategy: strategy, Seed: 5}
			if strategy == fsdp.HybridShard {
				cfg.ShardRanks = 1
			}
			m := kit.Wrap(t, model, cfg)
			rules := []optim.Rule{{Match: func(optim.Param) bool { return true }, Bits: new(bits)}}
			opt, err := optim.AdamW{WeightDecay: 0.1, Rules: rules}.New(m.Params())
			require.NoError(t, err)
			for step := range 60 {
				loss := kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step%4, 0, 2, kit.TinyContext))
				if g.Rank() == 0 {
					last = loss
				}
				require.NoError(t, opt.Step(3e-3))
				m.ZeroGrad()
			}
		})
		return last
	}
	want := train(0, fsdp.FullShard, 2)
	const tolerance = 0.05 // nats, where the loss falls from 2.6 to 0.6
	require.InDelta(t, 0.6, want, 0.1)
	for _, strategy := range []fsdp.Strategy{fsdp.FullShard, fsdp.ShardGradOp, fsdp.NoShard, fsdp.HybridShard} {
		require.InDelta(t, want, train(8, strategy, 2), tolerance, strategy)
	}
	require.InDelta(t, want, train(8, fsdp.FullShard, 3), tolerance, "3 ranks")
}
