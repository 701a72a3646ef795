package shard_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/gofsdp/gofsdp/shard"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawParams draws a model of a few parameters, some of them scalar or empty.
func drawParams(t *rapid.T) []shard.Param {
	shapes := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(0, 5), 0, 3), 0, 8).Draw(t, "shapes")
	params := make([]shard.Param, len(shapes))
	for i, shape := range shapes {
		params[i] = shard.Param{Name: fmt.Sprintf("p%d", i), Shape: shape}
	}
	return params
}

// drawLayout cuts params over a few ranks.
func drawLayout(t *rapid.T, params []shard.Param, label string) *shard.Layout {
	world := rapid.IntRange(1, 9).Draw(t, label+"World")
	align := rapid.SampledFrom([]int{1, 2, 3, 4, shard.DefaultAlign}).Draw(t, label+"Align")
	l, err := shard.New(params, world, align)
	require.NoError(t, err)
	return l
}

func TestLayoutInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		params := drawParams(t)
		l := drawLayout(t, params, "")
		require.Equal(t, l.Len(), l.World()*l.ShardLen())
		require.Zero(t, l.ShardLen()%l.Align())
		end := 0
		for i, p := range params {
			require.Zero(t, l.Offset(i)%l.Align())
			require.GreaterOrEqual(t, l.Offset(i), end)
			require.Less(t, l.Offset(i)-end, l.Align(), "no more padding than alignment needs")
			end = l.Offset(i) + p.Len()
		}
		require.LessOrEqual(t, end, l.Len())
		require.Less(t, l.Len()-end, l.World()*l.Align()+l.World(), "no more padding than equal shards need")
	})
}

// Every flat position is either padding or one element of one parameter, and Segments and Padding
// agree on which.
func TestEveryElementOwnedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		params := drawParams(t)
		l := drawLayout(t, params, "")
		owners := make([]int, l.Len())
		for _, s := range l.Padding() {
			require.Less(t, s.Start, s.End)
			for at := s.Start; at < s.End; at++ {
				owners[at]++
			}
		}
		for rank := range l.World() {
			at := 0
			for _, s := range l.Segments(rank) {
				require.Positive(t, s.Len)
				require.GreaterOrEqual(t, s.At, at)
				at = s.At + s.Len
				require.LessOrEqual(t, at, l.ShardLen())
				require.Equal(t, params[s.Param].Name, s.Name)
				for i := range s.Len {
					require.Equal(t, l.Offset(s.Param)+s.Offset+i, rank*l.ShardLen()+s.At+i)
					owners[rank*l.ShardLen()+s.At+i]++
				}
			}
		}
		for flat, n := range owners {
			require.Equal(t, 1, n, "flat position %d", flat)
		}
	})
}

func TestDocFigure(t *testing.T) {
	l, err := shard.New([]shard.Param{{"w", []int{3, 3}}, {"b", []int{2}}}, 2, 4)
	require.NoError(t, err)
	require.Equal(t, 16, l.Len())
	require.Equal(t, 8, l.ShardLen())
	require.Equal(t, []shard.Segment{{shard.Interval{"w", 0, 8}, 0, 0}}, l.Segments(0))
	require.Equal(t, []shard.Segment{{shard.Interval{"w", 8, 1}, 0, 0}, {shard.Interval{"b", 0, 2}, 4, 1}}, l.Segments(1))
	require.Equal(t, []shard.Span{{9, 12}, {14, 16}}, l.Padding())
	require.Equal(t, "w[8:9]", l.Segments(1)[0].Interval.String())
}

