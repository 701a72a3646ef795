package safetensors

import (
	"encoding/binary"
	"math"
)

// An exponent is a set of masks over 8 bytes of elements: all exponent bits, the lowest exponent
// bit of each element, and the sign bits. NaN and infinity have all exponent bits set, so adding
// the lowest bit carries into the sign.
type exponent struct{ mask, low, sign uint64 }

var exponents = map[DType]exponent{
	F64:  {0x7FF0 << 48, 0x0010 << 48, 1 << 63},
	F32:  {0x7F800000_7F800000, 0x00800000_00800000, 0x80000000_80000000},
	F16:  {0x7C00_7C00_7C00_7C00, 0x0400_0400_0400_0400, 0x8000_8000_8000_8000},
	BF16: {0x7F80_7F80_7F80_7F80, 0x0080_0080_0080_0080, 0x8000_8000_8000_8000},
}

// NotFinite counts the elements of b that are NaN or, unless infinite is true, infinite. It returns
// the index of the first of them. Elements of types other than [F64], [F32], [F16] and [BF16] are
// finite. It reads at least 7 GB/s.
func NotFinite(t DType, b []byte, infinite bool) (n, first int) {
	e, ok := exponents[t]
	if !ok || !suspicious(e, b) {
		return 0, 0
	}
	size := t.Size()
	for i := range len(b) / size {
		if x := Float(t, b[i*size:]); x-x != 0 && (x != x || !infinite) {
			if n++; n == 1 {
				first = i
			}
		}
	}
	return n, first
}

// suspicious reports whether any element of b is NaN or infinite.
func suspicious(e exponent, b []byte) bool {
	var signs uint64
	mask, low := e.mask, e.low
	for len(b) >= 32 {
		c := b[:32:32]
		x, y := binary.LittleEndian.Uint64(c), binary.LittleEndian.Uint64(c[8:])
		z, w := binary.LittleEndian.Uint64(c[16:]), binary.LittleEndian.Uint64(c[24:])
		signs |= (x&mask + low) | (y&mask + low) | (z&mask + low) | (w&mask + low)
		b = b[32:]
	}
	var rest [32]byte
	copy(rest[:], b)
	for at := 0; at < len(rest); at += 8 {
		signs |= binary.LittleEndian.Uint64(rest[at:])&e.mask + e.low
	}
	return signs&e.sign != 0
}

// Float returns the first element of b, which has type [F64], [F32], [F16] or [BF16].
func Float(t DType, b []byte) float64 {
	if t == F64 {
		return math.Float64frombits(binary.LittleEndian.Uint64(b))
	}
	var wide [4]byte
	_ = Convert(wide[:], F32, b[:t.Size()], t) // has no error for floats
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(wide[:])))
}
