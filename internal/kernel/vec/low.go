package vec

import (
	"fmt"

	"github.com/gofsdp/gofsdp/internal/half"
)

// lowKernels are the kernels of an instruction set for bfloat16, or nil. An instruction set has all
// of them or none. Their results have the same bits as the float32 kernel on widened elements,
// rounded once. They save the passes that widen and round.
type lowKernels struct {
	add                 func(dst, a, b []half.BFloat16)
	relu                func(y, x []half.BFloat16)
	reluGrad            func(dx, x, dy []half.BFloat16)
	glu                 [gates]func(y, x, up []half.BFloat16)           // of GateReLU only
	gluGrad             [gates]func(dx, dup, x, up, dy []half.BFloat16) // of GateReLU only
	accumulate, colSum8 func(dst []float32, x []half.BFloat16)

	// Kernels of the other activations, with tables: see lookup.
	lookup        func(y, x []half.BFloat16, table []float32)
	lookupTimes   func(y, x, by []half.BFloat16, table []float32)
	lookupGLUGrad func(dx, dup, x, up, dy []half.BFloat16, slopes, values []float32)

	sum          func(x []half.BFloat16) float64
	sumSquares   func(x []half.BFloat16, center float64) float64
	dot          func(a, b []half.BFloat16) float64
	norm         func(y, x []half.BFloat16, gain, bias []float32, mean, rstd float32)
	normPlain    func(y, x []half.BFloat16, gain []float32, mean, rstd float32)
	normGradSums func(dgain []float32, x []half.BFloat16, gain []float32, dy []half.BFloat16, mean, rstd float32) (s1, s2 float64)
	normGrad     func(dx, x []half.BFloat16, gain []float32, dy []half.BFloat16, mean, rstd, c1, c2 float32)
}

// Each function below is the function of the same name without BFloat16. If this machine has no
// kernel for it, it does nothing and returns false.

// AddBFloat16 is [Add].
func AddBFloat16(dst, a, b []half.BFloat16) bool { return low3("Add", active.low.add, dst, a, b) }

// ReLUBFloat16 is [ReLU].
func ReLUBFloat16(y, x []half.BFloat16) bool { return low2("ReLU", active.low.relu, y, x) }

// ReLUGradBFloat16 is [ReLUGrad].
func ReLUGradBFloat16(dx, x, dy []half.BFloat16) bool {
	return low3("ReLUGrad", active.low.reluGrad, dx, x, dy)
}

// SiLUBFloat16 is [SiLU].
func SiLUBFloat16(y, x []half.BFloat16) bool { return lookup(GateSiLU, y, x) }

// SiLUGradBFloat16 is [SiLUGrad].
func SiLUGradBFloat16(dx, x, dy []half.BFloat16) bool {
	return lookupGrad(GateSiLU, dx, x, dy)
}

// GELUErfBFloat16 is [GELUErf].
func GELUErfBFloat16(y, x []half.BFloat16) bool { return lookup(GateGELUErf, y, x) }

// GELUErfGradBFloat16 is [GELUErfGrad].
func GELUErfGradBFloat16(dx, x, dy []half.BFloat16) bool {
	return lookupGrad(GateGELUErf, dx, x, dy)
}

// GELUTanhBFloat16 is [GELUTanh].
func GELUTanhBFloat16(y, x []half.BFloat16) bool { return lookup(GateGELUTanh, y, x) }

// GELUTanhGradBFloat16 is [GELUTanhGrad].
func GELUTanhGradBFloat16(dx, x, dy []half.BFloat16) bool {
	return lookupGrad(GateGELUTanh, dx, x, dy)
}

// SigmoidBFloat16 is [Sigmoid].
func SigmoidBFloat16(y, x []half.BFloat16) bool { return lookup(GateSigmoid, y, x) }

// SigmoidGradBFloat16 is [SigmoidGrad].
func SigmoidGradBFloat16(dx, x, dy []half.BFloat16) bool {
	return lookupGrad(GateSigmoid, dx, x, dy)
}

// GLUBFloat16 is [GLU].
func GLUBFloat16(gate Gate, y, x, up []half.BFloat16) bool {
	k := active.low.glu[gate]
	if k == nil && active.low.lookupTimes != nil {
		table := lookups[gate].values()
		k = func(y, x, up []half.BFloat16) { active.low.lookupTimes(y, x, up, table) }
	}
	return low3("GLU", k, y, x, up)
}

