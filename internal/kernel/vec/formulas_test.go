package vec

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The tests of this file compare with formulas written down independently of the portable kernels.

// TestGELUDefinition: the textbook forms, and their derivatives by central differences.
func TestGELUDefinition(t *testing.T) {
	erf := func(x float64) float64 { return 0.5 * x * (1 + math.Erf(x/math.Sqrt2)) }
	tanh := func(x float64) float64 {
		return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.Float64Range(-6, 6).Draw(t, "x")
		const h = 1e-5
		in, out, dy := []float64{x}, []float64{0}, []float64{2}
		GELUErf(out, in)
		require.InDelta(t, erf(x), out[0], 1e-15)
		GELUErfGrad(out, in, dy)
		require.InDelta(t, (erf(x+h)-erf(x-h))/h, out[0], 1e-9)
		GELUTanh(out, in)
		require.InDelta(t, tanh(x), out[0], 1e-14)
		GELUTanhGrad(out, in, dy)
		require.InDelta(t, (tanh(x+h)-tanh(x-h))/h, out[0], 1e-9)
	})
}

// TestSiLUDefinition: the textbook form, its derivative by central differences, and gated linear units
// as products.
func TestSiLUDefinition(t *testing.T) {
	silu := func(x float64) float64 { return x / 2 * (1 + math.Tanh(x/2)) }
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.Float64Range(-30, 30).Draw(t, "x")
		const h = 1e-5
		in, out, up, dy := []float64{x}, []float64{0}, []float64{-3}, []float64{2}
		SiLU(out, in)
		require.InDelta(t, silu(x), out[0], 1e-13)
		SiLUGrad(out, in, dy)
		slope := (silu(x+h) - silu(x-h)) / h
		require.InDelta(t, slope, out[0], 1e-8)
		GLUGrad(GateSiLU, out, dy, in, up, dy)
		require.InDelta(t, -3*slope, out[0], 1e-7)
		require.InDelta(t, 2*silu(x), dy[0], 1e-12)
		GLU(GateSiLU, out, in, up)
		require.InDelta(t, -3*silu(x), out[0], 1e-12)
	})
}

// TestAdamFromZero makes the first steps of a training, where both moments begin at zero and some
// gradients are zero: that is where the denominator is smallest. The tolerances are a few roundings
// of the parameter for each step.
func TestAdamFromZero(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			s := convert[float64](drawSlices(t, 2, moderate))
			n := len(s[0])
			want, g := s[0], s[1]
			for i := range g {
				if i%5 == 0 {
					g[i] = 0
				}
				want[i], g[i] = float64(float32(want[i])), float64(float32(g[i]))
			}
			p64, m64, v64 := append([]float64{}, want...), make([]float64, n), make([]float64, n)
			p32, g32, m32, v32 := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
			for i := range g {
				p32[i], g32[i] = float32(want[i]), float32(g[i])
			}
			m, v := make([]float64, n), make([]float64, n)
			const lr, b1, b2, eps, wd = 3e-3, 0.9, 0.95, 1e-8, 0.1
			for step := 1.; step <= 5; step++ {
				bc1, bc2 := 1-math.Pow(b1, step), math.Sqrt(1-math.Pow(b2, step))
				for i := range want {
					m[i], v[i] = b1*m[i]+(1-b1)*g[i], b2*v[i]+(1-b2)*g[i]*g[i]
					want[i] = want[i]*(1-lr*wd) - lr/bc1*m[i]/(math.Sqrt(v[i])/bc2+eps)
				}
				h := AdamHyper{LR: lr, Beta1: b1, Beta2: b2, Eps: eps, WeightDecay: wd, GradScale: 1, Decoupled: true,
					BiasCorrection1: bc1, BiasCorrection2Sqrt: bc2}
				Adam(p64, g, m64, v64, h)
				Adam(p32, g32, m32, v32, h)
				for i := range want {
					require.InDelta(t, want[i], p64[i], 1e-15*step*(1+math.Abs(want[i])))
					require.InDelta(t, want[i], float64(p32[i]), 0x1p-23*step*(1+math.Abs(want[i])))
				}
			}
		})
	})
}

