package transport

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// halves draws bit patterns of 16-bit floats, special ones among them.
func halves[T BF16 | F16](t *rapid.T, n int) []T {
	special := rapid.SampledFrom([]uint16{0, 0x8000, 1, 0x7c00, 0xfc00, 0x7f80, 0xff80, 0x7fc1, 0x7c01, 0x7bff, 0x7f7f})
	x := make([]T, n)
	// One generator for many elements: a draw for each would be slow.
	seed := rapid.Uint64().Draw(t, "seed")
	for i := range x {
		seed = seed*6364136223846793005 + 1442695040888963407
		x[i] = T(seed >> 48)
	}
	for range min(n, 4) {
		x[rapid.IntRange(0, n-1).Draw(t, "at")] = T(special.Draw(t, "special"))
	}
	return x
}

// naive reduces one element of all ranks.
func naive(x []float32, op Op, n int) float32 {
	acc := x[0]
	switch op {
	case Max:
		for _, v := range x {
			acc = max(acc, v)
		}
	case Min:
		for _, v := range x {
			acc = min(acc, v)
		}
	case Sum:
		acc = treeOf(x)
	case Avg:
		acc = treeOf(x) * (1 / float32(n))
	}
	return acc
}

func treeOf(x []float32) float32 {
	if len(x) == 1 {
		return x[0]
	}
	mid := 1
	for 2*mid < len(x) {
		mid *= 2
	}
	return treeOf(x[:mid]) + treeOf(x[mid:])
}

func TestReduceHalf(t *testing.T) {
	t.Run("bfloat16", testReduceHalf[BF16])
	t.Run("float16", testReduceHalf[F16])
}

// testReduceHalf compares with one sum in float32 per element, rounded once: with
// any number of sources, one of which may be the destination.
func testReduceHalf[T BF16 | F16](t *testing.T) {
	r := new(Reducer)
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.IntRange(1, 40).Draw(t, "ranks")
		n := rapid.IntRange(0, 3*wideBlock).Draw(t, "elements")
		op := rapid.SampledFrom([]Op{Sum, Avg, Max, Min}).Draw(t, "op")
		total := ranks * rapid.IntRange(1, 3).Draw(t, "ranks of a source")
		srcs, wide := make([][]T, ranks), make([][]float32, ranks)
		r.Sources = r.Sources[:0]
		for k := range srcs {
			srcs[k], wide[k] = halves[T](t, n), make([]float32, n)
			Widen(wide[k], srcs[k])
			r.Sources = append(r.Sources, Of(srcs[k]))
		}
		dst := make([]T, n)
		if k := rapid.IntRange(-1, ranks-1).Draw(t, "dst"); k >= 0 {
			dst = srcs[k]
		}
		r.ReduceScaled(Of(dst), op, total)

		column, got, want := make([]float32, ranks), make([]float32, n), make([]float32, n)
		for i := range want {
			for k := range column {
				column[k] = wide[k][i]
			}
			want[i] = naive(column, op, total)
		}
		rounded := make([]T, n)
		Narrow(rounded, want)
		Widen(want, rounded)
		Widen(got, dst)
		for i := range want {
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) && (got[i] == got[i] || want[i] == want[i]) {
				t.Fatalf("%v of %d: element %d is %v, want %v", op, ranks, i, got[i], want[i])
			}
		}
	})
}

// Cutting a buffer elsewhere, or a partial sum in between, gives the same bits.
func TestReduceCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const ranks = 4
		n := rapid.IntRange(1, 2*wideBlock).Draw(t, "elements")
		cut := rapid.IntRange(0, n).Draw(t, "cut")
		op := rapid.SampledFrom([]Op{Sum, Avg, Max, Min}).Draw(t, "op")
		var r Reducer
		var srcs []Buffer
		for range ranks {
			x := halves[BF16](t, n)
			for i := range x {
				x[i] &^= 1 << 13 // no exponent is all ones: which of two NaN wins is not defined
			}
			srcs = append(srcs, Of(x))
		}
		reduce := func(dst Buffer, lo, hi int) {
			r.Sources = r.Sources[:0]
			for _, s := range srcs {
				r.Sources = append(r.Sources, s.Part(lo, hi))
			}
			r.Reduce(dst.Part(lo, hi), op)
		}
		whole, parts := Of(make([]BF16, n)), Of(make([]BF16, n))
		reduce(whole, 0, n)
		reduce(parts, 0, cut)
		reduce(parts, cut, n)
		require.True(t, bytes.Equal(whole.Bytes(), parts.Bytes()))
	})
}

// An average by hosts: sums of aligned pairs, then 1/4 of their sum.
func TestReduceScaled(t *testing.T) {
	var r Reducer
	reduce := func(op Op, n int, srcs ...Buffer) Buffer {
		dst := Of(make([]float32, srcs[0].Len()))
		r.Sources = srcs
		r.ReduceScaled(dst, op, n)
		return dst
	}
	var x []Buffer
	for k := range 4 {
		x = append(x, Of([]float32{1 / float32(k+3), float32(k) * 1e8, float32(1 - k)}))
	}
	flat := reduce(Avg, 4, x...)
	hosts := reduce(Avg, 4, reduce(Sum, 2, x[:2]...), reduce(Sum, 2, x[2:]...))
	require.Equal(t, flat.Bytes(), hosts.Bytes())
}

func TestReduceHalfAllocatesNothing(t *testing.T) {
	for _, ranks := range []int{1, 2, 8, 20} {
		var r Reducer
		for range ranks {
			r.Sources = append(r.Sources, Of(make([]BF16, 3*wideBlock+1)))
		}
		for _, op := range []Op{Sum, Avg, Max} {
			allocs := testing.AllocsPerRun(5, func() { r.Reduce(r.Sources[0], op) })
			require.Zerof(t, allocs, "%d ranks, %v", ranks, op)
		}
	}
}

// BenchmarkReduce sums sources that lie in the cache; bytes are those of one source.
func BenchmarkReduce(b *testing.B) {
	const n = 1 << 14
	for _, ranks := range []int{2, 4, 8} {
		for _, like := range []Buffer{Of(make([]float32, n)), Of(make([]BF16, n)), Of(make([]F16, n))} {
			b.Run(fmt.Sprintf("%d/%v", ranks, like.DType()), func(b *testing.B) {
				var r Reducer
				for range ranks {
					r.Sources = append(r.Sources, like)
				}
				b.SetBytes(int64(len(like.Bytes())))
				for b.Loop() {
					r.Reduce(like, Avg)
				}
			})
		}
	}
}
