package half

import (
	"math"
	"slices"
	"sort"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A model is a format written down as its definition, in float64, which holds every value exactly.
// It shares nothing with the code under test.
type model struct {
	fraction int       // bits
	values   []float64 // of the bit patterns 0, 1, … up to infinity, which counts as the next power of two
	widen    func(uint16) float32
	narrow   func(float32) uint16
}

var models = map[string]*model{
	"bfloat16": newModel(7, func(x uint16) float32 { return BFloat16(x).Float32() }, func(f float32) uint16 { return uint16(ToBFloat16(f)) }),
	"float16":  newModel(10, func(x uint16) float32 { return Float16(x).Float32() }, func(f float32) uint16 { return uint16(ToFloat16(f)) }),
}

func newModel(fraction int, widen func(uint16) float32, narrow func(float32) uint16) *model {
	m := &model{fraction, nil, widen, narrow}
	bias := 1<<(14-fraction) - 1
	for x := 0; x <= m.infinity(); x++ {
		exponent, f := x>>fraction, float64(x&(1<<fraction-1))
		if exponent == 0 {
			m.values = append(m.values, math.Ldexp(f, 1-bias-fraction))
		} else {
			m.values = append(m.values, math.Ldexp(f+float64(int(1)<<fraction), exponent-bias-fraction))
		}
	}
	return m
}

func (m *model) infinity() int { return 1<<15 - 1<<m.fraction }

// round returns the bits of the value nearest to f, of two equally near the even one.
func (m *model) round(f float32) uint16 {
	sign, v := uint16(math.Float32bits(f)>>31)<<15, math.Abs(float64(f))
	hi := sort.SearchFloat64s(m.values, v) // the first not below v
	switch {
	case hi == 0:
		return sign
	case hi == len(m.values):
		return sign | uint16(m.infinity())
	}
	below, above := v-m.values[hi-1], m.values[hi]-v // exact
	if below < above || below == above && hi%2 == 1 {
		hi--
	}
	return sign | uint16(hi)
}

func (m *model) nan(x uint16) bool { return int(x&^(1<<15)) > m.infinity() }

// TestWiden checks all bit patterns, and that they survive there and back.
func TestWiden(t *testing.T) {
	for name, m := range models {
		quiet := uint16(1) << (m.fraction - 1)
		for i := range 1 << 16 {
			x := uint16(i)
			f := m.widen(x)
			require.Equalf(t, x>>15 == 1, math.Signbit(float64(f)), "%s %#04x", name, x)
			want := x
			switch magnitude := int(x &^ (1 << 15)); {
			case m.nan(x):
				require.Truef(t, f != f, "%s %#04x", name, x)
				want |= quiet
			case magnitude == m.infinity():
				require.Truef(t, math.IsInf(float64(f), 0), "%s %#04x", name, x)
			case math.Abs(float64(f)) != m.values[magnitude]:
				t.Fatalf("%s %#04x is %v, want %v", name, x, f, m.values[magnitude])
			}
			if got := m.narrow(f); got != want {
				t.Fatalf("%s %#04x came back as %#04x, want %#04x", name, x, got, want)
			}
		}
	}
}

// TestNarrowAtTies checks every value, every point halfway between two, and the float32 on both
// sides of each.
func TestNarrowAtTies(t *testing.T) {
	for name, m := range models {
		check := func(v float64) {
			for _, f := range []float32{float32(v), math.Nextafter32(float32(v), 0), math.Nextafter32(float32(v), float32(math.Inf(1)))} {
				for _, f := range []float32{f, -f} {
					if got, want := m.narrow(f), m.round(f); got != want {
						t.Fatalf("%s of %v (%#x) is %#04x, want %#04x", name, f, math.Float32bits(f), got, want)
					}
				}
			}
		}
		for i, v := range m.values[:m.infinity()] {
			check(v)
			middle := (v + m.values[i+1]) / 2
			require.Equal(t, middle, float64(float32(middle)), "ties are float32")
			check(middle)
		}
		check(m.values[m.infinity()])
	}
}

func TestNarrowProperty(t *testing.T) {
	for name, m := range models {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				b := rapid.Uint32().Draw(t, "bits")
				if f := math.Float32frombits(b); f != f {
					require.True(t, m.nan(m.narrow(f)))
				} else {
					require.Equal(t, m.round(f), m.narrow(f))
				}
			})
		})
	}
}

