package fsdp_test

import (
	"context"
	"fmt"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/optim"
)

// tally counts what a rank communicates: collectives over more than one rank, of parameters and
// gradients, and the bytes that it must send in them.
type tally struct {
	gathers, reduces, allReduces int
	bytes                        int
}

// countingGroup counts, in itself and in the groups that are split from it. Agreements between the
// ranks move integers.
type countingGroup struct {
	comm.Group
	*tally
}

func (g *countingGroup) counts(b comm.Buffer) bool {
	return g.Size() > 1 && b.DType() != comm.Int64 && b.DType() != comm.Uint8
}

func (g *countingGroup) AllGather(dst, src comm.Buffer) comm.Work {
	if g.counts(dst) {
		g.gathers++
		g.bytes += len(src.Bytes()) * (g.Size() - 1)
	}
	return g.Group.AllGather(dst, src)
}

func (g *countingGroup) ReduceScatter(dst, src comm.Buffer, op comm.Op) comm.Work {
	if g.counts(dst) {
		g.reduces++
		g.bytes += len(dst.Bytes()) * (g.Size() - 1)
	}
	return g.Group.ReduceScatter(dst, src, op)
}

func (g *countingGroup) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	if g.counts(buf) {
		g.allReduces++
		g.bytes += 2 * len(buf.Bytes()) * (g.Size() - 1) / g.Size()
	}
	return g.Group.AllReduce(buf, op)
}

func (g *countingGroup) Split(ctx context.Context, color, key int) (comm.Group, error) {
	child, err := g.Group.Split(ctx, color, key)
	return &countingGroup{child, g.tally}, err
}

// take returns the counts and starts over.
func (c *tally) take() tally {
	counted := *c
	*c = tally{}
	return counted
}

// cut is a strategy and, if it is hybrid, the number of ranks that share a copy.
type cut struct {
	strategy fsdp.Strategy
	ranks    int
}

// cuts returns the ways to cut over a number of ranks.
func cuts(world int) []cut {
	list := []cut{{fsdp.FullShard, 0}, {fsdp.ShardGradOp, 0}, {fsdp.NoShard, 0}}
	for ranks := 1; ranks <= world; ranks++ {
		if world%ranks == 0 {
			list = append(list, cut{fsdp.HybridShard, ranks}, cut{fsdp.HybridGradOp, ranks}, cut{fsdp.SecondaryShard, ranks})
		}
	}
	return list
}

func (c cut) String() string { return fmt.Sprintf("%v %d", c.strategy, c.ranks) }

// over returns the number of ranks that a parameter is cut over, and of its replicas.
func (c cut) over(world int) (shards, replicas int) {
	switch c.strategy {
	case fsdp.NoShard:
		return 1, world
	case fsdp.HybridShard, fsdp.HybridGradOp:
		return c.ranks, world / c.ranks
	}
	return world, 1
}

func (c cut) twice() bool {
	return c.strategy == fsdp.FullShard || c.strategy == fsdp.HybridShard || c.strategy == fsdp.SecondaryShard
}

// again returns over how many ranks backward gathers.
func (c cut) again(world int) int {
	if shards, _ := c.over(world); c.strategy != fsdp.SecondaryShard {
		return shards
	}
	return c.ranks
}

// pass returns what a pass over a chain of blocks between the calls of a root unit takes, by the
// formulas in the documentation of Strategy. root and block are the bytes of a unit.
func (c cut) pass(world, blocks, prefetch, root, block int) (forward, backward tally) {
	shards, replicas := c.over(world)
	again := 0
	if shards > 1 {
		forward.gathers = 1 + blocks
		if c.twice() {
			again = max(0, blocks-1-(prefetch+1)/2)
		}
		backward.reduces = 1 + blocks
	}
	if replicas > 1 {
		backward.allReduces = 1 + blocks
	}
	forward.bytes = (root + blocks*block) / shards * (shards - 1)
	if c.again(world) > 1 {
		backward.gathers = again
	}
	backward.bytes = backward.gathers*block/c.again(world)*(c.again(world)-1) + c.sum(world, root) + blocks*c.sum(world, block)
	return forward, backward
}

// sum returns the bytes that a rank sends to sum the gradients of a unit.
func (c cut) sum(world, bytes int) int {
	shards, replicas := c.over(world)
	return bytes/shards*(shards-1) + 2*bytes/shards*(replicas-1)/replicas
}

// TestCounts compares the collectives of training passes and evaluations, and their bytes, with the
// plan and with the formulas.
func TestCounts(t *testing.T) {
	for world := 1; world <= 4; world++ {
		for _, c := range cuts(world) {
			t.Run(fmt.Sprintf("%v/%d ranks", c, world), func(t *testing.T) {
				for layers := 1; layers <= 5; layers++ {
					for prefetch := range 4 {
						requireCounts(t, world, c, layers, prefetch, nil)
					}
				}
				requireCounts(t, world, c, 5, 1, blocks) // a block that is computed twice is gathered no more often
			})
		}
	}
}

