package metrics

import (
	"math"
	"math/big"
)

// An exact sum of float64 is stored as whole numbers in words. The unit of each word is 2^24 times
// the unit of the word before it (Neal, 2015, arXiv:1505.05571). The words of 2^29 numbers have at
// most 53 bits, so float64 adds them exactly, also over ranks, in any order. The last word sums
// infinities and NaN.
const (
	limb   = 24
	lowest = -1080 // the unit of the first word is 2^lowest; the smallest number is 2^-1074
	limbs  = (1024 - lowest + limb - 1) / limb
	words  = limbs + 1
)

// addExact adds x to the sum in s.
func addExact(s []float64, x float64) {
	if x-x != 0 {
		s[limbs] += x
		return
	}
	frac, exp := math.Frexp(math.Abs(x))
	bits, at := uint64(frac*(1<<53)), exp-53-lowest // x is bits·2^at units of the first word
	if at < 0 {
		bits, at = bits>>-at, 0 // drops zeros only
	}
	for shift := at % limb; bits != 0; at, shift = at+limb-shift, 0 {
		part := bits & (1<<(limb-shift) - 1)
		s[at/limb] += math.Copysign(float64(part<<shift), x)
		bits >>= limb - shift
	}
}

// exactSum returns the sum in s, rounded to nearest even.
func exactSum(s []float64) float64 {
	if s[limbs] != 0 {
		return s[limbs]
	}
	sum := new(big.Int)
	for i := limbs - 1; i >= 0; i-- {
		sum.Lsh(sum, limb).Add(sum, big.NewInt(int64(s[i])))
	}
	f := new(big.Float).SetInt(sum)
	x, _ := f.SetMantExp(f, lowest).Float64()
	return x
}
