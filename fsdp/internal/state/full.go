package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/gofsdp/gofsdp/comm"
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
	w := &wholes{s: s, list: list}
	if err = distinct(list, (*Tensor).Name); err == nil {
		err = w.prepare(o, own)
	}
	if err := s.Team.Agree(ctx, 0, err); err != nil {
		return nil, err
	}
	c := collector{s: s, parts: parts(own), root: o.Root, ahead: inFlight, pack: parcelBytes, room: w.room}
	if err := c.run(ctx, list); err != nil || !c.gets() {
		return nil, err
	}
	w.full.Steps, w.full.Extra = steps, o.Extra
	w.full.Groups = groupsOf(opt, values(s.Layout), (*Tensor).Parameter)
	return w.full, nil
}

// wholes are the tensors of a full state that is being made.
type wholes struct {
	s    *Store
	list []Tensor
	full *optim.FullState
	new  blocks
}

// prepare takes over the memory of an earlier state, if there is one. That must be one of the same
// optimizer: what it lacks gets new memory, and nothing else may be different.
func (w *wholes) prepare(o *Options, own []Piece) error {
	gets := o.Root == Everywhere || o.Root == w.s.rank()
	if w.full = o.Into; w.full == nil || !gets {
		w.full = &optim.FullState{}
	}
	if w.full.Params == nil {
		w.full.Params = make(map[string]optim.FullParam, len(w.list))
	}
	var memory [][]byte
	left := 0
	for name, p := range w.full.Params {
		left += len(p.Entries)
		for entry, v := range p.Entries {
			if memory = append(memory, BytesOf(v)); v.F32 != nil && v.F64 != nil {
				return fmt.Errorf("option Into: %s of %s is both float32 and float64", entry, name)
			}
		}
	}
	for i := range w.list {
		t := &w.list[i]
		v, ok := w.full.Params[t.Parameter()].Entries[t.Entry]
		if !ok {
			w.new.expect(t.Len() * w.s.Compute.Size())
			continue
		}
		left--
		if v.Len() != t.Len() || v.F64 != nil && w.s.Compute != comm.Float64 || v.F32 != nil && w.s.Compute != comm.Float32 {
			return fmt.Errorf("option Into: %s has %d float32 and %d float64 elements, want %d of %v", t.Name(), len(v.F32), len(v.F64), t.Len(), w.s.Compute)
		}
	}
	if left > 0 {
		return fmt.Errorf("option Into: the earlier state has %d tensors that this one has not: is it of another model or optimizer?", left)
	}
	for i := range own {
		if h, ok := memoryOf(own[i].Vec).(optim.Host); ok {
			memory = append(memory, BytesOf(h))
		}
	}
	if overlap(memory) {
		return errors.New("option Into: tensors of the earlier state share memory, with each other or with the optimizer")
	}
	return nil
}

// overlap tells whether two vectors share memory.
func overlap(memory [][]byte) bool {
	start := func(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
	memory = slices.DeleteFunc(memory, func(b []byte) bool { return len(b) == 0 })
	slices.SortFunc(memory, func(a, b []byte) int { return cmp.Compare(start(a), start(b)) })
	for i := 1; i < len(memory); i++ {
		if start(memory[i-1])+uintptr(len(memory[i-1])) > start(memory[i]) {
			return true
		}
	}
	return false
}

// room is where a tensor goes.
func (w *wholes) room(t *Tensor) []byte {
	name := t.Parameter()
	p := w.full.Params[name]
	if p.Entries == nil {
		p.Entries = make(map[string]optim.Host)
	}
	if p.Steps = t.Steps; !slices.Equal(p.Shape, t.Shape) {
		p.Shape = slices.Clone(t.Shape)
	}
	w.full.Params[name] = p
	v, ok := p.Entries[t.Entry]
	if !ok {
		v = host(w.s.Compute, w.new.take(t.Len()*w.s.Compute.Size()))
		p.Entries[t.Entry] = v
	}
	return BytesOf(v)
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
