package safetensors

import (
	"encoding/binary"
	"math"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var floatTypes = []DType{F64, F32, F16, BF16}

// A format is a floating-point type written down as its definition. It shares nothing with the code
// under test.
type format struct{ exponent, fraction int } // bits

var formats = map[DType]format{F64: {11, 52}, F32: {8, 23}, F16: {5, 10}, BF16: {8, 7}}

func (f format) infinity() uint64 { return (1<<f.exponent - 1) << f.fraction }
func (f format) sign() uint64     { return 1 << (f.exponent + f.fraction) }
func (f format) nan(x uint64) bool {
	return x&^f.sign() > f.infinity()
}

// value returns the number with the bits x.
func (f format) value(x uint64) float64 {
	if f.fraction == 52 {
		return math.Float64frombits(x)
	}
	bias := 1<<(f.exponent-1) - 1
	e, m := int(x&^f.sign()>>f.fraction), float64(x&(1<<f.fraction-1))
	var v float64
	switch {
	case f.nan(x):
		return math.NaN()
	case x&^f.sign() == f.infinity():
		v = math.Inf(1)
	case e == 0:
		v = math.Ldexp(m, 1-bias-f.fraction)
	default:
		v = math.Ldexp(m+math.Ldexp(1, f.fraction), e-bias-f.fraction)
	}
	if x&f.sign() != 0 {
		v = -v
	}
	return v
}

// number is value, for numbers from 0 on, but infinity counts as the next power of two.
func (f format) number(x uint64) float64 {
	if x == f.infinity() {
		return math.Ldexp(1, 1<<(f.exponent-1))
	}
	return f.value(x)
}

// numbers are all of the small formats.
var numbers = map[format][]float64{formats[F16]: formats[F16].all(), formats[BF16]: formats[BF16].all()}

func (f format) all() (list []float64) {
	for x := range f.infinity() + 1 {
		list = append(list, f.number(x))
	}
	return list
}

// nearest returns the bits of the number nearest to v, of two equally near the even one. Not for
// NaN.
func (f format) nearest(v float64) uint64 {
	if f.fraction == 52 {
		return math.Float64bits(v)
	}
	sign := uint64(0)
	if math.Signbit(v) {
		sign, v = f.sign(), -v
	}
	if math.IsInf(v, 1) {
		return sign | f.infinity()
	}
	number := f.number
	if table := numbers[f]; table != nil {
		number = func(x uint64) float64 { return table[x] }
	}
	// The first number not below v.
	hi := uint64(sort.Search(int(f.infinity()), func(x int) bool { return number(uint64(x)) >= v }))
	if hi == 0 {
		return sign
	}
	middle := (number(hi-1) + number(hi)) / 2 // exact
	if v < middle || v == middle && hi%2 == 1 {
		hi--
	}
	return sign | hi
}

func put(b []byte, t DType, x uint64) []byte {
	var whole [8]byte
	binary.LittleEndian.PutUint64(whole[:], x)
	return append(b, whole[:t.Size()]...)
}

func get(b []byte, t DType, i int) uint64 {
	var whole [8]byte
	copy(whole[:], b[i*t.Size():(i+1)*t.Size()])
	return binary.LittleEndian.Uint64(whole[:])
}

// requireConverts converts elements given by their bits and compares each with its twin.
func requireConverts(t require.TestingT, to, from DType, elements []uint64) {
	var src []byte
	for _, x := range elements {
		src = put(src, from, x)
	}
	dst := make([]byte, len(elements)*to.Size())
	require.NoError(t, Convert(dst, to, src, from))
	for i, x := range elements {
		got := get(dst, to, i)
		switch {
		case to == from:
			if got != x {
				require.Failf(t, "not a copy", "%s %#x became %#x", from, x, got)
			}
		case formats[from].nan(x):
			if !formats[to].nan(got) {
				require.Failf(t, "NaN lost", "%s %#x as %s is %#x", from, x, to, got)
			}
		default:
			if want := formats[to].nearest(formats[from].value(x)); got != want {
				require.Failf(t, "wrong", "%s %#x (%v) as %s is %#x, want %#x", from, x, formats[from].value(x), to, got, want)
			}
		}
	}
}

// TestConvertAll converts every 16-bit float to every type.
func TestConvertAll(t *testing.T) {
	all := make([]uint64, 1<<16)
	for i := range all {
		all[i] = uint64(i)
	}
	for _, from := range []DType{F16, BF16} {
		for _, to := range floatTypes {
			requireConverts(t, to, from, all)
		}
	}
}

// TestConvertAtTies rounds to 16 bits what lies halfway between two numbers, and beside it: where
// rounding twice goes wrong.
func TestConvertAtTies(t *testing.T) {
	for _, to := range []DType{F16, BF16} {
		f := formats[to]
		var wide, single []uint64
		for x := range f.infinity() {
			low, high := f.number(x), f.number(x+1)
			for _, v := range []float64{low, (low + high) / 2} {
				for _, v := range []float64{v, -v} {
					wide = append(wide, math.Float64bits(v), math.Float64bits(math.Nextafter(v, 0)), math.Float64bits(math.Nextafter(v, 2*v)))
					s := float32(v)
					require.Equal(t, v, float64(s))
					single = append(single, uint64(math.Float32bits(s)), uint64(math.Float32bits(math.Nextafter32(s, 0))), uint64(math.Float32bits(math.Nextafter32(s, 2*s))))
				}
			}
		}
		requireConverts(t, to, F64, wide)
		requireConverts(t, to, F32, single)
	}
}

// TestConvertProperty converts any bits, near the values of 16-bit floats and anywhere, in any
// number.
func TestConvertProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, to := rapid.SampledFrom(floatTypes).Draw(t, "from"), rapid.SampledFrom(floatTypes).Draw(t, "to")
		mask := uint64(1)<<(8*from.Size()-1)<<1 - 1
		bits := rapid.OneOf(rapid.Uint64(), rapid.Map(rapid.Float32(), func(v float32) uint64 { return formats[from].nearest(float64(v)) }))
		elements := rapid.SliceOfN(bits, 0, 40).Draw(t, "elements")
		for i := range elements {
			elements[i] &= mask
		}
		requireConverts(t, to, from, elements)
	})
}

