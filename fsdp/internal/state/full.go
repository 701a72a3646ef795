package state

import (
	"context"
	"errors"
	"slices"

	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/optim"
)

// Own makes this rank's parameters and buffers of these indices whole, on every rank, from shards
// that lie in buffers of their size. Of parameters that ranks have others of it is those of the
// rank's own group. room returns the memory for each. The hash is of what else ranks must have
// alike.
func (s *Store) Own(ctx context.Context, hash uint64, params []int, of func(group int) optim.Vec, room func(t *Tensor) []byte) error {
	if err := s.prepare(ctx, hash, func() error { return nil }); err != nil {
		return err
	}
	list := make([]Tensor, len(params))
	for i, p := range params {
		list[i] = value(s.Layout, p, layout.Shared)
	}
	c := collector{s: s, parts: parts(s.shares(of)), root: Everywhere, ahead: inFlight, pack: parcelBytes, room: room}
	return c.run(ctx, list)
}

// Values makes all parameters and buffers whole, on the root of o. It is true where they are.
func (s *Store) Values(ctx context.Context, o *Options, room func(t *Tensor) []byte) (here bool, err error) {
	err = s.prepare(ctx, 0, func() error { return o.root(s.world()) })
	if err != nil {
		return false, err
	}
	list := values(s.Layout)
	if err := distinct(list, (*Tensor).Name); err != nil {
		return false, err
	}
	c := collector{s: s, parts: parts(s.shares(s.Memory.Value)), root: o.Root, ahead: inFlight, pack: parcelBytes, room: room}
	return c.gets(), c.run(ctx, list)
}

var errNoOptimizer = errors.New("the optimizer is nil")

// FullOptim makes the state of an optimizer whole, on the root of o; others get nil.
func (s *Store) FullOptim(ctx context.Context, opt optim.Optimizer, o *Options) (*optim.FullState, error) {
	var own []Piece
	err := s.prepare(ctx, 0, func() (err error) {
		if err := o.root(s.world()); err != nil {
			return err
		}
		if opt == nil {
			return errNoOptimizer
		}
		own, err = s.pieces(opt)
		return err
	})
	if err != nil {
		return nil, err
	}
	list, steps, err := s.listed(ctx, opt, own, true)
	if err != nil {
		return nil, err
	}
	list = entriesOf(list)
	if err := distinct(list, (*Tensor).Name); err != nil {
		return nil, err
	}
	full := &optim.FullState{Steps: steps, Params: make(map[string]optim.FullParam), Extra: o.Extra, Groups: groupsOf(opt, values(s.Layout), (*Tensor).Parameter)}
	c := collector{s: s, parts: parts(own), root: o.Root, ahead: inFlight, pack: parcelBytes, room: func(t *Tensor) []byte {
		v := NewHost(s.Compute, t.Len())
		name := t.Parameter()
		p, ok := full.Params[name]
		if !ok {
			p = optim.FullParam{Shape: slices.Clone(t.Shape), Steps: t.Steps, Entries: make(map[string]optim.Host)}
			full.Params[name] = p
		}
		p.Entries[t.Entry] = v
		return BytesOf(v)
	}}
	if err := c.run(ctx, list); err != nil || !c.gets() {
		return nil, err
	}
	return full, nil
}

// entriesOf returns the tensors of an optimizer in a list.
func entriesOf(list []Tensor) (entries []Tensor) {
	for _, t := range list {
		if t.Entry != "" {
			entries = append(entries, t)
		}
	}
	return entries
}
