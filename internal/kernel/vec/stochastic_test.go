package vec

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/half"
)

// TestStochasticKeepsValues: values of bfloat16 do not change, infinities, zeros and NaN included,
// nor does a NaN that is none of them.
func TestStochasticKeepsValues(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		x := make([]float32, 1<<16)
		for i := range x {
			x[i] = math.Float32frombits(uint32(i) << 16)
		}
		for _, bits := range []uint32{0x7f800001, 0x7fffffff, 0xff80ffff, 0xffffffff} {
			x = append(x, math.Float32frombits(bits))
		}
		want := bitsOf(x)
		for seed := range uint64(4) {
			StochasticBFloat16(x, seed, 0)
			require.Equal(t, want, bitsOf(x))
		}
	})
}

// TestStochasticNeighbours: a number becomes one of the two values around it. All instruction sets
// choose the same one, however the vector is cut, also across 2³².
func TestStochasticNeighbours(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(rt, "n")
		cut := rapid.IntRange(0, n).Draw(rt, "cut")
		seed := rapid.Uint64().Draw(rt, "seed")
		base := rapid.SampledFrom([]uint64{0, 5, 1<<32 - 7, 1<<40 + 1}).Draw(rt, "base")
		x := make([]float32, n)
		for i := range x {
			x[i] = math.Float32frombits(rapid.Uint32().Draw(rt, "bits"))
		}
		var first []uint32
		for _, set := range supported() {
			y := append([]float32(nil), x...)
			before := active
			active = set
			StochasticBFloat16(y[:cut], seed, base)
			StochasticBFloat16(y[cut:], seed, base+uint64(cut))
			active = before
			got := bitsOf(y)
			if first == nil {
				first = got
			}
			require.Equal(rt, first, got, set.name)
		}
		for i, v := range x {
			if v != v {
				continue
			}
			lower := math.Float32bits(v) &^ (1<<16 - 1)
			if first[i] != lower {
				require.NotZero(rt, math.Float32bits(v)&(1<<16-1), "%v is exact", v)
				require.Equal(rt, lower+1<<16, first[i], "%v", v)
			}
		}
	})
}

// TestStochasticIsUnbiased: over elements, over seeds, and over parts of 2³² elements, the mean of
// rounded numbers is the number.
func TestStochasticIsUnbiased(t *testing.T) {
	const n = 1 << 16
	eachISA(t, func(t *testing.T) {
		for _, lower := range []uint32{1, 0x100, 0x4000, 0x8000, 0xc001, 0xffff} {
			for name, draw := range map[string]func(x []float32){
				"elements": func(x []float32) { StochasticBFloat16(x, 1, 0) },
				"seeds": func(x []float32) {
					for i := range x {
						StochasticBFloat16(x[i:i+1], uint64(i), 12345)
					}
				},
				"parts": func(x []float32) {
					for i := range x {
						StochasticBFloat16(x[i:i+1], 1, uint64(i)<<32)
					}
				},
			} {
				for _, sign := range []uint32{0, 1 << 31} {
					x := make([]float32, n)
					Fill(x, math.Float32frombits(sign|0x3f800000|lower))
					draw(x)
					up := 0
					for _, v := range x {
						if math.Float32bits(v)&^(1<<31) == 0x3f810000 {
							up++
						}
					}
					p := float64(lower) / (1 << 16)
					require.InDelta(t, n*p, up, 5*math.Sqrt(n*p*(1-p))+1, "%s, lower bits %#x", name, lower)
				}
			}
		}
	})
}

// TestStochasticStreams: draws of neighbouring seeds and elements are independent.
func TestStochasticStreams(t *testing.T) {
	const n = 1 << 16
	draw := func(seed, base uint64) []float64 {
		x, y := make([]float32, n), make([]float64, n)
		Fill(x, math.Float32frombits(0x3f808000)) // the middle between two values
		StochasticBFloat16(x, seed, base)
		for i, v := range x {
			y[i] = float64(math.Float32bits(v)>>16&1)*2 - 1
		}
		return y
	}
	a := draw(1, 0)
	for name, b := range map[string][]float64{
		"next seed": draw(2, 0), "high bit of the seed": draw(1|1<<63, 0), "shifted by one": draw(1, 1), "next 2³²": draw(1, 1<<32),
	} {
		require.InDelta(t, 0, Dot(a, b)/math.Sqrt(n), 4, name)
	}
}

