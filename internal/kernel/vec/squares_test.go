package vec

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawWide returns elements whose magnitudes lie between 2^-below and 1 of the largest, which is at
// most 2^top; some are zero or subnormal.
func drawWide[T Float](t *rapid.T, top int) []T {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "elements"), 2))
	below := rapid.SampledFrom([]int{0, 3, 30, 60, 300}).Draw(t, "below")
	x := make([]T, rapid.IntRange(0, 300).Draw(t, "length"))
	for i := range x {
		x[i] = T(math.Ldexp(2*rng.Float64()-1, top-rng.IntN(below+1)))
		if rng.IntN(20) == 0 {
			x[i] = T(math.SmallestNonzeroFloat32 * float64(rng.IntN(100)))
		}
	}
	return x
}

// exactSquares is Σx², with all its bits.
func exactSquares[T Float](x []T) *big.Float {
	sum := new(big.Float).SetPrec(4400)
	for _, v := range x {
		f := new(big.Float).SetPrec(200).SetFloat64(float64(v))
		sum.Add(sum, f.Mul(f, f))
	}
	return sum
}

func squaresOf[T Float](bound float64, parts ...[]T) Squares {
	s := NewSquares(bound)
	for _, x := range parts {
		AddSquares(&s, x)
	}
	return s
}

// TestSquaresAccuracy compares with big numbers: float32 of every exponent, float64 as far as
// neither Σx² nor its root leaves its range.
func TestSquaresAccuracy(t *testing.T) {
	t.Run("float32", func(t *testing.T) { squaresAccuracy[float32](t, -149, 128) })
	t.Run("float64", func(t *testing.T) { squaresAccuracy[float64](t, -500, 500) })
}

func squaresAccuracy[T Float](t *testing.T, lowest, highest int) {
	eachISA(t, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			x := drawWide[T](t, rapid.IntRange(lowest, highest).Draw(t, "top"))
			s := squaresOf(float64(MaxAbs(x)), x)
			exact := exactSquares(x)
			want, _ := exact.Float64()
			root, _ := exact.Sqrt(exact).Float64()
			require.InDelta(t, want, s.Value(), want*0x1p-51)
			require.InDelta(t, root, s.Norm(), root*0x1p-51)
		})
	})
}

// TestSquaresOrder: the same bits for every permutation, division into ranks, pieces and element
// types, and order of the reduction, and on every instruction set.
func TestSquaresOrder(t *testing.T) {
	t.Run("float32", squaresOrder[float32])
	t.Run("float64", squaresOrder[float64])
}

func squaresOrder[T Float](t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := drawWide[T](t, rapid.IntRange(-140, 120).Draw(t, "top"))
		bound := float64(MaxAbs(x)) * rapid.Float64Range(1, 3).Draw(t, "slack")
		whole := squaresOf(bound, x)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "division"), 3))
		for _, set := range supported() {
			before := active
			active = set
			rng.Shuffle(len(x), func(i, j int) { x[i], x[j] = x[j], x[i] })
			ranks := make([]Squares, 1+rng.IntN(8))
			for r := range ranks {
				ranks[r] = NewSquares(bound)
			}
			for rest := x; len(rest) > 0; {
				n := 1 + rng.IntN(len(rest))
				if s := &ranks[rng.IntN(len(ranks))]; rng.IntN(2) == 0 {
					AddSquares(s, rest[:n])
				} else {
					AddSquares(s, convertSlice[float64](rest[:n]))
				}
				rest = rest[n:]
			}
			active = before

			var words [4]float64
			for _, r := range rng.Perm(len(ranks)) {
				for i, w := range ranks[r].Words() {
					words[i] += w
				}
			}
			total := NewSquares(bound)
			total.Merge(words)
			require.Equal(t, whole, total, "%s, %d ranks", set.name, len(ranks))
			require.Equal(t, math.Float64bits(whole.Value()), math.Float64bits(total.Value()))
		}
	})
}

func convertSlice[T, U Float](x []U) []T {
	y := make([]T, len(x))
	for i, v := range x {
		y[i] = T(v)
	}
	return y
}

