package shard_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/shard"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// checkOwners requires that every flat position is padding or one element of one parameter.
func checkOwners(t require.TestingT, l *shard.Layout) {
	owners := make([]int, l.Len())
	for _, s := range l.Padding() {
		for at := s.Start; at < s.End; at++ {
			owners[at]++
		}
	}
	for rank := range l.World() {
		for _, s := range l.Segments(rank) {
			for i := range s.Len {
				require.Equal(t, l.Offset(s.Param)+s.Offset+i, rank*l.ShardLen()+s.At+i)
				owners[rank*l.ShardLen()+s.At+i]++
			}
		}
	}
	for flat, n := range owners {
		require.Equal(t, 1, n, "flat position %d", flat)
	}
	end := 0
	for i, p := range l.Params() {
		require.Zero(t, l.Offset(i)%l.Align())
		require.GreaterOrEqual(t, l.Offset(i), end)
		end = l.Offset(i) + p.Len()
	}
	require.LessOrEqual(t, end, l.Len())
	require.Zero(t, l.ShardLen()%l.Align())
}

// A cut is at multiples of blocks only, and padding is within the bound of the documentation.
func TestCutsAtBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		params := drawParams(t)
		world := rapid.IntRange(1, 9).Draw(t, "world")
		align := rapid.SampledFrom([]int{1, 2, 3, 4, shard.DefaultAlign}).Draw(t, "align")
		blocks := make(map[string]int)
		for _, p := range params {
			draw := rapid.OneOf(rapid.IntRange(0, 7), rapid.Just(shard.Whole(p)), rapid.Just(shard.Rows(1)(p)), rapid.Just(shard.Rows(2)(p)))
			blocks[p.Name] = draw.Draw(t, p.Name)
		}
		l, err := shard.Cut{Block: func(p shard.Param) int { return blocks[p.Name] }}.New(params, world, align)
		require.NoError(t, err)
		checkOwners(t, l)
		longest, block := 0, 1
		for _, p := range params {
			b := min(max(blocks[p.Name], 1), max(p.Len(), 1))
			longest = max(longest, p.Len())
			block = max(block, min(b*align, max(p.Len(), 1)))
		}
		for rank := range world {
			for _, s := range l.Segments(rank) {
				if b := blocks[s.Name]; b > 1 {
					require.Zero(t, s.Offset%b, "%v begins within a block of %d", s.Interval, b)
					if s.Offset+s.Len < params[s.Param].Len() {
						require.Zero(t, (s.Offset+s.Len)%b, "%v ends within a block of %d", s.Interval, b)
					}
				}
			}
		}
		equal, err := shard.New(params, world, align)
		require.NoError(t, err)
		require.GreaterOrEqual(t, l.ShardLen(), equal.ShardLen())
		require.Less(t, l.ShardLen(), max(longest, equal.ShardLen()+block)+2*align, "no more than the bound")
	})
}

// A rank has no more than its weight says, and without blocks or weights the cut is New's.
func TestCutsByWeight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		params := drawParams(t)
		world := rapid.IntRange(1, 6).Draw(t, "world")
		weights := rapid.SliceOfN(rapid.Float64Range(0, 4), world, world).Draw(t, "weights")
		weights[rapid.IntRange(0, world-1).Draw(t, "heavy")] = 4
		l, err := shard.Cut{Weights: weights}.New(params, world, 2)
		require.NoError(t, err)
		checkOwners(t, l)
		for rank := range world {
			owned := 0
			for _, s := range l.Segments(rank) {
				owned += s.Len
			}
			require.LessOrEqual(t, float64(owned), float64(l.ShardLen())*weights[rank]/4, "rank %d", rank)
		}
		want, err := shard.New(params, world, 2)
		require.NoError(t, err)
		for _, c := range []shard.Cut{{}, {Block: shard.Rows(0)}, {Weights: slices.Repeat([]float64{3}, world)}} {
			same, err := c.New(params, world, 2)
			require.NoError(t, err)
			require.Equal(t, want, same)
		}
	})
}

// What the weights of a mixed cluster come to, in a block of a transformer of width 64 whose feed
// forward layers cannot lie on one of the weak ranks.
func TestWeightsOfATransformer(t *testing.T) {
	params := []shard.Param{{"ln", []int{64}}, {"qkv", []int{192, 64}}, {"proj", []int{64, 64}}, {"fc", []int{256, 64}}, {"out", []int{64, 256}}}
	l, err := shard.Cut{Weights: []float64{2, 2, 1, 1}}.New(params, 4, 16)
	require.NoError(t, err)
	var owned []int
	for rank := range 4 {
		n := 0
		for _, s := range l.Segments(rank) {
			n += s.Len
		}
		owned = append(owned, n)
	}
	require.Equal(t, "[16416 16416 8208 8176] of 16416", fmt.Sprint(owned, " of ", l.ShardLen()))
}

func TestCutErrors(t *testing.T) {
	params := []shard.Param{{"w", []int{4, 4}}}
	for want, c := range map[string]shard.Cut{
		`parameter "w": Block returns -4 elements: must not be negative`: {Block: shard.Rows(-1)},
		"1 weights for 2 ranks":               {Weights: []float64{1}},
		"the weight of rank 1 is -1":          {Weights: []float64{1, -1}},
		"the weight of rank 0 is NaN":         {Weights: []float64{math.NaN(), 1}},
		"the weight of rank 1 is +Inf":        {Weights: []float64{1, math.Inf(1)}},
		"the weights of all 2 ranks are zero": {Weights: []float64{0, 0}},
	} {
		_, err := c.New(params, 2, 1)
		require.ErrorContains(t, err, want)
	}
	_, err := shard.Cut{Block: shard.Whole}.New([]shard.Param{{"w", []int{math.MaxInt}}}, 2, 1)
	require.ErrorContains(t, err, "more than an int can count")
	_, err = shard.Cut{Block: shard.Whole}.New(params, 0, 1)
	require.ErrorContains(t, err, "world size 0")
}

func TestRowsAndWhole(t *testing.T) {
	p := shard.Param{Shape: []int{4, 3, 5}}
	require.Equal(t, 60, shard.Whole(p))
	require.Equal(t, 30, shard.Rows(2)(p))
	require.Equal(t, 2, shard.Rows(2)(shard.Param{Shape: []int{9}}))
	require.Equal(t, 2, shard.Rows(2)(shard.Param{}))
}
