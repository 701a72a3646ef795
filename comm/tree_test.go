package comm

import (
	"math/bits"
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSubtrees(t *testing.T) {
	for _, c := range []struct{ hosts, want []span }{
		{[]span{{0, 4}, {4, 8}}, []span{{0, 4}, {4, 8}}},
		{[]span{{0, 3}, {3, 6}}, []span{{0, 2}, {2, 3}, {3, 4}, {4, 6}}},
		{[]span{{0, 5}, {5, 8}}, []span{{0, 4}, {4, 5}, {5, 6}, {6, 8}}},
		{[]span{{0, 4}, {4, 7}}, []span{{0, 4}, {4, 7}}},
		{[]span{{0, 1}, {1, 4}}, []span{{0, 1}, {1, 2}, {2, 4}}},
	} {
		require.Equal(t, c.want, subtrees(nil, span{0, c.hosts[len(c.hosts)-1].hi}, c.hosts))
	}
}

// TestWindow looks whether what a rank knows after each step is enough for the next: its own
// window of ranks and that of the rank which sends to it are as many subtrees as there is room for,
// and those of both together can be made of them.
func TestWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(rapid.IntRange(2, 40), rapid.IntRange(2, mostRanks)).Draw(t, "ranks")
		rank := rapid.IntRange(0, n-1).Draw(t, "rank")
		levels := bits.Len(uint(n - 1))
		var build func(s span, of []span) (free int) // sums of one level each
		build = func(s span, of []span) int {
			if slices.Contains(of, s) {
				return 0
			}
			require.Greater(t, s.ranks(), 1)
			return max(build(span{s.lo, s.middle()}, of), 1+build(span{s.middle(), s.hi}, of))
		}
		for k := 1; k < n; k *= 2 {
			own, other := window(nil, n, rank, k), window(nil, n, (rank+n-k)%n, k)
			require.LessOrEqual(t, max(len(own), len(other)), 2*levels)
			for _, s := range window(nil, n, rank, 2*k) {
				require.LessOrEqual(t, build(s, slices.Concat(own, other)), levels)
			}
			ranks := 0
			for i, s := range own {
				ranks += s.ranks()
				require.True(t, i == 0 || own[i-1].hi <= s.lo)
			}
			require.Equal(t, k, ranks)
		}
		require.Equal(t, []span{{0, n}}, window(nil, n, rank, n))
	})
}

// TestSumsOfSubtrees sums inside random hosts first, and compares with the sum of all ranks.
func TestSumsOfSubtrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []span
		n := 0
		for _, ranks := range rapid.SliceOfN(rapid.IntRange(1, 11), 1, 5).Draw(t, "hosts") {
			all = append(all, span{n, n + ranks})
			n += ranks
		}
		d := rapid.SampledFrom([]DType{Float32, Float64, BFloat16, Float16}).Draw(t, "type")
		op := rapid.SampledFrom([]Op{Sum, Avg}).Draw(t, "op")
		elements := rapid.SampledFrom([]int{1, wideBlock, wideBlock + 3}).Draw(t, "elements")
		var srcs []Buffer
		for rank := range n {
			b := bufferOf(make([]byte, elements*d.Size()), d)
			for i := range elements {
				x := 1 / float32(1+(i*7919+rank*104729)%100003)
				switch d {
				case Float32:
					transport.View[float32](b)[i] = x
				case Float64:
					transport.View[float64](b)[i] = 1 / (float64(x) + 3)
				case BFloat16:
					Narrow(transport.View[BF16](b)[i:i+1], []float32{x})
				default:
					Narrow(transport.View[F16](b)[i:i+1], []float32{x})
				}
			}
			srcs = append(srcs, b)
		}
		var r reducer
		want := bufferOf(make([]byte, elements*d.Size()), d)
		r.srcs = append(r.srcs, srcs...)
		r.reduce(want, op)

		spans := newHosts("", 0, all).sums[summing(op, d)]
		var partial []Buffer
		for _, s := range spans {
			r.srcs = append(r.srcs[:0], srcs[s.lo:s.hi]...)
			sum := srcs[s.lo]
			if s.ranks() > 1 {
				as := d
				if d.Size() < 4 {
					as = Float32
					for i, src := range r.srcs {
						wide := make([]float32, elements)
						widen(wide, src)
						r.srcs[i] = Of(wide)
					}
				}
				sum = bufferOf(make([]byte, elements*as.Size()), as)
				r.reduce(sum, Sum)
			}
			partial = append(partial, sum)
		}
		r.srcs = append(r.srcs[:0], partial...)
		got := partial[0] // any source may be the destination
		if got.DType() != d {
			got = bufferOf(make([]byte, elements*d.Size()), d)
		}
		r.reduceSpans(got, op, n, spans)
		require.Equal(t, want.Bytes(), got.Bytes())
	})
}
