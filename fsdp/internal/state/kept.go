package state

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
)

// A Kept is this rank's memory of the last whole step of a training: its own share of the state,
// and a copy of its neighbour's share. The neighbour of rank r is rank r+Distance, modulo the
// number of ranks. A share needs no copy where the neighbour's elements are also this rank's, as in
// NoShard.
//
// # The steps in memory
//
// Each Keep makes a set, and sets have ascending numbers. All ranks of a group give a set the same
// number. The sets of a rank are
//
//	none    before the first Keep
//	k       after a Keep: each rank has set k, and an optimizer may change the model
//	k       during the next Keep: the neighbour's share of set k+1 arrives in other memory
//	k, k+1  after a Keep whose last agreement has failed on this rank
//	k+1     after the agreement: set k is dropped
//
// A rank enters the agreement when it has the whole copy of its neighbour's share, and the model
// does not change before Keep returns. If a rank has dropped set k, then all ranks have entered the
// agreement, so all ranks that are left have set k+1. If no rank has dropped set k, all ranks that
// are left have set k. In both cases a set is whole as long as no rank is lost together with the
// rank that has the copy of its share.
//
// A restored training begins with a Keep in the new group, before any step. The sets of the old
// group are dropped by that Keep, so a loss during the recovery loses no more than a loss during a
// step.
//
// # Frozen parameters
//
// Frozen parameters are a separate part of a share. They are sent in the first Keep of a layout,
// and again when a rank's values may have changed. Sets share their memory.
type Kept struct {
	Distance int // between neighbours

	sets []*set // in ascending order, the last is the newest
	twin struct {
		layout *layout.Layout
		ranks  []int // see share.Twins
	}
	stamp Stamp
	spare []optim.Host // memory of dropped sets
}

// A set is the part of a step that one rank has.
type set struct {
	number      int64
	rank, world int
	distance    int // between neighbours, below world
	compute     comm.DType
	own, held   half // held is the neighbour's
}

// A half is the elements of one rank's share, in the order of its description.
type half struct {
	text  []byte // the description, of type share
	parts [2]optim.Host
}

// These are the parts of a half.
const (
	trained = iota // with the optimizer's state, and buffers
	frozen
)

// A share describes one rank's share of the state.
type share struct {
	About  Meta
	Steps  int           // of the optimizer
	Groups []optim.Group `json:",omitempty"`
	Twins  []int         `json:",omitempty"` // other ranks that have the same elements of all parameters
	Spans  [2][]span     // of each part; the holder of the copy gets the first ones
}

// A span is elements of one tensor.
type span struct {
	Name        string // as in a file
	Shape       []int
	Buffer      bool `json:",omitempty"` // each rank has another one
	Steps       int  `json:",omitempty"` // updates of an optimizer's entry
	Offset, Len int
	Sent        bool `json:",omitempty"` // to the holder
}

// A Stamp changes whenever values of frozen parameters may have changed.
type Stamp struct {
	Layout  *layout.Layout
	Changes int
	Always  bool // they may have changed without notice
}

// A keeping is a Keep under way.
type keeping struct {
	k        *Kept
	s        *Store
	set      *set
	former   *set       // the newest set, or nil
	pieces   [2][]Piece // in the order of the spans
	resend   bool       // the frozen part is sent
	elements [2]int     // of the parts
	need     [2]int     // bytes of the parts that are sent
	most     [3]int     // most bytes that any rank sends: of the parts, and of the description
	text     int        // bytes of the neighbour's description
}

// Keep makes a set of the state of the model and of opt, which may be nil. It is a collective of
// all ranks.
func (k *Kept) Keep(ctx context.Context, s *Store, opt optim.Optimizer, about Meta, extra map[string]any, stamp Stamp) error {
	c := &keeping{k: k, s: s, set: &set{rank: s.rank(), world: s.world(), distance: k.distance(s.world()), compute: s.Compute}}
	err := s.prepare(ctx, 0, func() (err error) {
		if extra != nil {
			about.Extra, err = encodeExtras("extra", extra)
		}
		if err != nil {
			return err
		}
		return c.describe(opt, about)
	})
	if err != nil {
		return err
	}
	if n := len(k.sets); n > 0 {
		c.former = k.sets[n-1]
	}
	c.resend = stamp.Always || c.former == nil || stamp != k.stamp || c.former.distance != c.set.distance
	if err := c.compare(ctx); err != nil {
		return err
	}
	if err := c.exchange(ctx); err != nil {
		return err
	}
	k.stamp = stamp
	err = s.Team.Agree(ctx, uint64(c.set.number), nil)
	if err == nil {
		k.drop(c.resend)
	}
	if failed := c.own(); failed != nil { // the other ranks may have dropped their sets
		return s.Team.Fail(fmt.Errorf("copying this rank's share: %w", failed))
	}
	k.sets = append(k.sets, c.set)
	return err
}

// distance returns the distance between neighbours in a group.
func (k *Kept) distance(world int) int {
	if d := k.Distance % world; d > 0 {
		return d
	}
	return min(1, world-1)
}

