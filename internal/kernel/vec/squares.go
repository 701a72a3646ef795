package vec

import (
	"fmt"
	"math"
)

// Squares is a sum of squares whose bits do not depend on the division of the elements among calls,
// ranks or groups, on their order, or on the instruction set: a gradient norm that is the same for
// every sharding. It needs a bound on which all ranks agree beforehand:
//
//	bound := all-reduce Max of MaxAbs(shard)
//	s := NewSquares(bound)
//	AddSquares(&s, shard)                    // any number of times
//	words := all-reduce Sum of s.Words()     // exact, so in any order
//	total := NewSquares(bound)
//	total.Merge(words)
//	total.Norm()
//
// Addition of float64 depends on the order because it rounds. Here every square is first rounded to
// a grid fixed by the bound, and the multiples of the grid are added as integers, which is exact
// (the pre-rounding of Demmel and Nguyen, "Fast Reproducible Floating-Point Summation",
// https://doi.org/10.1109/ARITH.2013.9, with integer accumulators). x is scaled by a power of two
// to |x| < 1, and its square is cut into two slices:
//
//	x² = hi·2⁻⁴⁷ + lo·2⁻⁹⁴ + rest    0 <= hi <= 2⁴⁷, |lo| <= 2⁴⁶, |rest| <= 2⁻⁹⁵
//
// A float64 between 32 and 64 is a multiple of 2⁻⁴⁷, so the fused sum x² + 32 leaves hi in its last
// bits; in the same way x² - hi·2⁻⁴⁷ + 1.5·2⁻⁴² leaves lo. If the bound is the largest |x|, the
// lost rests of n elements are less than n·2⁻⁹³ of the sum: 2⁻⁵³ for 2⁴⁰ elements. Value and Norm
// also round three times.
//
// The limits are 2⁴² elements in all and 2¹⁷ sets of words in one sum.
type Squares struct {
	bound    float64
	exponent int      // |x| <= bound < 2^exponent
	scale    float64  // 2^-exponent
	sum      [4]int64 // Σhi and Σlo, each as two digits to the base 2³⁶: [upper, lower, upper, lower], 0 <= lower < 2³⁶
}

const (
	sliceBits = 47
	digitBits = 36

	// These are the numbers that a square and its remainder are added to. The second is 1.5·2ᵏ
	// since lo may be negative. It is added by way of both - (x² + onHi) = onLo - hi·2⁻⁴⁷, which is
	// exact.
	onHi = 32
	onLo = 1.5 * 0x1p-42
	both = onHi + onLo

	// The sums of one kernel call fit an int64, with room for a carry.
	_ uint64 = 1<<62 - piece<<sliceBits
)

// NewSquares returns an empty sum for elements of magnitude at most maxAbs, see [MaxAbs]. If maxAbs
// is infinite or NaN, Value and Norm are too, whatever is added. Every power of two by which the
// bound is too large costs two of those 93 bits. The smallest bound is 2⁻¹⁰²², which only matters
// for the Norm of subnormal float64.
func NewSquares(maxAbs float64) Squares {
	if maxAbs < 0 {
		panic(fmt.Sprintf("vec: NewSquares: the bound %v is negative", maxAbs))
	}
	_, exponent := math.Frexp(maxAbs)
	exponent = max(exponent, -1022) // the scale is a float64
	return Squares{bound: maxAbs, exponent: exponent, scale: math.Ldexp(1, -exponent)}
}

// AddSquares adds the squares of x to s. If an element is NaN or beyond the bound of s, the value
// of s is meaningless.
func AddSquares[T Float](s *Squares, x []T) {
	if !s.finite() {
		return
	}
	k := table[T]()
	each1(func(x []T) {
		hi, lo := k.addSquares(x, s.scale, onHi, both)
		n := uint64(len(x))
		s.Add([4]int64{1: int64(hi - n*math.Float64bits(onHi)), 3: int64(lo - n*math.Float64bits(onLo))})
	}, x)
}

// Scale returns the power of two by which elements are multiplied before they are squared. It is 0
// if the bound is not finite.
func (s *Squares) Scale() float64 {
	if !s.finite() {
		return 0
	}
	return s.scale
}

// Words returns the sum as four integers. They are small enough that the words of up to 2¹⁷ sums
// with the same bound can be added in any order without rounding.
func (s *Squares) Words() (words [4]float64) {
	for i, digit := range s.sum {
		words[i] = float64(digit)
	}
	return words
}

// Merge adds the words of another sum with the same bound, or the sum of several such words.
func (s *Squares) Merge(words [4]float64) {
	var sum [4]int64
	for i, word := range words {
		sum[i] = int64(word)
	}
	s.Add(sum)
}

// Norm returns √Σx². It is in range more often than Σx².
func (s *Squares) Norm() float64 {
	if !s.finite() {
		return s.bound
	}
	return math.Ldexp(math.Sqrt(s.scaled()), s.exponent)
}

func (s *Squares) finite() bool { return s.bound-s.bound == 0 }

// Add adds the words of another sum with the same bound as integers, whose digits may be of any
// size. It normalises both pairs of digits, so that the same elements always give the same digits.
func (s *Squares) Add(digits [4]int64) {
	for i := range s.sum {
		s.sum[i] += digits[i]
	}
	for i := 0; i < len(s.sum); i += 2 {
		s.sum[i] += s.sum[i+1] >> digitBits
		s.sum[i+1] &= 1<<digitBits - 1
	}
}

// scaled returns Σ(x·scale)². All products are exact, so a compiler may fuse them with the sums.
func (s *Squares) scaled() float64 {
	hi := float64(s.sum[0])*(1<<digitBits) + float64(s.sum[1])
	lo := float64(s.sum[2])*(1<<digitBits) + float64(s.sum[3])
	return hi*(1.0/(1<<sliceBits)) + lo*(1.0/(1<<(2*sliceBits)))
}
