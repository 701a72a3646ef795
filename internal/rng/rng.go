// Package rng is a counter-based random generator: element i of a stream is a pure function of
// (seed, name, i).
//
// Sharded initialisation needs this property. A rank that owns elements [lo, hi) of a parameter
// computes only these elements. Any other division of the parameter, on any number of ranks, gives
// the same numbers, and no generator state has to be kept, advanced or sent.
//
//	w := rng.New(seed, "h.3.mlp.fc.weight")
//	rng.FillNormal(shard, w, lo, 0, 0.02) // shard[j] = element lo+j
//
// The generator is Philox4x32-10: a ten-round keyed bijection of a 128-bit counter (Salmon, Moraes,
// Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011,
// https://doi.org/10.1145/2063384.2063405). It passes BigCrush. The 64-bit key is the seed; the
// upper half of the counter is a hash of the name, the lower half counts blocks of two elements:
//
//	key     = seed                       (low word first)
//	counter = [ i/2 (64 bit) | FNV-1a 64 of the name ]
//	element i = 64-bit half i%2 of the block
//
// Two streams of one seed therefore never overlap, unless their names collide under FNV-1a (64
// bits).
//
// This mapping never changes: runs are reproduced from a seed alone. [Stream.Uint64] and
// [Stream.Float64] give the same bits on every machine. [Stream.Normal] uses math.Log and
// math.Sincos, which may differ in the last bit between processor architectures.
package rng

import (
	"hash/fnv"
	"math"
)

// Stream is one named sequence of 2^64 random elements, addressed by index. It is an immutable
// value: copy it freely and use it from any number of goroutines.
type Stream struct {
	seed uint64 // Philox key
	name uint64 // upper half of the counter
}

// New returns the stream of a name under a seed. The name is hashed with 64-bit FNV-1a over its
// bytes.
func New(seed uint64, name string) Stream {
	h := fnv.New64a()
	h.Write([]byte(name)) // never fails
	return Stream{seed: seed, name: h.Sum64()}
}

// Numbered returns the stream of a number under a seed, for streams that have no names.
func Numbered(seed, number uint64) Stream { return Stream{seed: seed, name: number} }

// Uint64 returns element i, uniform over all 64-bit integers.
func (s Stream) Uint64(i uint64) uint64 {
	even, odd := s.pair(i / 2)
	if i%2 == 0 {
		return even
	}
	return odd
}

// Float64 returns element i, uniform over the multiples of 2^-53 in [0, 1).
func (s Stream) Float64(i uint64) float64 {
	return float64(s.Uint64(i)>>11) * 0x1p-53
}

// Normal returns element i of independent standard normal variables. Elements 2j and 2j+1 are the
// two outputs of one Box–Muller transform; magnitudes stay below sqrt(2·53·ln 2) ≈ 8.57.
func (s Stream) Normal(i uint64) float64 {
	even, odd := s.normals(i / 2)
	if i%2 == 0 {
		return even
	}
	return odd
}

// FillNormal sets dst[j] = mean + std·s.Normal(first+j), rounded once to T. It takes half the time
// of len(dst) calls of [Stream.Normal].
func FillNormal[T float32 | float64](dst []T, s Stream, first uint64, mean, std float64) {
	for j := 0; j < len(dst); {
		i := first + uint64(j)
		even, odd := s.normals(i / 2)
		if i%2 == 0 {
			dst[j] = T(mean + float64(std*even))
			j++
		}
		if j < len(dst) {
			dst[j] = T(mean + float64(std*odd))
			j++
		}
	}
}

// pair returns elements 2j and 2j+1.
func (s Stream) pair(j uint64) (even, odd uint64) {
	out := philox(
		[4]uint32{uint32(j), uint32(j >> 32), uint32(s.name), uint32(s.name >> 32)},
		[2]uint32{uint32(s.seed), uint32(s.seed >> 32)})
	return uint64(out[1])<<32 | uint64(out[0]), uint64(out[3])<<32 | uint64(out[2])
}

// normals returns normal elements 2j and 2j+1.
func (s Stream) normals(j uint64) (even, odd float64) {
	a, b := s.pair(j)
	u := float64(a>>11+1) * 0x1p-53 // (0, 1]: the logarithm stays finite
	r := math.Sqrt(-2 * math.Log(u))
	sin, cos := math.Sincos(2 * math.Pi * (float64(b>>11) * 0x1p-53))
	return r * cos, r * sin
}