// GLUGradBFloat16 is [GLUGrad].
func GLUGradBFloat16(gate Gate, dx, dup, x, up, dy []half.BFloat16) bool {
	k, n := active.low.gluGrad[gate], len(x)
	same("GLUGrad", n, len(dx), len(dup), len(up), len(dy))
	if k == nil && active.low.lookupGLUGrad != nil {
		slopes, values := lookups[gate].glu()
		k = func(dx, dup, x, up, dy []half.BFloat16) { active.low.lookupGLUGrad(dx, dup, x, up, dy, slopes, values) }
	}
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

// SumSquaresBFloat16 is [SumSquares].
func SumSquaresBFloat16(x []half.BFloat16) (sum float64, ok bool) { return sumSquaresLow(x, 0) }

func sumSquaresLow(x []half.BFloat16, center float64) (sum float64, ok bool) {
	k := active.low.sumSquares
	for i := 0; i < len(x) && k != nil; i += piece {
		sum += k(x[i:min(i+piece, len(x))], center)
	}
	return sum, k != nil
}

// MeanVarBFloat16 is [MeanVar].
func MeanVarBFloat16(x []half.BFloat16) (mean, variance float64, ok bool) {
	k := active.low.sum
	if k == nil {
		return 0, 0, false
	}
	for i := 0; i < len(x); i += piece {
		mean += k(x[i:min(i+piece, len(x))])
	}
	n := float64(len(x))
	mean /= n
	variance, ok = sumSquaresLow(x, mean)
	return mean, variance / n, ok
}

// DotBFloat16 is [Dot], with the product in float32.
func DotBFloat16(a, b []half.BFloat16) (product float32, ok bool) {
	same("Dot", len(a), len(b))
	k, sum := active.low.dot, 0.0
	for i := 0; i < len(a) && k != nil; i += piece {
		j := min(i+piece, len(a))
		sum += k(a[i:j], b[i:j])
	}
	return float32(sum), k != nil
}

// NormRowBFloat16 is [NormRow].
func NormRowBFloat16(y, x []half.BFloat16, gain, bias []float32, mean, rstd float32) bool {
	k := &active.low
	same("NormRow", len(y), len(x), len(gain))
	if bias != nil {
		same("NormRow", len(y), len(bias))
	}
	for i := 0; i < len(y) && k.norm != nil; i += piece {
		j := min(i+piece, len(y))
		if bias == nil {
			k.normPlain(y[i:j], x[i:j], gain[i:j], mean, rstd)
		} else {
			k.norm(y[i:j], x[i:j], gain[i:j], bias[i:j], mean, rstd)
		}
	}
	return k.norm != nil
}

// NormGradRowBFloat16 is [NormGradRow].
func NormGradRowBFloat16(dx []half.BFloat16, dgain, dbias []float32, x []half.BFloat16, gain []float32, dy []half.BFloat16, mean, rstd float32) bool {
	k := active.low.accumulate
	if k == nil {
		return false
	}
	same("NormGradRow", len(dy), len(dbias))
	for i := 0; i < len(dy); i += piece {
		j := min(i+piece, len(dy))
		k(dbias[i:j], dy[i:j])
	}
	return normGradLow(dx, dgain, x, gain, dy, mean, rstd, true)
}

// RMSNormGradRowBFloat16 is [RMSNormGradRow].
func RMSNormGradRowBFloat16(dx []half.BFloat16, dgain []float32, x []half.BFloat16, gain []float32, dy []half.BFloat16, rstd float32) bool {
	return normGradLow(dx, dgain, x, gain, dy, 0, rstd, false)
}

// normGradLow computes the gradients of a row but for dbias. centered says whether a mean was
// subtracted from the row.
func normGradLow(dx []half.BFloat16, dgain []float32, x []half.BFloat16, gain []float32, dy []half.BFloat16, mean, rstd float32, centered bool) bool {
	k, n := &active.low, len(x)
	same("NormGradRow", n, len(dx), len(dgain), len(gain), len(dy))
	if k.normGrad == nil {
		return false
	}
	var s1, s2 float64
	for i := 0; i < n; i += piece {
		j := min(i+piece, n)
		a, b := k.normGradSums(dgain[i:j], x[i:j], gain[i:j], dy[i:j], mean, rstd)
		s1, s2 = s1+a, s2+b
	}
	if !centered {
		s1 = 0
	}
	c1, c2 := float32(s1/float64(n)), float32(s2/float64(n))
	for i := 0; i < n; i += piece {
		j := min(i+piece, n)
		k.normGrad(dx[i:j], x[i:j], gain[i:j], dy[i:j], mean, rstd, c1, c2)
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