// TestUpdates16: an update is the one in float32 between widening and rounding, however the vector
// is cut.
func TestUpdates16(t *testing.T) {
	const n, base = 2*block16 + 77, 1<<32 - 100
	rng := rand.New(rand.NewPCG(1, 2))
	random := func() []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return x
	}
	adam := AdamHyper{LR: 0.1, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1, BiasCorrection1: 0.1, BiasCorrection2Sqrt: 0.1, GradScale: 1, Decoupled: true}
	sgd := SGDHyper{LR: 0.1, Momentum: 0.9, WeightDecay: 0.1, GradScale: 1}
	first, nesterov, plain := sgd, sgd, sgd
	first.First, nesterov.Nesterov, plain.Momentum = true, true, 0
	p, g, states := random(), random(), [2][]float32{random(), random()}
	Square(states[1], states[1])
	numbers := func(x []float32, narrow bool, seed uint64) Numbers {
		if !narrow {
			return Numbers{F32: append([]float32(nil), x...)}
		}
		h := Numbers{F16: make([]half.BFloat16, n), Seed: seed}
		half.Narrow(h.F16, x)
		return h
	}
	cut := func(x Numbers, from, to int) Numbers {
		if x.F16 == nil {
			return Numbers{F32: x.F32[from:to]}
		}
		return Numbers{F16: x.F16[from:to], Seed: x.Seed}
	}
	wide := func(x Numbers) []float32 {
		if x.F16 == nil {
			return append([]float32(nil), x.F32...)
		}
		w := make([]float32, n)
		half.Widen(w, x.F16)
		return w
	}
	eachISA(t, func(t *testing.T) {
		for _, narrow := range [][2]bool{{false, true}, {true, false}, {true, true}} { // the values, the state
			make := func() [4]Numbers {
				return [4]Numbers{numbers(p, narrow[0], 9), numbers(g, narrow[0], 0), numbers(states[0], narrow[1], 7), numbers(states[1], narrow[1], 8)}
			}
			update := func(x [4]Numbers, from, to int) {
				for k := range x {
					x[k] = cut(x[k], from, to)
				}
				at := base + uint64(from)
				Adam16(x[0], x[1], x[2], x[3], at, adam)
				for _, h := range []SGDHyper{sgd, nesterov, first} {
					SGD16(x[0], x[1], x[2], at, h)
				}
				SGD16(x[0], x[1], Numbers{}, at, plain)
			}
			whole, parts := make(), make()
			update(whole, 0, n)
			update(parts, 0, 3)
			update(parts, 3, block16+1)
			update(parts, block16+1, n)

			want := make()
			var w [4][]float32
			for k := range w {
				w[k] = wide(want[k])
			}
			round := func(list ...int) {
				for _, k := range list {
					if want[k].F16 != nil {
						StochasticBFloat16(w[k], want[k].Seed, base)
					}
				}
			}
			Adam(w[0], w[1], w[2], w[3], adam)
			round(0, 2, 3)
			for _, h := range []SGDHyper{sgd, nesterov, first} {
				SGD(w[0], w[1], w[2], h)
				round(0, 2)
			}
			SGD(w[0], w[1], nil, plain)
			round(0)
			for k := range w {
				require.Equal(t, bitsOf(wide(whole[k])), bitsOf(wide(parts[k])), "in parts")
				require.Equal(t, bitsOf(w[k]), bitsOf(wide(whole[k])), "values and state narrow: %v, vector %d", narrow, k)
			}
		}
	})
}

// TestUpdates16NotFinite: a gradient that is not finite spoils its own element only.
func TestUpdates16NotFinite(t *testing.T) {
	const n = 50
	h := AdamHyper{LR: 1, Beta1: 0.9, Beta2: 0.9, Eps: 1, BiasCorrection1: 1, BiasCorrection2Sqrt: 1, GradScale: 1}
	eachISA(t, func(t *testing.T) {
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
			p, g := make([]float32, n), make([]float32, n)
			g[7] = bad
			m, v := Halves(make([]float32, Words16(n)), n), Halves(make([]float32, Words16(n)), n)
			Adam16(Numbers{F32: p}, Numbers{F32: g}, Numbers{F16: m, Seed: 1}, Numbers{F16: v, Seed: 2}, 0, h)
			require.Equal(t, half.ToBFloat16(bad), m[7])
			for i := range n {
				require.Equal(t, i == 7, p[i] != p[i] || v[i] != 0, "element %d", i)
			}
		}
	})
}
