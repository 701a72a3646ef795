package vec

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestLongSlices: cutting into pieces keeps every element and every sum.
func TestLongSlices(t *testing.T) {
	const n = 2*piece + 77
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i%8) - 3
	}
	eachISA(t, func(t *testing.T) {
		y := make([]float32, n)
		ScaleTo(y, 2, x)
		require.Equal(t, x[n-1]*2, y[n-1])
		require.Equal(t, x[piece]*2, y[piece])
		require.Equal(t, 2*Sum(x), Sum(y))
		require.Equal(t, float32(4), Max(x))
		TreeSum(y, [][]float32{x, x, x}, 1)
		require.Equal(t, 3*Sum(x), Sum(y))
		mean, variance := MeanVar(x[:piece+8])
		require.Equal(t, 0.5, mean)
		require.Equal(t, 5.25, variance)
	})
}

// TestMeanVarLargeMean: two passes lose nothing to a mean that is large beside the deviations.
func TestMeanVarLargeMean(t *testing.T) {
	x := make([]float32, 1000)
	for i := range x {
		x[i] = 1 << 20
		if i%2 == 0 {
			x[i]++
		}
	}
	eachISA(t, func(t *testing.T) {
		mean, variance := MeanVar(x)
		require.Equal(t, 1<<20+0.5, mean)
		require.Equal(t, 0.25, variance)
	})
}

// TestDropout: the rate, the scale, and independence of how the tensor is cut, also across 2³².
func TestDropout(t *testing.T) {
	const n = 1 << 17
	x, y := make([]float32, n), make([]float32, n)
	Fill(x, 1)
	eachISA(t, func(t *testing.T) {
		for _, rate := range []float64{0, 0.1, 0.5, 0.9} {
			Dropout(y, x, 7, 1<<40, rate)
			kept := Sum(y) * (1 - rate)
			sigma := math.Sqrt(n * rate * (1 - rate))
			require.InDelta(t, n*(1-rate), kept, 4*sigma+1e-2, "rate %v", rate)
			require.Contains(t, []float32{0, float32(1 / (1 - rate))}, y[0])
		}
		rapid.Check(t, func(t *rapid.T) {
			seed, base := rapid.Uint64().Draw(t, "seed"), 1<<32-rapid.Uint64Range(0, 300).Draw(t, "before 2³²")
			cut := rapid.IntRange(0, 300).Draw(t, "cut")
			whole, parts := make([]float32, 300), make([]float32, 300)
			Dropout(whole, x[:300], seed, base, 0.5)
			Dropout(parts[:cut], x[:cut], seed, base, 0.5)
			Dropout(parts[cut:], x[cut:300], seed, base+uint64(cut), 0.5)
			require.Equal(t, whole, parts)
		})
	})
}

// TestDropoutStreams: masks of different seeds, of neighbouring positions and of distant blocks are
// uncorrelated.
func TestDropoutStreams(t *testing.T) {
	const n = 1 << 16
	mask := func(seed, base uint64) []float64 {
		x := make([]float64, n)
		Fill(x, 0.5)
		Dropout(x, x, seed, base, 0.5)
		for i := range x {
			x[i] = 2*x[i] - 1 // ±1
		}
		return x
	}
	a := mask(1, 0)
	for name, b := range map[string][]float64{
		"next seed": mask(2, 0), "high bit of the seed": mask(1|1<<63, 0), "shifted by one": mask(1, 1), "next 2³²": mask(1, 1<<32),
	} {
		require.InDelta(t, 0, Dot(a, b)/math.Sqrt(n), 4, name)
	}
}

// TestAddScaled: the bits of the two calls it stands for, also where a fused product would differ.
func TestAddScaled(t *testing.T) {
	t.Run("float32", addScaled[float32])
	t.Run("float64", addScaled[float64])
}

func addScaled[T Float](t *testing.T) {
	eachISA(t, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			in := convert[T](drawSlices(t, 2, wide))
			c := 1 / T(rapid.IntRange(1, 20).Draw(t, "1/c"))
			want, product := append([]T{}, in[0]...), make([]T, len(in[0]))
			ScaleTo(product, c, in[1])
			Accumulate(want, product)
			AddScaled(in[0], in[1], c)
			for i := range want {
				require.True(t, equalBits(float64(want[i]), float64(in[0][i])), "element %d is %v, want %v", i, in[0][i], want[i])
			}
		})
		one := 1 + T(0x1p-20)
		dst := []T{-one * one}
		AddScaled(dst, []T{one}, one)
		require.Zero(t, dst[0], "not fused")
	})
}

func TestMaxAbs(t *testing.T) {
	t.Run("float32", maxAbs[float32])
	t.Run("float64", maxAbs[float64])
}