func requireCounts(t *testing.T, world int, c cut, layers, prefetch int, checkpoint fsdp.Policy) {
	onRanks(t, world, func(ctx context.Context, g comm.Group) {
		counting := &countingGroup{g, &tally{}}
		cfg := fsdp.Config{Group: counting, Wrap: blocks, Strategy: c.strategy, ShardRanks: c.ranks, Prefetch: prefetch, Checkpoint: checkpoint}
		if prefetch == 0 {
			cfg.Prefetch = fsdp.NoPrefetch
		}
		m := wrap(t, tinyGPT(layers), cfg)
		defer m.Close()
		batch := tinyBatch(0, g.Rank(), 1, 2)
		plan, err := m.Plan(batch...)
		require.NoError(t, err)
		forward, backward := c.pass(world, layers, prefetch, plan.Groups[0].Bytes, plan.Groups[1].Bytes)
		both := tally{
			forward.gathers + backward.gathers, backward.reduces, backward.allReduces, forward.bytes + backward.bytes,
		}
		at := fmt.Sprintf("%d blocks, prefetch %d", layers, prefetch)
		require.Equal(t, both, tally{plan.Gathers, plan.Reduces, plan.AllReduces, plan.Traffic}, "plan of %s", at)

		counting.take()
		forwardBackward(t, ctx, m, batch)
		require.Equal(t, both, counting.take(), "pass of %s", at)
		_, err = m.Eval(ctx, batch...)
		require.NoError(t, err)
		require.Equal(t, forward, counting.take(), "evaluation of %s", at)
	})
}

// TestCountsOfAccumulation: every Backward reduces but those inside NoSync, whose gradients go with
// the next outside or with SyncGrads, at once. The gathers are the same.
func TestCountsOfAccumulation(t *testing.T) {
	const world, layers, prefetch = 4, 3, 1
	for _, c := range cuts(world) {
		t.Run(c.String(), func(t *testing.T) {
			onRanks(t, world, func(ctx context.Context, g comm.Group) {
				counting := &countingGroup{g, &tally{}}
				m := wrap(t, tinyGPT(layers), fsdp.Config{Group: counting, Wrap: blocks, Strategy: c.strategy, ShardRanks: c.ranks})
				batch := tinyBatch(0, g.Rank(), 1, 2)
				plan, err := m.Plan(batch...)
				require.NoError(t, err)
				root, block := plan.Groups[0].Bytes, plan.Groups[1].Bytes
				forward, backward := c.pass(world, layers, prefetch, root, block)
				gathers := forward.gathers + backward.gathers
				reduced := c.sum(world, root) + layers*c.sum(world, block)

				counting.take()
				for range 3 {
					require.NoError(t, m.NoSync(func() error {
						inside, err := m.Plan(batch...)
						require.NoError(t, err)
						require.Equal(t, []int{gathers, 0, 0, plan.Traffic - reduced}, []int{inside.Gathers, inside.Reduces, inside.AllReduces, inside.Traffic})
						forwardBackward(t, ctx, m, batch)
						return nil
					}))
				}
				counted := counting.take()
				require.Equal(t, tally{gathers: 3 * gathers, bytes: 3 * (plan.Traffic - reduced)}, counted)
				forwardBackward(t, ctx, m, batch)
				require.Equal(t, tally{gathers, plan.Reduces, plan.AllReduces, plan.Traffic}, counting.take())

				require.NoError(t, m.NoSync(func() error { forwardBackward(t, ctx, m, batch); return nil }))
				counting.take()
				require.NoError(t, m.SyncGrads(ctx))
				require.Equal(t, tally{0, plan.Reduces, plan.AllReduces, reduced}, counting.take())
				require.NoError(t, m.SyncGrads(ctx))
				require.Equal(t, tally{}, counting.take(), "there is nothing left to reduce")
			})
		})
	}
}

// TestCountsOfFrozen: with the root unit and the first blocks frozen, backward ends at the first
// block that is trained, and only what is trained is reduced.
func TestCountsOfFrozen(t *testing.T) {
	const world, layers, prefetch = 4, 5, 1
	for _, c := range []cut{{fsdp.FullShard, 0}, {fsdp.ShardGradOp, 0}, {fsdp.NoShard, 0}, {fsdp.HybridShard, 2}, {fsdp.SecondaryShard, 2}} {
		for frozen := range layers {
			t.Run(fmt.Sprintf("%v/%d blocks", c, frozen), func(t *testing.T) {
				onRanks(t, world, func(ctx context.Context, g comm.Group) {
					counting := &countingGroup{g, &tally{}}
					m := wrap(t, tinyGPT(layers), fsdp.Config{
						Group: counting, Wrap: blocks, Strategy: c.strategy, ShardRanks: c.ranks,
						Frozen: func(name string) bool {
							var block int
							n, _ := fmt.Sscanf(name, "blocks.%d.", &block)
							return n == 0 || block < frozen
						},
					})
					batch := tinyBatch(0, g.Rank(), 1, 2)
					plan, err := m.Plan(batch...)
					require.NoError(t, err)
					root, block := plan.Groups[0].Bytes, plan.Groups[1].Bytes
					want, _ := c.pass(world, layers, prefetch, root, block)
					_, backward := c.pass(world, layers-frozen, prefetch, root, block)
					want.gathers += backward.gathers
					want.bytes += backward.bytes - c.sum(world, root)
					want.reduces, want.allReduces = max(0, backward.reduces-1), max(0, backward.allReduces-1)
					counting.take()
					forwardBackward(t, ctx, m, batch)
					require.Equal(t, want, counting.take())
					require.Equal(t, want, tally{plan.Gathers, plan.Reduces, plan.AllReduces, plan.Traffic})
				})
			})
		}
	}
}