// TestConvertLengths checks that everything is converted, and nothing behind it, around the ends of
// blocks.
func TestConvertLengths(t *testing.T) {
	for _, n := range []int{0, 1, block - 1, block, block + 1, 3*block + 7} {
		elements := make([]uint64, n)
		for i := range elements {
			elements[i] = uint64(i) * 40503 & 0x7bff
		}
		for _, from := range floatTypes {
			for _, to := range floatTypes {
				requireConverts(t, to, from, elements)
			}
		}
	}
}

func TestConvertRefuses(t *testing.T) {
	for _, c := range []struct {
		to, from DType
		dst, src int // bytes
		want     string
	}{
		{F32, "I32", 4, 4, "cannot convert I32 to F32: I32 is none of F64, F32, F16, BF16"},
		{"U8", F32, 1, 4, "cannot convert F32 to U8: U8 is none of F64, F32, F16, BF16"},
		{"U8", "U8", 1, 1, "cannot convert U8 to U8: U8 is none of F64, F32, F16, BF16"},
		{"", "F4", 0, 0, "cannot convert F4 to :  is none of F64, F32, F16, BF16"},
		{F32, F16, 8, 3, "cannot convert 3 bytes of F16 to 8 bytes of F32: not the same number of elements"},
		{F32, F16, 4, 3, "cannot convert 3 bytes of F16 to 4 bytes of F32: not the same number of elements"},
		{F32, F16, 8, 6, "cannot convert 6 bytes of F16 to 8 bytes of F32: not the same number of elements"},
		{F32, F16, 7, 2, "cannot convert 2 bytes of F16 to 7 bytes of F32: not the same number of elements"},
		{F32, F32, 8, 4, "cannot convert 4 bytes of F32 to 8 bytes of F32: not the same number of elements"},
	} {
		require.EqualError(t, Convert(make([]byte, c.dst), c.to, make([]byte, c.src), c.from), "safetensors: "+c.want)
	}
}

func BenchmarkConvert(b *testing.B) {
	src, dst := make([]byte, 8<<16), make([]byte, 8<<16)
	for i := range src {
		src[i] = byte(i * 40503 >> 4)
	}
	for _, from := range floatTypes {
		for _, to := range floatTypes {
			b.Run(string(from)+" to "+string(to), func(b *testing.B) {
				b.SetBytes(int64(from.Size()) << 16)
				b.ReportAllocs()
				for b.Loop() {
					if err := Convert(dst[:to.Size()<<16], to, src[:from.Size()<<16], from); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
