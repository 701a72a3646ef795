package vec

import "math"

// Sum returns the sum of x, accumulated in float64.
func Sum[T Float](x []T) float64 {
	k, sum := table[T](), 0.0
	each1(func(x []T) { sum += k.sum(x) }, x)
	return sum
}

// SumSquares returns Σx², accumulated in float64: no float32 input overflows it. See [Squares] for
// a sum that does not depend on how x is divided.
func SumSquares[T Float](x []T) float64 { return sumSquares(x, 0) }

func sumSquares[T Float](x []T, center float64) float64 {
	k, sum := table[T](), 0.0
	each1(func(x []T) { sum += k.sumSquares(x, center) }, x)
	return sum
}

// Dot returns Σ a·b, accumulated in float64.
func Dot[T Float](a, b []T) T {
	k, sum := table[T](), 0.0
	each2("Dot", func(a, b []T) { sum += k.dot(a, b) }, a, b)
	return T(sum)
}

// Max returns the largest element: -Inf for no elements, NaN if any is NaN.
func Max[T Float](x []T) T {
	k, m := table[T](), T(math.Inf(-1))
	each1(func(x []T) { m = max(m, k.maximum(x)) }, x)
	return m
}

// MaxAbs returns the largest magnitude: 0 for no elements, NaN if any is NaN.
func MaxAbs[T Float](x []T) T {
	k, m := table[T](), T(0)
	each1(func(x []T) { m = max(m, k.maxAbs(x)) }, x)
	return m
}

// MeanVar returns the mean of x and its biased variance, Σ(x-mean)²/len(x), both in float64 and in
// two passes, so that a large mean does not reduce the precision of the variance. For no elements
// it returns NaN.
func MeanVar[T Float](x []T) (mean, variance float64) {
	n := float64(len(x))
	mean = Sum(x) / n
	return mean, sumSquares(x, mean) / n
}
