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
// in buffers of their size. For parameters sharded over a separate group (experts), it returns the
// values of this rank's group. room returns the memory for each. The hash covers everything else
// that ranks must have alike.
func (s *Store) Own(ctx context.Context, hash uint64, params []int, of func(group int) optim.Vec, room func(t *Tensor) []byte) error {
	if err := s.prepare(ctx, hash, func() error { return nil }); err != nil {
		return err
	}
	list := make([]Tensor, len(params))
	for i, p := range params {
		list[i] = value(s.Layout, p, layout.Shared)
	}
	c := collector{s: s, parts: s.parts(s.shares(of)), root: Everywhere, ahead: inFlight, pack: parcelBytes, room: room}
	return c.run(ctx, list)
}

// Values makes all parameters and buffers whole, on the root of o. It returns true on the ranks
// that have them.
func (s *Store) Values(ctx context.Context, o *Options, room func(t *Tensor) []byte) (here bool, err error) {
	err = s.prepare(ctx, 0, func() error { return o.root(s.world()) })
	if err != nil {
		return false, err
	}
	list := values(s.Layout)
	if err := distinct(list, (*Tensor).Name); err != nil {
		return false, err
	}
	c := collector{s: s, parts: s.parts(s.shares(s.Memory.Value)), root: o.Root, ahead: inFlight, pack: parcelBytes, room: room}
	return c.gets(), c.run(ctx, list)
}

var errNoOptimizer = errors.New("the optimizer is nil")

// FullOptim makes the state of an optimizer whole, on the root of o. Other ranks get nil.
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
	w := &wholes{s: s}
	c := collector{s: s, parts: s.parts(own), root: o.Root, ahead: inFlight, pack: parcelBytes, room: w.room}
	var groups []optim.Group
	if c.gets() {
		groups = groupsOf(opt, list, (*Tensor).Parameter)
	}
	list = entriesOf(list)
	if c.gets() {
		if err = distinct(list, (*Tensor).Name); err == nil {
			err = w.prepare(o.Into, list, own)
		}
	}
	if err := s.Team.Agree(ctx, 0, err); err != nil {
		return nil, err
	}
	if err := c.run(ctx, list); err != nil || !c.gets() {
		return nil, err
	}
	w.describe(list)
	w.full.Steps, w.full.Groups = steps, groups
	return w.full, nil
}

// wholes are the tensors of a full state while it is being collected.
type wholes struct {
	s    *Store
	full *optim.FullState
	old  [][]byte // of the tensors to come: the existing memory
	new  blocks
}

// prepare takes over the memory of an earlier state for the tensors of a list, if there is one. It
// must be a state of the same optimizer: tensors that it lacks get new memory, and nothing else may
// be different.
func (w *wholes) prepare(into *optim.FullState, list []Tensor, own []Piece) error {
	w.full = into
	if into == nil {
		w.full = &optim.FullState{}
	}
	if w.full.Params == nil {
		w.full.Params = make(map[string]optim.FullParam, len(w.s.Layout.Model.Params))
	}
	left := 0
	for _, p := range w.full.Params {
		left += len(p.Entries)
	}
	memory := make([][]byte, len(list), len(list)+len(own))
	var p optim.FullParam
	for i := range list {
		t := &list[i]
		if i == 0 || !t.of(&list[i-1]) {
			p = w.full.Params[t.Parameter()]
		}
		v, ok := p.Entries[t.Entry]
		if !ok {
			w.new.expect(t.Len() * w.s.Compute.Size())
			continue
		}
		left--
		memory[i] = BytesOf(v)
		if v.Len() != t.Len() || v.F64 != nil && w.s.Compute != comm.Float64 || v.F32 != nil && w.s.Compute != comm.Float32 {
			return fmt.Errorf("option Into: %s has %d float32 and %d float64 elements, want %d of %v", t.Name(), len(v.F32), len(v.F64), t.Len(), w.s.Compute)
		}
	}
	if left > 0 {
		return fmt.Errorf("option Into: the earlier state has %d tensors that this state does not have: give it a state of the same model and optimizer", left)
	}
	w.old = slices.Clone(memory)
	for i := range own {
		if h, ok := memoryOf(own[i].Vec).(optim.Host); ok {
			memory = append(memory, BytesOf(h))
		}
	}
	if overlap(memory) {
		return errors.New("option Into: tensors of the earlier state share memory with each other or with the optimizer: give each its own memory")
	}
	return nil
}

// overlap reports whether two vectors share memory.
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

// room returns the memory for a tensor.
func (w *wholes) room(t *Tensor) []byte {
	mem := w.old[0]
	w.old = w.old[1:]
	if mem != nil {
		return mem
	}
	p := w.full.Params[t.Parameter()]
	if p.Entries == nil {
		p.Entries = make(map[string]optim.Host)
		w.full.Params[t.Parameter()] = p
	}
	mem = w.new.take(t.Len() * w.s.Compute.Size())
	p.Entries[t.Entry] = host(w.s.Compute, mem)
	return mem
}

// describe sets the steps and shapes of the tensors.
func (w *wholes) describe(list []Tensor) {
	for i := range list {
		t := &list[i]
		if i+1 < len(list) && t.of(&list[i+1]) {
			continue
		}
		p := w.full.Params[t.Parameter()]
		if p.Steps == t.Steps && slices.Equal(p.Shape, t.Shape) {
			continue
		}
		p.Steps, p.Shape = t.Steps, slices.Clone(t.Shape)
		w.full.Params[t.Parameter()] = p
	}
}

// entriesOf returns the tensors in list that are state of an optimizer. It reuses the memory of
// list.
func entriesOf(list []Tensor) []Tensor {
	return slices.DeleteFunc(list, func(t Tensor) bool { return t.Entry == "" })
}
