package state

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
)

// A drawnStep is a step of ranks that share two tensors, cut anywhere, and have a buffer each.
type drawnStep struct {
	world, distance int
	cuts            []int // of the vector, by rank and at the end
	left            []int // ranks that are left, in the order of the new group
}

// share describes a rank's share. A rank without elements has no span of the vector.
func (d *drawnStep) share(rank int) []byte {
	s := share{Steps: 3}
	buffer := span{Name: "buffer", Shape: []int{2}, Buffer: true, Len: 2, Sent: true}
	s.Spans[trained] = []span{buffer}
	if from, to := d.cuts[rank], d.cuts[rank+1]; from < to {
		length := d.cuts[d.world]
		s.Spans[trained] = append(s.Spans[trained], span{Name: "vector", Shape: []int{length}, Offset: from, Len: to - from, Sent: true})
	}
	text, _ := json.Marshal(&s)
	return text
}

// claims returns the claims of the ranks that are left, for a set of this number.
func (d *drawnStep) claims(number int64) [][]claim {
	var all [][]claim
	for _, rank := range d.left {
		held := neighbour(rank, d.distance, d.world)
		all = append(all, []claim{{
			Number: number, World: d.world, Rank: rank, Distance: d.distance, Compute: comm.Float32, Own: d.share(rank), Held: d.share(held),
		}})
	}
	return all
}

// lost reports whether a rank is lost together with the rank that has its copy.
func (d *drawnStep) lost() bool {
	for rank := range d.world {
		if !slices.Contains(d.left, rank) && !slices.Contains(d.left, neighbour(rank, -d.distance, d.world)) {
			return true
		}
	}
	return false
}

// TestChoose: a step is chosen if and only if no rank is lost together with the holder of its copy.
// The ranks that give a tensor have all of it, once. A set that only some ranks have, as a copy was
// under way, is not chosen.
func TestChoose(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.IntRange(2, 8).Draw(t, "world")
		d := &drawnStep{world: world, distance: rapid.IntRange(1, world-1).Draw(t, "distance")}
		d.cuts = append(rapid.SliceOfN(rapid.IntRange(0, 20), world-1, world-1).Draw(t, "cuts"), 0, 20)
		slices.Sort(d.cuts)
		order := rapid.Permutation(slices.Collect(func(yield func(int) bool) {
			for r := range world {
				if !yield(r) {
					return
				}
			}
		})).Draw(t, "order")
		d.left = order[:rapid.IntRange(1, world).Draw(t, "left")]
		lists := d.claims(7)
		if len(lists) < world && rapid.Bool().Draw(t, "a copy was under way") {
			some := *d
			some.left = d.left[:1]
			next := some.claims(8)[0]
			next[0].Held = nil
			lists[0] = append(lists[0], next...)
		}
		for range rapid.IntRange(0, 2).Draw(t, "spares") {
			lists = append(lists, nil)
		}
		texts := make([][]byte, len(lists))
		for i := range lists {
			var err error
			texts[i], err = json.Marshal(lists[i])
			require.NoError(t, err)
		}
		c := choose(texts)
		if d.lost() {
			require.NotEmpty(t, c.Fault)
			return
		}
		require.Empty(t, c.Fault)
		require.EqualValues(t, 7, c.Number)
		require.Equal(t, 3, c.sheet.Steps)
		for i, h := range c.sheet.Have {
			if g := c.Tensors[i]; h.Param == "vector" {
				next := 0
				for _, p := range g.Parts {
					require.Equal(t, next, p.Offset)
					next += p.Len
				}
				require.Equal(t, 20, next)
			} else {
				require.Len(t, g.Parts, world)
				for r, rank := range d.left {
					require.Equal(t, given{Rank: r, Offset: 2 * rank, Len: 2}, g.Parts[g.Buffers[r]], "a rank keeps its own buffer")
				}
			}
		}
	})
}
