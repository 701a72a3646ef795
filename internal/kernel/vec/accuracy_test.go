package vec

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// sweep returns float32 values dense in their bits over [-limit, limit].
func sweep(limit float32) (x []float32) {
	for bits := uint32(0); math.Float32frombits(bits) <= limit; bits += 8191 {
		v := math.Float32frombits(bits)
		x = append(x, v, -v)
	}
	return x
}

// ulps is |got-want| in units of the last place of want.
func ulps(got float32, want float64) float64 {
	w := float32(want)
	unit := float64(math.Nextafter32(float32(math.Abs(want)), math.MaxFloat32)) - math.Abs(float64(w))
	if float64(got) == float64(w) {
		return 0
	}
	return math.Abs(float64(got)-want) / unit
}

// logAbs sets y = ln |x|, of the smallest number in the place of 0.
func logAbs[T Float](y, x []T) {
	least := make([]T, len(x))
	Fill(least, math.SmallestNonzeroFloat32)
	Abs(y, x)
	Greater(y, y, least)
	Log(y, y)
}

// TestAccuracy measures the float32 transcendentals against their float64 definitions on a quarter
// of a million points.
func TestAccuracy(t *testing.T) {
	ones := func(n int) []float32 {
		dy := make([]float32, n)
		Fill(dy, 1)
		return dy
	}
	grad := func(f func(dx, x, dy []float32)) func(y, x []float32) {
		return func(y, x []float32) { f(y, x, ones(len(x))) }
	}
	grad64 := func(f func(dx, x, dy []float64)) func(y, x []float64) {
		return func(y, x []float64) {
			dy := make([]float64, len(x))
			Fill(dy, 1)
			f(y, x, dy)
		}
	}
	tests := []struct {
		name          string
		f             func(y, x []float32)
		reference     func(y, x []float64)
		limit         float32
		maxULP        float64 // where |x| ≤ near
		near, maxDiff float64 // everywhere: |difference| / max(1, |x|)
	}{
		{"ExpSubSum", exp[float32], exp[float64], 87, 1.2, 87, math.Inf(1)},
		{"Exp", Exp[float32], Exp[float64], 87, 1.2, 87, math.Inf(1)},
		{"Log", logAbs[float32], logAbs[float64], math.MaxFloat32, 1.2, math.MaxFloat32, math.Inf(1)},
		{"Tanh", Tanh[float32], Tanh[float64], 100, 2.5, 100, 2e-7},
		{"Sigmoid", Sigmoid[float32], Sigmoid[float64], 100, 2.5, 87, 2e-7},
		{"TanhGrad", grad(TanhGrad[float32]), grad64(TanhGrad[float64]), 100, math.Inf(1), 0, 3e-7},
		{"SigmoidGrad", grad(SigmoidGrad[float32]), grad64(SigmoidGrad[float64]), 100, math.Inf(1), 0, 2e-7},
		{"SiLU", SiLU[float32], SiLU[float64], 87, 5, 60, 2e-7},
		{"SiLUGrad", grad(SiLUGrad[float32]), grad64(SiLUGrad[float64]), 87, math.Inf(1), 0, 3e-7},
		{"GELUErf", GELUErf[float32], GELUErf[float64], 20, 7, 12, 1.5e-7},
		{"GELUErfGrad", grad(GELUErfGrad[float32]), grad64(GELUErfGrad[float64]), 20, math.Inf(1), 0, 2.5e-7},
		{"GELUTanh", GELUTanh[float32], GELUTanh[float64], 20, 5, 1, 2e-7},
		{"GELUTanhGrad", grad(GELUTanhGrad[float32]), grad64(GELUTanhGrad[float64]), 20, math.Inf(1), 0, 3e-7},
	}
	for _, tt := range tests {
		x := sweep(tt.limit)
		x64, want := convert[float64]([][]float32{x})[0], make([]float64, len(x))
		tt.reference(want, x64)
		t.Run(tt.name, func(t *testing.T) {
			eachISA(t, func(t *testing.T) {
				y := make([]float32, len(x))
				tt.f(y, x)
				worstULP, worst := 0.0, 0.0
				for i := range y {
					if math.Abs(x64[i]) <= tt.near && math.Abs(want[i]) > 0x1p-126 {
						worstULP = max(worstULP, ulps(y[i], want[i]))
					}
					worst = max(worst, math.Abs(float64(y[i])-want[i])/max(1, math.Abs(x64[i])))
				}
				t.Logf("%d points: %.2f units in the last place for |x| <= %v, difference %.2g", len(x), worstULP, tt.near, worst)
				require.LessOrEqual(t, worstULP, tt.maxULP)
				require.LessOrEqual(t, worst, tt.maxDiff)
			})
		})
	}
}

