package vec

import (
	"fmt"
	"math"

	"pgregory.net/rapid"
)

// numbers are the scalar arguments of one trial. All are representable as float32, so that both
// element types see the same.
type numbers struct {
	alpha, beta, rstd float32
	rows              int
	seed, base        uint64
	rate              float64
	first, decoupled  bool
}

func drawNumbers(t *rapid.T) numbers {
	f := func(lo, hi float32) float32 { return rapid.Float32Range(lo, hi).Draw(t, "scalar") }
	return numbers{
		alpha: f(-2, 2), beta: f(-2, 2), rstd: f(0.25, 4), rows: rapid.IntRange(0, 20).Draw(t, "rows"),
		seed: rapid.Uint64().Draw(t, "seed"), base: rapid.Uint64().Draw(t, "base"),
		rate:  float64(rapid.IntRange(0, 63).Draw(t, "rate/64")) / 64,
		first: rapid.Bool().Draw(t, "first"), decoupled: rapid.Bool().Draw(t, "decoupled"),
	}
}

// inputs says which elements a primitive is tried with.
type inputs int

const (
	moderate inputs = iota // normally distributed, some zeros
	wide                   // also huge, tiny, infinite and NaN
)

// op is a primitive as the tests see it.
type op[T Float] struct {
	name    string
	slices  int // of equal length; the first ones may be written
	written int
	inputs  inputs
	exact   bool    // float32: the portable kernel gives the same bits; otherwise the float64 one is the reference
	tol     float64 // of float32 against that reference: |difference| / (1 + |value|) in units of 2⁻²⁴
	local   bool    // element i of the result depends on elements i only
	call    func(s [][]T, n numbers) []float64
}

// unary, binary: y = f(x) and z = f(x, y) without scalars.
func unary[T Float](f func(y, x []T)) func([][]T, numbers) []float64 {
	return func(s [][]T, _ numbers) []float64 { f(s[0], s[1]); return nil }
}

func binary[T Float](f func(z, x, y []T)) func([][]T, numbers) []float64 {
	return func(s [][]T, _ numbers) []float64 { f(s[0], s[1], s[2]); return nil }
}

// reduction adds 0 to the result, because the sign of a zero maximum is not specified.
func reduction[T, R Float](f func(x []T) R) func([][]T, numbers) []float64 {
	return func(s [][]T, _ numbers) []float64 { return []float64{float64(f(s[0])) + 0} }
}

// exp sets y = eˣ.
func exp[T Float](y, x []T) { ExpSubSum(y, x, 1, 0) }

func ops[T Float]() []op[T] {
	return append(append(elementwise[T](), rowwise[T]()...), optimizers[T]()...)
}

