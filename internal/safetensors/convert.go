package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/internal/half"
)

// block is the number of elements that are converted at once. They fit the innermost cache.
const block = 1024

// A converter holds a block of elements as float32 during a conversion.
type converter struct {
	wide [block]float32
	f16  [block]half.Float16
	bf16 [block]half.BFloat16
}

// Convert converts the elements of src to another floating-point type, [F64], [F32], [F16] or
// [BF16], and writes them to dst. It rounds once, to nearest, ties to even, also from F64 to 16
// bits. Values that are too large become infinity, and NaN stays NaN. If the types are equal,
// elements are copied bit by bit. Both slices must hold the same number of whole elements. They may
// overlap only if the types are equal.
func Convert(dst []byte, to DType, src []byte, from DType) error {
	for _, t := range []DType{to, from} {
		if t != F64 && t != F32 && t != F16 && t != BF16 {
			return fmt.Errorf("safetensors: cannot convert %s to %s: %s is none of F64, F32, F16, BF16", from, to, t)
		}
	}
	n := len(src) / from.Size()
	if len(src) != n*from.Size() || len(dst) != n*to.Size() {
		return fmt.Errorf("safetensors: cannot convert %d bytes of %s to %d bytes of %s: not the same number of elements", len(src), from, len(dst), to)
	}
	if to == from {
		copy(dst, src)
		return nil
	}
	var c converter
	for n > 0 {
		now := min(n, block)
		c.load(src[:now*from.Size()], from, to)
		c.store(dst[:now*to.Size()], to)
		src, dst, n = src[now*from.Size():], dst[now*to.Size():], n-now
	}
	return nil
}

// load sets c.wide to the elements of src, or to values that round to the same result in the other
// type.
func (c *converter) load(src []byte, from, to DType) {
	wide := c.wide[:len(src)/from.Size()]
	switch from {
	case F64:
		round := roundToOdd
		if to == F32 {
			round = func(x float64) float32 { return float32(x) }
		}
		for i := range wide {
			wide[i] = round(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
		}
	case F32:
		for i := range wide {
			wide[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case F16:
		widen(wide, c.f16[:len(wide)], src)
	case BF16:
		widen(wide, c.bf16[:len(wide)], src)
	}
}

// store sets dst to the elements of c.wide.
func (c *converter) store(dst []byte, to DType) {
	wide := c.wide[:len(dst)/to.Size()]
	switch to {
	case F64:
		for i, x := range wide {
			binary.LittleEndian.PutUint64(dst[8*i:], math.Float64bits(float64(x)))
		}
	case F32:
		for i, x := range wide {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x))
		}
	case F16:
		narrow(dst, c.f16[:len(wide)], wide)
	case BF16:
		narrow(dst, c.bf16[:len(wide)], wide)
	}
}

// widen and narrow go through x, because bytes may be unaligned and numbers in memory may have the
// other byte order.
func widen[T half.Float](wide []float32, x []T, src []byte) {
	for i := range x {
		x[i] = T(binary.LittleEndian.Uint16(src[2*i:]))
	}
	half.Widen(wide, x)
}

func narrow[T half.Float](dst []byte, x []T, wide []float32) {
	half.Narrow(x, wide)
	for i := range x {
		binary.LittleEndian.PutUint16(dst[2*i:], uint16(x[i]))
	}
}

// roundToOdd returns x if it is a float32. Otherwise it returns the neighbour of x whose last bit
// is 1. Rounding that neighbour to 16 bits gives the same result as rounding x: both are on the
// same side of every tie. Rounding to nearest twice could differ, as the first rounding may end on
// a tie. NaN stays NaN. See Boldo and Melquiond, "Emulation of FMA and correctly rounded sums:
// proved algorithms using rounding to odd", https://doi.org/10.1109/TC.2007.70819.
func roundToOdd(x float64) float32 {
	f := float32(x)
	if float64(f) == x {
		return f
	}
	b := math.Float32bits(f)
	if math.Abs(float64(f)) > math.Abs(x) {
		b-- // towards zero: of an infinity, the largest number
	}
	return math.Float32frombits(b | 1)
}
