package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// tree returns the sum of leaves from lo to hi-1 in the order of package comm.
func tree(lo, hi int) string {
	if hi-lo == 1 {
		return fmt.Sprint(lo)
	}
	mid := lo + 1
	for 2*(mid-lo) < hi-lo {
		mid = lo + 2*(mid-lo)
	}
	return "(" + tree(lo, mid) + "+" + tree(mid, hi) + ")"
}

// TestLeaves counts the leaves of a step like each rank does for its part: for any number of leaves
// and ranks the sum is the tree of package comm, also where groups of 2^k ranks sum first.
func TestLeaves(t *testing.T) {
	for leaves := 1; leaves <= 33; leaves++ {
		for ranks := 1; ranks <= leaves; ranks++ {
			for first := 1; first <= ranks; first *= 2 {
				if ranks%first == 0 {
					requireTree(t, leaves, ranks, first)
				}
			}
		}
	}
}

// requireTree counts leaves, each of which is the sum of some ranks.
func requireTree(t *testing.T, leaves, ranks, first int) {
	places, passes := ranks/first, (leaves+ranks-1)/ranks
	sums, all, kept := make(map[int]string), "", 0
	for at := range passes {
		turn := newTurn(at, leaves, 0, ranks, false)
		require.Equal(t, at == passes-1, turn.Last())
		for rank := range ranks {
			require.Equal(t, turn.VirtualRank(rank, ranks) >= leaves, newTurn(at, leaves, rank, ranks, false).Missing)
		}
		for place := range places {
			leaf, ok := turn.Leaf(place, places, first)
			from := turn.VirtualRank(place*first, ranks)
			if require.Equal(t, from < leaves, ok); !ok {
				break
			}
			sum := tree(from, min(from+first, leaves))
			for k := range 8 {
				if leaf.Merges(k) && sums[k] != "" {
					sum = "(" + sums[k] + "+" + sum + ")"
				}
			}
			if leaf.Last() {
				all = sum
			} else {
				sums[leaf.Kept()] = sum
				kept = max(kept, leaf.Kept()+1)
			}
			for k := range 8 { // the sums that were added
				if leaf.Merges(k) {
					delete(sums, k)
				}
			}
		}
	}
	require.Equal(t, tree(0, leaves), all, "%d leaves on %d ranks", leaves, ranks)
	x, _ := newTurn(0, leaves, 0, ranks, false).Leaf(0, places, first)
	require.LessOrEqual(t, 1<<kept, max(2*(x.Of-1), 1), "sums that are kept: see TreeBytes")
}
