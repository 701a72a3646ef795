package vec

import "math"

// ExpSubSum sets y = exp(scale·x - m) and returns the sum of y, accumulated in float64. It is the
// middle of a softmax. m is the maximum of scale·x (for rows too long for [SoftmaxRow]) or their
// log-sum-exp (to recompute probabilities). If m is -Inf, every x is -Inf, and the result is zeros.
// In float32 the error of exp is at most 1.2 units in the last place; results below the normal
// numbers are denormal or 0.
func ExpSubSum[T Float](y, x []T, scale, m T) T {
	if math.IsInf(float64(m), -1) {
		same("ExpSubSum", len(y), len(x))
		clear(y)
		return 0
	}
	k, sum := table[T](), 0.0
	each2("ExpSubSum", func(y, x []T) { sum += k.expSubSum(y, x, scale, m) }, y, x)
	return T(sum)
}

// SoftmaxRow sets y = softmax(scale·x) over the whole slice and returns log Σ exp(scale·x).
// Elements of -Inf get probability 0. If all elements are -Inf, y is all zeros and the result is
// -Inf. scale must be positive.
func SoftmaxRow[T Float](y, x []T, scale T) (lse T) {
	if !(scale > 0) {
		panic("vec: SoftmaxRow: scale is not positive")
	}
	m := Max(x) * scale
	sum := ExpSubSum(y, x, scale, m)
	if sum == 0 {
		return T(math.Inf(-1))
	}
	Scale(y, 1/sum)
	return T(float64(m) + math.Log(float64(sum)))
}

// SoftmaxGradRow sets dx = scale·p·(dp - delta): the gradient of p = softmax(scale·x) when delta =
// Σ p·dp.
func SoftmaxGradRow[T Float](dx, p, dp []T, delta, scale T) {
	k := table[T]()
	each3("SoftmaxGradRow", func(dx, p, dp []T) { k.softmaxGrad(dx, p, dp, delta, scale) }, dx, p, dp)
}
