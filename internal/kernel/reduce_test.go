package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestReductions(t *testing.T) { both(t, checkReductions[float32], checkReductions[float64]) }

func checkReductions[T Float](t *rapid.T) {
	src := newSource[T](t)
	outer, n, inner := rapid.IntRange(0, 5).Draw(t, "outer"), rapid.IntRange(1, 9).Draw(t, "n"), rapid.IntRange(1, 40).Draw(t, "inner")
	x, y, want := src.normal(outer*n*inner), garbage[T](outer*inner), make([]float64, outer*inner)
	for _, k := range []struct {
		name  string
		run   func(y, x []T, outer, n, inner int)
		naive func(y, x []float64, outer, n, inner int)
	}{{"sum", SumAxis[T], NaiveSumAxis}, {"max", MaxAxis[T], NaiveMaxAxis}} {
		k.run(y, x, outer, n, inner)
		k.naive(want, wide(x), outer, n, inner)
		requireClose(t, k.name, want, y)
		over := clone(x)
		k.run(over[:outer*inner], over, outer, n, inner)
		requireBits(t, k.name+" in place", y, over[:outer*inner])
	}
}

// TestMaxOfNaN is NaN, wherever it stands.
func TestMaxOfNaN(t *testing.T) {
	for at := range 3 {
		x := []float64{1, 2, 3}
		x[at] = math.NaN()
		y := make([]float64, 1)
		MaxAxis(y, x, 1, 3, 1)
		require.True(t, math.IsNaN(y[0]), at)
	}
}
