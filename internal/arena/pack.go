package arena

import (
	"cmp"
	"slices"
)

// A Place is a piece of memory that is in use from one step of a plan to another. Pack sets its
// Offset.
type Place struct {
	Bytes       int
	First, Last int // steps; it is in use in both
	Offset      int
}

// Pack gives every place an offset, a multiple of align, such that places in use at the same time
// do not overlap. It returns the total size. It places the largest first, each at the lowest offset
// that fits (greedy by size: Pisarchyk & Lee, 2020, arXiv:2001.03288).
func Pack(all []*Place, align int) int {
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b *Place) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.First, b.First))
	})
	var placed []*Place // by offset
	total := 0
	for _, s := range sorted {
		s.Offset = 0
		for _, p := range placed {
			if p.Last < s.First || s.Last < p.First {
				continue
			}
			if s.Offset+s.Bytes <= p.Offset {
				break
			}
			s.Offset = max(s.Offset, (p.Offset+p.Bytes+align-1)/align*align)
		}
		i, _ := slices.BinarySearchFunc(placed, s, func(a, b *Place) int { return cmp.Compare(a.Offset, b.Offset) })
		placed = slices.Insert(placed, i, s)
		total = max(total, s.Offset+s.Bytes)
	}
	return total
}
