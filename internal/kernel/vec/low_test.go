package vec

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/half"
)

// lows pairs the kernels for bfloat16 with the kernels for float32. Results come before inputs.
var lows = map[string]lowCase{
	"add":             {1, 2, low3Of(AddBFloat16), wide3Of(Add[float32])},
	"relu":            {1, 1, low2Of(ReLUBFloat16), wide2Of(ReLU[float32])},
	"relu grad":       {1, 2, low3Of(ReLUGradBFloat16), wide3Of(ReLUGrad[float32])},
	"silu":            {1, 1, low2Of(SiLUBFloat16), wide2Of(SiLU[float32])},
	"silu grad":       {1, 2, low3Of(SiLUGradBFloat16), wide3Of(SiLUGrad[float32])},
	"gelu":            {1, 1, low2Of(GELUErfBFloat16), wide2Of(GELUErf[float32])},
	"gelu grad":       {1, 2, low3Of(GELUErfGradBFloat16), wide3Of(GELUErfGrad[float32])},
	"gelu tanh":       {1, 1, low2Of(GELUTanhBFloat16), wide2Of(GELUTanh[float32])},
	"gelu tanh grad":  {1, 2, low3Of(GELUTanhGradBFloat16), wide3Of(GELUTanhGrad[float32])},
	"sigmoid":         {1, 1, low2Of(SigmoidBFloat16), wide2Of(Sigmoid[float32])},
	"sigmoid grad":    {1, 2, low3Of(SigmoidGradBFloat16), wide3Of(SigmoidGrad[float32])},
	"glu silu":        gluOf(GateSiLU),
	"glu gelu":        gluOf(GateGELUErf),
	"glu gelu tanh":   gluOf(GateGELUTanh),
	"glu relu":        gluOf(GateReLU),
	"glu sigmoid":     gluOf(GateSigmoid),
	"glu grad silu":   gluGradOf(GateSiLU),
	"glu grad gelu":   gluGradOf(GateGELUErf),
	"glu grad tanh":   gluGradOf(GateGELUTanh),
	"glu grad relu":   gluGradOf(GateReLU),
	"glu grad sigmod": gluGradOf(GateSigmoid),
}

// A lowCase is a kernel for bfloat16 and the one for float32. Their slices are the results and then
// the inputs.
type lowCase struct {
	results, inputs int
	low             func(s [][]half.BFloat16) bool
	wide            func(s [][]float32)
}

func low2Of(f func(y, x []half.BFloat16) bool) func(s [][]half.BFloat16) bool {
	return func(s [][]half.BFloat16) bool { return f(s[0], s[1]) }
}

func low3Of(f func(z, x, y []half.BFloat16) bool) func(s [][]half.BFloat16) bool {
	return func(s [][]half.BFloat16) bool { return f(s[0], s[1], s[2]) }
}

func wide2Of(f func(y, x []float32)) func(s [][]float32) {
	return func(s [][]float32) { f(s[0], s[1]) }
}

func wide3Of(f func(z, x, y []float32)) func(s [][]float32) {
	return func(s [][]float32) { f(s[0], s[1], s[2]) }
}

func gluOf(g Gate) lowCase {
	return lowCase{1, 2, func(s [][]half.BFloat16) bool { return GLUBFloat16(g, s[0], s[1], s[2]) },
		func(s [][]float32) { GLU(g, s[0], s[1], s[2]) }}
}

func gluGradOf(g Gate) lowCase {
	return lowCase{2, 3, func(s [][]half.BFloat16) bool { return GLUGradBFloat16(g, s[0], s[1], s[2], s[3], s[4]) },
		func(s [][]float32) { GLUGrad(g, s[0], s[1], s[2], s[3], s[4]) }}
}

// drawLow returns n numbers: ordinary ones, and now and then any bits.
func drawLow(r *rand.Rand, n int) []half.BFloat16 {
	s := make([]half.BFloat16, n)
	for i := range s {
		s[i] = half.ToBFloat16(float32(r.NormFloat64() * 4))
		if r.IntN(8) == 0 {
			s[i] = half.BFloat16(r.Uint32())
		}
	}
	return s
}

// requireLow compares the bits of two slices, but one NaN with another.
func requireLow(t require.TestingT, name string, want, got []half.BFloat16) {
	for i := range want {
		w, g := want[i].Float32(), got[i].Float32()
		if want[i] != got[i] && (w == w || g == g) {
			require.Failf(t, "wrong element", "%s: element %d of %d is %v, want %v", name, i, len(want), g, w)
		}
	}
}

// requireRounded requires of a kernel for bfloat16 the bits of the one for float32, rounded.
func requireRounded(t require.TestingT, name string, c lowCase, low [][]half.BFloat16, wide [][]float32) {
	if !c.low(low) {
		require.NotEqual(t, "avx512", active.name)
		return
	}
	c.wide(wide)
	for i := range c.results {
		want := make([]half.BFloat16, len(wide[i]))
		half.Narrow(want, wide[i])
		requireLow(t, name, want, low[i])
	}
}

