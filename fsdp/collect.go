package fsdp

import (
	"context"
	"fmt"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// A stateTensor is a tensor of the training's state, of which ranks have parts. All ranks list the same ones.
type stateTensor struct {
	checkpoint.Key
	param int   // of the model
	shape []int // of the whole
	steps int   // updates that the entry of an optimizer has had
}

// len returns the number of elements of the whole.
func (t *stateTensor) len() int { return shard.Param{Shape: t.shape}.Len() }

// everywhere is the root of what all ranks are to have.
const everywhere = -1

// A collector makes tensors whole that lie in parts on the ranks. Parts go from where they lie straight to their place in the
// result: there are no flat buffers, so no padding, and ranks that only send need no memory.
type collector struct {
	s        *Sharded
	holdings []holding      // by flat group
	parts    map[key][]byte // what this rank has, in the model's and the optimizer's own memory
	root     int            // the rank that gets them, or everywhere
	ahead    int            // how many tensors are under way, the one that is waited for included

	// room returns the memory for the next tensor, on ranks that get it. take, if not nil, is called when it is whole, on all
	// ranks, of which those that do not get it have nil; an error is that of the group. Both go in the order of the list.
	room func(t *stateTensor) []byte
	take func(ctx context.Context, t *stateTensor, whole []byte) error
}

// key is a tensor that this rank has a part of: it has no two of one parameter and entry.
type key struct{ param, entry string }

// memory returns the memory of what this rank has of the values, and of the state of opt, which may be nil.
func (s *Sharded) memory(opt optim.Optimizer) (map[key][]byte, error) {
	pieces, err := s.pieces(opt)
	if err != nil {
		return nil, err
	}
	parts := make(map[key][]byte, len(pieces))
	for _, p := range pieces {
		parts[key{p.Param, p.Entry}] = p.data
	}
	return parts, nil
}

// values lists the parameters and buffers, in the order of the model. A buffer is every rank's own, under its plain name.
func (s *Sharded) values(holdings []holding) (list []stateTensor) {
	for p, q := range s.trace.params {
		for _, owner := range holdings[s.layout.Home[p].Group].g.Owners() {
			list = append(list, stateTensor{Key: checkpoint.Key{Param: q.Name, Owner: owner}, param: p, shape: q.Shape})
		}
	}
	return list
}

// inFlight is how many tensors are under way where memory does not matter: enough that the time between asking and getting does
// not add up over many small ones.
const inFlight = 4

// A collection is a tensor under way.
type collection struct {
	t      *stateTensor
	whole  []byte // nil on ranks that do not get it
	work   comm.Work
	finish func()
}

// run collects the tensors of a list, with a few of them under way at a time.
func (c *collector) run(ctx context.Context, list []stateTensor) error {
	var flight []collection
	land := func() error {
		first := flight[0]
		flight = flight[1:]
		err := first.wait(ctx)
		if err == nil && c.take != nil {
			err = c.take(ctx, first.t, first.whole)
		}
		if err != nil {
			return fmt.Errorf("collecting %s: %w", first.t.Name(), err)
		}
		return nil
	}
	var err error
	for i := 0; i < len(list) && err == nil; i++ {
		if len(flight) == c.ahead {
			err = land()
		}
		if err == nil {
			flight = append(flight, c.start(&list[i]))
		}
	}
	for err == nil && len(flight) > 0 {
		err = land()
	}
	if err == nil {
		return nil
	}
	failed := c.s.broken(err)
	for _, left := range flight { // the memory is the group's until they are waited for
		_ = left.wait(ctx) // fails as the group has
	}
	return failed
}

// wait waits until the tensor is whole.
func (c *collection) wait(ctx context.Context) error {
	if c.work != nil {
		if err := c.work.Wait(ctx); err != nil {
			return err
		}
	}
	if c.finish != nil {
		c.finish()
	}
	return nil
}

// start issues the collection of one tensor.
func (c *collector) start(t *stateTensor) collection {
	me := c.s.cfg.Group.Rank()
	out := collection{t: t}
	if c.root == me || c.root == everywhere {
		out.whole = c.room(t)
	}
	home := c.s.layout.Home[t.param]
	g, h := c.s.groups[home.Group], &c.holdings[home.Group]
	buffer := func(b []byte) comm.Buffer { return g.buffer(b, g.Compute).Named(t.Name()) }
	part, es := c.parts[key{t.Param, t.Entry}], g.Compute.Size()

	if c.root == everywhere && t.Owner == checkpoint.Shared { // every set has all of it
		copy(out.whole[g.Span(g.Member(me).Place, home.Index).Start*es:], part)
		if g.mesh.Shard.Size() > 1 {
			out.work = comm.AllGatherV(g.mesh.Shard, buffer(out.whole), h.lengths(home.Index))
		}
		return out
	}
	source := h.source(t.Owner, max(c.root, 0))
	if g.Member(me).Set != g.Member(source).Set {
		part = nil
	}
	counts, ordered := h.counts(source, home.Index)
	if out.whole != nil && !ordered {
		out.finish = func() { h.arrange(out.whole, counts, home.Index, es) }
	}
	switch {
	case c.root == everywhere:
		copy(out.whole[sum(counts[:me])*es:], part)
		out.work = comm.AllGatherV(c.s.cfg.Group, buffer(out.whole), counts)
	case counts[c.root] == t.len(): // nobody else has any of it
		if out.whole != nil {
			copy(out.whole, part)
		}
	default:
		out.work = c.s.cfg.Group.Gather(buffer(out.whole), buffer(part), counts, c.root)
	}
	return out
}

func sum(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}
