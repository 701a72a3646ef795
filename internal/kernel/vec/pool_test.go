package vec

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestPairsOfRows compares all instruction sets with the portable kernels, over several rows that are
// longer than their windows, and requires that nothing else is written.
func TestPairsOfRows(t *testing.T) {
	t.Run("float32", pairsOfRows[float32])
	t.Run("float64", pairsOfRows[float64])
}

func pairsOfRows[T Float](t *testing.T) {
	eachISA(t, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			rows, cols := rapid.IntRange(0, 5).Draw(t, "rows"), rapid.IntRange(1, 40).Draw(t, "cols")
			ld, elements := 2*cols+rapid.IntRange(0, 3).Draw(t, "gap"), convert[T](drawSlices(t, 1, wide))[0]
			x, dy := make([]T, 2*rows*ld), make([]T, rows*cols)
			for i := range x {
				x[i] = T(i % 3)
				if len(elements) > 0 {
					x[i] = elements[i*7%len(elements)]
				}
			}
			for i := range dy {
				dy[i] = T(i + 1)
			}
			y, dx := newGuarded(dy, 3), newGuarded(x, 5)
			Fill(dx.slice(), guard)
			wantY, wantX := append([]T{}, dy...), append([]T{}, dx.slice()...)
			maxPairsGo(wantY, x, cols, ld, rows)
			maxPairsGradGo(wantX, x, dy, cols, ld, rows)
			MaxPairs(y.slice(), x, cols, ld)
			MaxPairsGrad(dx.slice(), x, dy, cols, ld)
			require.True(t, y.intact() && dx.intact())
			for i, want := range wantY {
				require.True(t, equalBits(float64(want), float64(y.slice()[i])), "y[%d] is %v, want %v", i, y.slice()[i], want)
			}
			require.Equal(t, wantX, dx.slice())
		})
	})
}

func TestPairsMisuse(t *testing.T) {
	x, y := make([]float32, 16), make([]float32, 4)
	require.PanicsWithValue(t, "vec: MaxPairs: 15 elements with rows of 4 do not hold the windows of 4 with rows of 2", func() { MaxPairs(y, x[:15], 2, 4) })
	require.Panics(t, func() { MaxPairs(y, x, 3, 8) })
	require.Panics(t, func() { MaxPairs(y, x, 2, 3) })
	require.Panics(t, func() { MaxPairsGrad(x[:15], x, y, 2, 4) })
}
