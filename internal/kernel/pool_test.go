package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func drawPool(t *rapid.T) Pool {
	p := Pool{Kernel: [2]int{2, 2}, Stride: [2]int{2, 2}}
	for i := range 2 {
		if rapid.Bool().Draw(t, "any") {
			p.Kernel[i], p.Stride[i] = rapid.IntRange(1, 4).Draw(t, "kernel"), rapid.IntRange(1, 4).Draw(t, "stride")
			p.Pad[i] = rapid.IntRange(0, p.Kernel[i]/2).Draw(t, "pad")
		}
	}
	p.Height = max(1, p.Kernel[0]-2*p.Pad[0]) + rapid.IntRange(0, 7).Draw(t, "height")
	p.Width = max(1, p.Kernel[1]-2*p.Pad[1]) + rapid.IntRange(0, 7).Draw(t, "width")
	if rapid.Bool().Draw(t, "whole rows") {
		p.Kernel[1], p.Pad[1] = p.Width, 0
	}
	return p
}

func TestPools(t *testing.T) { both(t, checkPoolTwins[float32], checkPoolTwins[float64]) }

func checkPoolTwins[T Float](t *rapid.T) {
	src, p, planes := newSource[T](t), drawPool(t), rapid.IntRange(0, 5).Draw(t, "planes")
	area, image := p.OutHeight()*p.OutWidth(), p.Height*p.Width
	x, dy := src.normal(planes*image), src.normal(planes*area)
	if rapid.Bool().Draw(t, "equal") {
		for i := range x {
			x[i] = T(math.Round(float64(x[i])))
		}
	}
	if len(x) > 0 && rapid.Bool().Draw(t, "nan") {
		x[rapid.IntRange(0, len(x)-1).Draw(t, "where")] = T(math.NaN())
	}
	parts := rapid.IntRange(1, 3).Draw(t, "parts")
	compare := func(name string, n int, run func(c *Context, to []T), naive func(to []float64)) {
		got, want := garbage[T](n), make([]float64, n)
		for i := range parts {
			run(&Context{part: i, parts: parts}, got)
		}
		naive(want)
		for i := range want {
			if math.IsNaN(want[i]) {
				require.True(t, math.IsNaN(float64(got[i])), "%s[%d] is not NaN", name, i)
				got[i], want[i] = 0, 0
			}
		}
		requireClose(t, name, want, got)
	}
	compare("largest", len(dy), func(c *Context, y []T) { MaxPool(c, p, y, x) }, func(y []float64) { NaiveMaxPool(nil, p, y, wide(x)) })
	compare("dx of largest", len(x), func(c *Context, dx []T) { MaxPoolGrad(c, p, dx, x, dy) },
		func(dx []float64) { NaiveMaxPoolGrad(nil, p, dx, wide(x), wide(dy)) })
	compare("mean", len(dy), func(c *Context, y []T) { AvgPool(c, p, y, x) }, func(y []float64) { NaiveAvgPool(nil, p, y, wide(x)) })
	compare("dx of mean", len(x), func(c *Context, dx []T) { AvgPoolGrad(c, p, dx, dy) },
		func(dx []float64) { NaiveAvgPoolGrad(nil, p, dx, wide(dy)) })
}

func TestPoolMisuse(t *testing.T) {
	p := Pool{Height: 4, Width: 4, Kernel: [2]int{2, 2}, Stride: [2]int{2, 2}, Pad: [2]int{2, 0}}
	require.Panics(t, func() { MaxPool(new(Context), p, make([]float32, 8), make([]float32, 16)) })
}

func TestChannelNorm(t *testing.T) {
	both(t, checkChannelNormTwin[float32], checkChannelNormTwin[float64])
}

