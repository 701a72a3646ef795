package vec

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawWire draws blocks of numbers, all of one magnitude, of which some may be ties, zeros and subnormal.
func drawWire(t *rapid.T) []float32 {
	x := make([]float32, Block8*rapid.IntRange(0, 3).Draw(t, "blocks"))
	scale := math.Pow(2, float64(rapid.IntRange(-149, 127).Draw(t, "scale")))
	draw := rapid.OneOf(rapid.Float32Range(-1, 1), rapid.Just(float32(1)), rapid.Just(float32(0.5/127)), rapid.Just(float32(0)), rapid.Float32Range(0, 1e-6))
	for i := range x {
		x[i] = float32(float64(draw.Draw(t, "x")) * scale)
	}
	return x
}

// TestWire8RoundTrip checks how far numbers are off, that what has traveled travels exactly but for the
// rounding of its scale, and that blocks are coded where the numbers were and decoded from the end of
// where they will be.
func TestWire8RoundTrip(t *testing.T) {
	eachISA(t, func(t *testing.T) { rapid.Check(t, roundTrip8) })
}

func roundTrip8(t *rapid.T) {
	x := drawWire(t)
	wire := make([]byte, len(x)/Block8*Bytes8)
	Encode8(wire, x)
	got := make([]float32, len(x))
	Decode8(got, wire)
	for at := 0; at < len(x); at += Block8 {
		most := float64(MaxAbs(x[at : at+Block8]))
		off := most/254*(1+1e-6) + 0x1p-149
		if most < tiny8 {
			off = most
		}
		for i := at; i < at+Block8; i++ {
			require.InDelta(t, x[i], got[i], off, "of at most %v", most)
		}
	}
	room := make([]float32, len(x))
	copy(room, x)
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(room))), 4*len(room))
	Encode8(bytes[:len(wire)], room)
	require.Equal(t, wire, bytes[:len(wire)], "in place")
	copy(bytes[len(bytes)-len(wire):], wire)
	Decode8(room, bytes[len(bytes)-len(wire):])
	require.Equal(t, got, room, "in place")
}

// TestWire8Kernels compares what every instruction set makes of the same numbers with what the portable
// kernels do, wherever they lie, and checks that nothing else is written.
func TestWire8Kernels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, old := drawWire(t), drawWire(t)
		n := min(len(x), len(old)) / Block8
		x, old = x[:n*Block8], old[:n*Block8]
		if n > 0 && rapid.Bool().Draw(t, "spoil") {
			x[rapid.IntRange(0, len(x)-1).Draw(t, "at")] = rapid.SampledFrom(bad).Draw(t, "bad")
		}
		offset := rapid.IntRange(0, 70).Draw(t, "offset")
		want := kernels8(t, portable(), x, old, 0)
		for _, set := range supported() {
			require.Equal(t, want, kernels8(t, set, x, old, offset), set.name)
		}
	})
}

var bad = []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32}

// kernels8 returns the bits of all that the kernels of a set write.
func kernels8(t *rapid.T, set isa, x, old []float32, offset int) (all []byte) {
	before := active
	active = set
	defer func() { active = before }()
	n := len(x) / Block8 * Bytes8
	write := func(bytes int, f func(b []byte)) []byte {
		buffer := slices.Repeat([]byte{0xA5}, offset+bytes+70)
		f(buffer[offset : offset+bytes])
		for i, v := range buffer {
			require.True(t, v == 0xA5 || i >= offset && i < offset+bytes, "byte %d beside %d is written", i-offset, bytes)
		}
		all = append(all, buffer[offset:offset+bytes]...)
		return buffer[offset : offset+bytes]
	}
	floats := func(f func(dst []float32)) {
		write(4*len(x), func(b []byte) {
			dst := make([]float32, len(x)+2*20)
			f(dst[offset%20:][:len(x)])
			for i, v := range dst {
				require.True(t, v == 0 || i >= offset%20 && i < offset%20+len(x), "element %d", i)
			}
			for i, v := range dst[offset%20:][:len(x)] {
				if v != v {
					v = 0x1p-140 // all NaNs alike
				}
				copy(b[4*i:], (*[4]byte)(unsafe.Pointer(&v))[:])
			}
		})
	}
	wire := write(n, func(b []byte) { Encode8(b, x) })
	left := slices.Clone(write(n, func(b []byte) { Encode8(b, old) }))
	write(n, func(b []byte) { EncodeError8(b, x, left) })
	write(n, func(b []byte) { copy(b, left) })
	floats(func(dst []float32) { Decode8(dst, wire) })
	floats(func(dst []float32) {
		Decode8(dst, left)
		DecodeSum8(dst, slices.Concat(wire, left, wire), 3)
	})
	return all
}

