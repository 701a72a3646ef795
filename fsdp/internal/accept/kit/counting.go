package kit

import (
	"context"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
)

// Tally counts a rank's communication: collectives of parameters and gradients over more than one
// rank, and the bytes that the rank must send in them.
type Tally struct {
	Gathers, Reduces, AllReduces int
	Bytes                        int
}

// CountingGroup counts its own collectives and those in groups that are split from it. Agreements
// between the ranks send integers.
type CountingGroup struct {
	comm.Group
	*Tally
}

func (g *CountingGroup) counts(b comm.Buffer) bool {
	return g.Size() > 1 && b.DType() != comm.Int64 && b.DType() != comm.Uint8
}

// AllGather implements comm.Group.
func (g *CountingGroup) AllGather(dst, src comm.Buffer) comm.Work {
	if g.counts(dst) {
		g.Gathers++
		g.Bytes += len(src.Bytes()) * (g.Size() - 1)
	}
	return g.Group.AllGather(dst, src)
}

// ReduceScatter implements comm.Group.
func (g *CountingGroup) ReduceScatter(dst, src comm.Buffer, op comm.Op) comm.Work {
	if g.counts(dst) {
		g.Reduces++
		g.Bytes += len(dst.Bytes()) * (g.Size() - 1)
	}
	return g.Group.ReduceScatter(dst, src, op)
}

// AllToAll implements comm.Group. It carries gradients like a ReduceScatter.
func (g *CountingGroup) AllToAll(dst, src comm.Buffer) comm.Work {
	if g.counts(dst) {
		g.Reduces++
		g.Bytes += len(dst.Bytes()) / g.Size() * (g.Size() - 1)
	}
	return g.Group.AllToAll(dst, src)
}

// AllReduce implements comm.Group.
func (g *CountingGroup) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	if g.counts(buf) {
		g.AllReduces++
		g.Bytes += 2 * len(buf.Bytes()) * (g.Size() - 1) / g.Size()
	}
	return g.Group.AllReduce(buf, op)
}

// Split implements comm.Group.
func (g *CountingGroup) Split(ctx context.Context, color, key int) (comm.Group, error) {
	child, err := g.Group.Split(ctx, color, key)
	return &CountingGroup{child, g.Tally}, err
}

// Take returns the counts and starts over.
func (c *Tally) Take() Tally {
	counted := *c
	*c = Tally{}
	return counted
}

// Cut is a strategy and, if it is hybrid, the number of ranks that share a copy.
type Cut struct {
	Strategy fsdp.Strategy
	Ranks    int
}

// Cuts returns the ways to shard over a number of ranks.
func Cuts(world int) []Cut {
	list := []Cut{{fsdp.FullShard, 0}, {fsdp.ShardGradOp, 0}, {fsdp.NoShard, 0}}
	for ranks := 1; ranks <= world; ranks++ {
		if world%ranks == 0 {
			list = append(list, Cut{fsdp.HybridShard, ranks}, Cut{fsdp.HybridGradOp, ranks}, Cut{fsdp.SecondaryShard, ranks})
		}
	}
	return list
}

// String implements fmt.Stringer.
func (c Cut) String() string { return fmt.Sprintf("%v %d", c.Strategy, c.Ranks) }

// Over returns the number of ranks that a parameter is sharded over, and the number of its
// replicas.
func (c Cut) Over(world int) (shards, replicas int) {
	switch c.Strategy {
	case fsdp.NoShard:
		return 1, world
	case fsdp.HybridShard, fsdp.HybridGradOp:
		return c.Ranks, world / c.Ranks
	}
	return world, 1
}

func (c Cut) twice() bool {
	return c.Strategy == fsdp.FullShard || c.Strategy == fsdp.HybridShard || c.Strategy == fsdp.SecondaryShard
}

// again returns the number of ranks over which backward gathers.
func (c Cut) again(world int) int {
	if shards, _ := c.Over(world); c.Strategy != fsdp.SecondaryShard {
		return shards
	}
	return c.Ranks
}

// Pass returns the communication of a pass over a chain of blocks between the calls of a root unit,
// by the formulas in the documentation of Strategy. root and block are the bytes of a unit.
func (c Cut) Pass(world, blocks, prefetch, root, block int) (forward, backward Tally) {
	shards, replicas := c.Over(world)
	again := 0
	if shards > 1 {
		forward.Gathers = 1 + blocks
		if c.twice() {
			again = max(0, blocks-1-(prefetch+1)/2)
		}
		backward.Reduces = 1 + blocks
	}
	if replicas > 1 {
		backward.AllReduces = 1 + blocks
	}
	forward.Bytes = (root + blocks*block) / shards * (shards - 1)
	if c.again(world) > 1 {
		backward.Gathers = again
	}
	backward.Bytes = backward.Gathers*block/c.again(world)*(c.again(world)-1) + c.Sum(world, root) + blocks*c.Sum(world, block)
	return forward, backward
}

// Sum returns the bytes that a rank sends to sum the gradients of a unit.
func (c Cut) Sum(world, bytes int) int {
	shards, replicas := c.Over(world)
	return bytes/shards*(shards-1) + 2*bytes/shards*(replicas-1)/replicas
}

// RequirePeaks runs passes of all kinds.
func RequirePeaks(t require.TestingT, ctx context.Context, m *fsdp.Sharded, rank int) {
	between := m.Memory().Live // shards and everything else that is kept between two steps
	pass := func(label string, beside int) {
		batch := TinyBatch(0, rank, 2, 3)
		plan, err := m.Plan(batch...)
		require.NoError(t, err)
		m.ResetPeak()
		ForwardBackward(t, ctx, m, batch)
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
	batch := TinyBatch(1, rank, 1, 2)
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

	// two forwards put aside, and another pass meanwhile
	var held []*fsdp.Pass
	for i := range 2 {
		_, err := m.Forward(ctx, TinyBatch(i, rank, 1+i, 3)...)
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
