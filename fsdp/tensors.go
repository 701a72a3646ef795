package fsdp

import (
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// A statePiece is what this rank holds of a tensor of the training's state: the value of a parameter or buffer, or what an
// optimizer keeps for a parameter. Pieces are known by names and intervals, never by where they lie.
type statePiece struct {
	checkpoint.Key
	shape  []int // of the whole tensor
	steps  int   // updates that the entry of an optimizer has had
	group  int   // index of the flat group
	index  int   // of the parameter in the group's layout
	offset int   // of the first element in the tensor
	data   []byte
	vec    optim.Vec // of the optimizer, whose memory is data; nil of a value
}

// pieces lists what this rank holds: of parameters and buffers, and of the state of opt, which may be nil. The data is the
// model's and the optimizer's own memory.
func (s *Sharded) pieces(opt optim.Optimizer) ([]statePiece, error) {
	var list []statePiece
	owned := make(map[layout.Place]shard.Segment)
	for i, g := range s.groups {
		es := g.Compute.Size()
		for _, seg := range g.Segments() {
			p := g.Flat.Params()[seg.Param]
			owned[layout.Place{Group: i, Index: seg.Param}] = seg
			list = append(list, statePiece{
				Key:   checkpoint.Key{Param: p.Name, Owner: g.Owner(s.cfg.Group.Rank())},
				shape: p.Shape, group: i, index: seg.Param, offset: seg.Offset,
				data: g.value.Data[seg.At*es : (seg.At+seg.Len)*es],
			})
		}
	}
	if opt == nil {
		return list, nil
	}
	if err := s.refusal(opt, errFormer); err != nil { // its memory is used for other things
		return nil, err
	}
	for _, e := range opt.State() {
		p, ok := s.trace.byName[e.Param]
		if !ok {
			return nil, fmt.Errorf("the optimizer has %s of %q, which is no parameter of the model", e.Name, e.Param)
		}
		home := s.layout.Home[p]
		g := s.groups[home.Group]
		if shape := g.Flat.Params()[home.Index].Shape; !slices.Equal(e.Shape, shape) {
			return nil, fmt.Errorf("the optimizer has %s of %s %v, the model's is %v", e.Name, e.Param, e.Shape, shape)
		}
		host, _ := e.Data.(optim.Host)
		data := elementBytes(host)
		if want := e.Data.Len() * g.Compute.Size(); len(data) != want {
			return nil, fmt.Errorf("the optimizer's %s of %s is not %v", e.Name, e.Param, g.Compute)
		}
		if seg := owned[home]; e.Offset != seg.Offset || e.Data.Len() != seg.Len {
			return nil, fmt.Errorf("the optimizer has elements [%d:%d] of %s, which is not what this rank has of it: make it of Sharded.Shards as they are",
				e.Offset, e.Offset+e.Data.Len(), e.Param)
		}
		list = append(list, statePiece{
			Key:   checkpoint.Key{Param: e.Param, Entry: e.Name, Owner: g.Owner(s.cfg.Group.Rank())},
			shape: e.Shape, steps: e.Steps, group: home.Group, index: home.Index, offset: e.Offset, data: data, vec: e.Data,
		})
	}
	return list, nil
}

// elementBytes returns the memory of v.
func elementBytes(v optim.Host) []byte {
	if v.F64 != nil {
		return exec.Bytes(v.F64)
	}
	return exec.Bytes(v.F32)
}
