package engine

import (
	"context"
	"math"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Turn implements turner.
func (s *hostShards) Turn(t Turn, before func(*layout.Group) float32) { s.turn, s.before = t, before }

// round rounds the gradients of a pass, or their sum, to the type in which they would travel if
// each pass ran on a separate rank: see layout.Group.Round.
func (f *flatGroup) round(b []byte, c float32) {
	if f.Round == f.Reduce {
		return
	}
	var chunk [2048]byte
	for list := elements[float32](b); len(list) > 0; {
		n := min(len(list), len(chunk)/2)
		f.narrow(chunk[:2*n], b[:4*n], f.Round, c)
		widen(list[:n], chunk[:2*n], f.Round)
		list, b = list[n:], b[4*n:]
	}
}

// merge adds to the leaf of a turn the sums that it carries.
func (f *flatGroup) merge(leaf []byte, sums []*arena.Block, t Turn) {
	for k, sum := range sums {
		if !t.Merges(k) {
			continue
		}
		if f.Compute == comm.Float64 {
			vec.Accumulate(elements[float64](leaf), elements[float64](sum.Data))
		} else {
			vec.Accumulate(elements[float32](leaf), elements[float32](sum.Data))
		}
	}
}

// keep merges this rank's range of the sums of a reduction, and keeps it for later passes. It
// returns whether the step is over: then own is the sum.
func (s *hostShards) keep(f *flatGroup, own []byte) (over bool, err error) {
	if s.turn.Of < 2 || s.turn.Whole {
		return true, nil
	}
	return s.count(f, own, s.turn)
}

// count adds a leaf to the binary counter of a group, or makes it the sum of all. Then it returns
// true.
func (s *hostShards) count(f *flatGroup, leaf []byte, t Turn) (over bool, err error) {
	if f.merge(leaf, f.sums, t); t.Last() {
		return true, nil
	}
	for len(f.sums) <= t.Kept() {
		b, err := s.h.arena.Alloc(len(leaf), arena.Shard)
		if err != nil {
			return false, err
		}
		f.sums = append(f.sums, b)
	}
	copy(f.sums[t.Kept()].Data, leaf)
	return false, nil
}

// In a leafwise pass, the room behind the full gradients has the leaves of this rank's part. Before
// them there may be padding: parts of replicas end behind the gradients.

// leaves returns the elements that this rank sends, and the leaves that it receives, both in parts
// for all places of the exchange.
func (f *flatGroup) leaves(x Exchange, full []byte) (sent, received []byte) {
	n := x.Places * x.Part * f.Compute.Size()
	from := 0
	if f.Ranks.Twice() {
		from = f.Ranks.Place * f.Flat.ShardLen() * f.Compute.Size()
	}
	return full[from : from+n : from+n], full[len(full)-n:]
}

// exchanging returns the group of the exchange, and this rank's place in it.
func (f *flatGroup) exchanging() (g comm.Group, place int) {
	if f.mesh.Replica != nil {
		return f.mesh.Replica, f.Ranks.Replica
	}
	return f.mesh.Shard, f.Ranks.Place
}

// startExchange issues the all-to-all of the gradients in full.
func (f *flatGroup) startExchange(full []byte) comm.Work {
	sent, received := f.leaves(NewExchange(f.Group), full)
	g, _ := f.exchanging()
	return g.AllToAll(f.buffer(received, f.Compute), f.buffer(sent, f.Compute))
}

// nothing fills gradients with the value that changes no sum: a rank without a leaf sends it.
func (f *flatGroup) nothing(grads []byte) {
	zero := math.Copysign(0, -1)
	if f.Compute == comm.Float64 {
		vec.Fill(elements[float64](grads), zero)
	} else {
		vec.Fill(elements[float32](grads), float32(zero))
	}
}

// keepLeaves counts the leaves that a rank has received. It returns whether the step is over: then
// this rank's range of the gradients is the sum.
func (s *hostShards) keepLeaves(ctx context.Context, f *flatGroup, full []byte) (over bool, err error) {
	x := NewExchange(f.Group)
	sent, received := f.leaves(x, full)
	g, place := f.exchanging()
	size := x.Part * f.Compute.Size()
	own := sent[place*size:][:size:size]
	for p := range x.Places {
		t, ok := s.turn.Leaf(p, x.Places, x.Ranks)
		if !ok {
			break
		}
		leaf := received[p*size:][:size]
		if over, err = s.count(f, leaf, t); err != nil {
			return false, err
		}
		if over {
			copy(own, leaf)
		}
	}
	if over && f.mesh.Replica != nil {
		err = g.AllGather(f.buffer(sent, f.Compute), f.buffer(own, f.Compute)).Wait(ctx)
	}
	return over, err
}

// leave keeps the whole gradients of a pass inside NoSync, merged with earlier sums.
func (s *hostShards) leave(f *flatGroup, b *arena.Block) {
	if s.turn.Of == 0 {
		f.whole = b
		return
	}
	f.round(b.Data, s.before(f.Group))
	f.merge(b.Data, f.wholes, s.turn)
	if s.turn.Last() {
		f.whole = b
		return
	}
	for len(f.wholes) <= s.turn.Kept() {
		f.wholes = append(f.wholes, nil)
	}
	f.wholes[s.turn.Kept()] = b
}

// shed frees the whole sums that a pass has merged.
func (s *hostShards) shed() {
	for _, f := range s.groups {
		for k, b := range f.wholes {
			if s.turn.Merges(k) && b != nil {
				s.h.Free(b)
				f.wholes[k] = nil
			}
		}
	}
}
