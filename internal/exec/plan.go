package exec

import (
	"cmp"
	"slices"

	"github.com/gofsdp/gofsdp/internal/arena"
)

// storage is a piece of work memory from instruction first to instruction last. It holds one value,
// or several that are computed in place one after the other.
type storage struct {
	bytes, first, last int
	offset             int
}

// pack gives every storage an offset such that no two overlap that live at the same time. It
// returns the size of the whole. The largest comes first, and each lies as low as it fits (greedy
// by size: Pisarchyk & Lee, 2020, arXiv:2001.03288).
func pack(all []*storage) int {
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b *storage) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.first, b.first))
	})
	var placed []*storage // by offset
	total := 0
	for _, s := range sorted {
		s.offset = 0
		for _, p := range placed {
			if p.last < s.first || s.last < p.first {
				continue
			}
			if s.offset+s.bytes <= p.offset {
				break
			}
			s.offset = max(s.offset, align(p.offset+p.bytes))
		}
		i, _ := slices.BinarySearchFunc(placed, s, func(a, b *storage) int { return cmp.Compare(a.offset, b.offset) })
		placed = slices.Insert(placed, i, s)
		total = max(total, s.offset+s.bytes)
	}
	return total
}

func align(n int) int { return (n + arena.Align - 1) / arena.Align * arena.Align }
