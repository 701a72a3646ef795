package kernel

import (
	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Linear computes y = x·Wᵀ + b for x [n, in], W [out, in], b [out] or nil, y [n, out].
func Linear[T Element](c *Context, y, x, w, b []T, n, in, out int) {
	checkLinear("Linear", len(y), len(x), len(w), n, in, out)
	if b != nil {
		check("Linear", "b", len(b), out)
	}
	multiply(c, false, true, y, x, w, n, out, in, 0, b)
}

// LinearAdd adds x·Wᵀ to y, for the shapes of [Linear]. If x and w are bfloat16, y may be float32.
func LinearAdd[T, Y Element](c *Context, y []Y, x, w []T, n, in, out int) {
	checkLinear("LinearAdd", len(y), len(x), len(w), n, in, out)
	multiply(c, false, true, y, x, w, n, out, in, 1, nil)
}

// LinearGradX writes dx [n, in] = dy·W, the gradient of [Linear] with respect to its input, for dy
// [n, out].
func LinearGradX[T Element](c *Context, dx, dy, w []T, n, in, out int) {
	checkLinear("LinearGradX", len(dy), len(dx), len(w), n, in, out)
	multiply(c, false, false, dx, dy, w, n, in, out, 0, nil)
}

// LinearGradXAdd adds dy·W to dx, for the shapes of [LinearGradX]. If dy and w are bfloat16, dx may
// be float32.
func LinearGradXAdd[T, X Element](c *Context, dx []X, dy, w []T, n, in, out int) {
	checkLinear("LinearGradXAdd", len(dy), len(dx), len(w), n, in, out)
	multiply(c, false, false, dx, dy, w, n, in, out, 1, nil)
}

// LinearGradW computes the gradient of [Linear] with respect to its weight, dyᵀ·x [out, in]. It has
// the type of dy and x. If they are float32 or bfloat16, it may have either of these types.
func LinearGradW[T, G Element](c *Context, dw []G, dy, x []T, n, in, out int, acc bool) {
	checkLinear("LinearGradW", len(dy), len(x), len(dw), n, in, out)
	var beta float64
	if acc {
		beta = 1
	}
	multiply(c, true, false, dw, dy, x, out, in, n, beta, nil)
}

// multiply computes the thread's part of y = op(a)·op(b) + beta·y, for op(a) [m, k] and op(b) [k,
// n]. If bias is not nil, it computes op(a)·op(b) with bias added to every row instead.
func multiply[T, Y Element](c *Context, transA, transB bool, y []Y, a, b []T, m, n, k int, beta float64, bias []T) {
	i0, i1, j0, j1 := gemm.Split[T](m, n, c.part, max(1, c.parts))
	if i0 == i1 || j0 == j1 {
		return
	}
	lda, ldb := k, n
	if transA {
		lda, a = m, a[min(i0, len(a)):]
	} else {
		a = a[i0*k:]
	}
	if transB {
		ldb, b = k, b[j0*k:]
	} else {
		b = b[min(j0, len(b)):]
	}
	y = y[i0*n+j0:]
	switch {
	case m <= fewRows && transB && !transA && few(i1-i0, j1-j0, k, n, a, b, any(y), beta, bias, j0):
	case bias == nil:
		gemm.Gemm(&c.gemm, transA, transB, i1-i0, j1-j0, k, 1, a, lda, b, ldb, beta, y, n)
	default:
		gemm.GemmBias(&c.gemm, transA, transB, i1-i0, j1-j0, k, a, lda, b, ldb, bias[j0:j1], any(y).([]T), n)
	}
}

// fewRows is the largest number of rows of x for which the rows of W are not packed: a decoder's
// step takes as long as reading W. With 8 rows packing is 1.4× faster.
const fewRows = 2

// few computes rows of x·Wᵀ by dot products. It does not support bfloat16.
func few[T Element](rows, cols, k, ldy int, a, b []T, y any, beta float64, bias []T, j0 int) bool {
	switch y := y.(type) {
	case []float32:
		if a, ok := any(a).([]float32); ok {
			dots(rows, cols, k, ldy, a, any(b).([]float32), y, float32(beta), any(bias).([]float32), j0)
			return true
		}
	case []float64:
		dots(rows, cols, k, ldy, any(a).([]float64), any(b).([]float64), y, beta, any(bias).([]float64), j0)
		return true
	}
	return false
}

func dots[T Float](rows, cols, k, ldy int, a, b, y []T, beta T, bias []T, j0 int) {
	for j := range cols {
		w := b[j*k:][:k]
		for i := range rows {
			sum, at := vec.Dot(a[i*k:][:k], w), i*ldy+j
			switch {
			case bias != nil:
				sum += bias[j0+j]
			case beta != 0:
				sum += beta * y[at]
			}
			y[at] = sum
		}
	}
}

// LinearGradB computes the gradient of [Linear] with respect to its bias, the column sums [out] of
// dy [n, out].
func LinearGradB[T Float](db, dy []T, n, out int, acc bool) {
	check("LinearGradB", "db", len(db), out)
	check("LinearGradB", "dy", len(dy), n*out)
	if !acc {
		clear(db)
	}
	vec.ColSum(db, dy, n, out)
}

func checkLinear(kernel string, y, x, w, n, in, out int) {
	check(kernel, "x", x, n*in)
	check(kernel, "w", w, in*out)
	check(kernel, "y", y, n*out)
}
