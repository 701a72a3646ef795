package shard_test

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/shard"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawGroups deals params in random order into up to three groups, each with its own world size and alignment.
func drawGroups(t *rapid.T, params []shard.Param, label string) []*shard.Layout {
	groups := make([][]shard.Param, rapid.IntRange(1, 3).Draw(t, label+"Groups"))
	for _, p := range rapid.Permutation(params).Draw(t, label+"Order") {
		g := rapid.IntRange(0, len(groups)-1).Draw(t, label+"Group")
		groups[g] = append(groups[g], p)
	}
	layouts := make([]*shard.Layout, len(groups))
	for i, g := range groups {
		layouts[i] = drawLayout(t, g, label)
	}
	return layouts
}

// state is the shards of every rank of every group, as a process that plays all of them sees it.
type state [][][]float64

// newState returns shards full of NaN: whatever nobody writes stays poison.
func newState(layouts []*shard.Layout) state {
	s := make(state, len(layouts))
	for li, l := range layouts {
		s[li] = make([][]float64, l.World())
		for rank := range s[li] {
			s[li][rank] = slices.Repeat([]float64{math.NaN()}, l.ShardLen())
		}
	}
	return s
}

func (s state) shard(layout, rank int) []float64 { return s[layout][rank] }

// number gives every element of every parameter a value of its own.
func number(params []shard.Param) map[string][]float64 {
	full, next := make(map[string][]float64), 1.0
	for _, p := range params {
		full[p.Name] = make([]float64, p.Len())
		for i := range full[p.Name] {
			full[p.Name][i] = next
			next++
		}
	}
	return full
}

// collect gathers every rank of every group into whole parameters.
func collect(t require.TestingT, layouts []*shard.Layout, s state) map[string][]float64 {
	full := make(map[string][]float64)
	for li, l := range layouts {
		for _, p := range l.Params() {
			full[p.Name] = slices.Repeat([]float64{math.NaN()}, p.Len())
		}
		for rank := range l.World() {
			require.NoError(t, shard.Gather(l, rank, s[li][rank], func(name string) []float64 { return full[name] }))
		}
	}
	return full
}

// poisonPadding overwrites what no parameter may ever see.
func poisonPadding(layouts []*shard.Layout, s state) {
	for li, l := range layouts {
		for _, span := range l.Padding() {
			for flat := span.Start; flat < span.End; flat++ {
				s[li][flat/l.ShardLen()][flat%l.ShardLen()] = math.NaN()
			}
		}
	}
}

func TestRemapThereAndBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		params := drawParams(t)
		want := number(params)
		a, b := drawGroups(t, params, "a"), drawGroups(t, params, "b")
		there, err := shard.Remap(a, b)
		require.NoError(t, err)
		back, err := shard.Remap(b, a)
		require.NoError(t, err)

		start := newState(a)
		for li, l := range a {
			for rank := range l.World() {
				require.NoError(t, shard.Scatter(l, rank, start[li][rank], func(name string) []float64 { return want[name] }))
			}
			for _, span := range l.Padding() {
				require.Zero(t, start[li][span.Start/l.ShardLen()][span.Start%l.ShardLen()], "Scatter clears padding")
			}
		}
		poisonPadding(a, start)
		middle, end := newState(b), newState(a)
		require.NoError(t, shard.Copy(there, start.shard, middle.shard))
		require.Equal(t, want, collect(t, b, middle))
		require.NoError(t, shard.Copy(back, middle.shard, end.shard))
		require.Equal(t, want, collect(t, a, end))
	})
}

