package half

import (
	"math"
	"strconv"
)

// BFloat16 is a bfloat16 by its bits.
type BFloat16 uint16

// Float16 is a binary16 of IEEE 754 by its bits.
type Float16 uint16

// Float is a 16-bit format.
type Float interface{ BFloat16 | Float16 }

// These are the parts of a float32.
const (
	signBit = 1 << 31
	infBits = 0xff << 23
)

// Float32 returns the value of x.
func (x BFloat16) Float32() float32 { return math.Float32frombits(uint32(x) << 16) }

// String formats the value of x with the fewest digits that distinguish it from other float32
// values.
func (x BFloat16) String() string { return format(x.Float32()) }

// ToBFloat16 returns the value nearest to f.
func ToBFloat16(f float32) BFloat16 {
	const quiet = 1 << 6
	b := math.Float32bits(f)
	if b&^signBit > infBits {
		return BFloat16(b>>16 | quiet)
	}
	// This adds half a unit in the last place, minus one bit if a tie rounds down. A carry into the
	// exponent is correct: it rounds up to the next power of two, or to infinity.
	return BFloat16((b + 0x7fff + b>>16&1) >> 16)
}

// The differences between the bits of a Float16 and the bits of a float32.
const (
	shift16  = 23 - 10          // its fraction is shorter by this number of bits
	rebias16 = (127 - 15) << 23 // its exponents are lower by this number
	inf16    = 0x1f << 10
	normal16 = 1 << 10 // the first that is not subnormal
)

// Float32 returns the value of x.
func (x Float16) Float32() float32 {
	sign, m := uint32(x&(1<<15))<<16, uint32(x&^(1<<15))
	switch {
	case m < normal16:
		return math.Float32frombits(sign | math.Float32bits(float32(int32(m))*0x1p-24))
	case m < inf16:
		return math.Float32frombits(sign | m<<shift16 + rebias16)
	case m == inf16:
		return math.Float32frombits(sign | infBits)
	default: // NaN, made quiet, as in the processor's own conversion
		return math.Float32frombits(sign | m<<shift16 | infBits | 1<<22)
	}
}

// String formats the value of x with the fewest digits that distinguish it from other float32
// values.
func (x Float16) String() string { return format(x.Float32()) }

// ToFloat16 returns the value nearest to f.
func ToFloat16(f float32) Float16 {
	const (
		tooLarge  = (16 + 127) << 23  // 2^16: everything from here on is infinite
		smallest  = (-14 + 127) << 23 // 2^-14: everything below is subnormal
		roundHalf = 0x3f000000        // 0.5, whose last place is 2^-24, like the last place of all subnormals
		quiet     = 1 << 9
	)
	b := math.Float32bits(f)
	sign := Float16(b >> 16 & (1 << 15))
	b &^= signBit
	switch {
	case b < smallest:
		return sign | Float16(math.Float32bits(math.Float32frombits(b)+0.5)-roundHalf) // the addition rounds
	case b < tooLarge:
		return sign | Float16((b-rebias16+0xfff+b>>shift16&1)>>shift16)
	case b <= infBits:
		return sign | inf16
	default:
		return sign | inf16 | quiet | Float16(b>>shift16&(normal16-1))
	}
}

func format(f float32) string { return strconv.FormatFloat(float64(f), 'g', -1, 32) }