func maxAbs[T Float](t *testing.T) {
	inf, nan := T(math.Inf(1)), T(math.NaN())
	eachISA(t, func(t *testing.T) {
		require.Zero(t, MaxAbs[T](nil))
		require.Equal(t, T(3), MaxAbs([]T{2, -3, 0}))
		require.Equal(t, T(math.SmallestNonzeroFloat32), MaxAbs([]T{0, -math.SmallestNonzeroFloat32}))
		long := make([]T, 2*piece+7)
		for _, at := range []int{0, piece - 1, piece, len(long) - 1} {
			long[at] = -inf
			require.Equal(t, inf, MaxAbs(long))
			other := (at + piece) % len(long)
			long[other] = nan
			require.True(t, MaxAbs(long) != MaxAbs(long), "NaN at %d", other)
			long[at], long[other] = 0, 0
		}
	})
}

func TestMisuse(t *testing.T) {
	x, y := make([]float32, 3), make([]float32, 4)
	for _, f := range []func(){
		func() { Add(x, x, y) },
		func() { AddScaled(x, y, 1) },
		func() { Scale(x[:2:2], 1); ScaleTo(x, 1, y) },
		func() { TreeSum(x, nil, 1) },
		func() { TreeSum(x, [][]float32{x, y}, 1) },
		func() { NormRow(x, x, x, y, 0, 1) },
		func() { NormGradRow(y, x, nil, x, x, x, 0, 1) },
		func() { SoftmaxRow(x, x, 0) },
		func() { ColSum(x, y, 2, 3) },
		func() { Dropout(x, x, 0, 0, 1) },
		func() { SGD(x, x, x, SGDHyper{}) },
		func() { SGD(x, x, nil, SGDHyper{Momentum: 0.9}) },
		func() { Adam(x, x, x, y, AdamHyper{}) },
		func() { Halves(x, 3) },
		func() {
			Adam16(Numbers{F32: x}, Numbers{F32: x}, Numbers{F16: Halves(x[:2], 3)}, Numbers{F16: Halves(y, 7)}, 0, AdamHyper{})
		},
		func() {
			SGD16(Numbers{F32: x}, Numbers{F32: x}, Numbers{F16: Halves(x, 5)}, 0, SGDHyper{Momentum: 0.9})
		},
	} {
		require.Panics(t, f)
	}
}

// TestNoAllocation: what the package promises.
func TestNoAllocation(t *testing.T) {
	x, y := make([]float32, 100), make([]float32, 100)
	srcs := [][]float32{x, y, x}
	require.Zero(t, testing.AllocsPerRun(10, func() {
		Add(x, x, y)
		ScaleTo(x, 2, y)
		AddScaled(x, y, 2)
		s := NewSquares(float64(MaxAbs(x)))
		AddSquares(&s, x)
		s.Merge(s.Words())
		TreeSum(y, srcs, 0.5)
		SoftmaxRow(x, y, 1)
		MeanVar(x)
		NormGradRow(x, y, y, x, y, x, 0, 1)
		Adam(x, y, x, y, AdamHyper{BiasCorrection1: 1, BiasCorrection2Sqrt: 1})
		SGD(x, y, nil, SGDHyper{})
		Dropout(x, x, 1, 1, 0.5)
	}))
}

// TestNormOfPlanes: the bits of the kernels for rows with gain and bias repeated.
func TestNormOfPlanes(t *testing.T) {
	t.Run("float32", normOfPlanes[float32])
	t.Run("float64", normOfPlanes[float64])
}

func normOfPlanes[T Float](t *testing.T) {
	eachISA(t, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			in, n := convert[T](drawSlices(t, 2, moderate)), drawNumbers(t)
			x, dy, mean, rstd, g, k := in[0], in[1], T(n.alpha), T(n.rstd), T(n.beta), table[T]()
			full := func(v T) []T {
				row := make([]T, len(x))
				Fill(row, v)
				return row
			}
			want, got := full(0), full(1)
			NormRow(want, x, full(g), full(0.5), mean, rstd)
			NormPlane(got, x, mean, rstd, g, 0.5)
			require.Equal(t, want, got)
			w1, w2 := k.normGradSums(full(0), x, full(1), dy, mean, rstd)
			s1, s2 := NormPlaneSums(x, dy, mean, rstd)
			require.Equal(t, []float64{w1, w2}, []float64{s1, s2})
			k.normGrad(want, x, full(g), dy, mean, rstd, 0.5, 0.25)
			NormPlaneGrad(got, x, dy, mean, rstd, g, 0.5, 0.25)
			require.Equal(t, want, got)
		})
	})
}
