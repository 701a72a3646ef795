package shm

import "slices"

const (
	lineBytes = 64
	pageBytes = 4 << 10
	growBytes = 256 << 10 // memory is reserved in pieces of this size, or larger
)

// heap records which ranges of a segment are in use. It is first fit over an ordered list. This
// keeps the segment small and, with the few similar sizes of training, free of fragments.
type heap struct {
	free       []span // sorted, never adjacent, below top
	live       []span // allocations, in order
	top, limit int    // memory is reserved below top, and can be reserved up to limit
}

// span is a range of offsets.
type span struct{ lo, hi int }

// footprint returns the size and alignment of an allocation of n bytes.
func footprint(n int) (size, align int) {
	align = lineBytes
	if n >= pageBytes {
		align = pageBytes
	}
	return roundUp(max(n, 1), lineBytes), align
}

// roundUp rounds n up to a multiple of align, a power of two.
func roundUp(n, align int) int { return (n + align - 1) &^ (align - 1) }

// take allocates n bytes, if reserved memory suffices.
func (h *heap) take(n int) (off int, ok bool) {
	if n > h.limit {
		return 0, false
	}
	size, align := footprint(n)
	for i, f := range h.free {
		lo := roundUp(f.lo, align)
		if f.hi-lo < size {
			continue
		}
		rest := span{lo + size, f.hi}
		switch {
		case lo > f.lo && rest.lo < rest.hi:
			h.free[i].hi = lo
			h.free = slices.Insert(h.free, i+1, rest)
		case lo > f.lo:
			h.free[i].hi = lo
		case rest.lo < rest.hi:
			h.free[i] = rest
		default:
			h.free = slices.Delete(h.free, i, i+1)
		}
		k, _ := h.find(lo)
		h.live = slices.Insert(h.live, k, span{lo, lo + size})
		return lo, true
	}
	return 0, false
}

// room returns the range to reserve for an allocation of n bytes, from top on.
func (h *heap) room(n int) (lo, hi int, ok bool) {
	if n > h.limit {
		return 0, 0, false
	}
	size, align := footprint(n)
	begin := h.top
	if k := len(h.free); k > 0 && h.free[k-1].hi == h.top {
		begin = h.free[k-1].lo
	}
	need := roundUp(begin, align) + size
	if need > h.limit {
		return 0, 0, false
	}
	return h.top, min(roundUp(need, growBytes), h.limit), true
}

// grow adds the reserved memory from top up to hi.
func (h *heap) grow(hi int) {
	h.release(span{h.top, hi})
	h.top = hi
}

// give frees the allocation at off. It returns false if there is none.
func (h *heap) give(off int) bool {
	k, ok := h.find(off)
	if !ok {
		return false
	}
	h.release(h.live[k])
	h.live = slices.Delete(h.live, k, k+1)
	return true
}

// find returns the index in live of the allocation at off, or the index at which it would be.
func (h *heap) find(off int) (k int, ok bool) {
	return slices.BinarySearchFunc(h.live, off, func(s span, off int) int { return s.lo - off })
}

// release adds s to the free list, joined with its neighbours.
func (h *heap) release(s span) {
	i, _ := slices.BinarySearchFunc(h.free, s, func(a, b span) int { return a.lo - b.lo })
	below := i > 0 && h.free[i-1].hi == s.lo
	above := i < len(h.free) && h.free[i].lo == s.hi
	switch {
	case below && above:
		h.free[i-1].hi = h.free[i].hi
		h.free = slices.Delete(h.free, i, i+1)
	case below:
		h.free[i-1].hi = s.hi
	case above:
		h.free[i].lo = s.lo
	default:
		h.free = slices.Insert(h.free, i, s)
	}
}
