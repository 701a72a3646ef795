package safetensors

import (
	"fmt"
	"math"
)

// DType is the type of the elements of a tensor, by its name in files.
type DType string

// These are the floating-point types used in training. Files may have other types, which DType.Size
// also supports.
const (
	F64  DType = "F64"
	F32  DType = "F32"
	F16  DType = "F16"  // binary16 of IEEE 754
	BF16 DType = "BF16" // the upper half of an F32
)

// elementBits has the element size of every type of the format.
var elementBits = map[DType]int{
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"U16": 16, "I16": 16, F16: 16, BF16: 16,
	"U32": 32, "I32": 32, F32: 32,
	"U64": 64, "I64": 64, F64: 64, "C64": 64,
}

// Size returns the bytes of an element. It returns 0 if the type is unknown or is not a whole
// number of bytes.
func (t DType) Size() int { return elementBits[t] / 8 }

// IsFloat reports whether the elements can be converted to other types for which it is true.
func (t DType) IsFloat() bool { return t == F64 || t == F32 || t == F16 || t == BF16 }

// maxRank is the largest number of dimensions of a shape. The format has no limit; this is NumPy's.
// Without a limit, shapes of ones would take several times the size of the header in memory.
const maxRank = 64

// bytesOf returns the size of a tensor.
func bytesOf(t DType, shape []int) (int64, error) {
	switch b, ok := elementBits[t]; {
	case !ok:
		return 0, fmt.Errorf("unknown dtype %.100q", string(t))
	case b%8 != 0:
		return 0, fmt.Errorf("dtype %s: elements of %d bits are not supported", t, b)
	case len(shape) > maxRank:
		return 0, fmt.Errorf("%d dimensions, more than %d", len(shape), maxRank)
	}
	// Dimensions of 0 are left out of the product: if the others overflow, the strides would
	// overflow too.
	size, empty := int64(t.Size()), false
	for _, n := range shape {
		switch {
		case n < 0:
			return 0, fmt.Errorf("negative dimension in shape %v", shape)
		case n == 0:
			empty = true
		case int64(n) > math.MaxInt64/size:
			return 0, fmt.Errorf("shape %v of %s overflows", shape, t)
		default:
			size *= int64(n)
		}
	}
	if empty {
		return 0, nil
	}
	return size, nil
}