func checkChannelNormTwin[T Float](t *rapid.T) {
	src := newSource[T](t)
	n, d := rapid.IntRange(2, 5).Draw(t, "n"), rapid.IntRange(1, 5).Draw(t, "channels")
	area := rapid.SampledFrom([]int{1, 2, 3, 9, 511, 513, 1030}).Draw(t, "area")
	x, gain, bias, dy := src.normal(n*d*area), src.normal(d), src.normal(d), src.normal(n*d*area)
	const eps = 1e-2
	mean, variance, y, scratch := garbage[T](d), garbage[T](d), garbage[T](len(x)), garbage[T](ChannelScratch(d, area))
	dx, dgain, dbias := garbage[T](len(x)), garbage[T](d), garbage[T](d)
	ChannelStats(mean, variance, x, scratch, n, d, area)
	ChannelNorm(y, x, gain, bias, mean, variance, scratch, n, d, area, eps)
	ChannelNormGrad(dx, dgain, dbias, x, gain, mean, variance, dy, scratch, n, d, area, eps)
	wantMean, wantVar, wantY := wide(mean), wide(variance), wide(y)
	wantX, wantGain, wantBias := wide(dx), wide(dgain), wide(dbias)
	NaiveChannelStats(wantMean, wantVar, wide(x), nil, n, d, area)
	NaiveChannelNorm(wantY, wide(x), wide(gain), wide(bias), wantMean, wantVar, nil, n, d, area, eps)
	NaiveChannelNormGrad(wantX, wantGain, wantBias, wide(x), wide(gain), wantMean, wantVar, wide(dy), nil, n, d, area, eps)
	requireClose(t, "mean", wantMean, mean)
	requireClose(t, "variance", wantVar, variance)
	requireClose(t, "y", wantY, y)
	requireClose(t, "dx", wantX, dx)
	sums := tolerance[T]() * math.Sqrt(float64(n*area)) // of so many numbers of order 1
	requireWithin(t, "dgain", sums, wantGain, dgain)
	requireWithin(t, "dbias", sums, wantBias, dbias)
	ChannelNormGrad(dy, dgain, dbias, x, gain, mean, variance, dy, scratch, n, d, area, eps)
	requireBits(t, "dx in place of dy", dx, dy)
	ChannelNorm(x, x, gain, bias, mean, variance, scratch, n, d, area, eps)
	requireBits(t, "y in place of x", y, x)
}

func TestGroupNorm(t *testing.T) { both(t, checkGroupNormTwin[float32], checkGroupNormTwin[float64]) }

func checkGroupNormTwin[T Float](t *rapid.T) {
	src := newSource[T](t)
	n, groups := rapid.IntRange(0, 4).Draw(t, "n"), rapid.IntRange(1, 3).Draw(t, "groups")
	d, area := groups*rapid.IntRange(1, 4).Draw(t, "channels"), rapid.SampledFrom([]int{1, 2, 9, 513}).Draw(t, "area")
	x, gain, bias, dy := src.normal(n*d*area), src.normal(d), src.normal(d), src.normal(n*d*area)
	const eps = 1e-2
	y, stats := garbage[T](len(x)), garbage[T](2*n*groups)
	dx, dgain, dbias := garbage[T](len(x)), garbage[T](d), garbage[T](d)
	parts := rapid.IntRange(1, 3).Draw(t, "parts")
	for i := range parts {
		GroupNorm(&Context{part: i, parts: parts}, y, stats, x, gain, bias, n, d, area, groups, eps)
	}
	GroupNormGrad(dx, dgain, dbias, x, gain, stats, dy, n, d, area, groups)
	wantY, wantStats, wantX, wantGain, wantBias := wide(y), wide(stats), wide(dx), wide(dgain), wide(dbias)
	NaiveGroupNorm(nil, wantY, wantStats, wide(x), wide(gain), wide(bias), n, d, area, groups, eps)
	NaiveGroupNormGrad(wantX, wantGain, wantBias, wide(x), wide(gain), wantStats, wide(dy), n, d, area, groups)
	requireClose(t, "y", wantY, y)
	requireClose(t, "stats", wantStats, stats)
	requireClose(t, "dx", wantX, dx)
	sums := tolerance[T]() * math.Sqrt(float64(max(1, n*area))) // of so many numbers of order 1
	requireWithin(t, "dgain", sums, wantGain, dgain)
	requireWithin(t, "dbias", sums, wantBias, dbias)
	GroupNormGrad(dy, dgain, dbias, x, gain, stats, dy, n, d, area, groups)
	requireBits(t, "dx in place of dy", dx, dy)
}
