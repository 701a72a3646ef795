package safetensors

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestNotFinite compares the count with one element by element, over all lengths and types.
func TestNotFinite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dtype := rapid.SampledFrom([]DType{F64, F32, F16, BF16}).Draw(t, "type")
		values := rapid.SliceOfN(rapid.SampledFrom([]float64{
			0, math.Copysign(0, -1), 1, -1, 1e-30, -1e-30, 3e4, -3e4, math.NaN(), math.Inf(1), math.Inf(-1),
		}), 0, 70).Draw(t, "values")
		wide := make([]byte, 8*len(values))
		for i, x := range values {
			binary.LittleEndian.PutUint64(wide[8*i:], math.Float64bits(x))
		}
		b := make([]byte, dtype.Size()*len(values))
		require.NoError(t, Convert(b, dtype, wide, F64))
		for _, infinite := range []bool{false, true} {
			n, first := 0, 0
			for i, x := range values {
				if math.IsNaN(x) || math.IsInf(x, 0) && !infinite {
					if n++; n == 1 {
						first = i
					}
				}
			}
			gotN, gotFirst := NotFinite(dtype, b, infinite)
			require.Equal(t, n, gotN)
			require.Equal(t, first, gotFirst)
		}
	})
}

// TestNotFiniteBits checks bit patterns with exponents and signs at their limits.
func TestNotFiniteBits(t *testing.T) {
	for bits, want := range map[uint32]int{
		0x7F7FFFFF: 0, 0xFF7FFFFF: 0, 0x80000000: 0, 0x007FFFFF: 0, 0x7F800000: 1, 0xFF800000: 1, 0x7F800001: 1, 0xFFFFFFFF: 1,
	} {
		for at := range 11 {
			b := make([]byte, 4*11)
			binary.LittleEndian.PutUint32(b[4*at:], bits)
			n, first := NotFinite(F32, b, false)
			require.Equal(t, want, n, "%08x", bits)
			require.Equal(t, want*at, first)
		}
	}
	n, _ := NotFinite(DType("I64"), []byte{0, 0, 0, 0, 0, 0, 0xF0, 0x7F}, false)
	require.Zero(t, n)
}

func BenchmarkNotFinite(b *testing.B) {
	data := make([]byte, 1<<16)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		NotFinite(F32, data, false)
	}
}