// TestLimits: the values at infinity and far outside the range of the approximations.
func TestLimits(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	one := func(f func(y, x []float32), x float32) float32 {
		y := []float32{x}
		f(y, y)
		return y[0]
	}
	grad := func(f func(dx, x, dy []float32), x float32) float32 {
		y := []float32{1}
		f(y, []float32{x}, y)
		return y[0]
	}
	eachISA(t, func(t *testing.T) {
		for _, f := range []func(y, x []float32){SiLU[float32], GELUErf[float32], GELUTanh[float32]} {
			require.Equal(t, inf, one(f, inf))
			require.Equal(t, float32(1e30), one(f, 1e30))
			require.Zero(t, one(f, -1e30))
			require.True(t, math.IsNaN(float64(one(f, nan))))
		}
		for _, f := range []func(dx, x, dy []float32){SiLUGrad[float32], GELUErfGrad[float32], GELUTanhGrad[float32]} {
			for _, x := range []float32{inf, 1e30, 90} {
				require.Equal(t, float32(1), grad(f, x))
				require.InDelta(t, 0, grad(f, -x), 1e-30)
			}
			require.True(t, math.IsNaN(float64(grad(f, nan))))
		}
		for _, exp := range []func(y, x []float32){exp[float32], Exp[float32]} {
			require.Equal(t, inf, one(exp, inf))
			require.Equal(t, inf, one(exp, 88.8))
			require.Zero(t, one(exp, -inf))
			require.Zero(t, one(exp, -104))
			require.Equal(t, float32(math.Exp(-100)), one(exp, -100), "denormal")
			require.True(t, math.IsNaN(float64(one(exp, nan))))
		}
		for _, x := range []float32{0, -0x1p-149, -1, -inf, inf, nan, 0x1p-149, 0x1p-126, 0x1p-127, 1} {
			want, minusWant := float32(math.Log(float64(x))), float32(math.Log(-float64(x)))
			require.True(t, near(float64(one(Log[float32], x)), float64(want), 1e-7), x)
			require.True(t, near(float64(one(Log[float32], -x)), float64(minusWant), 1e-7), -x)
		}
		for _, x := range []float32{0, 1e-45, 1e-20, 9.1, 20, 1e30, inf} {
			require.Equal(t, math.Float32bits(float32(math.Tanh(float64(x)))), math.Float32bits(one(Tanh[float32], x)), x)
			require.Equal(t, math.Float32bits(float32(math.Tanh(-float64(x)))), math.Float32bits(one(Tanh[float32], -x)), -x)
		}
		require.Equal(t, float32(1), one(Sigmoid[float32], inf))
		require.Equal(t, float32(1), one(Sigmoid[float32], 1e30))
		require.Zero(t, one(Sigmoid[float32], -inf))
		require.Zero(t, one(Sigmoid[float32], -1e30))
		require.True(t, math.IsNaN(float64(one(Tanh[float32], nan))))
		require.True(t, math.IsNaN(float64(one(Sigmoid[float32], nan))))
	})
}