func TestRemapCoversOnceSortedAndMerged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		params := drawParams(t)
		old, new := drawGroups(t, params, "old"), drawGroups(t, params, "new")
		moves, err := shard.Remap(old, new)
		require.NoError(t, err)
		seen := make(map[string][]int)
		for _, p := range params {
			seen[p.Name] = make([]int, p.Len())
		}
		for i, m := range moves {
			require.Positive(t, m.Len)
			for e := m.Offset; e < m.Offset+m.Len; e++ {
				seen[m.Name][e]++
				for place, l := range map[shard.Place]*shard.Layout{m.From: old[m.From.Layout], m.To: new[m.To.Layout]} {
					rank, at, err := l.Owner(m.Name, e)
					require.NoError(t, err)
					require.Equal(t, []int{place.Rank, place.At + e - m.Offset}, []int{rank, at})
				}
			}
			if i > 0 {
				last := moves[i-1]
				require.Negative(t, comparePlaces(last.To, m.To))
				require.False(t, last.Name == m.Name && last.From.Rank == m.From.Rank && last.To.Rank == m.To.Rank,
					"%v and %v are one move", last, m)
			}
		}
		for name, counts := range seen {
			require.Equal(t, slices.Repeat([]int{1}, len(counts)), counts, name)
		}
	})
}

func comparePlaces(a, b shard.Place) int {
	return cmp.Or(cmp.Compare(a.Layout, b.Layout), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.At, b.At))
}

func TestRemapMismatch(t *testing.T) {
	layout := func(params ...shard.Param) *shard.Layout {
		l, err := shard.New(params, 2, 1)
		require.NoError(t, err)
		return l
	}
	w, b := shard.Param{Name: "w", Shape: []int{2, 3}}, shard.Param{Name: "b", Shape: []int{3}}
	wide := shard.Param{Name: "w", Shape: []int{3, 2}}
	c := shard.Param{Name: "c"}

	_, err := shard.Remap([]*shard.Layout{layout(w), layout(b)}, []*shard.Layout{layout(c, wide)})
	var mismatch *shard.MismatchError
	require.True(t, errors.As(err, &mismatch))
	require.Equal(t, &shard.MismatchError{
		Missing: []string{"c"}, Extra: []string{"b"}, Reshaped: []string{"w [2 3] -> [3 2]"},
	}, mismatch)
	require.EqualError(t, err, "shard: layouts hold different parameters: missing c; extra b; reshaped w [2 3] -> [3 2]")

	_, err = shard.Remap([]*shard.Layout{layout(w)}, []*shard.Layout{layout(w), layout(b, w)})
	require.EqualError(t, err, `shard: parameter "w" is in new layouts 0 and 1`)
	_, err = shard.Remap([]*shard.Layout{layout(w), layout(w)}, []*shard.Layout{layout(w)})
	require.EqualError(t, err, `shard: parameter "w" is in old layouts 0 and 1`)
	_, err = shard.Remap([]*shard.Layout{nil}, nil)
	require.EqualError(t, err, "shard: old layout 0 is nil")

	var many []shard.Param
	for i := range 8 {
		many = append(many, shard.Param{Name: fmt.Sprintf("h.%d", i)})
	}
	_, err = shard.Remap([]*shard.Layout{layout(many...)}, nil)
	require.ErrorContains(t, err, "extra h.0, h.1, h.2, h.3, h.4 and 3 more")
}

func TestCopyErrors(t *testing.T) {
	l, err := shard.New([]shard.Param{{"w", []int{5}}}, 2, 1)
	require.NoError(t, err)
	whole := func(string) []int32 { return make([]int32, 5) }
	require.EqualError(t, shard.Scatter(l, 2, make([]int32, 3), whole), "shard: scatter: rank 2 of a layout over 2 ranks")
	require.EqualError(t, shard.Gather(l, 1, make([]int32, 2), whole), "shard: gather: rank 1: shard has 2 elements, layout says 3")
	dst := []int32{1, 2, 3}
	err = shard.Scatter(l, 1, dst, func(string) []int32 { return nil })
	require.EqualError(t, err, `shard: scatter: rank 1: parameter "w" has 0 elements, shape [5] says 5`)
	require.Equal(t, []int32{1, 2, 3}, dst, "nothing is written before an error")

	short := func(int, int) []int32 { return make([]int32, 2) }
	move := shard.Move{Interval: shard.Interval{Name: "w", Len: 3}}
	require.EqualError(t, shard.Copy([]shard.Move{move}, short, short),
		"shard: copy w[0:3] from rank 0 to rank 0: not inside shards of 2 and 2 elements")
	move = shard.Move{Interval: shard.Interval{Name: "w", Len: 1}, To: shard.Place{At: -1}}
	require.Error(t, shard.Copy([]shard.Move{move}, short, short))
}