// TestOptimizersDefinition: float64 steps follow the formulas of torch.optim to rounding.
func TestOptimizersDefinition(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			s := convert[float64](drawSlices(t, 4, moderate))
			p, g, m, v := s[0], s[1], s[2], s[3]
			const lr, b1, b2, eps, wd, gs, step = 3e-3, 0.9, 0.95, 1e-8, 0.1, 0.7, 3
			decoupled := rapid.Bool().Draw(t, "decoupled")
			h := AdamHyper{
				LR: lr, Beta1: b1, Beta2: b2, Eps: eps, WeightDecay: wd, GradScale: gs, Decoupled: decoupled,
				BiasCorrection1: 1 - math.Pow(b1, step), BiasCorrection2Sqrt: math.Sqrt(1 - math.Pow(b2, step)),
			}
			var want []float64
			for i := range v {
				v[i] = math.Abs(v[i]) + 0.25 // near 0 it would magnify the rounding of the gradient
				grad, start := gs*g[i], p[i]
				if decoupled {
					start *= 1 - lr*wd
				} else {
					grad += wd * p[i]
				}
				m1, v1 := b1*m[i]+(1-b1)*grad, b2*v[i]+(1-b2)*grad*grad
				want = append(want, start-lr/(1-math.Pow(b1, step))*m1/(math.Sqrt(v1)/math.Sqrt(1-math.Pow(b2, step))+eps))
			}
			Adam(p, g, m, v, h)
			for i := range want {
				require.InDelta(t, want[i], p[i], 4e-15*(1+math.Abs(want[i])))
			}
		})
		rapid.Check(t, func(t *rapid.T) {
			s := convert[float64](drawSlices(t, 3, moderate))
			p, g, buf := s[0], s[1], s[2]
			const lr, momentum, wd = 0.1, 0.9, 0.01
			first, nesterov := rapid.Bool().Draw(t, "first"), rapid.Bool().Draw(t, "nesterov")
			var want []float64
			for i := range p {
				grad := g[i] + wd*p[i]
				b := momentum*buf[i] + grad
				if first {
					b = grad
				}
				by := b
				if nesterov {
					by = grad + momentum*b
				}
				want = append(want, p[i]-lr*by)
				if first {
					buf[i] = math.NaN()
				}
			}
			SGD(p, g, buf, SGDHyper{LR: lr, Momentum: momentum, WeightDecay: wd, GradScale: 1, Nesterov: nesterov, First: first})
			for i := range want {
				require.InDelta(t, want[i], p[i], 4e-15*(1+math.Abs(want[i])))
			}
		})
	})
}

// TestNormGradients: the backward of both norms by central differences of the forward.
func TestNormGradients(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := convert[float64](drawSlices(t, 3, moderate))
		x, gain, dy := s[0], s[1], s[2]
		if len(x) < 2 {
			return
		}
		n, centered := len(x), rapid.Bool().Draw(t, "LayerNorm")
		statistics := func() (mean, rstd float64) {
			mean, variance := MeanVar(x)
			if !centered {
				mean, variance = 0, SumSquares(x)/float64(n)
			}
			return mean, 1 / math.Sqrt(variance+1e-2)
		}
		y := make([]float64, n)
		loss := func() float64 {
			mean, rstd := statistics()
			NormRow(y, x, gain, nil, mean, rstd)
			return Dot(y, dy)
		}
		dx, dgain, dbias := make([]float64, n), make([]float64, n), make([]float64, n)
		mean, rstd := statistics()
		if centered {
			NormGradRow(dx, dgain, dbias, x, gain, dy, mean, rstd)
			require.Equal(t, dy, dbias)
		} else {
			RMSNormGradRow(dx, dgain, x, gain, dy, rstd)
		}
		i := rapid.IntRange(0, n-1).Draw(t, "element")
		for _, check := range []struct{ at, want *float64 }{{&x[i], &dx[i]}, {&gain[i], &dgain[i]}} {
			const h = 1e-5
			old := *check.at
			*check.at = old + h
			up := loss()
			*check.at = old - h
			down := loss()
			*check.at = old
			require.InDelta(t, *check.want, (up-down)/(2*h), 1e-4)
		}
	})
}

