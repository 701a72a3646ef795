package kernel

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestRelativeBias(t *testing.T) { both(t, checkRelativeTwin[float32], checkRelativeTwin[float64]) }

func checkRelativeTwin[T Float](t *rapid.T) {
	src := newSource[T](t)
	r := Relative{
		Queries: rapid.IntRange(1, 40).Draw(t, "queries"), Heads: rapid.IntRange(1, 3).Draw(t, "heads"),
		Buckets: 4 * rapid.IntRange(1, 8).Draw(t, "buckets/4"), MaxDistance: 20, Causal: rapid.Bool().Draw(t, "causal"),
	}
	r.Keys = r.Queries + rapid.IntRange(0, 20).Draw(t, "more keys")
	n, m := r.Heads*r.Queries*r.Keys, r.Buckets*r.Heads
	table, dbias, scratch := src.normal(m), src.normal(n), garbage[T](RelativeScratch(r))
	bias, dtable := garbage[T](n), garbage[T](m)
	RelativeBias(bias, table, r, scratch)
	RelativeBiasGrad(dtable, dbias, r, false, scratch)

	want, wantTable := make([]float64, n), make([]float64, m)
	NaiveRelativeBias(want, wide(table), r, nil)
	NaiveRelativeBiasGrad(wantTable, wide(dbias), r, false, nil)
	requireClose(t, "bias", want, bias)
	requireClose(t, "dtable", wantTable, dtable)

	RelativeBiasGrad(dtable, dbias, r, true, scratch)
	NaiveRelativeBiasGrad(wantTable, wide(dbias), r, true, nil)
	requireClose(t, "dtable on top", wantTable, dtable)
}

// TestBuckets has the edges of the buckets by hand: 8 for both directions up to a distance of 7, and
// 4 for one.
func TestBuckets(t *testing.T) {
	buckets := func(r Relative, lo, hi int) (list []int) {
		for offset := lo; offset <= hi; offset++ {
			list = append(list, r.Bucket(offset))
		}
		return list
	}
	require.Equal(t, []int{3, 3, 3, 2, 2, 1, 0, 5, 6, 6, 7, 7, 7}, buckets(Relative{Buckets: 8, MaxDistance: 7}, -6, 6))
	require.Equal(t, []int{3, 3, 3, 2, 2, 1, 0, 0, 0}, buckets(Relative{Buckets: 4, MaxDistance: 7, Causal: true}, -6, 2))
}
