package state

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/optim/vec"
	"github.com/gofsdp/gofsdp/shard"
)

// A Tensor is a tensor of the training's state, of which ranks have parts. All ranks have the same
// list.
type Tensor struct {
	checkpoint.Key       // with the name that the parameter has in the model
	Index          int   // of the parameter in the model
	Part           int   // of the parameter, if it is several tensors in a file
	Shape          []int // of the whole
	Steps          int   // updates that the entry of an optimizer has had
}

// Len returns the number of elements of the whole.
func (t *Tensor) Len() int { return shard.Param{Shape: t.Shape}.Len() }

// Parameter returns the name of the parameter that the tensor is about, as StateDict has it.
func (t *Tensor) Parameter() string {
	return checkpoint.Key{Param: t.Param, Owner: t.Owner}.Name()
}

// of reports whether two tensors belong to the same parameter.
func (t *Tensor) of(other *Tensor) bool { return t.Index == other.Index && t.Owner == other.Owner }

// values lists the parameters and buffers, in the order of the model. Every rank has a separate
// buffer, under its plain name.
func values(l *layout.Layout) (list []Tensor) {
	owners := make([][]int, len(l.Groups))
	list = make([]Tensor, 0, len(l.Model.Params))
	for p := range l.Model.Params {
		of := &owners[l.Home[p].Group]
		if *of == nil {
			*of = group(l, p).Owners()
		}
		for _, owner := range *of {
			list = append(list, value(l, p, owner))
		}
	}
	return list
}

// value describes a parameter or buffer of the model.
func value(l *layout.Layout, param, owner int) Tensor {
	q := &l.Model.Params[param]
	return Tensor{Key: checkpoint.Key{Param: q.Name, Owner: owner}, Index: param, Shape: q.Shape}
}

// mine reports whether a tensor in the list belongs to this rank. Other ranks may have another
// tensor of the same name.
func mine(l *layout.Layout, t *Tensor) bool {
	return t.Owner == checkpoint.Shared || t.Owner == group(l, t.Index).Ranks.Leader()
}

// group returns the group of a parameter.
func group(l *layout.Layout, param int) *layout.Group { return &l.Groups[l.Home[param].Group] }

// distinct returns an error if two tensors have one name: a parameter that is called "w@1" or
// "momentum_buffer:w" has the name of the tensor of w in a user's group, or of an optimizer's entry
// for w.
func distinct(list []Tensor, nameOf func(*Tensor) string) error {
	seen := make(map[string]struct{}, len(list))
	for i := range list {
		name := nameOf(&list[i])
		if seen[name] = struct{}{}; len(seen) == i {
			return fmt.Errorf("the state would have two tensors named %q: rename the parameter", name)
		}
	}
	return nil
}

// A Piece is this rank's part of a tensor. Pieces are identified by names and intervals, never by
// their address. A rank has at most one piece of a parameter and entry.
type Piece struct {
	Tensor
	Offset int       // of the first element in the tensor
	Vec    optim.Vec // the model's own memory, or the optimizer's
	next   *Piece    // of the same parameter, see parts
}

