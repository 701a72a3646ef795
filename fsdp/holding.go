package fsdp

import (
	"slices"

	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
)

// A holding says which rank of Config.Group has which part of a flat group's parameters, see layout.Ranks.
type holding struct {
	g     *layout.Group
	world int
}

// holdings returns those of all flat groups.
func (s *Sharded) holdings() []holding {
	list := make([]holding, len(s.groups))
	for i, g := range s.groups {
		list[i] = holding{g.Group, s.cfg.Group.Size()}
	}
	return list
}

// has tells whether a rank is one of those that a tensor belongs to.
func (h *holding) has(rank, owner int) bool {
	return owner == layout.Shared || h.g.Member(rank).Leader == owner
}

// source returns a rank of the set that gives a tensor to rank root: its own set, if that has the tensor.
func (h *holding) source(owner, root int) int {
	if h.has(root, owner) {
		return root
	}
	return owner
}

// counts returns how many elements of a parameter each rank of the set of rank source has, and whether they lie in the order of
// the ranks: a group of the user's may have another.
func (h *holding) counts(source, index int) (counts []int, ordered bool) {
	counts, ordered = make([]int, h.world), true
	set, next := h.g.Member(source).Set, 0
	for r := range h.world {
		m := h.g.Member(r)
		if m.Set != set {
			continue
		}
		if span := h.g.Span(m.Place, index); span.End > span.Start {
			counts[r] = span.End - span.Start
			ordered = ordered && span.Start == next
			next = span.End
		}
	}
	return counts, ordered
}

// lengths returns how many elements of a parameter each place has.
func (h *holding) lengths(index int) (list []int) {
	for place := range h.g.Ranks.Shards {
		span := h.g.Span(place, index)
		list = append(list, span.End-span.Start)
	}
	return list
}

// arrange moves the parts of a parameter, which arrived in the order of the ranks, to where they belong. es is the size of an
// element.
func (h *holding) arrange(whole []byte, counts []int, index, es int) {
	arrived := slices.Clone(whole)
	for r, count := range counts {
		if count > 0 {
			copy(whole[h.g.Span(h.g.Member(r).Place, index).Start*es:], arrived[:count*es])
			arrived = arrived[count*es:]
		}
	}
}