// neighbour returns the rank at a distance from another one.
func neighbour(rank, distance, world int) int { return (rank + distance + world) % world }

// drop forgets all sets. The next sets use their memory, except for a frozen part that
// the newest set shares with the next one.
func (k *Kept) drop(resend bool) {
	k.spare = nil
	if n := len(k.sets); n > 0 {
		for _, h := range []*half{&k.sets[n-1].own, &k.sets[n-1].held} {
			k.spare = append(k.spare, h.parts[trained])
			if resend {
				k.spare = append(k.spare, h.parts[frozen])
			}
		}
	}
	k.sets = nil
}

// take returns memory for n elements.
func (k *Kept) take(t comm.DType, n int) optim.Host {
	for i, b := range k.spare {
		if b.Len() == n && b.Float64() == (t == comm.Float64) {
			k.spare = slices.Delete(k.spare, i, i+1)
			return b
		}
	}
	return NewHost(t, n)
}

// Bytes returns the memory of the elements in the sets.
func (k *Kept) Bytes() (n int) {
	seen := make(map[*byte]bool)
	count := func(b []byte) {
		if len(b) > 0 && !seen[&b[0]] {
			seen[&b[0]] = true
			n += len(b)
		}
	}
	for _, s := range k.sets {
		for _, h := range []*half{&s.own, &s.held} {
			for _, p := range h.parts {
				count(BytesOf(p))
			}
		}
	}
	for _, b := range k.spare {
		count(BytesOf(b))
	}
	return n
}

// KeptBytes returns the memory of a Kept of the model and of opt, from its second Keep on, without
// the descriptions, if all ranks have shares of the same size.
func (s *Store) KeptBytes(opt optim.Optimizer) (int, error) {
	c := &keeping{k: &Kept{}, s: s, set: &set{distance: min(1, s.world()-1)}}
	err := c.describe(opt, Meta{})
	return (c.elements[trained]+c.elements[frozen])*s.Compute.Size() + 2*c.need[trained] + c.need[frozen], err
}

// describe lists the share of this rank.
func (c *keeping) describe(opt optim.Optimizer, about Meta) error {
	s := c.s
	n, err := new(Options).naming(s.Layout)
	if err != nil {
		return err
	}
	own, err := s.pieces(opt)
	if err != nil {
		return err
	}
	if c.k.twin.layout != s.Layout {
		c.k.twin.layout, c.k.twin.ranks = s.Layout, s.twins()
	}
	d := share{About: about, Twins: c.k.twin.ranks}
	if opt != nil {
		d.Steps, d.Groups = opt.Steps(), groupsOf(opt, values(s.Layout), n.param)
	}
	for _, sent := range []bool{true, false} {
		for i := range own {
			p := &own[i]
			g, part := group(s.Layout, p.Index), trained
			if s.travels(g, c.set.distance) != sent {
				continue
			}
			if s.frozen(p.Index) {
				part = frozen
			}
			d.Spans[part] = append(d.Spans[part], span{
				Name: n.fileKey(&p.Tensor).Name(), Shape: p.Shape, Buffer: g.Kind.Buffer, Steps: p.Steps, Offset: p.Offset, Len: p.Vec.Len(), Sent: sent,
			})
			c.pieces[part] = append(c.pieces[part], *p)
			if c.elements[part] += p.Vec.Len(); sent {
				c.need[part] += p.Vec.Len() * s.Compute.Size()
			}
		}
	}
	c.set.own.text, err = json.Marshal(&d)
	return err
}

// travels reports whether the holder of this rank's copy needs the elements of a group.
func (s *Store) travels(g *layout.Group, distance int) bool {
	holder := neighbour(s.rank(), -distance, s.world())
	return holder != s.rank() && (g.Kind.Buffer || !equalPlaces(g, s.rank(), holder))
}

// equalPlaces reports whether two ranks have the same elements of a group of parameters.
func equalPlaces(g *layout.Group, a, b int) bool {
	m, n := g.Member(a), g.Member(b)
	return m.Place == n.Place && m.Leader == n.Leader
}

// twins lists the other ranks that have the same elements of all parameters.
func (s *Store) twins() (list []int) {
	for r := range s.world() {
		differs := func(g layout.Group) bool { return !g.Kind.Buffer && !equalPlaces(&g, s.rank(), r) }
		if r != s.rank() && !slices.ContainsFunc(s.Layout.Groups, differs) {
			list = append(list, r)
		}
	}
	return list
}

