package kernel

import (
	"math"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Softmax writes to y [outer, n, inner] the softmax of x over the middle axis, or its logarithm. A
// column whose elements are all -Inf has no softmax: it is NaN. y may be x. scratch holds
// [SoftmaxScratch] elements. Threads share the columns.
func Softmax[E Element, T Float](c *Context, y, x []E, outer, n, inner int, log bool, scratch []T) {
	check("Softmax", "y", len(y), outer*n*inner)
	check("Softmax", "x", len(x), len(y))
	lo, hi := c.Share(outer*inner, 1)
	for i := lo; i < hi; i++ {
		at := i/inner*n*inner + i%inner
		row := column(x[at:], scratch[:n], inner)
		to := row
		if out, ok := any(y).([]T); ok && inner == 1 {
			to = out[at:][:n]
		}
		m := vec.Max(row)
		if log {
			lse := m + T(math.Log(float64(vec.ExpSubSum(scratch[n:][:n], row, 1, m))))
			for j, v := range row {
				to[j] = v - lse
			}
		} else {
			vec.Scale(to, 1/vec.ExpSubSum(to, row, 1, m))
		}
		storeColumn(y[at:], to, inner)
	}
}

// SoftmaxScratch returns the elements of scratch that [Softmax] and [SoftmaxGrad] need.
func SoftmaxScratch(n int) int { return 2 * n }

// SoftmaxGrad is the gradient of [Softmax] for its result y: dx = y·(dy - Σ y·dy), or of the logarithm
// dx = dy - exp(y)·Σ dy. dx may be dy.
func SoftmaxGrad[E Element, T Float](c *Context, dx, y, dy []E, outer, n, inner int, log bool, scratch []T) {
	check("SoftmaxGrad", "dx", len(dx), outer*n*inner)
	check("SoftmaxGrad", "y", len(y), len(dx))
	check("SoftmaxGrad", "dy", len(dy), len(dx))
	lo, hi := c.Share(outer*inner, 1)
	for i := lo; i < hi; i++ {
		at := i/inner*n*inner + i%inner
		p, d, to := column(y[at:], scratch[:n], inner), column(dy[at:], scratch[n:][:n], inner), scratch[:n]
		if out, ok := any(dx).([]T); ok && inner == 1 {
			to = out[at:][:n]
		}
		if log {
			sum, e := T(vec.Sum(d)), scratch[:n]
			vec.ExpSubSum(e, p, 1, 0)
			for j, v := range d {
				to[j] = v - e[j]*sum
			}
		} else {
			vec.SoftmaxGradRow(to, p, d, vec.Dot(p, d), 1)
		}
		storeColumn(dx[at:], to, inner)
	}
}

// column returns as many elements of x as to has, inner apart: x itself if they are in one row of
// type T, else in to.
func column[E Element, T Float](x []E, to []T, inner int) []T {
	if inner == 1 {
		switch x := any(x).(type) {
		case []T:
			return x[:len(to)]
		case []half.BFloat16:
			half.Widen(any(to).([]float32), x[:len(to)])
			return to
		}
	}
	switch x := any(x).(type) {
	case []T:
		for j := range to {
			to[j] = x[j*inner]
		}
	case []half.BFloat16:
		for j := range to {
			to[j] = T(x[j*inner].Float32())
		}
	}
	return to
}

// storeColumn puts row to where [column] took it from, unless it is there.
func storeColumn[E Element, T Float](y []E, row []T, inner int) {
	switch y := any(y).(type) {
	case []T:
		for j := 0; inner > 1 && j < len(row); j++ {
			y[j*inner] = row[j]
		}
	case []half.BFloat16:
		if inner == 1 {
			half.Narrow(y[:len(row)], any(row).([]float32))
			return
		}
		for j, v := range row {
			y[j*inner] = half.ToBFloat16(float32(v))
		}
	}
}

// NaiveSoftmax is the twin of [Softmax].
func NaiveSoftmax(_ *Context, y, x []float64, outer, n, inner int, log bool, _ []float64) {
	naiveColumns(outer, n, inner, func(at func(j int) int) {
		largest, sum := math.Inf(-1), 0.0
		for j := range n {
			largest = math.Max(largest, x[at(j)])
		}
		for j := range n {
			sum += math.Exp(x[at(j)] - largest)
		}
		for j := range n {
			y[at(j)] = math.Exp(x[at(j)]-largest) / sum
			if log {
				y[at(j)] = x[at(j)] - largest - math.Log(sum)
			}
		}
	})
}

// NaiveSoftmaxGrad is the twin of [SoftmaxGrad].
func NaiveSoftmaxGrad(_ *Context, dx, y, dy []float64, outer, n, inner int, log bool, _ []float64) {
	naiveColumns(outer, n, inner, func(at func(j int) int) {
		var sum, products float64
		for j := range n {
			sum += dy[at(j)]
			products += y[at(j)] * dy[at(j)]
		}
		for j := range n {
			dx[at(j)] = y[at(j)] * (dy[at(j)] - products)
			if log {
				dx[at(j)] = dy[at(j)] - math.Exp(y[at(j)])*sum
			}
		}
	})
}

// naiveColumns calls f with the index of every element j of each column.
func naiveColumns(outer, n, inner int, f func(at func(j int) int)) {
	for i := range outer * inner {
		f(func(j int) int { return (i/inner*n+j)*inner + i%inner })
	}
}
