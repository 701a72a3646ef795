package fsdp

import (
	"context"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/shard"
)

// A holding says which rank of Config.Group has which part of a flat group's parameters. A set of ranks has all of them, each
// its place in the layout:
//
//	FullShard           leader 0 0 0 0    set 0 0 0 0    place 0 1 2 3
//	HybridShard         leader 0 0 0 0    set 0 0 1 1    place 0 1 0 1
//	NoShard, buffers    leader 0 0 0 0    set 0 1 2 3    place 0 0 0 0
//	groups of two       leader 0 0 2 2    set 0 0 2 2    place 0 1 0 1
type holding struct {
	leader []int        // ranks with the same leader have the same tensors
	set    []int        // and those with the same set share them
	place  []int        // of the layout's ranks
	spans  []shard.Span // by place and parameter: elements of the parameter; empty ones are nothing
	params int
}

// holdings returns those of all flat groups. It is a collective if units have groups of their own, whose ranks only they know.
func (s *Sharded) holdings(ctx context.Context) ([]holding, error) {
	world := s.cfg.Group.Size()
	var own []int64 // leader and rank in every group of the user's
	for _, g := range s.groups {
		if g.peers != s.cfg.Group {
			own = append(own, int64(s.leaderOf(g)), int64(g.peers.Rank()))
		}
	}
	all := make([]int64, len(own)*world)
	if len(own) > 0 {
		const label = "ranks of groups of GroupOf"
		if err := s.cfg.Group.AllGather(comm.Of(all).Named(label), comm.Of(own).Named(label)).Wait(ctx); err != nil {
			return nil, err
		}
	}
	list, at := make([]holding, len(s.groups)), 0
	for i, g := range s.groups {
		h := &list[i]
		h.lay(g.layout)
		ranks, users := g.mesh.shard.Size(), g.peers != s.cfg.Group
		for r := range world {
			leader, set, place := 0, r/ranks, r%ranks
			if users {
				words := all[r*len(own)+at:]
				if leader = int(words[0]); ranks > 1 {
					set, place = leader, int(words[1])
				} else {
					set = r
				}
			}
			h.leader, h.set, h.place = append(h.leader, leader), append(h.set, set), append(h.place, place)
		}
		if users {
			at += 2
		}
	}
	return list, nil
}

// leaderOf returns the first of the ranks that have the same tensors of a group as this one.
func (s *Sharded) leaderOf(g *flatGroup) int {
	if s.apart(g) {
		return g.mesh.leader
	}
	return 0
}

// apart tells whether other ranks have other tensors of the names in the group: it is one of several groups of the user's.
func (s *Sharded) apart(g *flatGroup) bool { return g.peers.Size() != s.cfg.Group.Size() }

// lay fills spans.
func (h *holding) lay(l *shard.Layout) {
	h.params = len(l.Params())
	h.spans = make([]shard.Span, l.World()*h.params)
	for place := range l.World() {
		for _, seg := range l.Segments(place) {
			h.spans[place*h.params+seg.Param] = shard.Span{Start: seg.Offset, End: seg.Offset + seg.Len}
		}
	}
}

// span returns which elements of a parameter of the layout a rank has.
func (h *holding) span(rank, index int) shard.Span { return h.spans[h.place[rank]*h.params+index] }

// owners returns who the different tensors of one name belong to.
func (h *holding) owners() []int {
	list := slices.Compact(slices.Sorted(slices.Values(h.leader)))
	if len(list) == 1 {
		return []int{checkpoint.Shared}
	}
	return list
}

// has tells whether a rank is one of those that a tensor belongs to.
func (h *holding) has(rank, owner int) bool {
	return owner == checkpoint.Shared || h.leader[rank] == owner
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
	counts, ordered = make([]int, len(h.set)), true
	next := 0
	for r, set := range h.set {
		if set != h.set[source] {
			continue
		}
		if span := h.span(r, index); span.End > span.Start {
			counts[r] = span.End - span.Start
			ordered = ordered && span.Start == next
			next = span.End
		}
	}
	return counts, ordered
}

// lengths returns how many elements of a parameter each place has.
func (h *holding) lengths(index int) (list []int) {
	for at := index; at < len(h.spans); at += h.params {
		list = append(list, h.spans[at].End-h.spans[at].Start)
	}
	return list
}

// arrange moves the parts of a parameter, which arrived in the order of the ranks, to where they belong. es is the size of an
// element.
func (h *holding) arrange(whole []byte, counts []int, index, es int) {
	arrived := slices.Clone(whole)
	for r, count := range counts {
		if count > 0 {
			copy(whole[h.span(r, index).Start*es:], arrived[:count*es])
			arrived = arrived[count*es:]
		}
	}
}