func elementwise[T Float]() []op[T] {
	return append(gated[T](), []op[T]{
		{"Add", 3, 1, wide, true, 0, true, binary(Add[T])},
		{"Sub", 3, 1, wide, true, 0, true, binary(Sub[T])},
		{"Mul", 3, 1, wide, true, 0, true, binary(Mul[T])},
		{"Div", 3, 1, wide, true, 0, true, binary(Div[T])},
		{"Lesser", 3, 1, wide, true, 0, true, binary(Lesser[T])},
		{"Greater", 3, 1, wide, true, 0, true, binary(Greater[T])},
		{"Less", 3, 1, wide, true, 0, true, binary(Less[T])},
		{"LessOrEqual", 3, 1, wide, true, 0, true, binary(LessOrEqual[T])},
		{"Equal", 3, 1, wide, true, 0, true, binary(Equal[T])},
		{"NotEqual", 3, 1, wide, true, 0, true, binary(NotEqual[T])},
		{"Abs", 2, 1, wide, true, 0, true, unary(Abs[T])},
		{"Sqrt", 2, 1, wide, true, 0, true, unary(Sqrt[T])},
		{"Square", 2, 1, wide, true, 0, true, unary(Square[T])},
		{"Cube", 2, 1, wide, true, 0, true, unary(Cube[T])},
		{"Inverse", 2, 1, wide, true, 0, true, unary(Inverse[T])},
		{"Exp", 2, 1, wide, false, 2, true, unary(Exp[T])},
		{"Log", 2, 1, wide, false, 2, true, unary(Log[T])},
		{"Tanh", 2, 1, wide, false, 3, true, unary(Tanh[T])},
		{"Sigmoid", 2, 1, wide, false, 3, true, unary(Sigmoid[T])},
		{"Accumulate", 2, 1, wide, true, 0, true, unary(Accumulate[T])},
		{"AddScaled", 2, 1, wide, true, 0, true, func(s [][]T, n numbers) []float64 { AddScaled(s[0], s[1], T(n.alpha)); return nil }},
		{"Scale", 1, 1, wide, true, 0, true, func(s [][]T, n numbers) []float64 { Scale(s[0], T(n.alpha)); return nil }},
		{"ScaleTo", 2, 1, wide, true, 0, true, func(s [][]T, n numbers) []float64 { ScaleTo(s[0], T(n.alpha), s[1]); return nil }},
		{"Fill", 1, 1, wide, true, 0, true, func(s [][]T, n numbers) []float64 { Fill(s[0], T(n.alpha)); return nil }},
		{"ReLU", 2, 1, wide, true, 0, true, unary(ReLU[T])},
		{"ReLUGrad", 3, 1, wide, true, 0, true, binary(ReLUGrad[T])},
		{"SiLU", 2, 1, wide, false, 4, true, unary(SiLU[T])},
		{"TanhGrad", 3, 1, moderate, false, 8, true, binary(TanhGrad[T])},
		{"SigmoidGrad", 3, 1, moderate, false, 8, true, binary(SigmoidGrad[T])},
		{"SiLUGrad", 3, 1, moderate, false, 8, true, binary(SiLUGrad[T])},
		{"GELUErf", 2, 1, wide, false, 4, true, unary(GELUErf[T])},
		{"GELUErfGrad", 3, 1, moderate, false, 8, true, binary(GELUErfGrad[T])},
		{"GELUTanh", 2, 1, wide, false, 4, true, unary(GELUTanh[T])},
		{"GELUTanhGrad", 3, 1, moderate, false, 10, true, binary(GELUTanhGrad[T])},
		{"ExpSubSum without scale", 2, 1, wide, false, 2, true, unary(exp[T])},
		{"Dropout", 2, 1, wide, true, 0, false, func(s [][]T, n numbers) []float64 {
			Dropout(s[0], s[1], n.seed, n.base, n.rate)
			return nil
		}},
		{"SoftmaxGradRow", 3, 1, moderate, false, 16, true, func(s [][]T, n numbers) []float64 {
			SoftmaxGradRow(s[0], s[1], s[2], T(n.alpha), T(n.beta))
			return nil
		}},
		{"NormRow", 4, 1, moderate, false, 64, true, func(s [][]T, n numbers) []float64 {
			NormRow(s[0], s[1], s[2], s[3], T(n.alpha), T(n.rstd))
			return nil
		}},
		{"NormRow without bias", 3, 1, moderate, false, 64, true, func(s [][]T, n numbers) []float64 {
			NormRow(s[0], s[1], s[2], nil, T(n.alpha), T(n.rstd))
			return nil
		}},
		{"NormPlane", 2, 1, moderate, false, 64, true, func(s [][]T, n numbers) []float64 {
			NormPlane(s[0], s[1], T(n.alpha), T(n.rstd), T(n.beta), 0.5)
			return nil
		}},
		{"NormPlaneSums", 2, 0, moderate, false, 64, false, func(s [][]T, n numbers) []float64 {
			s1, s2 := NormPlaneSums(s[0], s[1], T(n.alpha), T(n.rstd))
			return []float64{s1 / 200, s2 / 200} // of up to so many terms
		}},
		{"NormPlaneGrad", 3, 1, moderate, false, 64, true, func(s [][]T, n numbers) []float64 {
			NormPlaneGrad(s[0], s[1], s[2], T(n.alpha), T(n.rstd), T(n.beta), 0.5, 0.25)
			return nil
		}},
		{"MaxPairs", 2, 2, wide, true, 0, false, func(s [][]T, _ numbers) []float64 { // all written: none may be another
			n := len(s[0]) / 4
			MaxPairs(s[0][len(s[0])-n:], s[1], n, len(s[1])/2)
			return nil
		}},
		{"MaxPairsGrad", 3, 3, wide, true, 0, false, func(s [][]T, _ numbers) []float64 {
			n := len(s[0]) / 4
			MaxPairsGrad(s[0], s[1], s[2][len(s[2])-n:], n, len(s[0])/2)
			return nil
		}},
		{"Rotate", 6, 2, moderate, false, 64, true, func(s [][]T, _ numbers) []float64 {
			Rotate(s[0], s[1], s[2], s[3], s[4], s[5])
			return nil
		}},
	}...)
}