// pieces lists this rank's pieces: of parameters and buffers, and of the state of opt, which may be
// nil. Pieces of one parameter are together, except that all values come first.
func (s *Store) pieces(opt optim.Optimizer) ([]Piece, error) {
	list := s.shares(s.Memory.Value)
	if opt == nil {
		return list, nil
	}
	owned := make([]int, len(s.Layout.Model.Params)) // by parameter: index after the piece in list, or 0
	for i := range list {
		owned[list[i].Index] = i + 1
	}
	var entries []optim.Entry
	if err := s.Memory.Lend(func() error { entries = opt.State(); return nil }); err != nil {
		return nil, err
	}
	list = slices.Grow(list, len(entries))
	for i := range entries {
		e := &entries[i]
		p, ok := s.Layout.Model.Index[e.Param]
		if !ok {
			return nil, fmt.Errorf("the optimizer has %s of %q, which is not a parameter of the model", e.Name, e.Param)
		}
		if shape := s.Layout.Model.Params[p].Shape; !slices.Equal(e.Shape, shape) {
			return nil, fmt.Errorf("the optimizer has %s of %s with shape %v, but the model's shape is %v", e.Name, e.Param, e.Shape, shape)
		}
		switch {
		case e.Name == "":
			return nil, fmt.Errorf("the optimizer has state without a name for %s", e.Param)
		case e.Data == nil || e.Data.Len() == 0:
			continue
		}
		if e.Data.Float64() != (s.Compute == comm.Float64) {
			return nil, fmt.Errorf("the optimizer's %s of %s is not %v", e.Name, e.Param, s.Compute)
		}
		at := owned[p] - 1
		if at < 0 || list[at].Offset != e.Offset || list[at].Vec.Len() != e.Data.Len() {
			return nil, fmt.Errorf("the optimizer has elements [%d:%d] of %s, which differ from this rank's shard: make the optimizer from Sharded.Params without changes",
				e.Offset, e.Offset+e.Data.Len(), e.Param)
		}
		piece := Piece{Tensor: list[at].Tensor, Offset: e.Offset, Vec: e.Data}
		piece.Entry, piece.Steps = e.Name, e.Steps
		list = append(list, piece)
	}
	return list, s.own(opt, list, owned)
}

// own returns an error if opt updates a parameter of another model. The values of this model come
// first in list; owned is by parameter. State does not show it: it may be empty, or made of equal
// shards.
func (s *Store) own(opt optim.Optimizer, list []Piece, owned []int) error {
	for _, p := range optim.Params(opt) {
		i, ok := s.Layout.Model.Index[p.Name]
		if !ok {
			return fmt.Errorf("the optimizer updates %q, which is not a parameter of the model", p.Name)
		}
		theirs, onHost := start(p.Value)
		if !onHost || p.Value.Len() == 0 || owned[i] == 0 {
			continue // pieces that do not fit are noticed by their state
		}
		if mine, _ := start(list[owned[i]-1].Vec); mine != theirs {
			return fmt.Errorf("the optimizer updates %s in other memory, such as another Sharded of the model: make the optimizer from this Sharded's Params", p.Name)
		}
	}
	return nil
}

// start returns the address of the elements of v, if they are in ordinary memory.
func start(v optim.Vec) (address unsafe.Pointer, is bool) {
	switch v := v.(type) {
	case optim.Host:
		return unsafe.Pointer(unsafe.SliceData(BytesOf(v))), true
	case vec.Host16:
		return unsafe.Pointer(unsafe.SliceData(v.Stored())), true
	}
	return nil, false
}

// shares lists this rank's pieces of the parameters and buffers. It leaves out groups that have no
// vector in shards.
func (s *Store) shares(of func(group int) optim.Vec) (list []Piece) {
	for i := range s.Layout.Groups {
		g := &s.Layout.Groups[i]
		shard := of(i)
		if shard == nil {
			continue
		}
		for _, seg := range g.Segments() {
			list = append(list, Piece{
				Tensor: value(s.Layout, g.Params[seg.Param], g.Owner(s.rank())),
				Offset: seg.Offset, Vec: shard.Slice(seg.At, seg.At+seg.Len),
			})
		}
	}
	return list
}

// parts are pieces by parameter of the model: the first piece of each, or nil.
type parts []*Piece

// parts returns pieces, which it links.
func (s *Store) parts(pieces []Piece) parts {
	all := make(parts, len(s.Layout.Model.Params))
	for i := range pieces {
		p := &pieces[i]
		p.next, all[p.Index] = all[p.Index], p
	}
	return all
}

// of returns the piece with an entry of a parameter's state, or nil.
func (all parts) of(param int, entry string) *Piece {
	p := all[param]
	for p != nil && p.Entry != entry {
		p = p.next
	}
	return p
}

// put copies this rank's part of a tensor from the whole, whose elements are of type t.
func (p *Piece) put(t comm.DType, whole []byte) error {
	if err := p.Vec.Write(p.of(t, whole)); err != nil {
		return fmt.Errorf("%s: %w", p.Name(), err)
	}
	return nil
}

// of returns the elements of the piece in the whole.
func (p *Piece) of(t comm.DType, whole []byte) optim.Host {
	es := t.Size()
	return host(t, whole[p.Offset*es:][:p.Vec.Len()*es])
}
