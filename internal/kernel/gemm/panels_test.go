package gemm

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestPanels packs B in both ways, and requires the bits of Gemm.
func TestPanels(t *testing.T) { eachKernel(t, panels[float32], panels[float64]) }

func panels[T Float](t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawProblem[T](t)
		p.transA, p.alpha = false, 1
		length, lda := stored(false, p.m, p.k, 3)
		p.a, p.lda = fill[T](7, length), lda
		want := p.gemm(new(Workspace))
		w := PanelWidth[T]()
		packed := make([]T, (p.n+w-1)/w*w*p.k)
		for i := range packed {
			packed[i] = T(math.NaN()) // undefined gaps must not matter
		}
		for j := 0; j < p.n; j += w {
			if p.transB {
				Transpose(packed[j*p.k:], p.b[min(j*p.ldb, len(p.b)):], p.ldb, min(w, p.n-j), p.k, w)
			} else {
				Interleave(packed[j*p.k:], p.b[min(j, len(p.b)):], p.ldb, min(w, p.n-j), p.k, w)
			}
		}
		got := append([]T(nil), p.c...)
		GemmPanels(new(Workspace), p.m, p.n, p.k, p.a, p.lda, packed, float64(p.beta), got, p.ldc)
		for i := range want {
			require.Equal(t, math.Float64bits(float64(want[i])), math.Float64bits(float64(got[i])), "%v, element %d", p, i)
		}
	})
}

func TestPanelsMisuse(t *testing.T) {
	w := PanelWidth[float32]()
	require.PanicsWithValue(t, fmt.Sprintf("gemm: panels of 1 elements, want %d", 2*w), func() {
		GemmPanels(new(Workspace), 1, 1, 2, make([]float32, 2), 2, make([]float32, 1), 0, make([]float32, 1), 1)
	})
	require.Panics(t, func() { Interleave(make([]float32, 4*w), make([]float32, 3), 2, 2, 2, w) })
	require.Panics(t, func() { Transpose(make([]float32, w), make([]float32, 9), 2, 2, 2, w) })
}
