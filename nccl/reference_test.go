//go:build linux && cgo

package nccl

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"github.com/gofsdp/gofsdp/internal/half"
)

var allTypes = []DataType{Int8, Uint8, Int32, Uint32, Int64, Uint64, Float16, Float32, Float64, BFloat16, Float8E4M3, Float8E5M2}

func isFloat(t DataType) bool { return t >= Float16 && t <= BFloat16 }

// The value of an element, from its bits.
func float(bits uint64, t DataType) float64 {
	switch t {
	case Float16:
		return float64(half.Float16(bits).Float32())
	case BFloat16:
		return float64(half.BFloat16(bits).Float32())
	case Float32:
		return float64(math.Float32frombits(uint32(bits)))
	}
	return math.Float64frombits(bits)
}

// element returns the bits of x, rounded to a type of floats.
func element(x float64, t DataType) uint64 {
	switch t {
	case Float16:
		return uint64(half.ToFloat16(float32(x)))
	case BFloat16:
		return uint64(half.ToBFloat16(float32(x)))
	case Float32:
		return uint64(math.Float32bits(float32(x)))
	}
	return math.Float64bits(x)
}

// signed extends the sign of an integer.
func signed(bits uint64, t DataType) int64 {
	shift := 64 - 8*t.Size()
	return int64(bits<<shift) >> shift
}

// random returns n elements: floats about 1, integers of all sizes, any bytes for what
// cannot be added.
func random(rng *rand.Rand, t DataType, n int) []uint64 {
	list := make([]uint64, n)
	for i := range list {
		list[i] = rng.Uint64() >> (64 - 8*t.Size())
		if isFloat(t) {
			list[i] = element(rng.NormFloat64(), t)
		}
	}
	return list
}

func encode(list []uint64, t DataType) []byte {
	b := make([]byte, 0, len(list)*8)
	for _, bits := range list {
		b = binary.LittleEndian.AppendUint64(b, bits)
		b = b[:len(b)-8+t.Size()]
	}
	return b
}

// reduced is the reduction of the ranks' elements, the plain way.
func reduced(in [][]uint64, t DataType, op RedOp) []uint64 {
	out := make([]uint64, len(in[0]))
	for i := range out {
		column := make([]uint64, len(in))
		for r := range in {
			column[r] = in[r][i]
		}
		switch {
		case isFloat(t):
			out[i] = reducedFloats(column, t, op)
		case t == Int8 || t == Int32 || t == Int64:
			out[i] = reducedInts(column, t, op, func(bits uint64) int64 { return signed(bits, t) })
		default:
			out[i] = reducedInts(column, t, op, func(bits uint64) uint64 { return bits })
		}
		out[i] &= math.MaxUint64 >> (64 - 8*t.Size())
	}
	return out
}

// reducedFloats calculates in float64 for that type and in float32 for the others, in the
// order of the ranks, and rounds once.
func reducedFloats(column []uint64, t DataType, op RedOp) uint64 {
	round := func(x float64) float64 { return float64(float32(x)) }
	if t == Float64 {
		round = func(x float64) float64 { return x }
	}
	var sum float64
	for r, bits := range column {
		x := float(bits, t)
		if op == Avg {
			x = round(x * float(element(1/float64(len(column)), t), t))
		}
		switch {
		case r == 0:
			sum = x
		case op == Prod:
			sum = round(sum * x)
		case op == Max:
			sum = max(sum, x)
		case op == Min:
			sum = min(sum, x)
		default:
			sum = round(sum + x)
		}
	}
	return element(sum, t)
}

// reducedInts calculates modulo the size of the type.
func reducedInts[T int64 | uint64](column []uint64, t DataType, op RedOp, value func(uint64) T) uint64 {
	var sum T
	for r, bits := range column {
		x := value(bits)
		switch {
		case r == 0:
			sum = x
		case op == Prod:
			sum *= x
		case op == Max:
			sum = max(sum, x)
		case op == Min:
			sum = min(sum, x)
		default:
			sum += x
		}
	}
	if op == Avg {
		sum = value(uint64(sum)&(math.MaxUint64>>(64-8*t.Size()))) / T(len(column))
	}
	return uint64(sum)
}
