package generate

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestPermute moves rows in place, from rows that are or are not to be written, in circles and not,
// and touches none that stays.
func TestPermute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "rows")
		from := rapid.OneOf(rapid.SliceOfN(rapid.IntRange(0, n-1), n, n), rapid.Permutation(indices(n))).Draw(t, "from")
		c := cache[float32]{width: 1, rows: n, capacity: 2, arrays: [][]float32{make([]float32, 2*n)}}
		for i := range n {
			c.arrays[0][2*i] = float32(i)
		}
		c.arrange(from, slices.Repeat([]int{1}, n), n, 2)
		for i, j := range from {
			require.Equal(t, float32(j), c.arrays[0][2*i])
		}
		for _, m := range c.moves {
			require.True(t, m.to == saved || from[m.to] != m.to, "a row that stays")
		}
		require.LessOrEqual(t, len(c.moves), n+n/2, "one more for each circle")
	})
}

func indices(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

// TestCacheKeepsWhatItWasGiven adds, moves and drops rows at random, and compares the last tokens
// of each with a list.
func TestCacheKeepsWhatItWasGiven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := Size{Layers: rapid.IntRange(1, 2).Draw(t, "layers"), Width: rapid.IntRange(1, 3).Draw(t, "width"),
			Window: rapid.SampledFrom([]int{0, 3, 20}).Draw(t, "window")}
		c := newCache[float32](size)
		rows := [][]float32{{}, {}, {}} // of array 0; array i has i more in every element
		next := float32(1)
		for range rapid.IntRange(1, 8).Draw(t, "passes") {
			news, most := make([]int, len(rows)), 0
			length := rapid.SampledFrom([]int{1, 4, 32}).Draw(t, "length")
			for i := range rows {
				news[i] = rapid.IntRange(0, length).Draw(t, "new")
				most = max(most, len(rows[i])/size.Width+news[i])
			}
			from := rapid.SliceOfN(rapid.IntRange(0, len(rows)-1), 1, 4).Draw(t, "from")
			if c.rows == 0 {
				from = []int{0, 1, 2}
			}
			var moved [][]float32
			var held, counts []int
			for _, j := range from {
				moved = append(moved, append([]float32{}, rows[j]...))
				held = append(held, min(len(rows[j])/size.Width, c.capacity))
				counts = append(counts, news[j])
			}
			c.arrange(from, held, bucket(len(from)), max(c.capacity, c.need(most)))
			given := make([][]float32, 2*size.Layers)
			for i := range given {
				given[i] = make([]float32, len(moved)*length*size.Width)
			}
			for r, n := range counts {
				for e := range n * size.Width {
					for i := range given {
						given[i][r*length*size.Width+e] = next + float32(i)
					}
					moved[r] = append(moved[r], next)
					next++
				}
				c.add(r, len(moved[r])/size.Width-n, n, given, length)
			}
			rows = moved
			for r, want := range rows {
				n := len(want) / size.Width
				if size.Window > 0 {
					n = min(n, size.Window)
				}
				lo, hi := c.held(min(len(want)/size.Width, c.capacity))
				require.GreaterOrEqual(t, hi-lo, n)
				want = want[len(want)-n*size.Width:]
				for i, a := range c.arrays {
					got := a[(r*c.capacity+hi-n)*size.Width:][:n*size.Width]
					for e := range want {
						require.Equal(t, want[e]+float32(i), got[e])
					}
				}
			}
		}
	})
}

// TestCallErrorNamesNoCalls leaves out the calls that users have not made, and nothing else.
func TestCallErrorNamesNoCalls(t *testing.T) {
	for text, want := range map[string]string{
		"fsdp: rank 0: JoinCalls: rank 1: Eval: lost":                     "generate: rank 0: rank 1: lost",
		"fsdp: rank 0: Eval: call Eval: x: JoinCalls: y":                  "generate: rank 0: call Eval: x: JoinCalls: y",
		"rank 1: the file of Eval: lost":                                  "generate: rank 1: the file of Eval: lost",
		"fsdp: rank 2: JoinCalls: Eval: lost\nfsdp: rank 2: Eval: Eval; ": "generate: rank 2: lost\nfsdp: rank 2: Eval; ",
	} {
		require.EqualError(t, &callError{errors.New(text)}, want)
	}
}