func TestNarrowExtremes(t *testing.T) {
	inf, nan := float32(math.Inf(1)), func(b uint32) float32 { return math.Float32frombits(b) }
	for _, c := range []struct {
		f    float32
		b16  BFloat16
		f16  Float16
		text string
	}{
		{0, 0, 0, "0"},
		{float32(math.Copysign(0, -1)), 0x8000, 0x8000, "-0"},
		{1, 0x3f80, 0x3c00, "1"},
		{-2.5, 0xc020, 0xc100, "-2.5"},
		{inf, 0x7f80, 0x7c00, "+Inf"},
		{-inf, 0xff80, 0xfc00, "-Inf"},
		{math.MaxFloat32, 0x7f80, 0x7c00, "+Inf"},
		{math.SmallestNonzeroFloat32, 0, 0, "0"},
		{nan(0x7fc00000), 0x7fc0, 0x7e00, "NaN"},
		{nan(0x7f800001), 0x7fc0, 0x7e00, "NaN"}, // signalling, and its payload does not fit
		{nan(0xffa04000), 0xffe0, 0xff02, "NaN"}, // signalling, with a payload that does
	} {
		require.Equal(t, c.b16, ToBFloat16(c.f), "%v", c.f)
		require.Equal(t, c.f16, ToFloat16(c.f), "%v", c.f)
		require.Equal(t, c.text, ToBFloat16(c.f).String())
		require.Equal(t, c.text, ToFloat16(c.f).String())
	}
	require.Equal(t, Float16(0x7bff), ToFloat16(65519.996)) // the last below the tie
	require.Equal(t, Float16(0x7c00), ToFloat16(65520))
	require.Equal(t, Float16(0), ToFloat16(0x1p-25)) // a tie between 0 and the smallest
	require.Equal(t, Float16(1), ToFloat16(0x1.000002p-25))
	require.Equal(t, "0.33398438", ToBFloat16(1./3).String())
}

// onEvery runs f on every instruction set that this machine has.
func onEvery(t *testing.T, f func(t *testing.T)) {
	best := active
	defer func() { active = best }()
	for _, active = range supported() {
		t.Run(active.name, f)
	}
}

// TestSlices checks that slices are converted like their elements, as far as both reach and no
// further.
func TestSlices(t *testing.T) {
	onEvery(t, func(t *testing.T) {
		t.Run("bfloat16", func(t *testing.T) { testSlices(t, BFloat16.Float32, ToBFloat16) })
		t.Run("float16", func(t *testing.T) { testSlices(t, Float16.Float32, ToFloat16) })
	})
}

func testSlices[T Float](t *testing.T, widen func(T) float32, narrow func(float32) T) {
	rapid.Check(t, func(t *rapid.T) {
		src := make([]T, rapid.IntRange(0, 100).Draw(t, "src"))
		for i := range src {
			src[i] = T(rapid.Uint16().Draw(t, "x"))
		}
		wide := make([]float32, rapid.IntRange(0, 100).Draw(t, "dst"))
		did := Widen(wide, src)
		require.Equal(t, min(len(wide), len(src)), did)
		for i := range wide {
			want := float32(0)
			if i < did {
				want = widen(src[i])
			}
			require.Equal(t, math.Float32bits(want), math.Float32bits(wide[i]))
			wide[i] = math.Float32frombits(rapid.Uint32().Draw(t, "bits"))
		}
		dst := make([]T, len(src))
		require.Equal(t, did, Narrow(dst, wide))
		for i := range dst {
			want := T(0)
			if i < did {
				want = narrow(wide[i])
			}
			require.Equal(t, want, dst[i])
		}
	})
}

// TestNarrowScaled checks that the product is rounded before it is narrowed, and that c = 1 changes
// nothing.
func TestNarrowScaled(t *testing.T) {
	onEvery(t, func(t *testing.T) {
		t.Run("bfloat16", func(t *testing.T) { testNarrowScaled(t, ToBFloat16) })
		t.Run("float16", func(t *testing.T) { testNarrowScaled(t, ToFloat16) })
	})
}