// TestTreeSumOrder: the order of addition is the canonical tree, seen by its rounding.
func TestTreeSumOrder(t *testing.T) {
	var tree func(s [][]float32, i int) float32
	tree = func(s [][]float32, i int) float32 {
		if len(s) == 1 {
			return s[0][i]
		}
		mid := int(math.Exp2(math.Ceil(math.Log2(float64(len(s)))) - 1))
		return tree(s[:mid], i) + tree(s[mid:], i)
	}
	eachISA(t, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			srcs := drawSlices(t, rapid.IntRange(1, 80).Draw(t, "sources"), moderate)
			var want []float32
			for i := range srcs[0] {
				want = append(want, tree(srcs, i)/4)
			}
			alias := rapid.SampledFrom(srcs).Draw(t, "destination")
			TreeSum(alias, srcs, 0.25)
			for i := range want {
				require.Equal(t, want[i], alias[i])
			}
		})
	})
}

// TestColSum on matrices, where rows are summed in groups.
func TestColSum(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			rows, cols := rapid.IntRange(0, 40).Draw(t, "rows"), rapid.IntRange(0, 70).Draw(t, "cols")
			x, dst, want := make([]float32, rows*cols), make([]float32, cols), make([]float32, cols)
			for i := range x {
				x[i] = float32(int(hash32(uint32(i), 1))>>8%1000) / 8 // sums of eighths are exact in any order
			}
			for j := range cols {
				dst[j], want[j] = float32(j), float32(j)
				for i := range rows {
					want[j] += x[i*cols+j]
				}
			}
			ColSum(dst, x, rows, cols)
			require.Equal(t, want, dst)
		})
	})
}

// TestSoftmaxRow: probabilities, the log-sum-exp, masked elements, and the gradient by central
// differences.
func TestSoftmaxRow(t *testing.T) {
	inf := math.Inf(-1)
	eachISA(t, func(t *testing.T) {
		y := []float32{9, 9, 9}
		require.Equal(t, float32(inf), SoftmaxRow(y, []float32{float32(inf), float32(inf), float32(inf)}, 2))
		require.Equal(t, []float32{0, 0, 0}, y)
		require.InDelta(t, 6+math.Log(2), SoftmaxRow(y, []float32{3, float32(inf), 3}, 2), 1e-6)
		require.Equal(t, []float32{0.5, 0, 0.5}, y)
		require.Zero(t, ExpSubSum(y, []float32{float32(inf), float32(inf), float32(inf)}, 1, float32(inf)))
		require.Equal(t, []float32{0, 0, 0}, y)
	})
	rapid.Check(t, func(t *rapid.T) {
		s := convert[float64](drawSlices(t, 2, moderate))
		x, dp, n := s[0], s[1], len(s[0])
		if n == 0 {
			return
		}
		const scale, h = 0.5, 1e-5
		p, dx := make([]float64, n), make([]float64, n)
		lse := SoftmaxRow(p, x, scale)
		var z float64
		for _, v := range x {
			z += math.Exp(scale * v)
		}
		require.InDelta(t, math.Log(z), lse, 1e-13)
		require.InDelta(t, 1, Sum(p), 1e-13)
		SoftmaxGradRow(dx, p, dp, Dot(p, dp), scale)
		i := rapid.IntRange(0, n-1).Draw(t, "element")
		x[i] += h
		SoftmaxRow(p, x, scale)
		up := Dot(p, dp)
		x[i] -= 2 * h
		SoftmaxRow(p, x, scale)
		require.InDelta(t, dx[i], (up-Dot(p, dp))/(2*h), 1e-7)
	})
}
