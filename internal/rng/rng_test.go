package rng

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The known-answer vectors published with the reference implementation (Random123, kat_vectors).
func TestPhiloxKnownAnswers(t *testing.T) {
	const ones = 0xffffffff
	for _, v := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{want: [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{
			counter: [4]uint32{ones, ones, ones, ones}, key: [2]uint32{ones, ones},
			want: [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
		},
		{
			counter: [4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, key: [2]uint32{0xa4093822, 0x299f31d0},
			want: [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		},
	} {
		require.Equal(t, v.want, philox(v.counter, v.key))
	}
}

// The mapping from (seed, name, index) to elements is a promise: these values may never change.
func TestElementsAreStable(t *testing.T) {
	s := New(42, "h.0.attn.qkv.weight") // values from an independent implementation
	require.Equal(t,
		[4]uint64{0xfeceafd2afc47b04, 0xb8ec79f0b123ab2a, 0xbe2dc9189125e199, 0xe57a889688eb276a},
		[4]uint64{s.Uint64(0), s.Uint64(1), s.Uint64(2), s.Uint64(1 << 40)})
	for i, want := range []float64{-0.016699867606978662, -0.09518563343493956, 0.5413715280014608, 0.5489461449707153} {
		require.InDelta(t, want, s.Normal(uint64(i)), 1e-15)
	}
	// The empty name hashes to FNV's offset basis, seed 0 is key 0: one element by hand from the block
	// function.
	block := philox([4]uint32{3, 0, 0x84222325, 0xcbf29ce4}, [2]uint32{})
	require.Equal(t, uint64(block[3])<<32|uint64(block[2]), New(0, "").Uint64(7))
}

func TestStreamsDiffer(t *testing.T) {
	seen := map[uint64]bool{}
	for _, s := range []Stream{New(1, "a"), New(2, "a"), New(1, "b"), New(1<<32, "a"), New(0, "")} {
		for i := range uint64(100) {
			seen[s.Uint64(i)] = true
			seen[s.Uint64(i+1<<32)] = true
		}
	}
	require.Len(t, seen, 5*200)
}

// Any cut of a range yields the elements of the whole, in both precisions.
func TestFillNormalIsElementwise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := New(rapid.Uint64().Draw(t, "seed"), rapid.String().Draw(t, "name"))
		first := rapid.Uint64Max(1<<62).Draw(t, "first")
		n := rapid.IntRange(0, 9).Draw(t, "n")
		mean, std := rapid.Float64Range(-2, 2).Draw(t, "mean"), rapid.Float64Range(0, 3).Draw(t, "std")
		f64, f32 := make([]float64, n), make([]float32, n)
		FillNormal(f64, s, first, mean, std)
		FillNormal(f32, s, first, mean, std)
		for j := range n {
			want := mean + float64(std*s.Normal(first+uint64(j)))
			require.Equal(t, want, f64[j])
			require.Equal(t, float32(want), f32[j])
		}
	})
}

// Moments and the Kolmogorov–Smirnov distance of 2^16 elements lie within five standard errors of
// the ideal.
func TestDistributions(t *testing.T) {
	const n = 1 << 16
	s := New(7, "distribution")
	uniform, normal := make([]float64, n), make([]float64, n)
	for i := range uint64(n) {
		uniform[i], normal[i] = s.Float64(i), s.Normal(i)
	}
	var m1, m2, m3, m4, lag, cross float64
	for i, x := range normal {
		m1, m2, m3, m4 = m1+x, m2+x*x, m3+x*x*x, m4+x*x*x*x
		lag += x * normal[(i+2)%n]
		cross += x * normal[i^1] // the two halves of a Box–Muller pair
	}
	se := 5 / math.Sqrt(n)
	require.InDelta(t, 0, m1/n, se)
	require.InDelta(t, 1, m2/n, se*math.Sqrt(2))
	require.InDelta(t, 0, m3/n, se*math.Sqrt(15))
	require.InDelta(t, 3, m4/n, se*math.Sqrt(96))
	require.InDelta(t, 0, lag/n, se)
	require.InDelta(t, 0, cross/n, 2*se)

	const critical = 2.23 // P(KS > critical/sqrt(n)) is about 1e-4
	require.Less(t, distance(uniform, func(x float64) float64 { return x }), critical/math.Sqrt(n))
	require.Less(t, distance(normal, func(x float64) float64 { return 0.5 * math.Erfc(-x/math.Sqrt2) }), critical/math.Sqrt(n))
}

// distance is the Kolmogorov–Smirnov distance of a sample from a distribution function.
func distance(sample []float64, cdf func(float64) float64) (d float64) {
	slices.Sort(sample)
	for i, x := range sample {
		p := cdf(x)
		d = max(d, math.Abs(p-float64(i)/float64(len(sample))), math.Abs(float64(i+1)/float64(len(sample))-p))
	}
	return d
}

func TestFloat64Range(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := New(rapid.Uint64().Draw(t, "seed"), "range")
		u := s.Float64(rapid.Uint64().Draw(t, "i"))
		require.True(t, u >= 0 && u < 1, "%v", u)
		require.Less(t, math.Abs(s.Normal(rapid.Uint64().Draw(t, "j"))), 8.58)
	})
}

func BenchmarkFillNormal(b *testing.B) {
	dst := make([]float32, 1<<16)
	s := New(1, "bench")
	for b.Loop() {
		FillNormal(dst, s, 0, 0, 0.02)
	}
	b.ReportMetric(float64(len(dst))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Melem/s")
}
