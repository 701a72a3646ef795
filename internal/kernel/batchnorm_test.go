package kernel

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestBatchNorm(t *testing.T) { both(t, checkBatchNormTwin[float32], checkBatchNormTwin[float64]) }

func checkBatchNormTwin[T Float](t *rapid.T) {
	src := newSource[T](t)
	n, d := rapid.IntRange(2, rowsTogether+9).Draw(t, "n"), rapid.OneOf(rapid.IntRange(1, 70), rapid.IntRange(chunk-1, chunk+9)).Draw(t, "d")
	x, gain, bias, dy := src.normal(n*d), src.normal(d), src.normal(d), src.normal(n*d)
	const eps = 1e-2 // columns of two nearly equal elements stay well-conditioned
	mean, variance, y, scratch := garbage[T](d), garbage[T](d), garbage[T](n*d), garbage[T](ChannelScratch(d, 1))
	BatchStats(mean, variance, x, scratch, n, d)
	BatchNorm(y, x, gain, bias, mean, variance, scratch, n, d, eps)
	dx, dgain, dbias := garbage[T](n*d), garbage[T](d), garbage[T](d)
	BatchNormGrad(dx, dgain, dbias, x, gain, mean, variance, dy, scratch, n, d, eps)

	wantY, wantX := make([]float64, n*d), make([]float64, n*d)
	wantMean, wantVar, wantGain, wantBias := make([]float64, d), make([]float64, d), make([]float64, d), make([]float64, d)
	NaiveBatchStats(wantMean, wantVar, wide(x), n, d)
	NaiveBatchNorm(wantY, wide(x), wide(gain), wide(bias), wantMean, wantVar, n, d, eps)
	NaiveBatchNormGrad(wantX, wantGain, wantBias, wide(x), wide(gain), wantMean, wantVar, wide(dy), n, d, eps)
	requireClose(t, "mean", wantMean, mean)
	requireClose(t, "variance", wantVar, variance)
	requireClose(t, "y", wantY, y)
	requireClose(t, "dx", wantX, dx)
	requireClose(t, "dgain", wantGain, dgain)
	requireClose(t, "dbias", wantBias, dbias)

	BatchNormGrad(dy, dgain, dbias, x, gain, mean, variance, dy, scratch, n, d, eps)
	requireBits(t, "dx in place of dy", dx, dy)
	BatchNorm(x, x, gain, bias, mean, variance, scratch, n, d, eps)
	requireBits(t, "y in place of x", y, x)
}

// A column far from zero must not lose its variance to cancellation.
func TestBatchStatsFarFromZero(t *testing.T) {
	x, mean, variance := make([]float32, 64), make([]float32, 1), make([]float32, 1)
	for i := range x {
		x[i] = 4096 + float32(i%2)
	}
	BatchStats(mean, variance, x, make([]float32, ChannelScratch(1, 1)), 64, 1)
	require.Equal(t, []float32{4096.5, 0.25}, append(mean, variance...))
}
