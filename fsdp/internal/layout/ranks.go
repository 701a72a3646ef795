package layout

import (
	"slices"

	"github.com/gofsdp/gofsdp/shard"
)

// Ranks are the ranks that share a group, as numbers. Each of several sets of ranks has all of the
// group's tensors, cut over its places; ranks with the same place in different sets are replicas of
// each other.
//
//	FullShard           leader 0 0 0 0    set 0 0 0 0    place 0 1 2 3
//	HybridShard         leader 0 0 0 0    set 0 0 1 1    place 0 1 0 1
//	NoShard, buffers    leader 0 0 0 0    set 0 1 2 3    place 0 0 0 0
//	groups of two       leader 0 0 2 2    set 0 0 2 2    place 0 1 0 1
type Ranks struct {
	World    int // ranks in all
	Shards   int // places: ranks that a set is cut over
	Place    int // of this rank
	Replicas int // ranks that have the same piece, 1 if this is the only one
	Replica  int // this rank's index among them
	Second   int // consecutive ranks over which a pass keeps a second copy cut; 0 for none
	Own      *Own
}

// Own is a separate process group of a unit. Ranks in different groups have different tensors of
// the same names.
type Own struct {
	Ranks  int      // of the group, the same in all groups of a unit
	Rank   int      // this rank's in it
	Leader int      // first rank of the world in it
	Table  []Member // by rank of the world
}

// A Member says which part of the tensors of a group a rank has: part Place of the set Set. Sets
// with the same Leader have the same tensors.
type Member struct{ Leader, Set, Place int }

// Shared is the owner of tensors that are the same on all ranks.
const Shared = -1

// Twice reports whether gradients are summed over the places, and then over the replicas.
func (r *Ranks) Twice() bool { return r.Shards > 1 && r.Replicas > 1 }

// Counts reports whether this rank represents its replicas in a sum over all ranks.
func (r *Ranks) Counts() bool { return r.Replica == 0 }

// differ reports whether other ranks have different tensors of the same names.
func (r *Ranks) differ() bool { return r.Own != nil && r.Own.Ranks != r.World }

// Leader returns the first of the ranks that have the same tensors as this one.
func (r *Ranks) Leader() int {
	if r.differ() {
		return r.Own.Leader
	}
	return 0
}

// Member returns the Member of a rank of the world.
func (g *Group) Member(rank int) Member {
	r := &g.Ranks
	m := Member{Set: rank / r.Shards, Place: rank % r.Shards}
	if r.Own == nil {
		return m
	}
	in := r.Own.Table[rank]
	if r.differ() && !g.Kind.Buffer {
		m.Leader = in.Leader
	}
	if r.Shards > 1 {
		m.Set, m.Place = in.Set, in.Place
	}
	return m
}

// Owners returns the owners of the different tensors of one name: the first rank of each separate
// group of the unit, or Shared.
func (g *Group) Owners() []int {
	if !g.Ranks.differ() || g.Kind.Buffer {
		return []int{Shared}
	}
	var list []int
	for _, m := range g.Ranks.Own.Table {
		list = append(list, m.Leader)
	}
	return slices.Compact(slices.Sorted(slices.Values(list)))
}

// Owner returns the owner of a rank's tensors: the rank if the group has buffers, the first rank of
// the unit's separate group, or Shared if they are the same on all ranks.
func (g *Group) Owner(rank int) int {
	switch {
	case g.Kind.Buffer:
		return rank
	case g.Ranks.differ():
		return g.Ranks.Own.Leader
	default:
		return Shared
	}
}

// Span returns the elements of parameter index at a place. Without elements it is empty.
func (g *Group) Span(place, index int) shard.Span {
	at, n := g.Flat.Offset(index), g.Flat.Params()[index].Len()
	lo := place * g.Flat.ShardLen()
	start, end := max(lo-at, 0), min(lo+g.Flat.ShardLen()-at, n)
	if start >= end {
		return shard.Span{}
	}
	return shard.Span{Start: start, End: end}
}
