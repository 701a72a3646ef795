package gpu

import (
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/nccl"
)

// # Sums of virtual ranks
//
// With engine.Options.Passes gradients are summed in one tree: see the tree over the passes of a
// step. NCCL sums in another order, which depends on the number of ranks. So each rank receives the
// gradients of its part from the other ranks, into scratch memory, and adds them in the order of
// the tree. An all-reduce then gathers the parts. All of this runs in wire. Only gradients that a
// pass inside NoSync leaves are rounded and merged in work, where the pass has written them.

// Turn implements engine's turner.
func (s *shards) Turn(t engine.Turn, before func(*layout.Group) float32) {
	s.turn, s.before = t, before
}

// SumWork implements engine.Device.
func (d *Device) SumWork(g *layout.Group) (reduce, sync int) { return sumWork(g) }

// SumWork implements engine.Device.
func (d *dry) SumWork(g *layout.Group) (reduce, sync int) { return sumWork(g) }

// sumWork returns the bytes of scratch memory for the sums of a group.
func sumWork(g *layout.Group) (reduce, sync int) {
	r := &g.Ranks
	if r.Shards > 1 {
		reduce = (r.Shards - 1) * g.Flat.ShardLen() * g.Reduce.Size()
		if r.Replicas > 1 {
			sync = (r.Replicas - 1) * part(g.Flat.ShardLen(), r.Replicas) * g.Reduce.Size()
		}
	} else if r.Replicas > 1 {
		reduce = (r.Replicas - 1) * part(g.Flat.Len(), r.Replicas) * g.Reduce.Size()
	}
	return reduce, sync
}

// part returns how many of n elements each of some ranks adds. The last ranks may add fewer.
func part(n, ranks int) int {
	const align = 64
	return ((n+ranks-1)/ranks + align - 1) / align * align
}

// A sum is the exchange of elements of type t among the ranks of a link. Rank r adds the elements
// [r·part, (r+1)·part) of the n elements at full.
type sum struct {
	g             *group
	link          *link
	full, scratch uintptr
	part, n       int
}

// from and len return the address of the elements that a rank adds, and their number.
func (x *sum) from(rank int) uintptr { return x.full + uintptr(rank*x.part*x.g.Reduce.Size()) }
func (x *sum) len(rank int) int      { return max(0, min(x.part, x.n-rank*x.part)) }

// exchange sends to each other rank what send returns for it, and receives what receive returns.
// The sends and receives are together the collective of a kind.
func (x *sum) exchange(kind nccl.Kind, at engine.Place, send, receive func(rank int) (uintptr, int)) error {
	t := types[x.g.Reduce]
	var ops []nccl.Op
	for r := range x.link.comm.Size() {
		if r == x.link.comm.Rank() {
			continue
		}
		if from, n := send(r); n > 0 {
			ops = append(ops, nccl.Op{Kind: nccl.Send, Send: from, Count: n, Type: t, Peer: r})
		}
		if to, n := receive(r); n > 0 {
			ops = append(ops, nccl.Op{Kind: nccl.Recv, Recv: to, Count: n, Type: t, Peer: r})
		}
	}
	if err := x.g.d.links.enqueue(x.link, nccl.Op{Kind: kind, Count: x.part, Type: t}, at, x.g.Name, ops...); err != nil {
		return err
	}
	return x.g.d.links.launch()
}

// run leaves the sums of this rank's elements in place. If all is true, every rank gets all sums.
func (x *sum) run(at engine.Place, all bool) error {
	if x.n == 0 {
		return x.g.d.err()
	}
	me := x.link.comm.Rank()
	own, n := x.from(me), x.len(me)
	theirs := func(r int) (uintptr, int) { return x.from(r), x.len(r) }
	err := x.exchange(nccl.ReduceScatter, at, theirs, func(r int) (uintptr, int) {
		if r > me {
			r--
		}
		return x.scratch + uintptr(r*x.part*x.g.Reduce.Size()), n
	})
	if err == nil && n > 0 {
		err = x.g.launch(x.g.kernels.tree, (n+255)/256, uint64(own), uint64(x.scratch), uint64(n), uint64(x.part), uint64(x.link.comm.Size()), uint64(me))
	}
	if err != nil || !all {
		return err
	}
	return x.exchange(nccl.AllGather, at, func(int) (uintptr, int) { return own, n }, theirs)
}

// reduceInTree sums the gradients in full like the collective that startReduce returns.
func (g *group) reduceInTree(full, scratch uintptr, at engine.Place) error {
	switch {
	case g.shard != nil:
		return (&sum{g, g.shard, full, scratch, g.Flat.ShardLen(), g.Flat.Len()}).run(at, false)
	case g.replica != nil:
		return (&sum{g, g.replica, full, scratch, part(g.Flat.Len(), g.replica.comm.Size()), g.Flat.Len()}).run(at, true)
	}
	return g.d.err()
}