// gated are the gated linear units.
func gated[T Float]() (list []op[T]) {
	for g := range gates {
		list = append(list,
			op[T]{fmt.Sprintf("GLU %v", g), 3, 1, moderate, false, 16, true, binary(func(y, x, up []T) { GLU(g, y, x, up) })},
			op[T]{fmt.Sprintf("GLUGrad %v", g), 5, 2, moderate, false, 64, true, func(s [][]T, _ numbers) []float64 {
				GLUGrad(g, s[0], s[1], s[2], s[3], s[4])
				return nil
			}})
	}
	return list
}

func rowwise[T Float]() []op[T] {
	return []op[T]{
		{"Sum", 1, 0, moderate, false, 1e-6, false, reduction(Sum[T])},
		{"SumSquares", 1, 0, moderate, false, 1e-6, false, reduction(SumSquares[T])},
		{"Squares", 1, 0, moderate, true, 0, false, func(s [][]T, _ numbers) []float64 {
			q := NewSquares(float64(MaxAbs(s[0])))
			AddSquares(&q, s[0])
			return []float64{q.Value(), q.Norm()}
		}},
		{"MaxAbs", 1, 0, wide, true, 0, false, reduction(MaxAbs[T])},
		{"Dot", 2, 0, moderate, false, 4, false, func(s [][]T, _ numbers) []float64 { return []float64{float64(Dot(s[0], s[1]))} }},
		{"Max", 1, 0, wide, true, 0, false, reduction(Max[T])},
		{"MeanVar", 1, 0, moderate, false, 1e-6, false, func(s [][]T, _ numbers) []float64 {
			mean, variance := MeanVar(s[0])
			return []float64{mean, variance}
		}},
		{"ExpSubSum", 2, 1, moderate, false, 16, false, func(s [][]T, n numbers) []float64 {
			m := float32(Max(s[1]))*n.rstd + n.alpha
			return []float64{float64(ExpSubSum(s[0], s[1], T(n.rstd), T(m)))}
		}},
		{"SoftmaxRow", 2, 1, moderate, false, 16, false, func(s [][]T, n numbers) []float64 {
			return []float64{float64(SoftmaxRow(s[0], s[1], T(n.rstd)))}
		}},
		{"NormGradRow", 6, 3, moderate, false, 400, false, func(s [][]T, n numbers) []float64 {
			NormGradRow(s[0], s[1], s[2], s[3], s[4], s[5], T(n.alpha), T(n.rstd/4))
			return nil
		}},
		{"RMSNormGradRow", 5, 2, moderate, false, 400, false, func(s [][]T, n numbers) []float64 {
			RMSNormGradRow(s[0], s[1], s[2], s[3], s[4], T(n.rstd/4))
			return nil
		}},
		{"TreeSum", 20, 1, wide, true, 0, true, func(s [][]T, n numbers) []float64 {
			TreeSum(s[0], s[:max(1, n.rows)], T(n.alpha))
			return nil
		}},
	}
}

func optimizers[T Float]() []op[T] {
	sgd := func(name string, momentum float64, nesterov bool) op[T] {
		slices, written := 3, 3
		if momentum == 0 {
			slices, written = 2, 2
		}
		return op[T]{name, slices, written, moderate, false, 64, true, func(s [][]T, n numbers) []float64 {
			h := SGDHyper{0.5, momentum, 0.25, float64(n.rstd), nesterov, n.first}
			if momentum == 0 {
				SGD(s[0], s[1], nil, h)
			} else {
				SGD(s[0], s[1], s[2], h)
			}
			return nil
		}}
	}
	return []op[T]{
		sgd("SGD", 0, false), sgd("SGD momentum", 0.875, false), sgd("SGD nesterov", 0.875, true),
		{"Adam", 4, 4, moderate, false, 64, true, func(s [][]T, n numbers) []float64 {
			for i, v := range s[3] {
				s[3][i] = T(math.Abs(float64(v))) + 0.25 // a second moment near 0 would magnify every rounding
			}
			Adam(s[0], s[1], s[2], s[3], AdamHyper{
				LR: 0.25, Beta1: 0.875, Beta2: 0.9375, Eps: 0x1p-20, WeightDecay: 0.125, BiasCorrection1: 0.5,
				BiasCorrection2Sqrt: 0.5, GradScale: float64(n.rstd), Decoupled: n.decoupled,
			})
			return nil
		}},
	}
}
