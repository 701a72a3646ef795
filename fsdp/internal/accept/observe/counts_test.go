package observe_test

import (
	"context"
	"fmt"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// TestCounts compares the collectives of training passes and evaluations, and their bytes, with the
// plan and with the formulas.
func TestCounts(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	for world := 1; world <= 4; world++ {
		for _, c := range kit.Cuts(world) {
			t.Run(fmt.Sprintf("%v/%d ranks", c, world), func(t *testing.T) {
				for layers := 1; layers <= 5; layers++ {
					for prefetch := range 4 {
						requireCounts(t, world, c, layers, prefetch, nil)
					}
				}
				requireCounts(t, world, c, 5, 1, kit.Blocks) // a block that is computed twice is gathered no more often
			})
		}
	}
}

func requireCounts(t *testing.T, world int, c kit.Cut, layers, prefetch int, checkpoint fsdp.Policy) {
	kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
		counting := &kit.CountingGroup{Group: g, Tally: &kit.Tally{}}
		cfg := fsdp.Config{Group: counting, WrapPolicy: kit.Blocks, Strategy: c.Strategy, ShardRanks: c.Ranks, Prefetch: prefetch, Activations: fsdp.Activations{Recompute: checkpoint}}
		if prefetch == 0 {
			cfg.Prefetch = fsdp.NoPrefetch
		}
		m := kit.Wrap(t, kit.TinyGPT(layers), cfg)
		defer m.Close()
		batch := kit.TinyBatch(0, g.Rank(), 1, 2)
		plan, err := m.Plan(batch...)
		require.NoError(t, err)
		forward, backward := c.Pass(world, layers, prefetch, plan.Groups[0].Bytes, plan.Groups[1].Bytes)
		both := kit.Tally{
			Gathers: forward.Gathers + backward.Gathers, Reduces: backward.Reduces, AllReduces: backward.AllReduces, Bytes: forward.Bytes + backward.Bytes,
		}
		at := fmt.Sprintf("%d blocks, prefetch %d", layers, prefetch)
		require.Equal(t, both, kit.Tally{Gathers: plan.Gathers, Reduces: plan.Reduces, AllReduces: plan.AllReduces, Bytes: plan.Traffic}, "plan of %s", at)

		counting.Take()
		kit.ForwardBackward(t, ctx, m, batch)
		require.Equal(t, both, counting.Take(), "pass of %s", at)
		_, err = m.Eval(ctx, batch...)
		require.NoError(t, err)
		require.Equal(t, forward, counting.Take(), "evaluation of %s", at)
	})
}

// TestCountsOfAccumulation: every Backward reduces but those inside NoSync, whose gradients go with
// the next outside or with SyncGrads, at once. The gathers are the same.
func TestCountsOfAccumulation(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	const world, layers, prefetch = 4, 3, 1
	for _, c := range kit.Cuts(world) {
		t.Run(c.String(), func(t *testing.T) {
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				counting := &kit.CountingGroup{Group: g, Tally: &kit.Tally{}}
				m := kit.Wrap(t, kit.TinyGPT(layers), fsdp.Config{Group: counting, WrapPolicy: kit.Blocks, Strategy: c.Strategy, ShardRanks: c.Ranks})
				batch := kit.TinyBatch(0, g.Rank(), 1, 2)
				plan, err := m.Plan(batch...)
				require.NoError(t, err)
				root, block := plan.Groups[0].Bytes, plan.Groups[1].Bytes
				forward, backward := c.Pass(world, layers, prefetch, root, block)
				gathers := forward.Gathers + backward.Gathers
				reduced := c.Sum(world, root) + layers*c.Sum(world, block)

				counting.Take()
				for range 3 {
					require.NoError(t, m.NoSync(func() error {
						inside, err := m.Plan(batch...)
						require.NoError(t, err)
						require.Equal(t, []int{gathers, 0, 0, plan.Traffic - reduced}, []int{inside.Gathers, inside.Reduces, inside.AllReduces, inside.Traffic})
						kit.ForwardBackward(t, ctx, m, batch)
						return nil
					}))
				}
				counted := counting.Take()
				require.Equal(t, kit.Tally{Gathers: 3 * gathers, Bytes: 3 * (plan.Traffic - reduced)}, counted)
				kit.ForwardBackward(t, ctx, m, batch)
				require.Equal(t, kit.Tally{Gathers: gathers, Reduces: plan.Reduces, AllReduces: plan.AllReduces, Bytes: plan.Traffic}, counting.Take())

				require.NoError(t, m.NoSync(func() error { kit.ForwardBackward(t, ctx, m, batch); return nil }))
				counting.Take()
				require.NoError(t, m.SyncGrads(ctx))
				require.Equal(t, kit.Tally{Gathers: 0, Reduces: plan.Reduces, AllReduces: plan.AllReduces, Bytes: reduced}, counting.Take())
				require.NoError(t, m.SyncGrads(ctx))
				require.Equal(t, kit.Tally{}, counting.Take(), "there is nothing left to reduce")
			})
		})
	}
}

