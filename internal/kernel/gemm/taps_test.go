//go:build unix

package gemm

import (
	"runtime/debug"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestTaps draws taps, and requires the bits of Gemm with the B that they read. Masked columns are
// outside of the planes, which lie between pages that cannot be touched.
func TestTaps(t *testing.T) { eachKernel(t, taps[float32], taps[float64]) }

func taps[T Float](t *testing.T) {
	if !HasTaps[T]() {
		require.Panics(t, func() { GemmTaps(new(Workspace), 1, 0, 1, []T{1}, 1, nil, Taps{N: 1}, 0, nil, 1) })
		return
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	fence := newFence(t, 200*200*8)
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 200).Draw(t, "size") // of a plane, and the columns
		planes := rapid.OneOf(rapid.IntRange(1, 12), rapid.IntRange(90, 200)).Draw(t, "planes")
		offsets := rapid.SliceOfN(rapid.IntRange(-size, size), 1, 10).Draw(t, "offsets")
		k, m, lda := planes*len(offsets), rapid.IntRange(0, 30).Draw(t, "m"), planes*len(offsets)
		data := enclose(fence, fill[T](3, planes*size), rapid.Bool().Draw(t, "end"))
		b, nr := make([]T, k*size), PanelWidth[T]()
		table := make([]Tap, (size+nr-1)/nr*len(offsets))
		x := Taps{Table: table, N: len(offsets), Plane: size, First: offsets[0]}
		for i := range table {
			now, next, step := i%x.N, (i+1)%x.N, 0
			if next == 0 {
				step = size
			}
			table[i] = NewTap[T](now, x.N, step+offsets[next]-offsets[now])
		}
		for tap, off := range offsets {
			lo, hi := max(0, -off), size-max(0, off)
			Unmask[T](x, tap, lo, hi)
			for c := range planes {
				for q := lo; q < hi; q++ {
					b[(c*x.N+tap)*size+q] = data[c*size+q+off]
				}
			}
		}
		a, c := fill[T](1, m*lda), fill[T](2, m*size)
		beta := rapid.SampledFrom([]float64{0, 1}).Draw(t, "beta")
		want, w := slices.Clone(c), new(Workspace)
		Gemm(w, false, false, m, size, k, 1, a, lda, b, size, beta, want, size)
		GemmTaps(w, m, size, k, a, lda, data, x, beta, c, size)
		require.Equal(t, want, c)
		require.Zero(t, buffersOf[T](w).tile, "keeps operands alive")
	})
}

func TestTapsMisuse(t *testing.T) {
	require.Panics(t, func() {
		GemmTaps(new(Workspace), 1, 33, 1, []float32{1}, 1, make([]float32, 33), Taps{N: 1, Table: make([]Tap, 1)}, 0, make([]float32, 33), 33)
	})
}
