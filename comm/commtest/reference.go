package commtest

import (
	"bytes"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/comm"
)

// arithmetic is how the reference makes, combines and compares elements of type T.
type arithmetic[T comm.Elem] struct {
	// input makes elements [lo, hi) of a rank's contribution. Floats differ in magnitude so much
	// that every other order of summation shows.
	input func(s step, rank, lo, hi int) []T
	// reduce combines the sources along the canonical tree and may overwrite them.
	reduce func(srcs [][]T, op comm.Op) []T
	// equal requires equal values, or NaN on both sides.
	equal func(a, b T) bool
	float floating[T]
}

// result is the expected destination of rank: the naive reference.
func (a arithmetic[T]) result(s step, rank, n int) []T {
	switch s.kind {
	case AllGather:
		var all []T
		for r := range n {
			all = append(all, a.input(s, r, 0, s.len)...)
		}
		return all
	case AllToAll:
		var all []T
		for r := range n {
			all = append(all, a.input(s, r, rank*s.len, (rank+1)*s.len)...)
		}
		return all
	case Broadcast:
		return a.input(s, s.root, 0, s.len)
	case Gather:
		if rank != s.root {
			return make([]T, s.seed%2) // existing contents stay as they are
		}
		var all []T
		for r, count := range s.counts(n) {
			all = append(all, a.input(s, r, 0, count)...)
		}
		return all
	}
	return a.reduce(a.sources(s, rank, n), s.op)
}

// sources returns the contributions of the ranks to the sum that a rank gets.
func (a arithmetic[T]) sources(s step, rank, n int) [][]T {
	lo := 0
	if s.kind == ReduceScatter {
		lo = rank * s.len
	}
	srcs := make([][]T, n)
	for r := range srcs {
		srcs[r] = a.input(s, r, lo, lo+s.len)
	}
	return srcs
}

// compare requires equal bits, or else equal elements.
func (a arithmetic[T]) compare(s step, rank int, got, want []T) error {
	if bytes.Equal(comm.Of(got).Bytes(), comm.Of(want).Bytes()) {
		return nil
	}
	for i := range want {
		if !a.equal(got[i], want[i]) {
			return fmt.Errorf("%v: rank %d: element %d is %v, want %v", s, rank, i, got[i], want[i])
		}
	}
	return nil
}

// number are the element types with Go's own arithmetic.
type number interface {
	~float32 | ~float64 | ~int32 | ~int64 | ~uint8
}

// plain is the arithmetic of Go.
func plain[T number]() arithmetic[T] {
	return arithmetic[T]{input[T], reduce[T], func(a, b T) bool { return a == b || a != a && b != b }, float[T]()}
}

func input[T number](s step, rank, lo, hi int) []T {
	x := make([]T, hi-lo)
	var half T = 1
	half /= 2 // 0 for integers
	base := mix(s.seed<<8|uint64(rank)) + uint64(lo)
	for i := range x {
		h := mix(base + uint64(i))
		switch {
		case half == 0:
			x[i] = T(h >> 1)
		case h%31 == 0 && (s.op == comm.Max || s.op == comm.Min):
			x[i] = T(math.NaN())
		default:
			magnitude := math.Float64frombits((1000 + h&31) << 52) // a power of two
			x[i] = T(float64(int64(h)) * magnitude)
		}
	}
	return x
}

// mix is the finalizer of SplitMix64, a hash of 64 bits.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func reduce[T number](srcs [][]T, op comm.Op) []T {
	out := tree(srcs, op)
	if op == comm.Avg {
		for i := range out {
			out[i] *= 1 / T(len(srcs))
		}
	}
	return out
}

func tree[T number](srcs [][]T, op comm.Op) []T {
	if len(srcs) == 1 {
		return srcs[0]
	}
	mid := 1
	for 2*mid < len(srcs) {
		mid *= 2
	}
	a, b := tree(srcs[:mid], op), tree(srcs[mid:], op)
	for i := range a {
		switch op {
		case comm.Max:
			a[i] = max(a[i], b[i])
		case comm.Min:
			a[i] = min(a[i], b[i])
		default:
			a[i] += b[i]
		}
	}
	return a
}

// widened is the arithmetic of 16-bit floats: float32, rounded once.
func widened[T comm.BF16 | comm.F16](f format) arithmetic[T] {
	narrow := func(wide []float32) []T {
		x := make([]T, len(wide))
		for i, v := range wide {
			x[i] = T(f.encode(float64(v)))
		}
		return x
	}
	return arithmetic[T]{
		input: func(s step, rank, lo, hi int) []T {
			wide, first := input[float32](s, rank, lo, hi), input[float32](s, 0, lo, hi)
			for i := range wide {
				if rank == 2 && (lo+i)%2 == 0 {
					wide[i] = -first[i] // so few bits show the order only where large terms cancel
				}
				wide[i] *= 0x1p-56 // from subnormal numbers to sums beyond the range of float16
			}
			return narrow(wide)
		},
		reduce: func(srcs [][]T, op comm.Op) []T {
			wide := make([][]float32, len(srcs))
			for r, src := range srcs {
				for _, x := range src {
					wide[r] = append(wide[r], float32(f.decode(uint16(x))))
				}
			}
			return narrow(reduce(wide, op))
		},
		equal: func(a, b T) bool {
			return a == b || math.IsNaN(f.decode(uint16(a))) && math.IsNaN(f.decode(uint16(b)))
		},
		float: floating[T]{
			value:   func(x T) float64 { return f.decode(uint16(x)) },
			unit:    math.Ldexp(1, -int(f)-1),
			tiny:    math.Ldexp(1, f.lowest()),
			largest: f.decode(uint16(f.infinity() - 1)),
		},
	}
}

// A format is a 16-bit float by the number of bits of its fraction; the others
// are one sign and the exponent. It follows the definition, not the bits of float32.
type format int

const (
	bfloat16 format = 7
	float16  format = 10
)

// lowest is the exponent of the last place of subnormal numbers.
func (f format) lowest() int { return 2 - 1<<(14-f) - int(f) }

func (f format) infinity() int { return 1<<15 - 1<<f }

func (f format) decode(bits uint16) float64 {
	sign := 1 - 2*float64(bits>>15)
	exponent, fraction := int(bits&0x7fff)>>f, float64(bits&(1<<f-1))
	switch {
	case exponent == f.infinity()>>f && fraction > 0:
		return math.NaN()
	case exponent == f.infinity()>>f:
		return sign * math.Inf(1)
	case exponent == 0:
		return sign * math.Ldexp(fraction, f.lowest())
	}
	return sign * math.Ldexp(float64(int(1)<<f)+fraction, f.lowest()+exponent-1)
}

func (f format) encode(v float64) uint16 {
	bits := 0
	if math.Signbit(v) {
		bits = 1 << 15
	}
	v = math.Abs(v)
	switch {
	case v != v:
		return uint16(bits | f.infinity() | 1<<(f-1))
	case v == 0:
		return uint16(bits)
	case v > math.MaxFloat32:
		return uint16(bits | f.infinity())
	}
	// In units of the last place a value is a whole number below 2^(f+1). The bits
	// count the values from 0: 2^f of them for every step of that place.
	steps := max(0, math.Ilogb(v)-int(f)-f.lowest())
	units := math.RoundToEven(math.Ldexp(v, -steps-f.lowest()))
	return uint16(bits | min(steps<<f+int(units), f.infinity()))
}
