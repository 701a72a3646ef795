package state

import (
	"context"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/shard"
)

// A collector makes tensors whole whose parts are on several ranks. Ranks that only send need no
// memory for them.
//
//	to one rank    a gather from one set of ranks that has the tensor
//	to all ranks   of a tensor that all sets have, an all-gather within every set, among the
//	               ranks that the group is cut over; of one that one set has, among all ranks
//
// # Parcels
//
// The parts of a large tensor go directly to their place in the result. Small tensors travel
// together, as each collective costs a meeting of all ranks: every rank puts its parts end to end,
// and the receivers take them apart. So does a tensor whose parts are not in the order of the
// ranks, as a group of the user's may have another.
type collector struct {
	s     *Store
	parts parts // this rank's parts
	root  int   // the rank that gets them, or Everywhere
	ahead int   // how many parcels are under way, including the one that is waited for
	pack  int   // bytes of tensors that travel together, 0 for none

	// room returns the memory for the next tensor, on ranks that get it. take, if not nil, is
	// called on all ranks when the tensor is whole; ranks that do not get it have nil. An error of
	// take fails the group. Both are called in the order of the list.
	room func(t *Tensor) []byte
	take func(ctx context.Context, t *Tensor, whole []byte) error

	memory  [][]byte // room for the wholes of all parcels to come
	cuts    [][]shard.Span
	spare   [][]byte // scratch of parcels that have arrived
	largest int      // bytes that one takes at most
	free    []func() // gives all scratch back
}

// Limits of the transfers under way. If each tensor has its own memory, there are enough of them to
// hide the latency between request and arrival. If tensors are in scratch, there are two: the one
// in use and the next.
const (
	inFlight    = 8
	underWay    = 2
	parcelBytes = 1 << 19
	smallParts  = 4 // a small tensor takes at most 1/smallParts of a parcel, or of a block of memory
)

// A transfer is a set of tensors that are being collected.
type transfer struct {
	tensors []Tensor
	wholes  [][]byte // of each; nil on ranks that do not get them
	work    comm.Work
	finish  func()
	err     error // nothing has been started
}

// wait waits until the tensors are whole.
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

