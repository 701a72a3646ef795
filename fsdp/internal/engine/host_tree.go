package engine

import (
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
	if f.merge(own, f.sums, s.turn); s.turn.Last() {
		return true, nil
	}
	for len(f.sums) <= s.turn.Kept() {
		b, err := s.h.arena.Alloc(len(own), arena.Shard)
		if err != nil {
			return false, err
		}
		f.sums = append(f.sums, b)
	}
	copy(f.sums[s.turn.Kept()].Data, own)
	return false, nil
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