// TestLowOfAllArguments calls every kernel with all bfloat16 as the first input.
func TestLowOfAllArguments(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		const n = 1 << 16
		for name, c := range lows {
			r := rand.New(rand.NewPCG(1, 1))
			var low [][]half.BFloat16
			var wide [][]float32
			for range c.results + c.inputs {
				s, w := drawLow(r, n), make([]float32, n)
				if len(low) == c.results {
					for i := range s {
						s[i] = half.BFloat16(i)
					}
				}
				half.Widen(w, s)
				low, wide = append(low, s), append(wide, w)
			}
			requireRounded(t, name, c, low, wide)
		}
	})
}

// TestLow requires of every kernel for bfloat16 the bits of the one for float32, rounded.
func TestLow(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for name, c := range lows {
			t.Run(name, func(t *testing.T) {
				rapid.Check(t, func(t *rapid.T) {
					n := rapid.IntRange(0, 150).Draw(t, "n")
					r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
					var low [][]half.BFloat16
					var wide [][]float32
					for range c.results + c.inputs {
						s := drawLow(r, n+1)
						w := make([]float32, n)
						half.Widen(w, s)
						low, wide = append(low, s[:n]), append(wide, w)
					}
					after := low[0][:n+1][n]
					requireRounded(t, name, c, low, wide)
					require.Equal(t, after, low[0][:n+1][n], "an element beyond the end was written")
				})
			})
		}
	})
}

func TestColSumBFloat16(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			rows, cols := rapid.IntRange(0, 20).Draw(t, "rows"), rapid.IntRange(0, 50).Draw(t, "cols")
			r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
			x := make([]half.BFloat16, rows*cols)
			for i := range x {
				x[i] = half.ToBFloat16(float32(r.NormFloat64()))
			}
			wide, want, got := make([]float32, len(x)), make([]float32, cols), make([]float32, cols)
			half.Widen(wide, x)
			ColSum(want, wide, rows, cols)
			if ColSumBFloat16(got, x, rows, cols, make([]float32, cols)) {
				require.Equal(t, want, got)
			} else {
				require.NotEqual(t, "avx512", active.name)
			}
		})
	})
}

// normBits are the results of the reductions and norms of a row.
type normBits struct {
	numbers     [4]float64 // mean, variance, sum of squares, dot product
	y, plain    []half.BFloat16
	dx, rms     []half.BFloat16
	dgain       []float32
	dbias, only []float32 // only is dgain of RMSNorm
}

// TestLowNorms requires of the reductions and norms of rows of bfloat16 the bits of the ones for
// float32, rounded.
func TestLowNorms(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			n := rapid.OneOf(rapid.IntRange(1, 150), rapid.SampledFrom([]int{384, piece + 7})).Draw(t, "n")
			r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
			row := func() ([]half.BFloat16, []float32) {
				low, wide := make([]half.BFloat16, n), make([]float32, n)
				for i := range low {
					low[i] = half.ToBFloat16(float32(r.NormFloat64() * 4))
				}
				half.Widen(wide, low)
				return low, wide
			}
			x, wideX := row()
			dy, wideDY := row()
			_, gain := row()
			_, bias := row()
			_, before := row()
			mean, rstd := float32(r.NormFloat64()), float32(r.Float64())
			made := func() normBits {
				lows := func() []half.BFloat16 { return make([]half.BFloat16, n) }
				return normBits{y: lows(), plain: lows(), dx: lows(), rms: lows(),
					dgain: slices.Clone(before), dbias: slices.Clone(before), only: slices.Clone(before)}
			}
			want, got := made(), made()

			want.numbers[0], want.numbers[1] = MeanVar(wideX)
			want.numbers[2], want.numbers[3] = SumSquares(wideX), float64(Dot(wideX, wideDY))
			wide := make([]float32, n)
			NormRow(wide, wideX, gain, bias, mean, rstd)
			half.Narrow(want.y, wide)
			NormRow(wide, wideX, gain, nil, 0, rstd)
			half.Narrow(want.plain, wide)
			NormGradRow(wide, want.dgain, want.dbias, wideX, gain, wideDY, mean, rstd)
			half.Narrow(want.dx, wide)
			RMSNormGradRow(wide, want.only, wideX, gain, wideDY, rstd)
			half.Narrow(want.rms, wide)

			var oks [7]bool
			got.numbers[0], got.numbers[1], oks[0] = MeanVarBFloat16(x)
			got.numbers[2], oks[1] = SumSquaresBFloat16(x)
			product, ok := DotBFloat16(x, dy)
			got.numbers[3], oks[2] = float64(product), ok
			oks[3] = NormRowBFloat16(got.y, x, gain, bias, mean, rstd)
			oks[4] = NormRowBFloat16(got.plain, x, gain, nil, 0, rstd)
			oks[5] = NormGradRowBFloat16(got.dx, got.dgain, got.dbias, x, gain, dy, mean, rstd)
			oks[6] = RMSNormGradRowBFloat16(got.rms, got.only, x, gain, dy, rstd)
			if oks == ([7]bool{}) {
				require.NotEqual(t, "avx512", active.name)
				return
			}
			require.Equal(t, [7]bool{true, true, true, true, true, true, true}, oks)
			require.Equal(t, want, got)
			NormGradRowBFloat16(dy, slices.Clone(before), slices.Clone(before), x, gain, dy, mean, rstd)
			require.Equal(t, want.dx, dy, "in place")
			NormRowBFloat16(x, x, gain, bias, mean, rstd)
			require.Equal(t, want.y, x, "in place")
		})
	})
}
