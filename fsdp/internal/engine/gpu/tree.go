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
// the tree, or, in a leafwise pass, to the sums of earlier leaves. An all-reduce then gathers the
// parts. All of this runs in wire. Only gradients that a pass inside NoSync leaves are rounded and
// merged in work, where the pass has written them.

// Turn implements engine's turner.
func (s *shards) Turn(t engine.Turn, before func(*layout.Group) float32) {
	s.turn, s.before = t, before
}

// SumWork implements engine.Device.
func (d *Device) SumWork(g *layout.Group, _ bool) (room, reduce, sync int) {
	reduce, sync = sumWork(g)
	return 0, reduce, sync
}

// SumWork implements engine.Device.
func (d *dry) SumWork(g *layout.Group, _ bool) (room, reduce, sync int) {
	reduce, sync = sumWork(g)
	return 0, reduce, sync
}

// sumWork returns the bytes of scratch memory for the sums of a group.
func sumWork(g *layout.Group) (reduce, sync int) {
	r := &g.Ranks
	if r.Shards > 1 {
		reduce = (r.Shards - 1) * g.Flat.ShardLen() * g.Reduce.Size()
		if r.Replicas > 1 {
			sync = (r.Replicas - 1) * engine.Part(g.Flat.ShardLen(), r.Replicas) * g.Reduce.Size()
		}
	} else if r.Replicas > 1 {
		reduce = (r.Replicas - 1) * engine.Part(g.Flat.Len(), r.Replicas) * g.Reduce.Size()
	}
	return reduce, sync
}

// A sum is the exchange of elements of type t among the ranks of a link. Rank r adds the elements
// [r·part, (r+1)·part) of the n elements at full.
type sum struct {
	g             *group
	link          *link
	full, scratch uintptr
	part, n       int
	ranks         int // that a rank of the link stands for
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

// piece returns the address of the elements of a rank that this rank adds: its own elements in
// place, and elements of others where they are received.
func (x *sum) piece(rank int) uintptr {
	switch me := x.link.comm.Rank(); {
	case rank == me:
		return x.from(me)
	case rank > me:
		rank--
	}
	return x.scratch + uintptr(rank*x.part*x.g.Reduce.Size())
}

// run leaves the sums of this rank's elements in place, or in a leafwise pass of s in its sums,
// until the last pass. If all is true, every rank gets all sums.
func (x *sum) run(s *shards, at engine.Place, all bool) error {
	if x.n == 0 {
		return x.g.d.err()
	}
	me := x.link.comm.Rank()
	own, n := x.from(me), x.len(me)
	theirs := func(r int) (uintptr, int) { return x.from(r), x.len(r) }
	err := x.exchange(nccl.ReduceScatter, at, theirs, func(r int) (uintptr, int) { return x.piece(r), n })
	over := true
	switch {
	case err != nil:
	case !s.turn.Leafwise:
		err = x.add(x.link.comm.Size())
	case x.g.Ranks.Twice() && !all:
		first := (s.turn.At*x.g.Ranks.Replicas + x.g.Ranks.Replica) * x.g.Ranks.Shards
		err = x.add(max(0, min(x.g.Ranks.Shards, s.turn.Leaves-first)))
	default:
		over, err = x.count(s)
	}
	if err != nil || !all || !over {
		return err
	}
	return x.exchange(nccl.AllGather, at, func(int) (uintptr, int) { return own, n }, theirs)
}

// add leaves the sums of the elements of the first ranks in place.
func (x *sum) add(ranks int) error {
	me, scratch := x.link.comm.Rank(), x.scratch
	own, n := x.from(me), x.len(me)
	if n == 0 || ranks == 0 {
		return x.g.d.err()
	}
	if me >= ranks { // the first piece takes the place of this rank's elements
		if err := x.g.d.fail(x.g.d.wire.CopyDevice(own, scratch, n*x.g.Reduce.Size())); err != nil {
			return err
		}
		me, scratch = 0, scratch+uintptr(x.part*x.g.Reduce.Size())
	}
	return x.g.launch(x.g.kernels.tree, (n+255)/256, uint64(own), uint64(scratch), uint64(n), uint64(x.part), uint64(ranks), uint64(me))
}

// count counts the leaves of a leafwise pass. It returns whether the step is over: then the sums
// are in place.
func (x *sum) count(s *shards) (over bool, err error) {
	me := x.link.comm.Rank()
	own, n := x.from(me), x.len(me)
	for r := range x.link.comm.Size() {
		t, ok := s.turn.Leaf(r, x.link.comm.Size(), x.ranks)
		if !ok {
			break
		}
		leaf := x.piece(r)
		if over, err = s.count(x.g, leaf, n, x.part, t); err != nil {
			return false, err
		}
		if over && leaf != own && n > 0 {
			err = x.g.d.fail(x.g.d.wire.CopyDevice(own, leaf, n*x.g.Reduce.Size()))
		}
	}
	return over, err
}

// reduceInTree sums the gradients in full like the collective that startReduce returns.
func (g *group) reduceInTree(s *shards, full, scratch uintptr, at engine.Place) error {
	switch {
	case g.shard != nil:
		return (&sum{g, g.shard, full, scratch, g.Flat.ShardLen(), g.Flat.Len(), 1}).run(s, at, false)
	case g.replica != nil:
		return (&sum{g, g.replica, full, scratch, engine.Part(g.Flat.Len(), g.replica.comm.Size()), g.Flat.Len(), 1}).run(s, at, true)
	}
	return g.d.err()
}

// syncInTree sums this rank's range of the gradients over the replicas.
func (g *group) syncInTree(s *shards, full, scratch uintptr, at engine.Place) error {
	n := g.Flat.ShardLen()
	return (&sum{g, g.replica, g.ownAddress(full, g.Reduce), scratch, engine.Part(n, g.replica.comm.Size()), n, g.Ranks.Shards}).run(s, at, true)
}

// reduceWholeInTree sums the whole gradients of a group over the ranks, in a slab that no pass
// uses.
func (g *group) reduceWholeInTree(sh *shards, full uintptr, before float32) error {
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
		err = g.reduceInTree(sh, full, scratch, engine.Place{})
	}
	if err == nil && g.Ranks.Twice() {
		err = g.syncInTree(sh, full, scratch, engine.Place{})
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
	switch {
	case s.turn.Of < 2 || s.turn.Whole:
		return true, nil
	case s.turn.Leafwise: // the sums have them already
		return s.turn.Last(), nil
	}
	n := g.Flat.ShardLen()
	return s.count(g, own, n, n, s.turn)
}

// count adds n elements of a leaf to the binary counter of a group, whose sums have room for more,
// or makes them the sums of all leaves. Then it returns true.
func (s *shards) count(g *group, leaf uintptr, n, room int, t engine.Turn) (over bool, err error) {
	if err := g.merge(s.d.wire, leaf, n, g.sums, t); err != nil || t.Last() {
		return true, err
	}
	for len(g.sums) <= t.Kept() {
		b, err := s.d.alloc(room*g.Compute.Size(), arena.Shard)
		if err != nil {
			return false, fmt.Errorf("group %s: %w", g.Name, err)
		}
		g.sums = append(g.sums, b)
	}
	if n == 0 {
		return false, s.d.err()
	}
	return false, s.d.fail(s.d.wire.CopyDevice(g.sums[t.Kept()].Addr(), leaf, n*g.Compute.Size()))
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
