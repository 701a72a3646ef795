package kernel

import (
	"math"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// softmaxColumns is the number of columns that are processed at once if they are not contiguous.
const softmaxColumns = 256

// Softmax writes to y [outer, n, inner] the softmax of x over the middle axis, or its logarithm. A
// column whose elements are all -Inf has no softmax: it is NaN. y may be x. scratch holds
// [SoftmaxScratch] elements. Threads share the columns.
func Softmax[E Element, T Float](c *Context, y, x []E, outer, n, inner int, log bool, scratch []T) {
	check("Softmax", "y", len(y), outer*n*inner)
	check("Softmax", "x", len(x), len(y))
	if inner > 1 {
		eachColumns(c, outer, n, inner, func(at, w int) { softmaxOf(y[at:], x[at:], n, inner, w, log, scratch) })
		return
	}
	lo, hi := c.Share(outer, 1)
	for i := lo * n; i < hi*n; i += n {
		row, to := widened(x[i:i+n], scratch), target(y[i:i+n], scratch)
		m := vec.Max(row)
		if log {
			e := scratch[n : 2*n]
			vec.Fill(e, m+T(math.Log(float64(vec.ExpSubSum(e, row, 1, m)))))
			vec.Sub(to, row, e)
		} else {
			vec.Scale(to, 1/vec.ExpSubSum(to, row, 1, m))
		}
		narrowed(y[i:], to)
	}
}

// SoftmaxScratch returns the number of scratch elements for [Softmax] and [SoftmaxGrad].
func SoftmaxScratch(n, inner int) int {
	if inner > 1 {
		return 4 * min(inner, softmaxColumns)
	}
	return 2 * n
}

// eachColumns calls f for the thread's share of the columns, with the index of the first of w
// columns, at most softmaxColumns.
func eachColumns(c *Context, outer, n, inner int, f func(at, w int)) {
	groups := (inner + softmaxColumns - 1) / softmaxColumns
	lo, hi := c.Share(outer*groups, 1)
	for i := lo; i < hi; i++ {
		first := i % groups * softmaxColumns
		f(i/groups*n*inner+first, min(softmaxColumns, inner-first))
	}
}

// softmaxOf is Softmax for w columns.
func softmaxOf[E Element, T Float](y, x []E, n, inner, w int, log bool, scratch []T) {
	m, sum, e, buf := scratch[:w], scratch[w:2*w], scratch[2*w:3*w], scratch[3*w:4*w]
	vec.Fill(m, T(math.Inf(-1)))
	clear(sum)
	for j := range n {
		vec.Greater(m, m, widened(x[j*inner:][:w], buf))
	}
	for j := range n {
		vec.Sub(e, widened(x[j*inner:][:w], buf), m)
		vec.Exp(e, e)
		vec.Accumulate(sum, e)
	}
	for i, s := range sum {
		sum[i] = 1 / s
		if log {
			m[i] += T(math.Log(float64(s)))
		}
	}
	for j := range n {
		to := target(y[j*inner:][:w], e)
		if vec.Sub(to, widened(x[j*inner:][:w], buf), m); !log {
			vec.Exp(to, to)
			vec.Mul(to, to, sum)
		}
		narrowed(y[j*inner:], to)
	}
}

// SoftmaxGrad is the gradient of [Softmax] for its result y: dx = y·(dy - Σ y·dy), or of the logarithm
// dx = dy - exp(y)·Σ dy. dx may be dy.
func SoftmaxGrad[E Element, T Float](c *Context, dx, y, dy []E, outer, n, inner int, log bool, scratch []T) {
	check("SoftmaxGrad", "dx", len(dx), outer*n*inner)
	check("SoftmaxGrad", "y", len(y), len(dx))
	check("SoftmaxGrad", "dy", len(dy), len(dx))
	if inner > 1 {
		eachColumns(c, outer, n, inner, func(at, w int) { softmaxGradOf(dx[at:], y[at:], dy[at:], n, inner, w, log, scratch) })
		return
	}
	lo, hi := c.Share(outer, 1)
	for i := lo * n; i < hi*n; i += n {
		p, d, to := widened(y[i:i+n], scratch), widened(dy[i:i+n], scratch[n:]), target(dx[i:i+n], scratch)
		if log {
			e := scratch[:n]
			vec.Exp(e, p)
			vec.Scale(e, T(vec.Sum(d)))
			vec.Sub(to, d, e)
		} else {
			vec.SoftmaxGradRow(to, p, d, vec.Dot(p, d), 1)
		}
		narrowed(dx[i:], to)
	}
}

// softmaxGradOf is SoftmaxGrad for w columns.
func softmaxGradOf[E Element, T Float](dx, y, dy []E, n, inner, w int, log bool, scratch []T) {
	sum, e, bufY, bufD := scratch[:w], scratch[w:2*w], scratch[2*w:3*w], scratch[3*w:4*w]
	clear(sum)
	for j := range n {
		d := widened(dy[j*inner:][:w], bufD)
		if !log {
			vec.Mul(e, widened(y[j*inner:][:w], bufY), d)
			d = e
		}
		vec.Accumulate(sum, d)
	}
	for j := range n {
		p, d, to := widened(y[j*inner:][:w], bufY), widened(dy[j*inner:][:w], bufD), target(dx[j*inner:][:w], e)
		if log {
			vec.Exp(e, p)
			vec.Mul(e, e, sum)
			vec.Sub(to, d, e)
		} else {
			vec.Sub(e, d, sum)
			vec.Mul(to, p, e)
		}
		narrowed(dx[j*inner:], to)
	}
}

// widened returns x as a slice of T: x itself, or its values in buf.
func widened[E Element, T Float](x []E, buf []T) []T {
	if x, ok := any(x).([]T); ok {
		return x
	}
	half.Widen(any(buf).([]float32), any(x).([]half.BFloat16))
	return buf[:len(x)]
}

// target returns y, or a part of buf of the same length if y is not of type T.
func target[E Element, T Float](y []E, buf []T) []T {
	if y, ok := any(y).([]T); ok {
		return y
	}
	return buf[:len(y)]
}

// narrowed rounds row to y, if y is not of type T and so is not its own [target].
func narrowed[E Element, T Float](y []E, row []T) {
	if y, ok := any(y).([]half.BFloat16); ok {
		half.Narrow(y[:len(row)], any(row).([]float32))
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
