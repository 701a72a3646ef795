package tcp

import (
	"math/bits"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm/internal/tree"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// TestWindow looks whether what a rank knows after each step is enough for the next: its own
// window of ranks and that of the rank which sends to it are as many subtrees as there is room for,
// and those of both together can be made of them.
func TestWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(rapid.IntRange(2, 40), rapid.IntRange(2, mostRanks)).Draw(t, "ranks")
		rank := rapid.IntRange(0, n-1).Draw(t, "rank")
		levels := bits.Len(uint(n - 1))
		var build func(s tree.Span, of []tree.Span) (free int) // sums of one level each
		build = func(s tree.Span, of []tree.Span) int {
			if slices.Contains(of, s) {
				return 0
			}
			require.Greater(t, s.Ranks(), 1)
			return max(build(tree.Span{Lo: s.Lo, Hi: s.Middle()}, of), 1+build(tree.Span{Lo: s.Middle(), Hi: s.Hi}, of))
		}
		for k := 1; k < n; k *= 2 {
			own, other := window(nil, n, rank, k), window(nil, n, (rank+n-k)%n, k)
			require.LessOrEqual(t, max(len(own), len(other)), 2*levels)
			for _, s := range window(nil, n, rank, 2*k) {
				require.LessOrEqual(t, build(s, slices.Concat(own, other)), levels)
			}
			ranks := 0
			for i, s := range own {
				ranks += s.Ranks()
				require.True(t, i == 0 || own[i-1].Hi <= s.Lo)
			}
			require.Equal(t, k, ranks)
		}
		require.Equal(t, []tree.Span{{Lo: 0, Hi: n}}, window(nil, n, rank, n))
	})
}

// TestSumsOfSubtrees sums inside random hosts first, and compares with the sum of all ranks.
func TestSumsOfSubtrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []tree.Span
		n := 0
		for _, ranks := range rapid.SliceOfN(rapid.IntRange(1, 11), 1, 5).Draw(t, "hosts") {
			all = append(all, tree.Span{Lo: n, Hi: n + ranks})
			n += ranks
		}
		d := rapid.SampledFrom([]transport.DType{transport.Float32, transport.Float64, transport.BFloat16, transport.Float16}).Draw(t, "type")
		op := rapid.SampledFrom([]transport.Op{transport.Sum, transport.Avg}).Draw(t, "op")
		elements := rapid.SampledFrom([]int{1, 512, 515}).Draw(t, "elements")
		var srcs []transport.Buffer
		for rank := range n {
			b := bufferOf(make([]byte, elements*d.Size()), d)
			for i := range elements {
				x := 1 / float32(1+(i*7919+rank*104729)%100003)
				switch d {
				case transport.Float32:
					transport.View[float32](b)[i] = x
				case transport.Float64:
					transport.View[float64](b)[i] = 1 / (float64(x) + 3)
				case transport.BFloat16:
					transport.Narrow(transport.View[transport.BF16](b)[i:i+1], []float32{x})
				default:
					transport.Narrow(transport.View[transport.F16](b)[i:i+1], []float32{x})
				}
			}
			srcs = append(srcs, b)
		}
		var r transport.Reducer
		want := bufferOf(make([]byte, elements*d.Size()), d)
		r.Sources = append(r.Sources, srcs...)
		r.Reduce(want, op)

		spans := newHosts("", 0, all).sums[summing(op, d)]
		var partial []transport.Buffer
		for _, s := range spans {
			r.Sources = append(r.Sources[:0], srcs[s.Lo:s.Hi]...)
			sum := srcs[s.Lo]
			if s.Ranks() > 1 {
				as := d
				if d.Size() < 4 {
					as = transport.Float32
					for i, src := range r.Sources {
						wide := make([]float32, elements)
						widen(wide, src)
						r.Sources[i] = transport.Of(wide)
					}
				}
				sum = bufferOf(make([]byte, elements*as.Size()), as)
				r.Reduce(sum, transport.Sum)
			}
			partial = append(partial, sum)
		}
		r.Sources = append(r.Sources[:0], partial...)
		got := partial[0] // any source may be the destination
		if got.DType() != d {
			got = bufferOf(make([]byte, elements*d.Size()), d)
		}
		r.ReduceSpans(got, op, n, spans)
		require.Equal(t, want.Bytes(), got.Bytes())
	})
}
