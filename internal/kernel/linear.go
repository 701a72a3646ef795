package kernel

import (
	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Linear computes y = x·Wᵀ + b for x [n, in], W [out, in], b [out] or nil, y [n, out].
func Linear[T Element](c *Context, y, x, w, b []T, n, in, out int) {
	checkLinear("Linear", len(y), len(x), len(w), n, in, out)
	if b == nil {
		gemm.Gemm(&c.gemm, false, true, n, out, in, 1, x, in, w, in, 0, y, out)
		return
	}
	check("Linear", "b", len(b), out)
	gemm.GemmBias(&c.gemm, false, true, n, out, in, x, in, w, in, b, y, out)
}

// LinearAdd adds x·Wᵀ to y, for the shapes of [Linear].
func LinearAdd[T Element](c *Context, y, x, w []T, n, in, out int) {
	checkLinear("LinearAdd", len(y), len(x), len(w), n, in, out)
	gemm.Gemm(&c.gemm, false, true, n, out, in, 1, x, in, w, in, 1, y, out)
}

// LinearGradX writes dx [n, in] = dy·W, the gradient of [Linear] with respect to its input, for dy
// [n, out].
func LinearGradX[T Element](c *Context, dx, dy, w []T, n, in, out int) {
	checkLinear("LinearGradX", len(dy), len(dx), len(w), n, in, out)
	gemm.Gemm(&c.gemm, false, false, n, in, out, 1, dy, out, w, in, 0, dx, in)
}

// LinearGradW computes the gradient of [Linear] with respect to its weight, dyᵀ·x [out, in], in the
// type of dy and x, or in float32 if that is bfloat16.
func LinearGradW[T, G Element](c *Context, dw []G, dy, x []T, n, in, out int, acc bool) {
	checkLinear("LinearGradW", len(dy), len(x), len(dw), n, in, out)
	var beta float64
	if acc {
		beta = 1
	}
	gemm.Gemm(&c.gemm, true, false, out, in, n, 1, dy, out, x, in, beta, dw, in)
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