// TestCountsOfLeaves: three ranks of four virtual ones send as much in each pass as planned, also
// the ranks that have no last batch.
func TestCountsOfLeaves(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		counting := &kit.CountingGroup{Group: g, Tally: &kit.Tally{}}
		m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: counting, WrapPolicy: kit.Blocks, VirtualRanks: 4})
		batch := kit.TinyBatch(0, 0, 1, 2)
		plan, err := m.Plan(batch...)
		require.NoError(t, err)
		counting.Take()
		for pass := range 2 {
			if pass == 1 && g.Rank() > 0 {
				batch = nil
			}
			kit.ForwardBackward(t, ctx, m, batch)
			require.Equal(t, kit.Tally{Gathers: plan.Gathers, Reduces: plan.Reduces, AllReduces: 0, Bytes: plan.Traffic}, counting.Take())
		}
		require.NoError(t, m.Close())
	})
}

// TestCountsOfFrozen: with the root unit and the first blocks frozen, backward ends at the first
// block that is trained, and only what is trained is reduced.
func TestCountsOfFrozen(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	const world, layers, prefetch = 4, 5, 1
	for _, c := range []kit.Cut{{Strategy: fsdp.FullShard, Ranks: 0}, {Strategy: fsdp.ShardGradOp, Ranks: 0}, {Strategy: fsdp.NoShard, Ranks: 0}, {Strategy: fsdp.HybridShard, Ranks: 2}, {Strategy: fsdp.SecondaryShard, Ranks: 2}} {
		for frozen := range layers {
			t.Run(fmt.Sprintf("%v/%d blocks", c, frozen), func(t *testing.T) {
				kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
					counting := &kit.CountingGroup{Group: g, Tally: &kit.Tally{}}
					m := kit.Wrap(t, kit.TinyGPT(layers), fsdp.Config{
						Group: counting, WrapPolicy: kit.Blocks, Strategy: c.Strategy, ShardRanks: c.Ranks,
						Frozen: func(name string) bool {
							var block int
							n, _ := fmt.Sscanf(name, "blocks.%d.", &block)
							return n == 0 || block < frozen
						},
					})
					batch := kit.TinyBatch(0, g.Rank(), 1, 2)
					plan, err := m.Plan(batch...)
					require.NoError(t, err)
					root, block := plan.Groups[0].Bytes, plan.Groups[1].Bytes
					want, _ := c.Pass(world, layers, prefetch, root, block)
					_, backward := c.Pass(world, layers-frozen, prefetch, root, block)
					want.Gathers += backward.Gathers
					want.Bytes += backward.Bytes - c.Sum(world, root)
					want.Reduces, want.AllReduces = max(0, backward.Reduces-1), max(0, backward.AllReduces-1)
					counting.Take()
					kit.ForwardBackward(t, ctx, m, batch)
					require.Equal(t, want, counting.Take())
					require.Equal(t, want, kit.Tally{Gathers: plan.Gathers, Reduces: plan.Reduces, AllReduces: plan.AllReduces, Bytes: plan.Traffic})
				})
			})
		}
	}
}