// pipeline starts n transfers, with some under way at a time, and calls take for each that has
// arrived, in order. If one fails, all groups fail, and then pipeline waits for the rest: the
// groups may use their memory until then.
func (s *Store) pipeline(ctx context.Context, n, ahead int, start func(i int) transfer, take func(context.Context, *transfer) error) error {
	var flight []transfer
	land := func() error {
		first := flight[0]
		flight = slices.Delete(flight, 0, 1)
		err := first.wait(ctx)
		if err == nil {
			err = take(ctx, &first)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", first.tensors[0].Name(), err)
		}
		return nil
	}
	var err error
	for i := 0; i < n && err == nil; i++ {
		if len(flight) == ahead {
			err = land()
		}
		if err == nil {
			flight = append(flight, start(i))
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
	defer func() {
		for _, free := range c.free {
			free()
		}
	}()
	parcels := c.parcels(list)
	c.memory, c.cuts = make([][]byte, len(list)), make([][]shard.Span, len(list))
	for _, tensors := range parcels {
		size := 0
		for i := range tensors {
			size += tensors[i].Len() * c.s.Compute.Size()
		}
		if len(tensors) > 1 {
			c.largest = max(c.largest, size)
		}
	}
	start := func(i int) transfer { return c.start(parcels[i]) }
	return c.s.pipeline(ctx, len(parcels), c.ahead, start, func(ctx context.Context, f *transfer) error {
		for i := range f.tensors {
			var whole []byte
			if c.gets() {
				whole = f.wholes[i]
			}
			if c.take == nil {
				continue
			}
			if err := c.take(ctx, &f.tensors[i], whole); err != nil {
				return err
			}
		}
		return nil
	})
}

// gets reports whether this rank gets the whole tensors.
func (c *collector) gets() bool { return c.root == Everywhere || c.root == c.s.rank() }

// parcels divides a list into tensors that travel together, on all ranks alike.
func (c *collector) parcels(list []Tensor) (parcels [][]Tensor) {
	for len(list) > 0 {
		n, bytes := 0, 0
		for n < len(list) && c.group(&list[n]) == c.group(&list[0]) {
			size := list[n].Len() * c.s.Compute.Size()
			alone := size*smallParts >= c.pack
			if bytes += size; n > 0 && (alone || bytes > c.pack) {
				break
			}
			n++
			if alone {
				break
			}
		}
		parcels, list = append(parcels, list[:n:n]), list[n:]
	}
	return parcels
}

// within reports whether each set of ranks collects a tensor for itself.
func (c *collector) within(t *Tensor) bool {
	return c.root == Everywhere && t.Owner == checkpoint.Shared
}

// group returns the ranks among which a tensor is collected.
func (c *collector) group(t *Tensor) comm.Group {
	if c.within(t) {
		return c.s.Team.Shard(c.s.Layout.Home[t.Index].Group)
	}
	return c.s.Team.Group()
}

// spans returns the elements of a tensor that come from each rank of its group.
func (c *collector) spans(t *Tensor) []shard.Span {
	g, index := group(c.s.Layout, t.Index), c.s.Layout.Home[t.Index].Index
	if c.within(t) {
		list := make([]shard.Span, g.Ranks.Shards)
		for place := range list {
			list[place] = g.Span(place, index)
		}
		return list
	}
	list := make([]shard.Span, c.s.world())
	set := g.Member(source(g, t.Owner, max(c.root, 0))).Set
	for r := range list {
		if m := g.Member(r); m.Set == set {
			list[r] = g.Span(m.Place, index)
		}
	}
	return list
}

// A parcel is the places of the parts of tensors that travel together.
type parcel struct {
	tensors []Tensor
	wholes  [][]byte       // of each, nil on ranks that do not get them
	spans   [][]shard.Span // of each, by rank of the group: the elements that come from it
	parts   [][]byte       // of each: this rank's part, perhaps a copy: each parcel drops its own
	counts  []int          // elements of all, by rank of the group
	me      int            // in the group
}

// parcel finds this rank's parts of tensors, and gets room for the wholes.
func (c *collector) parcel(tensors []Tensor) (*parcel, error) {
	n := len(tensors)
	p := &parcel{tensors: tensors, me: c.s.rank(), spans: c.cuts[:n], parts: make([][]byte, n)}
	if c.cuts = c.cuts[n:]; c.gets() {
		p.wholes, c.memory = c.memory[:n], c.memory[n:]
	}
	if c.within(&tensors[0]) {
		p.me = group(c.s.Layout, tensors[0].Index).Ranks.Place
	}
	for i := range tensors {
		t := &tensors[i]
		if i > 0 && t.of(&tensors[i-1]) {
			p.spans[i] = p.spans[i-1]
		} else {
			p.spans[i] = c.spans(t)
		}
		spans := p.spans[i]
		if p.counts == nil {
			p.counts = make([]int, len(spans))
		}
		for r, span := range spans {
			p.counts[r] += span.End - span.Start
		}
		if c.gets() {
			p.wholes[i] = c.room(t)
		}
		if spans[p.me].End == 0 {
			continue
		}
		var err error
		if p.parts[i], err = contents(c.parts.of(t.Index, t.Entry).Vec); err != nil {
			return p, err
		}
	}
	return p, nil
}

// keep copies this rank's parts to the wholes.
func (p *parcel) keep(es int) {
	for i, whole := range p.wholes {
		copy(whole[p.spans[i][p.me].Start*es:], p.parts[i])
	}
}

// inPlace reports whether the parts can arrive in their place: they are of one tensor, and in the
// order of the ranks.
func (p *parcel) inPlace() bool {
	next := 0
	for _, span := range p.spans[0] {
		if span.End > span.Start {
			if span.Start != next {
				return false
			}
			next = span.End
		}
	}
	return len(p.tensors) == 1
}

// seal puts this rank's parts end to end.
func (p *parcel) seal(to []byte) {
	for _, part := range p.parts {
		to = to[copy(to, part):]
	}
}

// open moves the parts of all ranks to their place.
func (p *parcel) open(all []byte, es int) {
	for r := range p.counts {
		for i, whole := range p.wholes {
			span := p.spans[i][r]
			all = all[copy(whole[span.Start*es:span.End*es], all):]
		}
	}
}

// start issues the collection of tensors that travel together.
func (c *collector) start(tensors []Tensor) transfer {
	p, err := c.parcel(tensors)
	out, es := transfer{tensors: tensors, wholes: p.wholes, err: err}, c.s.Compute.Size()
	if err != nil {
		return out
	}
	among, total := c.group(&tensors[0]), sum(p.counts)
	if len(p.counts) == 1 || c.root != Everywhere && p.counts[c.root] == total { // no other rank has any of it
		p.keep(es)
		return out
	}
	var whole, part []byte
	if p.inPlace() {
		part = p.parts[0]
		if c.gets() {
			whole = p.wholes[0]
		}
		if c.root == Everywhere {
			p.keep(es)
		}
	} else {
		before, own := sum(p.counts[:p.me])*es, p.counts[p.me]*es
		if !c.gets() {
			before, total = 0, p.counts[p.me]
		}
		if whole, out.err = c.scratch(total * es); out.err != nil {
			return out
		}
		part = whole[before:][:own]
		p.seal(part)
		out.finish = func() {
			p.open(whole, es)
			c.spare = append(c.spare, whole)
		}
	}
	to := func(b []byte) comm.Buffer { return buffer(c.s.Compute, b, tensors[0].Name()) }
	if c.root == Everywhere {
		out.work = comm.AllGatherV(among, to(whole), p.counts)
	} else {
		out.work = among.Gather(to(whole), to(part), p.counts, c.root)
	}
	return out
}

// scratch returns n bytes that a parcel uses until it has arrived.
func (c *collector) scratch(n int) ([]byte, error) {
	for i, b := range c.spare {
		if cap(b) >= n {
			c.spare = slices.Delete(c.spare, i, i+1)
			return b[:n], nil
		}
	}
	b, free, err := c.s.Memory.Scratch(max(n, c.largest))
	if err != nil {
		return nil, err
	}
	c.free = append(c.free, free)
	return b[:n], nil
}

// source returns a rank of the set that gives a tensor to rank root: root itself, if its set has
// it.
func source(g *layout.Group, owner, root int) int {
	if owner == checkpoint.Shared || g.Member(root).Leader == owner {
		return root
	}
	return owner
}

func sum(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// A ring is scratch memory for tensors in flight. At most underWay tensors are in flight, so each
// tensor reuses the memory of an earlier one.
type ring struct {
	blocks [underWay][]byte
	next   int
	free   []func()
}

// newRing takes memory that is large enough for any tensors of a list.
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

// close frees the memory. A nil ring has none.
func (r *ring) close() {
	if r != nil {
		for _, free := range r.free {
			free()
		}
		r.free = nil
	}
}