// TestTraffic16 checks that what travels in 16 bits is half of what it was, and that what is kept
// in full is not.
func TestTraffic16(t *testing.T) {
	for _, c := range cuts(4) {
		t.Run(c.String(), func(t *testing.T) {
			onRanks(t, 4, func(ctx context.Context, g comm.Group) {
				batch := tinyBatch(0, g.Rank(), 1, 2)
				sent := func(p fsdp.Precision) int {
					counting := &countingGroup{g, &tally{}}
					m := wrap(t, tinyGPT(2), fsdp.Config{Group: counting, Wrap: blocks, Strategy: c.strategy, ShardRanks: c.ranks, Precision: p})
					plan, err := m.Plan(batch...)
					require.NoError(t, err)
					counting.take()
					forwardBackward(t, ctx, m, batch)
					counted := counting.take()
					require.Equal(t, tally{plan.Gathers, plan.Reduces, plan.AllReduces, plan.Traffic}, counted)
					return counted.bytes
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
		for _, c := range cuts(world) {
			onRanks(t, world, func(ctx context.Context, g comm.Group) {
				m := wrap(t, tinyGPT(3), fsdp.Config{Group: g, Wrap: blocks, Strategy: c.strategy, ShardRanks: c.ranks})
				_, err := optim.AdamW{}.New(m.Shards())
				require.NoError(t, err)
				plan, err := m.Plan(good(0)...)
				require.NoError(t, err)
				shards, _ := c.over(world)
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

				forwardBackward(t, ctx, m, good(g.Rank()))
				require.Equal(t, plan.ShardBytes+plan.StateBytes, m.Memory().Live, "after a pass")
			})
		}
	}
}

// peakPrecisions are those of TestPeak.
var peakPrecisions = map[string]fsdp.Precision{
	"float32":  {},
	"float64":  float64s,
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
			for _, c := range cuts(world) {
				t.Run(fmt.Sprintf("%s/%v/%d ranks", name, c, world), func(t *testing.T) {
					onRanks(t, world, func(ctx context.Context, g comm.Group) {
						m := wrap(t, tinyGPT(3), fsdp.Config{
							Group: g, Wrap: blocks, Strategy: c.strategy, ShardRanks: c.ranks, Precision: precision, Poison: true,
							Frozen: func(name string) bool { return name == "blocks.1.qkv.weight" },
						})
						requirePeaks(t, ctx, m, g.Rank())
					})
				})
			}
		}
	}
}

// requirePeaks runs passes of all kinds.
func requirePeaks(t require.TestingT, ctx context.Context, m *fsdp.Sharded, rank int) {
	between := m.Memory().Live // of shards and whatever is kept between two steps
	pass := func(label string, beside int) {
		batch := tinyBatch(0, rank, 2, 3)
		plan, err := m.Plan(batch...)
		require.NoError(t, err)
		m.ResetPeak()
		forwardBackward(t, ctx, m, batch)
		require.Equal(t, plan.Peak()+beside, m.Memory().Peak, label)
	}
	noSync := func(f func()) { require.NoError(t, m.NoSync(func() error { f(); return nil })) }

	pass("reduces", 0)
	require.Equal(t, between, m.Memory().Live)
	noSync(func() {
		pass("does not reduce", 0)
		require.Greater(t, m.Memory().Live, between, "gradients are whole")
		pass("adds and does not reduce", 0)
	})
	pass("adds and reduces", 0)
	require.Equal(t, between, m.Memory().Live)

	// a backward that turns out not to reduce
	batch := tinyBatch(1, rank, 1, 2)
	m.ResetPeak()
	_, err := m.Forward(ctx, batch...)
	require.NoError(t, err)
	noSync(func() {
		plan, err := m.Plan(batch...)
		require.NoError(t, err)
		require.NoError(t, m.Backward(ctx))
		require.Equal(t, plan.Peak(), m.Memory().Peak)
	})
	m.ZeroGrad()
	require.Equal(t, between, m.Memory().Live)

	// two forwards put aside, and a pass beside them
	var held []*fsdp.Pass
	for i := range 2 {
		_, err := m.Forward(ctx, tinyBatch(i, rank, 1+i, 3)...)
		require.NoError(t, err)
		held = append(held, m.Hold())
	}
	aside := m.Memory().Live - between
	require.Positive(t, aside)
	pass("besides passes put aside", aside)
	require.Equal(t, between+aside, m.Memory().Live)
	for _, p := range held {
		require.NoError(t, p.Backward(ctx))
	}
	require.Equal(t, between, m.Memory().Live)
	pass("after them", 0)
}