// TestTraffic16 checks that what travels in 16 bits is half of what it was, and that what is kept
// in full is not.
func TestTraffic16(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	for _, c := range kit.Cuts(4) {
		t.Run(c.String(), func(t *testing.T) {
			kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
				batch := kit.TinyBatch(0, g.Rank(), 1, 2)
				sent := func(p fsdp.Precision) int {
					counting := &kit.CountingGroup{Group: g, Tally: &kit.Tally{}}
					m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: counting, WrapPolicy: kit.Blocks, Strategy: c.Strategy, ShardRanks: c.Ranks, Precision: p})
					plan, err := m.Plan(batch...)
					require.NoError(t, err)
					counting.Take()
					kit.ForwardBackward(t, ctx, m, batch)
					counted := counting.Take()
					require.Equal(t, kit.Tally{Gathers: plan.Gathers, Reduces: plan.Reduces, AllReduces: plan.AllReduces, Bytes: plan.Traffic}, counted)
					return counted.Bytes
				}
				full := func(all bool) func(fsdp.CallInfo, fsdp.Param) bool {
					return func(fsdp.CallInfo, fsdp.Param) bool { return all }
				}
				whole := sent(fsdp.Precision{})
				require.Equal(t, whole, 2*sent(fsdp.Precision{Gather: fsdp.BFloat16, Reduce: fsdp.Float16, Full: full(false)}))
				require.Equal(t, whole, sent(fsdp.Precision{Gather: fsdp.BFloat16, Reduce: fsdp.Float16, Full: full(true)}))
			})
		})
	}
}

// TestLiveMemory compares what a rank holds between steps with the formulas: with AdamW four
// numbers for every parameter that it owns. Padding rounds every parameter up to 16 elements, and
// every shard.
func TestLiveMemory(t *testing.T) {
	for world := 1; world <= 4; world++ {
		for _, c := range kit.Cuts(world) {
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, kit.TinyGPT(3), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Strategy: c.Strategy, ShardRanks: c.Ranks})
				_, err := optim.AdamW{}.New(m.Params())
				require.NoError(t, err)
				plan, err := m.Plan(kit.GoodBatch(0)...)
				require.NoError(t, err)
				shards, _ := c.Over(world)
				params, padded := 0, 0
				for _, g := range plan.Groups {
					params += g.Params
					padded += g.Bytes
				}
				require.Equal(t, 2*padded/shards, plan.ShardBytes)
				require.Equal(t, plan.ShardBytes+plan.StateBytes, m.Memory().Live)
				padding := 4*16*params/shards + 4*16*len(plan.Groups)
				require.LessOrEqual(t, padded/shards, 4*plan.Params/shards+padding, "%v", c)
				require.GreaterOrEqual(t, padded/shards, 4*plan.Params/shards, "%v", c)
				require.InDelta(t, 2*4*plan.Params/shards, plan.StateBytes, float64(2*padding), "state is not padded, but not all ranks own the same")

				kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
				require.Equal(t, plan.ShardBytes+plan.StateBytes, m.Memory().Live, "after a pass")
			})
		}
	}
}

// peakPrecisions are those of TestPeak.
var peakPrecisions = map[string]fsdp.Precision{
	"float32":  {},
	"float64":  kit.Float64s,
	"bfloat16": {Gather: fsdp.BFloat16, Reduce: fsdp.BFloat16},
	"float16":  {Reduce: fsdp.Float16},
	"computes": fsdp.BF16(),
	"some do":  {Compute: fsdp.BFloat16, Reduce: fsdp.BFloat16, Wide: fsdp.WrapNames(regexp.MustCompile(`^blocks\.1$`))},
}

// TestPeak checks that counted memory peaks where the plan says: under every strategy and
// precision, for passes that reduce, that do not, that add to gradients which are not reduced, and
// that run while others are put aside.
func TestPeak(t *testing.T) {
	for name, precision := range peakPrecisions {
		for _, world := range []int{1, 2, 4} {
			for _, c := range kit.Cuts(world) {
				t.Run(fmt.Sprintf("%s/%v/%d ranks", name, c, world), func(t *testing.T) {
					kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
						m := kit.Wrap(t, kit.TinyGPT(3), fsdp.Config{
							Group: g, WrapPolicy: kit.Blocks, Strategy: c.Strategy, ShardRanks: c.Ranks, Precision: precision, Poison: true,
							Frozen: func(name string) bool { return name == "blocks.1.qkv.weight" },
						})
						kit.RequirePeaks(t, ctx, m, g.Rank())
					})
				})
			}
		}
	}
}
