package engine

import (
	"context"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/optim/vec"
)

// hostShards implements Shards in blocks of an arena.
type hostShards struct {
	h      *Host
	groups []*flatGroup
	state  []*arena.Block // of optimizers

	turn   Turn // of the backward under way
	before func(*layout.Group) float32
}

// A flatGroup is a group of parameters with this rank's share of it.
//
//	state        full parameters    full gradients       shard
//	sharded      none               none                 value, and gradient if it is trained, always
//	gathering    being written      -                    read by the group
//	full         valid              -
//	backward     valid              written by calls
//	reducing     none               read by the group    gradient is added to when drained
//
// Parameters that every rank has whole (program.Always) have no full buffer but value.
type flatGroup struct {
	*layout.Group
	mesh        ranks.Mesh
	value, grad *arena.Block // ShardLen elements of type Store each; padding is zero; grad is nil if frozen
	lost        *arena.Block // rounding errors of gradients that travel as blocks, or nil: see layout.Group.ErrorBytes
	whole       *arena.Block // gradients that passes inside NoSync have left, or nil

	sums, wholes []*arena.Block // of 2^k passes of a step by k, cut and whole: see the tree over the passes of a step

	valueVec, gradVec optim.Vec  // the same memory; gradVec is nil if frozen
	grads             *hostGrads // of gradVec, unless it stores bfloat16
}

// NewShards implements Device.
func (h *Host) NewShards(_ context.Context, l *layout.Layout, meshes []ranks.Mesh) (_ Shards, err error) {
	s := &hostShards{h: h}
	for i := range l.Groups {
		f := &flatGroup{Group: &l.Groups[i], mesh: meshes[i]}
		s.groups = append(s.groups, f)
		if f.value, err = h.alloc(f.ShardBytes(), arena.Shard, f.Name); err == nil && !f.Kind.Frozen {
			f.grad, err = h.alloc(f.ShardBytes(), arena.Shard, f.Name)
		}
		if err == nil && f.ErrorBytes() > 0 {
			f.lost, err = h.alloc(f.ErrorBytes(), arena.Shard, f.Name)
		}
		if err != nil {
			s.Free()
			return nil, err
		}
		switch f.valueVec = vector(f.Store, f.value.Data); {
		case f.grad == nil:
		case f.Store == comm.BFloat16:
			f.gradVec = vector(f.Store, f.grad.Data)
		default:
			f.grads = newHostGrads(vector(f.Store, f.grad.Data).(optim.Host))
			f.gradVec = hostGrad{f.grads, 0, f.grads.memory.Len()}
		}
	}
	return s, nil
}

// Value implements Shards.
func (s *hostShards) Value(group int) optim.Vec { return s.groups[group].valueVec }

// Grad implements Shards.
func (s *hostShards) Grad(group int) optim.Vec { return s.groups[group].gradVec }

// Alloc implements Shards.
func (s *hostShards) Alloc(group, n int) (optim.Vec, error) {
	t := s.groups[group].Compute
	b, err := s.h.arena.Alloc(n*t.Size(), arena.State)
	if err != nil {
		return nil, err
	}
	s.state = append(s.state, b)
	return vector(t, b.Data), nil
}

// Average implements Shards.
func (s *hostShards) Average(ctx context.Context, group int) error {
	f := s.groups[group]
	return f.mesh.Peers.AllReduce(f.buffer(f.value.Data, f.Store), comm.Avg).Wait(ctx)
}

// Whole implements Shards.
func (s *hostShards) Whole(group int) bool { return s.groups[group].whole != nil }

// ReduceWhole implements Shards.
func (s *hostShards) ReduceWhole(ctx context.Context, group int, before float32, after float64) error {
	f := s.groups[group]
	full := f.whole.Data
	if w := f.startReduce(full, before); w != nil {
		if err := w.Wait(ctx); err != nil {
			return err
		}
	}
	if f.Ranks.Twice() {
		if err := f.startSync(full).Wait(ctx); err != nil {
			return err
		}
	}
	f.finishReduce(full, after)
	s.h.Free(f.whole)
	f.whole = nil
	return nil
}

// DropWhole implements Shards.
func (s *hostShards) DropWhole() {
	for _, f := range s.groups {
		s.h.Free(f.whole)
		f.whole = nil
		s.freeAll(f.wholes)
		f.wholes = nil
	}
}

// Forget implements Shards.
func (s *hostShards) Forget() {
	for _, f := range s.groups {
		if f.lost != nil {
			clear(f.lost.Data)
		}
	}
}

// freeAll frees blocks, some of which may be nil.
func (s *hostShards) freeAll(list []*arena.Block) {
	for _, b := range list {
		s.h.Free(b)
	}
}

// Free implements Shards.
func (s *hostShards) Free() {
	for _, f := range s.groups {
		s.h.Free(f.value)
		s.h.Free(f.grad)
		s.h.Free(f.lost)
		s.freeAll(f.sums)
		f.value, f.grad, f.lost, f.sums = nil, nil, nil, nil
	}
	s.freeAll(s.state)
	s.state = nil
}

// vector returns b, whose elements are of type t.
func vector(t comm.DType, b []byte) optim.Vec {
	switch t {
	case comm.Float64:
		return optim.Host{F64: elements[float64](b)}
	case comm.BFloat16:
		return vec.NewHost16(elements[comm.BF16](b))
	}
	return optim.Host{F32: elements[float32](b)}
}