// TestSquaresLimits goes to what the doc comment promises: 2⁴² elements, 2¹⁷ sums, and tiny
// elements beside a large one that matter because there are so many.
func TestSquaresLimits(t *testing.T) {
	largest := math.Nextafter(1, 0)
	full := make([]float64, piece)
	Fill(full, largest)
	eachISA(t, func(t *testing.T) {
		for _, x := range []float64{largest, 0x1.8p-24, 0x1.fffffp-48, 0x1.6p-47, 0x1.0p-24} { // hi at its most; lo at both ends
			Fill(full, x)
			s := squaresOf(largest, full)
			for range 42 - 15 {
				s.Merge(s.Words())
			}
			for _, w := range s.Words() {
				require.LessOrEqual(t, math.Abs(w), 0x1p53, "words are exact")
			}
			want := math.Ldexp(x*x, 42)
			require.InDelta(t, want, s.Value(), max(want*0x1p-51, 0x1p42*0x1p-95), "2⁴² times %v", x)
		}

		tiny := 0x1.7p-30
		Fill(full, tiny)
		s := squaresOf(largest, full)
		for range 40 - 15 {
			s.Merge(s.Words())
		}
		AddSquares(&s, []float64{largest})
		want := largest*largest + math.Ldexp(tiny*tiny, 40)
		require.InDelta(t, want, s.Value(), want*1e-14)

		Fill(full, 0x1.23456789abcp-1)
		one, sum := squaresOf(largest, full), [4]float64{}
		const ranks = 1 << 17
		for range ranks {
			for i, w := range one.Words() {
				sum[i] += w
			}
		}
		for i, w := range one.Words() {
			require.Equal(t, ranks*w, sum[i], "the sum of words is exact")
			require.LessOrEqual(t, math.Abs(sum[i]), 0x1p53)
		}
		all := NewSquares(largest)
		all.Merge(sum)
		require.Equal(t, ranks*one.Value(), all.Value())
	})
}

// TestSquaresEdges: nothing, zeros, values out of range, bounds that are no numbers, subnormals.
func TestSquaresEdges(t *testing.T) {
	inf := math.Inf(1)
	for _, tt := range []struct {
		name        string
		bound       float64
		x           []float64
		value, norm float64
	}{
		{"nothing", 1, nil, 0, 0},
		{"no bound", 0, []float64{0, math.Copysign(0, -1)}, 0, 0},
		{"zeros under a bound", 3, []float64{0, 0}, 0, 0},
		{"Pythagoras", 4, []float64{3, -4}, 25, 5},
		{"a square out of range", 3e200, []float64{3e200}, inf, 3e200},
		{"a sum out of range", 0x1p511, []float64{0x1p511, 0x1p511, 0x1p511, 0x1p511}, inf, 0x1p512},
		{"a sum in range", 0x1p511, []float64{0x1p511, 0x1p511, 0x1p511}, 0x1.8p1023, math.Sqrt(3) * 0x1p511},
		{"the largest", math.MaxFloat64, []float64{math.MaxFloat64}, inf, math.MaxFloat64},
		{"a square too small", 3e-200, []float64{3e-200}, 0, 3e-200},
		{"the smallest normal", 0x1p-1022, []float64{0x1p-1022}, 0, 0x1p-1022},
		{"subnormal", 0x1p-1060, []float64{0x1p-1060}, 0, 0x1p-1060},
		{"infinity", inf, []float64{inf, 1}, inf, inf},
		{"NaN", math.NaN(), []float64{math.NaN(), 1}, math.NaN(), math.NaN()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachISA(t, func(t *testing.T) {
				s := squaresOf(tt.bound, tt.x)
				for _, c := range [][2]float64{{tt.value, s.Value()}, {tt.norm, s.Norm()}} {
					require.True(t, equalBits(c[0], c[1]) || math.Abs(c[0]-c[1]) <= c[0]*0x1p-52, "got %v, want %v", c[1], c[0])
				}
			})
		})
	}
	small := []float32{math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, 3 * math.SmallestNonzeroFloat32}
	s := squaresOf(float64(MaxAbs(small)), small)
	require.Equal(t, 11*0x1p-298, s.Value())
	require.Panics(t, func() { NewSquares(-1) })
}

// Value returns Σx². It is +Inf only where that is beyond float64.
func (s *Squares) Value() float64 {
	if !s.finite() {
		return s.bound
	}
	return math.Ldexp(s.scaled(), 2*s.exponent)
}

// TestSquaresScale: the sum that a device makes of numbers times Scale, digits that are not carried, is
// the sum.
func TestSquaresScale(t *testing.T) {
	x := []float64{3, -0.5, 1e-9, 2.75}
	want := NewSquares(3)
	AddSquares(&want, x)
	got := NewSquares(3)
	var hi, lo int64
	for _, v := range x {
		v *= got.Scale()
		square := math.FMA(v, v, onHi)
		hi += int64(math.Float64bits(square) - math.Float64bits(onHi))
		lo += int64(math.Float64bits(math.FMA(v, v, both-square)) - math.Float64bits(onLo))
	}
	got.Add([4]int64{1: hi, 3: lo})
	require.Equal(t, want.Words(), got.Words())
	infinite := NewSquares(math.Inf(1))
	require.Zero(t, infinite.Scale())
}