// TestWire8Sums compares sums of lists of blocks with those of their numbers.
func TestWire8Sums(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(5, 6))
		for n := 1; n <= 9; n++ {
			const length = 6 * Block8
			var wires []byte
			var lists [][]float32
			for range n {
				x, wire := make([]float32, length), make([]byte, length/Block8*Bytes8)
				for i := range x {
					x[i] = float32(r.NormFloat64())
				}
				Encode8(wire, x)
				Decode8(x, wire)
				wires, lists = append(wires, wire...), append(lists, x)
			}
			want, got := make([]float32, length), make([]float32, length)
			TreeSum(want, lists, 1)
			DecodeSum8(got, wires, n)
			require.Equal(t, want, got, "%d lists", n)
		}
		require.Panics(t, func() { DecodeSum8(make([]float32, Block8), make([]byte, Bytes8), 2) })
		require.Panics(t, func() { Encode8(make([]byte, Bytes8/4), make([]float32, Block8/4)) }, "less than a block")
	})
}

// TestWire8SameBits checks the bytes of numbers that were drawn once: they are the same on every machine.
func TestWire8SameBits(t *testing.T) { eachISA(t, sameWire8) }

func sameWire8(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, 64*Block8)
	for i := range x {
		x[i] = float32(r.NormFloat64() * math.Pow(2, float64(i/Block8-32)))
	}
	wire := make([]byte, len(x)/Block8*Bytes8)
	Encode8(wire, x)
	h := fnv.New64a()
	h.Write(wire)
	require.Equal(t, uint64(0x1ec121a8d2627741), h.Sum64())
}

// TestWire8Largest checks that the largest finite numbers stay finite: 127 times their scale may not be.
func TestWire8Largest(t *testing.T) {
	x, wire := make([]float32, Block8), make([]byte, Bytes8)
	x[0], x[1], x[2] = math.MaxFloat32, -math.MaxFloat32, 1e38
	want := slices.Clone(x)
	Encode8(wire, x)
	Decode8(x, wire)
	for i := range x {
		require.InDelta(t, want[i], x[i], math.MaxFloat32/254*(1+1e-6), "element %d", i)
	}
}

// TestWire8NotFinite checks that a number that is not finite spoils its block and no other.
func TestWire8NotFinite(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		x := make([]float32, 3*Block8)
		for i := range x {
			x[i] = 1
		}
		x[Block8+7] = float32(bad)
		wire := make([]byte, 3*Bytes8)
		Encode8(wire, x)
		Decode8(x, wire)
		for i, v := range x {
			require.Equal(t, i/Block8 == 1, v != v, "element %d", i)
		}
	}
}

// TestWire8Errors checks that what is lost travels later: after any number of steps the sum of what was
// decoded and of what is left is that of the numbers, but for what the error itself loses.
func TestWire8Errors(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const steps = 400
	var sum, got [Block8]float64
	left, wire := make([]byte, Bytes8), make([]byte, Bytes8)
	x, y := make([]float32, Block8), make([]float32, Block8)
	for range steps {
		for i := range x {
			x[i] = float32(1e-4 + 1e-4*r.NormFloat64()) // less than a code stands for
			sum[i] += float64(x[i])
		}
		x[7] = 1 // of which the codes are multiples
		EncodeError8(wire, x, left)
		Decode8(y, wire)
		for i := range y {
			got[i] += float64(y[i])
		}
	}
	Decode8(y, left)
	for i := range y {
		if i != 7 {
			require.InDelta(t, sum[i], got[i]+float64(y[i]), steps/2*1.01/(127*254), "element %d", i)
			require.NotZero(t, got[i], "element %d", i)
		}
	}
	x[9] = float32(math.NaN())
	EncodeError8(wire, x, left)
	require.Equal(t, make([]byte, Bytes8), left, "no error of what is not finite")
}

// BenchmarkWire8 takes blocks of what the outer caches hold.
func BenchmarkWire8(b *testing.B) {
	x := make([]float32, 1<<18)
	for i := range x {
		x[i] = float32(i%977) - 488
	}
	wire, left := make([]byte, len(x)/Block8*Bytes8), make([]byte, len(x)/Block8*Bytes8)
	two := append(wire, wire...)
	for name, f := range map[string]func(){
		"encode": func() { Encode8(wire, x) }, "errors": func() { EncodeError8(wire, x, left) }, "decode": func() { Decode8(x, wire) },
		"sum": func() { DecodeSum8(x, two, 2) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(4 * len(x)))
			for b.Loop() {
				f()
			}
		})
	}
}
