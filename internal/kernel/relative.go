package kernel

import (
	"math"

	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Relative is a bias for the score of a query and a key that depends on their distance, as in T5
// (Raffel et al., 2020, arXiv:1910.10683, section 2.1). The queries are at the last positions of
// the keys.
type Relative struct {
	Queries, Keys, Heads int
	Buckets              int // rows of the table
	MaxDistance          int // distances from here on share a bucket
	Causal               bool
}

// Bucket returns the row of the table for a key that is offset tokens after the query. If Causal,
// all keys after the query share a bucket with offset 0; otherwise they use the second half of the
// table. Half of the buckets are for one distance each. The others are for ranges that grow
// exponentially, computed in float32 as in T5's training.
func (r Relative) Bucket(offset int) int {
	buckets, first, distance := r.Buckets, 0, -offset
	if !r.Causal {
		buckets /= 2
		if offset > 0 {
			first, distance = buckets, offset
		}
	}
	distance = max(distance, 0)
	exact := buckets / 2
	if distance < exact {
		return first + distance
	}
	ratio := float32(math.Log(float64(float32(distance)/float32(exact)))) / float32(math.Log(float64(r.MaxDistance)/float64(exact)))
	return first + min(exact+int(ratio*float32(buckets-exact)), buckets-1)
}

// RelativeScratch returns the number of scratch elements for the two kernels.
func RelativeScratch(r Relative) int { return r.Queries + r.Keys - 1 }

// RelativeBias writes bias [Heads, Queries, Keys], whose element for a query, a key and a head is
// table[Bucket(offset), head], for table [Buckets, Heads].
func RelativeBias[T Float](bias, table []T, r Relative, scratch []T) {
	check("RelativeBias", "bias", len(bias), r.Heads*r.Queries*r.Keys)
	check("RelativeBias", "table", len(table), r.Buckets*r.Heads)
	diagonals := scratch[:RelativeScratch(r)]
	for h := range r.Heads {
		for i := range diagonals { // the last query's first
			diagonals[i] = table[r.Bucket(i+1-r.Keys)*r.Heads+h]
		}
		for q := range r.Queries {
			copy(bias[(h*r.Queries+q)*r.Keys:][:r.Keys], diagonals[r.Queries-1-q:])
		}
	}
}

// NaiveRelativeBias is the twin of [RelativeBias]: its formula, computed literally.
func NaiveRelativeBias(bias, table []float64, r Relative, _ []float64) {
	for h := range r.Heads {
		for q := range r.Queries {
			for k := range r.Keys {
				bias[(h*r.Queries+q)*r.Keys+k] = table[r.Bucket(k-(r.Keys-r.Queries+q))*r.Heads+h]
			}
		}
	}
}

// RelativeBiasGrad is the gradient of [RelativeBias]: dtable[Bucket(offset), head] is the sum of
// dbias over all pairs with that bucket, first over the queries for each offset.
func RelativeBiasGrad[T Float](dtable, dbias []T, r Relative, acc bool, scratch []T) {
	check("RelativeBiasGrad", "dbias", len(dbias), r.Heads*r.Queries*r.Keys)
	check("RelativeBiasGrad", "dtable", len(dtable), r.Buckets*r.Heads)
	if !acc {
		clear(dtable)
	}
	diagonals := scratch[:RelativeScratch(r)]
	for h := range r.Heads {
		clear(diagonals)
		for q := range r.Queries {
			vec.Accumulate(diagonals[r.Queries-1-q:][:r.Keys], dbias[(h*r.Queries+q)*r.Keys:][:r.Keys])
		}
		for i, d := range diagonals {
			dtable[r.Bucket(i+1-r.Keys)*r.Heads+h] += d
		}
	}
}

// NaiveRelativeBiasGrad is the twin of [RelativeBiasGrad]: it adds element by element.
func NaiveRelativeBiasGrad(dtable, dbias []float64, r Relative, acc bool, _ []float64) {
	if !acc {
		clear(dtable)
	}
	for h := range r.Heads {
		for q := range r.Queries {
			for k := range r.Keys {
				dtable[r.Bucket(k-(r.Keys-r.Queries+q))*r.Heads+h] += dbias[(h*r.Queries+q)*r.Keys+k]
			}
		}
	}
}
