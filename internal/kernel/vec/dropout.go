package vec

import (
	"fmt"
	"math"
)

// Dropout sets y[i] = x[i]/(1-rate) for kept elements and 0 for dropped ones. Element i is dropped
// with probability rate in [0, 1). The decision depends only on seed and base+i: the same call on
// dy is the backward, no mask is stored, and a tensor may be processed in parts. A dropped NaN
// becomes 0.
//
// The decision compares a 32-bit hash with rate·2³², so rates are exact to 2⁻³². The hash is
// computed from the low half of base+i, with two keys made of seed and the high half.
func Dropout[T Float](y, x []T, seed, base uint64, rate float64) {
	same("Dropout", len(y), len(x))
	if !(rate >= 0 && rate < 1) {
		panic(fmt.Sprintf("vec: Dropout: rate %v is not in [0, 1)", rate))
	}
	k := table[T]()
	threshold := uint32(min(rate*(1<<32), math.MaxUint32))
	for i := 0; i < len(y); {
		n, from, key := run(len(y)-i, seed, base+uint64(i))
		k.dropout(y[i:i+n], x[i:i+n], from, key, threshold, T(1/(1-rate)))
		i += n
	}
}

// run returns the arguments of the next call of a kernel with [hash32]: how many of the n elements
// from base on it processes, the first sum and the second key.
func run(n int, seed, base uint64) (most int, from, key uint32) {
	keys := mix64(seed ^ mix64(base>>32))
	return int(min(uint64(min(n, piece)), 1<<32-base%(1<<32))), uint32(base) + uint32(keys), uint32(keys >> 32)
}

// mix64 is the finaliser of SplitMix64 after one step of its counter: a bijection in which every
// input bit reaches every output bit (https://doi.org/10.1145/2714064.2660195).
func mix64(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// hash32 is the hash that the kernels compute in every lane. h is the sum of counter and first key.
// Two multiply-xorshift rounds mix it; the second key enters between them, so that different seeds
// are not shifts of one sequence.
func hash32(h, key uint32) uint32 {
	h = (h ^ h>>16) * 0x7FEB352D
	h ^= key
	h = (h ^ h>>15) * 0x846CA68B
	return h ^ h>>16
}
