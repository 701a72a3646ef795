package vec

import (
	"fmt"

	"github.com/gofsdp/gofsdp/internal/half"
)

// lowKernels are the kernels of an instruction set for bfloat16, or nil. Their results have the same bits
// as the float32 kernel on widened elements, rounded once. They save the passes that widen and round.
type lowKernels struct {
	add                                                        func(dst, a, b []half.BFloat16)
	relu, silu, geluErf, geluTanh, sigmoid                     func(y, x []half.BFloat16)
	reluGrad, siluGrad, geluErfGrad, geluTanhGrad, sigmoidGrad func(dx, x, dy []half.BFloat16)
	glu                                                        [gates]func(y, x, up []half.BFloat16)
	gluGrad                                                    [gates]func(dx, dup, x, up, dy []half.BFloat16)
	colSum8                                                    func(dst []float32, x []half.BFloat16)
}

// Each function below is the function of the same name without BFloat16. If this machine has no kernel
// for it, it does nothing and returns false.

// AddBFloat16 is [Add].
func AddBFloat16(dst, a, b []half.BFloat16) bool { return low3("Add", active.low.add, dst, a, b) }

// ReLUBFloat16 is [ReLU].
func ReLUBFloat16(y, x []half.BFloat16) bool { return low2("ReLU", active.low.relu, y, x) }

// ReLUGradBFloat16 is [ReLUGrad].
func ReLUGradBFloat16(dx, x, dy []half.BFloat16) bool {
	return low3("ReLUGrad", active.low.reluGrad, dx, x, dy)
}

// SiLUBFloat16 is [SiLU].
func SiLUBFloat16(y, x []half.BFloat16) bool { return low2("SiLU", active.low.silu, y, x) }

// SiLUGradBFloat16 is [SiLUGrad].
func SiLUGradBFloat16(dx, x, dy []half.BFloat16) bool {
	return low3("SiLUGrad", active.low.siluGrad, dx, x, dy)
}

// GELUErfBFloat16 is [GELUErf].
func GELUErfBFloat16(y, x []half.BFloat16) bool { return low2("GELUErf", active.low.geluErf, y, x) }

// GELUErfGradBFloat16 is [GELUErfGrad].
func GELUErfGradBFloat16(dx, x, dy []half.BFloat16) bool {
	return low3("GELUErfGrad", active.low.geluErfGrad, dx, x, dy)
}

// GELUTanhBFloat16 is [GELUTanh].
func GELUTanhBFloat16(y, x []half.BFloat16) bool { return low2("GELUTanh", active.low.geluTanh, y, x) }

// GELUTanhGradBFloat16 is [GELUTanhGrad].
func GELUTanhGradBFloat16(dx, x, dy []half.BFloat16) bool {
	return low3("GELUTanhGrad", active.low.geluTanhGrad, dx, x, dy)
}

// SigmoidBFloat16 is [Sigmoid].
func SigmoidBFloat16(y, x []half.BFloat16) bool { return low2("Sigmoid", active.low.sigmoid, y, x) }

// SigmoidGradBFloat16 is [SigmoidGrad].
func SigmoidGradBFloat16(dx, x, dy []half.BFloat16) bool {
	return low3("SigmoidGrad", active.low.sigmoidGrad, dx, x, dy)
}

// GLUBFloat16 is [GLU].
func GLUBFloat16(gate Gate, y, x, up []half.BFloat16) bool {
	return low3("GLU", active.low.glu[gate], y, x, up)
}

// GLUGradBFloat16 is [GLUGrad].
func GLUGradBFloat16(gate Gate, dx, dup, x, up, dy []half.BFloat16) bool {
	k, n := active.low.gluGrad[gate], len(x)
	same("GLUGrad", n, len(dx), len(dup), len(up), len(dy))
	for i := 0; i < n && k != nil; i += piece {
		j := min(i+piece, n)
		k(dx[i:j], dup[i:j], x[i:j], up[i:j], dy[i:j])
	}
	return k != nil
}

// ColSumBFloat16 is [ColSum], with the sums in float32. scratch has cols elements.
func ColSumBFloat16(dst []float32, x []half.BFloat16, rows, cols int, scratch []float32) bool {
	if rows < 0 || cols < 0 || len(dst) != cols || len(x) != rows*cols || len(scratch) < cols {
		panic(fmt.Sprintf("vec: ColSum: matrix of %d elements, vector of %d and scratch of %d for shape [%d, %d]",
			len(x), len(dst), len(scratch), rows, cols))
	}
	k := active.low.colSum8
	if k == nil {
		return false
	}
	for ; rows >= 8 && cols > 0; rows -= 8 {
		k(dst, x[:8*cols])
		x = x[8*cols:]
	}
	for i := range rows {
		half.Widen(scratch[:cols], x[i*cols:])
		Accumulate(dst, scratch[:cols])
	}
	return true
}

// low2 and low3 call a kernel, if there is one, on pieces of slices.
func low2(op string, k func(y, x []half.BFloat16), y, x []half.BFloat16) bool {
	same(op, len(y), len(x))
	for i := 0; i < len(y) && k != nil; i += piece {
		j := min(i+piece, len(y))
		k(y[i:j], x[i:j])
	}
	return k != nil
}

func low3(op string, k func(z, x, y []half.BFloat16), z, x, y []half.BFloat16) bool {
	same(op, len(z), len(x), len(y))
	for i := 0; i < len(z) && k != nil; i += piece {
		j := min(i+piece, len(z))
		k(z[i:j], x[i:j], y[i:j])
	}
	return k != nil
}