// compare gives the set its number, and exchanges the sizes of the shares.
func (c *keeping) compare(ctx context.Context) error {
	const newest, need, text, resend, words = 0, 1, 3, 4, 5
	mine := make([]int64, words)
	if c.former != nil {
		mine[newest] = c.former.number
	}
	mine[need], mine[need+1], mine[text] = int64(c.need[trained]), int64(c.need[frozen]), int64(len(c.set.own.text))
	if c.resend {
		mine[resend] = 1
	}
	all := make([]int64, words*c.s.world())
	if err := c.s.Team.Group().AllGather(comm.Of(all).Named("sizes"), comm.Of(mine).Named("sizes")).Wait(ctx); err != nil {
		return c.s.Team.Fail(fmt.Errorf("exchanging the sizes of shares: %w", err))
	}
	for w := range slices.Chunk(all, words) {
		c.set.number = max(c.set.number, w[newest]+1)
		for part := range c.need {
			c.most[part] = max(c.most[part], int(w[need+part]))
		}
		c.most[2] = max(c.most[2], int(w[text]))
		c.resend = c.resend || w[resend] != 0
	}
	c.text = int(all[neighbour(c.s.rank(), c.set.distance, c.s.world())*words+text])
	return nil
}

// exchange receives the neighbour's share, and sends this rank's to its holder.
func (c *keeping) exchange(ctx context.Context) error {
	if c.s.world() == 1 {
		return nil
	}
	held, t := &c.set.held, c.s.Compute
	held.text = make([]byte, c.most[2])
	err := c.pass(ctx, "description", held.text, func(to []byte, at int) error {
		if own := c.set.own.text; at < len(own) {
			copy(to, own[at:])
		}
		return nil
	})
	if err != nil {
		return err
	}
	held.text = held.text[:c.text]
	for part, bytes := range c.most[:frozen+1] {
		if part == frozen && !c.resend {
			held.parts[part] = c.former.held.parts[part]
			continue
		}
		held.parts[part] = c.k.take(t, bytes/t.Size())
		from := stream{pieces: c.pieces[part], t: t}
		err := c.pass(ctx, "share", BytesOf(held.parts[part]), func(to []byte, _ int) error { return from.read(to) })
		if err != nil {
			return err
		}
	}
	return nil
}

// own copies this rank's share.
func (c *keeping) own() error {
	for part, n := range c.elements {
		if part == frozen && !c.resend {
			c.set.own.parts[part] = c.former.own.parts[part]
			continue
		}
		to := c.k.take(c.s.Compute, n)
		from := stream{pieces: c.pieces[part], t: c.s.Compute}
		if err := from.read(BytesOf(to)); err != nil {
			return err
		}
		c.set.own.parts[part] = to
	}
	return nil
}

// A stream reads the elements of pieces one after the other.
type stream struct {
	pieces []Piece
	at     int // in the first
	t      comm.DType
}

// read fills b, as far as there are elements.
func (r *stream) read(b []byte) error {
	for es := r.t.Size(); len(b) > 0 && len(r.pieces) > 0; {
		p := &r.pieces[0]
		n := min(len(b)/es, p.Vec.Len()-r.at)
		if err := p.Vec.Slice(r.at, r.at+n).Read(host(r.t, b[:n*es])); err != nil {
			return fmt.Errorf("%s: %w", p.Name(), err)
		}
		b = b[n*es:]
		if r.at += n; r.at == p.Vec.Len() {
			r.pieces, r.at = r.pieces[1:], 0
		}
	}
	return nil
}

// portionBytes is how much of a share travels in one collective.
const portionBytes = 4 << 20

// pass sends data of each rank to the rank that holds its copy, in portions. fill writes this
// rank's data from a byte on, and all ranks receive the same number of bytes.
func (c *keeping) pass(ctx context.Context, label string, into []byte, fill func(to []byte, at int) error) error {
	if len(into) == 0 {
		return nil
	}
	s, portion := c.s, min(len(into), portionBytes)
	block, free, err := s.Memory.Scratch(underWay * portion)
	if err != nil {
		return s.Team.Fail(err)
	}
	defer free()
	one := []Tensor{{Key: checkpoint.Key{Param: label, Owner: checkpoint.Shared}}} // for errors
	start := func(i int) transfer {
		at := i * portion
		n := min(portion, len(into)-at)
		from := block[i%underWay*portion:][:n]
		if err := fill(from, at); err != nil {
			return transfer{tensors: one, err: err}
		}
		return transfer{tensors: one, work: s.shift(label, c.set.distance, into[at:at+n], from)}
	}
	return s.pipeline(ctx, (len(into)+portion-1)/portion, underWay, start, func(context.Context, *transfer) error { return nil })
}

// shift sends from to the rank that is a distance before this one. Each rank gathers the data of
// one other rank.
func (s *Store) shift(label string, distance int, into, from []byte) comm.Work {
	size := s.world()
	counts := make([]int, 2*size) // a window of it has the count of one rank
	counts[size] = len(from)
	all := make(shifting, size)
	for r := range size {
		root, src, dst := neighbour(r, -distance, size), from[:0], []byte(nil)
		if r == s.rank() {
			src = from
		}
		if root == s.rank() {
			dst = into
		}
		all[r] = s.Team.Group().Gather(comm.Of(dst).Named(label), comm.Of(src).Named(label), counts[size-r:][:size], root)
	}
	return all
}

// shifting is operations that a caller sees as one.
type shifting []comm.Work

// Wait implements comm.Work.
func (all shifting) Wait(ctx context.Context) error {
	for _, w := range all {
		if err := w.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}