// The table was written by PyTorch FSDP: for one flat parameter, its shard length and how much of
// each shard is real.
func TestTorchShards(t *testing.T) {
	data, err := os.ReadFile("testdata/torch_shards.json")
	require.NoError(t, err)
	var rows []struct {
		Numel, World, Shard int
		Real                []int
	}
	require.NoError(t, json.Unmarshal(data, &rows))
	require.Len(t, rows, 45)
	for _, row := range rows {
		l, err := shard.New([]shard.Param{{"flat", []int{row.Numel}}}, row.World, 1)
		require.NoError(t, err)
		require.Equal(t, row.Shard, l.ShardLen(), "%+v", row)
		for rank, n := range row.Real {
			segs := l.Segments(rank)
			if n == 0 {
				require.Empty(t, segs, "%+v rank %d", row, rank)
				continue
			}
			want := shard.Interval{Name: "flat", Offset: rank * row.Shard, Len: n}
			require.Equal(t, []shard.Segment{{want, 0, 0}}, segs, "%+v rank %d", row, rank)
		}
	}
}

func TestEmpty(t *testing.T) {
	for name, params := range map[string][]shard.Param{
		"no parameters":    nil,
		"empty parameters": {{"a", []int{0, 3}}, {"b", []int{0}}},
	} {
		l, err := shard.New(params, 3, shard.DefaultAlign)
		require.NoError(t, err, name)
		require.Zero(t, l.Len(), name)
		require.Empty(t, l.Padding(), name)
		for rank := range 3 {
			require.Empty(t, l.Segments(rank), name)
		}
	}
	l, err := shard.New([]shard.Param{{"scalar", nil}}, 4, 1)
	require.NoError(t, err)
	require.Equal(t, 1, l.ShardLen())
	require.Len(t, l.Segments(0), 1)
	for _, rank := range []int{1, 2, 3, 4, -1} {
		require.Empty(t, l.Segments(rank))
	}
	var zero shard.Layout
	require.Zero(t, zero.Len())
	require.Empty(t, zero.Segments(0))
}

func TestNewErrors(t *testing.T) {
	one := []shard.Param{{"w", []int{1}}}
	for _, c := range []struct {
		params       []shard.Param
		world, align int
		want         string
	}{
		{one, 0, 1, "world size 0"},
		{one, 1, 0, "alignment 0"},
		{[]shard.Param{{"a", nil}, {"", []int{1}}}, 1, 1, "parameter 1 has no name"},
		{[]shard.Param{{"w", nil}, {"w", []int{2}}}, 1, 1, `two parameters are named "w"`},
		{[]shard.Param{{"w", []int{2, -1}}}, 1, 1, `parameter "w": negative dimension in shape [2 -1]`},
		{[]shard.Param{{"w", []int{0, -1}}}, 1, 1, "negative dimension"},
		{[]shard.Param{{"w", []int{math.MaxInt / 2, 3}}}, 1, 1, `parameter "w": shape`},
		{[]shard.Param{{"a", []int{math.MaxInt - 1}}, {"b", []int{2}}}, 1, 1, `parameter "b": the group`},
		{[]shard.Param{{"a", []int{math.MaxInt - 1}}, {"b", []int{0}}}, 1, 16, `parameter "b": the group`},
		{[]shard.Param{{"a", []int{math.MaxInt - 1}}}, 1, 16, "over 1 ranks, aligned to 16"},
		{[]shard.Param{{"a", []int{math.MaxInt}}}, 2, 1, "over 2 ranks, aligned to 1"},
	} {
		_, err := shard.New(c.params, c.world, c.align)
		require.ErrorContains(t, err, c.want)
	}
	huge, err := shard.New([]shard.Param{{"w", []int{math.MaxInt, math.MaxInt, 0}}, {"x", []int{math.MaxInt}}}, 1, 1)
	require.NoError(t, err, "an empty parameter has no elements, however large its other dimensions")
	require.Equal(t, math.MaxInt, huge.Len())
}

// The layout must not change when the caller reuses what it passed to New.
func TestParamsAreCopied(t *testing.T) {
	params := []shard.Param{{"w", []int{2, 2}}}
	l, err := shard.New(params, 1, 1)
	require.NoError(t, err)
	params[0].Shape[0] = 7
	params[0].Name = "x"
	require.Equal(t, []shard.Param{{"w", []int{2, 2}}}, l.Params())
}
