package state

import (
	"context"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// A collector makes tensors whole that lie in parts on the ranks. Parts go from where they lie
// straight to their place in the result, so ranks that only send need no memory.
//
//	to one rank    a gather from one set of ranks that has the tensor
//	to all ranks   of a tensor that all sets have, an all-gather within every set, among the
//	               ranks that the group is cut over; of one that one set has, among all ranks
type collector struct {
	s     *Store
	parts map[part]*Piece // what this rank has
	root  int             // the rank that gets them, or Everywhere
	ahead int             // how many tensors are under way, the one that is waited for included

	// room returns the memory for the next tensor, on ranks that get it. take, if not nil, is
	// called when it is whole, on all ranks, of which those that do not get it have nil; an error
	// is that of the group. Both go in the order of the list.
	room func(t *Tensor) []byte
	take func(ctx context.Context, t *Tensor, whole []byte) error
}

// How many tensors are under way at a time: where each lies in memory of its own, enough that the
// time between asking and getting does not add up over many small ones; where they lie in scratch,
// one that is made use of and the next.
const (
	inFlight = 4
	underWay = 2
)

// A transfer is a tensor under way.
type transfer struct {
	t      *Tensor
	whole  []byte // nil on ranks that do not get it
	work   comm.Work
	finish func()
	err    error // nothing has been started
}

// wait waits until the tensor is whole.
func (f *transfer) wait(ctx context.Context) error {
	if f.err != nil {
		return f.err
	}
	if f.work != nil {
		if err := f.work.Wait(ctx); err != nil {
			return err
		}
	}
	if f.finish != nil {
		f.finish()
	}
	return nil
}

// pipeline starts a transfer for every tensor of a list, with some under way at a time, and calls
// take for each that has arrived, in the order of the list. If one fails, all groups do, and then
// the rest is waited for: its memory is the groups' until then.
func (s *Store) pipeline(ctx context.Context, list []Tensor, ahead int, start func(*Tensor) transfer, take func(context.Context, *transfer) error) error {
	var flight []transfer
	land := func() error {
		first := flight[0]
		flight = flight[1:]
		err := first.wait(ctx)
		if err == nil {
			err = take(ctx, &first)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", first.t.Name(), err)
		}
		return nil
	}
	var err error
	for i := 0; i < len(list) && err == nil; i++ {
		if len(flight) == ahead {
			err = land()
		}
		if err == nil {
			flight = append(flight, start(&list[i]))
		}
	}
	for err == nil && len(flight) > 0 {
		err = land()
	}
	if err == nil {
		return nil
	}
	failed := s.Team.Fail(err)
	for _, left := range flight {
		_ = left.wait(ctx) // fails as the group has
	}
	return failed
}

// run collects the tensors of a list.
func (c *collector) run(ctx context.Context, list []Tensor) error {
	return c.s.pipeline(ctx, list, c.ahead, c.start, func(ctx context.Context, f *transfer) error {
		if c.take == nil {
			return nil
		}
		return c.take(ctx, f.t, f.whole)
	})
}

// start issues the collection of one tensor.
func (c *collector) start(t *Tensor) transfer {
	all, home, g := c.s.Team.Group(), c.s.Layout.Home[t.Index], group(c.s.Layout, t.Index)
	me, es := all.Rank(), c.s.Compute.Size()
	out := transfer{t: t}
	if c.root == me || c.root == Everywhere {
		out.whole = c.room(t)
	}
	to := func(b []byte) comm.Buffer { return buffer(c.s.Compute, b, t.Name()) }
	var data []byte
	if p := c.parts[t.part()]; p != nil {
		if data, out.err = contents(p.Vec); out.err != nil {
			return out
		}
	}
	if c.root == Everywhere && t.Owner == checkpoint.Shared { // every set has all of it
		copy(out.whole[g.Span(g.Ranks.Place, home.Index).Start*es:], data)
		if g.Ranks.Shards > 1 {
			out.work = comm.AllGatherV(c.s.Team.Shard(home.Group), to(out.whole), lengths(g, home.Index))
		}
		return out
	}
	set := g.Member(source(g, t.Owner, max(c.root, 0))).Set
	if g.Member(me).Set != set {
		data = nil
	}
	counts, ordered := counts(g, set, home.Index, all.Size())
	if out.whole != nil && !ordered {
		out.finish = func() { arrange(out.whole, g, counts, home.Index, es) }
	}
	switch {
	case c.root == Everywhere:
		copy(out.whole[sum(counts[:me])*es:], data)
		out.work = comm.AllGatherV(all, to(out.whole), counts)
	case counts[c.root] == t.Len(): // nobody else has any of it
		if out.whole != nil {
			copy(out.whole, data)
		}
	default:
		out.work = all.Gather(to(out.whole), to(data), counts, c.root)
	}
	return out
}

// source returns a rank of the set that gives a tensor to rank root: its own set, if that has it.
func source(g *layout.Group, owner, root int) int {
	if owner == checkpoint.Shared || g.Member(root).Leader == owner {
		return root
	}
	return owner
}

// counts returns how many elements of a parameter each rank of a set has, of those of the world,
// and whether they lie in the order of the ranks: a group of the user's may have another.
func counts(g *layout.Group, set, index, world int) (counts []int, ordered bool) {
	counts, ordered = make([]int, world), true
	next := 0
	for r := range world {
		m := g.Member(r)
		if m.Set != set {
			continue
		}
		if span := g.Span(m.Place, index); span.End > span.Start {
			counts[r] = span.End - span.Start
			ordered = ordered && span.Start == next
			next = span.End
		}
	}
	return counts, ordered
}

// lengths returns how many elements of a parameter each place has.
func lengths(g *layout.Group, index int) []int {
	list := make([]int, g.Ranks.Shards)
	for place := range list {
		span := g.Span(place, index)
		list[place] = span.End - span.Start
	}
	return list
}

// arrange moves the parts of a parameter, which arrived in the order of the ranks, to where they
// belong. es is the size of an element.
func arrange(whole []byte, g *layout.Group, counts []int, index, es int) {
	arrived := slices.Clone(whole)
	for r, count := range counts {
		if count > 0 {
			copy(whole[g.Span(g.Member(r).Place, index).Start*es:], arrived[:count*es])
			arrived = arrived[count*es:]
		}
	}
}

func sum(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// A ring is scratch for tensors under way: each takes the place of the last but underWay.
type ring struct {
	blocks [underWay][]byte
	next   int
	free   []func()
}

// newRing takes memory for any tensors of a list.
func (s *Store) newRing(list []Tensor) (*ring, error) {
	largest := 0
	for i := range list {
		largest = max(largest, list[i].Len()*s.Compute.Size())
	}
	r := &ring{}
	for i := range r.blocks {
		b, free, err := s.Memory.Scratch(largest)
		if err != nil {
			r.close()
			return nil, err
		}
		r.blocks[i], r.free = b, append(r.free, free)
	}
	return r, nil
}

// room returns n bytes.
func (r *ring) room(n int) []byte {
	b := r.blocks[r.next]
	r.next = (r.next + 1) % underWay
	return b[:n:n]
}

// close gives the memory back. A nil ring has none.
func (r *ring) close() {
	if r != nil {
		for _, free := range r.free {
			free()
		}
		r.free = nil
	}
}
