package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestLayerNorm(t *testing.T) { both(t, checkLayerNormTwin[float32], checkLayerNormTwin[float64]) }

func checkLayerNormTwin[T Float](t *rapid.T) {
	src := newSource[T](t)
	n, d := rapid.IntRange(0, 9).Draw(t, "n"), rapid.IntRange(2, 70).Draw(t, "d")
	x, gain, bias, dy := src.normal(n*d), src.normal(d), src.normal(d), src.normal(n*d)
	const eps = 1e-2 // rows of two nearly equal elements stay well-conditioned
	y, stats := garbage[T](n*d), garbage[T](2*n)
	LayerNorm(y, stats, x, gain, bias, n, d, eps)
	want, wantStats := make([]float64, n*d), make([]float64, 2*n)
	NaiveLayerNorm(want, wantStats, wide(x), wide(gain), wide(bias), n, d, eps)
	requireClose(t, "y", want, y)
	for i := range n {
		requireClose(t, "stats", wantStats[2*i:2*i+2], stats[2*i:2*i+2])
	}
	noBias := clone(x)
	LayerNorm(noBias, stats, noBias, gain, nil, n, d, eps) // in place
	NaiveLayerNorm(want, wantStats, wide(x), wide(gain), nil, n, d, eps)
	requireClose(t, "y without bias", want, noBias)

	dx, dgain, dbias := garbage[T](n*d), garbage[T](d), garbage[T](d)
	wantX, wantGain, wantBias := make([]float64, n*d), make([]float64, d), make([]float64, d)
	LayerNormGrad(dx, dgain, dbias, x, gain, stats, dy, n, d)
	NaiveLayerNormGrad(wantX, wantGain, wantBias, wide(x), wide(gain), wantStats, wide(dy), n, d)
	requireClose(t, "dx", wantX, dx)
	requireClose(t, "dgain", wantGain, dgain)
	requireClose(t, "dbias", wantBias, dbias)
	LayerNormGrad(dy, dgain, dbias, x, gain, stats, dy, n, d)
	requireBits(t, "dx in place of dy", dx, dy)
}

func TestRMSNorm(t *testing.T) { both(t, checkRMSNormTwin[float32], checkRMSNormTwin[float64]) }

func checkRMSNormTwin[T Float](t *rapid.T) {
	src := newSource[T](t)
	n, d := rapid.IntRange(0, 9).Draw(t, "n"), rapid.IntRange(1, 70).Draw(t, "d")
	x, gain, dy := src.normal(n*d), src.normal(d), src.normal(n*d)
	const eps = 1e-2
	y, rstd := garbage[T](n*d), garbage[T](n)
	RMSNorm(y, rstd, x, gain, n, d, eps)
	want, wantRstd := make([]float64, n*d), make([]float64, n)
	NaiveRMSNorm(want, wantRstd, wide(x), wide(gain), n, d, eps)
	requireClose(t, "y", want, y)
	requireClose(t, "rstd", wantRstd, rstd)

	dx, dgain := garbage[T](n*d), garbage[T](d)
	wantX, wantGain := make([]float64, n*d), make([]float64, d)
	RMSNormGrad(dx, dgain, x, gain, rstd, dy, n, d)
	NaiveRMSNormGrad(wantX, wantGain, wide(x), wide(gain), wantRstd, wide(dy), n, d)
	requireClose(t, "dx", wantX, dx)
	requireClose(t, "dgain", wantGain, dgain)
	RMSNormGrad(dy, dgain, x, gain, rstd, dy, n, d)
	requireBits(t, "dx in place of dy", dx, dy)
	RMSNorm(x, rstd, x, gain, n, d, eps)
	requireBits(t, "y in place of x", y, x)
}

func TestNormGradient(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := newSource[float64](t)
		const n, d, eps = 2, 9, 1e-2
		x, gain, bias, dy := src.normal(n*d), src.normal(d), src.normal(d), src.normal(n*d)
		y, stats := make([]float64, n*d), make([]float64, 2*n)
		dx, dgain, dbias := make([]float64, n*d), make([]float64, d), make([]float64, d)

		layer := func() float64 { LayerNorm(y, stats, x, gain, bias, n, d, eps); return dot(y, dy) }
		layer()
		LayerNormGrad(dx, dgain, dbias, x, gain, stats, dy, n, d)
		requireGradient(t, "x", x, dx, layer)
		requireGradient(t, "gain", gain, dgain, layer)
		requireGradient(t, "bias", bias, dbias, layer)

		rms := func() float64 { RMSNorm(y, stats[:n], x, gain, n, d, eps); return dot(y, dy) }
		rms()
		RMSNormGrad(dx, dgain, x, gain, stats[:n], dy, n, d)
		requireGradient(t, "x", x, dx, rms)
		requireGradient(t, "gain", gain, dgain, rms)
	})
}

// A row far from zero must not lose its variance to cancellation, and a NaN stays in its row.
func TestNormHardRows(t *testing.T) {
	const d = 64
	x, gain := make([]float32, 2*d), make([]float32, d)
	for j := range gain {
		gain[j] = 1
		x[j] = 4096 + float32(j%2) // variance 1/4 exactly
		x[d+j] = float32(j)
	}
	x[d] = float32(math.NaN())
	y, stats := make([]float32, 2*d), make([]float32, 4)
	LayerNorm(y, stats, x, gain, nil, 2, d, 0)
	require.Equal(t, []float32{4096.5, 2}, stats[:2])
	require.Equal(t, []float32{-1, 1}, y[:2])
	for j := range d {
		require.True(t, math.IsNaN(float64(y[d+j])))
	}
}
