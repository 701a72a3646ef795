package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// angles returns a table of rows [cos, sin] for random angles.
func angles[T Float](src *source[T], rows, dims int) []T {
	table := src.normal(rows * dims)
	for p := range rows {
		row := table[p*dims:][:dims]
		for i := range dims / 2 {
			sin, cos := math.Sincos(float64(row[i]))
			row[i], row[dims/2+i] = T(cos), T(sin)
		}
	}
	return table
}

func TestRope(t *testing.T) { both(t, checkRopeTwin[float32], checkRopeTwin[float64]) }

func checkRopeTwin[T Float](t *rapid.T) {
	src := newSource[T](t)
	draw := func(lo, hi int, name string) int { return rapid.IntRange(lo, hi).Draw(t, name) }
	r := Rotary{Heads: draw(1, 3, "heads"), Dims: 2 * draw(1, 20, "pairs"), Interleaved: rapid.Bool().Draw(t, "interleaved")}
	r.HeadDim = r.Dims + draw(0, 3, "rest of a head")
	n, rows, d := draw(0, 9, "n"), draw(3, 5, "rows"), r.Heads*r.HeadDim+draw(0, 3, "rest of a row")
	first, inverse := draw(0, 4, "first"), rapid.Bool().Draw(t, "inverse")
	x, table := src.normal(n*d), angles(src, rows, r.Dims)
	var positions []int
	if rapid.Bool().Draw(t, "positions") {
		positions = src.ints(n, 0, rows)
	}
	y, want := garbage[T](n*d), make([]float64, n*d)
	Rope(y, x, table, positions, n, d, first, 3, r, inverse)
	NaiveRope(want, wide(x), wide(table), positions, n, d, first, 3, r, inverse)
	requireClose(t, "y", want, y)
	over := clone(x)
	Rope(over, over, table, positions, n, d, first, 3, r, inverse)
	requireBits(t, "in place", y, over)
	Rope(y, y, table, positions, n, d, first, 3, r, !inverse)
	requireClose(t, "turned back", wide(x), y)
}

// TestRopeIsRelative: the product of a query and a key depends on the difference of their positions,
// which is what the embedding is for, and length is kept.
func TestRopeIsRelative(t *testing.T) {
	for _, interleaved := range []bool{false, true} {
		rapid.Check(t, func(t *rapid.T) {
			const rows, dims = 9, 12
			table := make([]float64, rows*dims)
			for p := range rows {
				for i := range dims / 2 {
					table[p*dims+dims/2+i], table[p*dims+i] = math.Sincos(float64(p) / float64(1+i))
				}
			}
			src := newSource[float64](t)
			q, k := src.normal(dims), src.normal(dims)
			at := func(x []float64, p int) []float64 {
				y := make([]float64, dims)
				Rope(y, x, table, []int{p}, 1, dims, 0, 1, Rotary{1, dims, dims, interleaved}, false)
				return y
			}
			a, b, shift := rapid.IntRange(0, 4).Draw(t, "a"), rapid.IntRange(0, 4).Draw(t, "b"), rapid.IntRange(0, 4).Draw(t, "shift")
			require.InDelta(t, dot(at(q, a), at(k, b)), dot(at(q, a+shift), at(k, b+shift)), 1e-12)
			require.InDelta(t, dot(q, q), dot(at(q, a), at(q, a)), 1e-12)
		})
	}
}