func testNarrowScaled[T Float](t *testing.T, narrow func(float32) T) {
	rapid.Check(t, func(t *rapid.T) {
		src := make([]float32, rapid.IntRange(0, 100).Draw(t, "length"))
		for i := range src {
			src[i] = rapid.Float32().Draw(t, "x")
		}
		c := rapid.OneOf(rapid.SampledFrom([]float32{1, 0, 1. / 3, 0x1p-130}), rapid.Float32()).Draw(t, "c")
		got := make([]T, len(src))
		require.Equal(t, len(src), NarrowScaled(got, src, c))
		for i, x := range src {
			product := c * x
			require.Equal(t, narrow(product), got[i], "%v · %v", c, x)
		}
	})
}

// TestInPlace converts within the memory of the float32, at every length and with every kind of
// rest.
func TestInPlace(t *testing.T) {
	onEvery(t, func(t *testing.T) {
		t.Run("bfloat16", testInPlace[BFloat16])
		t.Run("float16", testInPlace[Float16])
	})
}

func testInPlace[T Float](t *testing.T) {
	lengths := []int{piece - 1, piece, 2*piece + 5}
	for n := range 201 {
		lengths = append(lengths, n)
	}
	for _, n := range lengths {
		const guard = 0x1.8p100
		memory := make([]float32, n+2)
		memory[0], memory[n+1] = guard, guard
		wide := memory[1 : n+1]
		halves := unsafe.Slice((*T)(unsafe.Pointer(&memory[1])), 2*n) // also where n is 0

		x, want := make([]T, n), make([]float32, n)
		for i := range x {
			x[i] = T(i * 40503)
		}
		Widen(want, x)
		copy(halves[n:], x)
		require.Equal(t, n, Widen(wide, halves[n:]))
		requireBits(t, want, wide)

		for _, c := range []float32{1, 1. / 3} {
			for i := range wide {
				want[i] = math.Float32frombits(uint32(i) * 0x9E3779B9)
			}
			NarrowScaled(x, want, c)
			copy(wide, want)
			require.Equal(t, n, NarrowScaled(halves[:n], wide, c))
			require.True(t, slices.Equal(x, halves[:n]), "narrow %d in place", n)
		}
		require.Equal(t, []float32{guard, guard}, []float32{memory[0], memory[n+1]})
	}
}

func requireBits(t *testing.T, want, got []float32) {
	for i := range want {
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			t.Fatalf("element %d of %d is %v, want %v", i, len(want), got[i], want[i])
		}
	}
}

// TestAllBits checks that slices of every bit pattern, of the ties between them and of their
// neighbours are converted like their elements. They are long enough to be cut.
func TestAllBits(t *testing.T) {
	onEvery(t, func(t *testing.T) {
		t.Run("bfloat16", func(t *testing.T) { testAllBits(t, BFloat16.Float32, ToBFloat16) })
		t.Run("float16", func(t *testing.T) { testAllBits(t, Float16.Float32, ToFloat16) })
	})
}

func testAllBits[T Float](t *testing.T, widen func(T) float32, narrow func(float32) T) {
	all, wide := make([]T, 1<<16), make([]float32, 1<<16)
	for i := range all {
		all[i] = T(i)
	}
	Widen(wide, all)
	var near []float32
	for i, x := range all {
		b := math.Float32bits(wide[i])
		if want := math.Float32bits(widen(x)); b != want {
			t.Fatalf("%#04x became %#08x, want %#08x", i, b, want)
		}
		tie := float32((float64(wide[i]) + float64(wide[(i+1)%len(wide)])) / 2)
		for _, b := range []uint32{b, math.Float32bits(tie)} {
			near = append(near, math.Float32frombits(b-1), math.Float32frombits(b), math.Float32frombits(b+1))
		}
	}
	got := make([]T, len(near))
	Narrow(got, near)
	for i, f := range near {
		if want := narrow(f); got[i] != want {
			t.Fatalf("%v (%#08x) became %#04x, want %#04x", f, math.Float32bits(f), uint16(got[i]), uint16(want))
		}
	}
}

func TestSlicesAllocateNothing(t *testing.T) {
	wide, b, f := make([]float32, 100), make([]BFloat16, 100), make([]Float16, 100)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		Widen(wide, b)
		Narrow(b, wide)
		Widen(wide, f)
		Narrow(f, wide)
		NarrowScaled(f, wide, 0.5)
	}))
}