// syncInTree sums this rank's range of the gradients over the replicas.
func (g *group) syncInTree(full, scratch uintptr, at engine.Place) error {
	n := g.Flat.ShardLen()
	return (&sum{g, g.replica, g.ownAddress(full, g.Reduce), scratch, part(n, g.replica.comm.Size()), n}).run(at, true)
}

// reduceWholeInTree sums the whole gradients of a group over the ranks, in a slab that no pass
// uses.
func (g *group) reduceWholeInTree(full uintptr, before float32) error {
	first, second := sumWork(g.Group)
	n, scratch := max(first, second), uintptr(0)
	if n > 0 {
		s, err := g.d.takeSlab(n)
		if err != nil {
			return err
		}
		counted, err := g.d.counts.Alloc(n, arena.Work)
		if err != nil {
			return err
		}
		defer func() { // work runs its later operations after these, and so does a later pass
			g.d.counts.Free(counted)
			s.taken = false
		}()
		scratch = s.Addr()
	}
	err := g.lower(full, g.Compute, before)
	if err == nil {
		err = g.reduceInTree(full, scratch, engine.Place{})
	}
	if err == nil && g.Ranks.Twice() {
		err = g.syncInTree(full, scratch, engine.Place{})
	}
	return err
}

// round rounds c times n gradients to the type in which they would travel if each pass ran on a
// separate rank: see layout.Group.Round.
func (g *group) round(s *nccl.Stream, at uintptr, n int, c float32) error {
	if g.Round == g.Reduce || n == 0 {
		return g.d.err()
	}
	return g.launchIn(s, g.kernels.round, (n+255)/256, uint64(at), uint64(n), uint64(math.Float32bits(c)))
}

// merge adds to the n gradients of a leaf the sums that a turn carries.
func (g *group) merge(s *nccl.Stream, leaf uintptr, n int, sums []*block, t engine.Turn) error {
	for k, sum := range sums {
		if !t.Merges(k) || n == 0 {
			continue
		}
		if err := g.launchIn(s, g.kernels.add, (n+255)/256, uint64(leaf), uint64(sum.Addr()), uint64(n)); err != nil {
			return err
		}
	}
	return g.d.err()
}

// keep merges this rank's range of the sums of a reduction, and keeps it for later passes. It
// returns whether the step is over: then own is the sum.
func (s *shards) keep(g *group, own uintptr) (over bool, err error) {
	if s.turn.Of < 2 || s.turn.Whole {
		return true, nil
	}
	if err := g.merge(s.d.wire, own, g.Flat.ShardLen(), g.sums, s.turn); err != nil || s.turn.Last() {
		return true, err
	}
	for len(g.sums) <= s.turn.Kept() {
		b, err := s.d.alloc(g.ShardBytes(), arena.Shard)
		if err != nil {
			return false, fmt.Errorf("group %s: %w", g.Name, err)
		}
		g.sums = append(g.sums, b)
	}
	return false, s.d.fail(s.d.wire.CopyDevice(g.sums[s.turn.Kept()].Addr(), own, g.ShardBytes()))
}

// leave keeps the whole gradients of a pass inside NoSync, merged with earlier sums.
func (s *shards) leave(g *group, b *block) error {
	if s.turn.Of == 0 {
		g.whole = b
		return nil
	}
	err := g.round(s.d.work, b.Addr(), g.Flat.Len(), s.before(g.Group))
	if err == nil {
		err = g.merge(s.d.work, b.Addr(), g.Flat.Len(), g.wholes, s.turn)
	}
	if s.turn.Last() {
		g.whole = b
		return err
	}
	for len(g.wholes) <= s.turn.Kept() {
		g.wholes = append(g.wholes, nil)
	}
	g.wholes[s.turn.Kept()] = b
	return err
}

// shed discards the whole sums that a pass has merged.
func (s *shards) shed() {
	for _, g := range s.groups {
		for k, b := range g.wholes {
			if s.turn.Merges(k) {
				s.d.discard(b)
				g.wholes[k] = nil
			}
		}
	}
}

// inTree runs an operation of the present step that sums gradients, with its scratch memory.
func (f *frame) inTree(sum func(scratch uintptr, at engine.Place) error) error {
	counted, err := f.d.counts.Alloc(f.Plan.Steps[f.step].Work, arena.Work)
	if err != nil {
		return err
	}
	defer f.d.counts.Free(counted)
	s := &f.script.steps[f.step]
	return f.issue(s.run, func(*nccl.Stream) error { return sum(f.slab.Addr()+uintptr(s.work), f.place()) })
}
