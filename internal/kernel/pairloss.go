package kernel

import "github.com/gofsdp/gofsdp/internal/kernel/vec"

// Losses of pairs are means, weighted by w unless that is nil. If the weights sum to 0, the loss
// and its gradients are 0.

// MeanSquares returns the mean of (y - t)². scratch holds [PairLossScratch] elements.
func MeanSquares[T Float](y, t, w, scratch []T) T {
	checkPairs("MeanSquares", y, t, w)
	var sum float64
	for i := 0; i < len(y); i += classBlock {
		k := min(i+classBlock, len(y))
		d := scratch[:k-i]
		vec.Sub(d, y[i:k], t[i:k])
		if w == nil {
			sum += vec.SumSquares(d)
			continue
		}
		vec.Mul(d, d, d)
		sum += float64(vec.Dot(d, w[i:k]))
	}
	return T(quotient(sum, total(w, len(y))))
}

func checkPairs[T Float](name string, x, t, w []T) {
	check(name, "t", len(t), len(x))
	if w != nil {
		check(name, "w", len(w), len(x))
	}
}

// total returns the divisor for the sum of n pairs.
func total[T Float](w []T, n int) float64 {
	if w == nil {
		return float64(max(1, n))
	}
	return vec.Sum(w)
}

func quotient[T Float](sum T, total float64) T {
	if total == 0 {
		return 0
	}
	return sum / T(total)
}

// PairLossScratch is the scratch of losses of n pairs.
func PairLossScratch(n int) int { return 4 * min(n, classBlock) }

// MeanSquaresGrad is the gradient of [MeanSquares] with respect to y, which dy may be.
func MeanSquaresGrad[T Float](dy, y, t, w []T, dloss T) {
	vec.Sub(dy, y, t)
	scaleSlopes(dy, w, 2*dloss)
}

// scaleSlopes converts the derivatives of pairs to the derivatives of their mean, times c.
func scaleSlopes[T Float](dx, w []T, c T) {
	if w != nil {
		vec.Mul(dx, dx, w)
	}
	vec.Scale(dx, quotient(c, total(w, len(dx))))
}

// MeanBinary returns the mean cross-entropy of the probabilities σ(x) with the probabilities t, in
// nats: log(1 + eˣ) - t·x, without overflow. scratch holds [PairLossScratch] elements.
func MeanBinary[T Float](x, t, w, scratch []T) T {
	checkPairs("MeanBinary", x, t, w)
	var sum float64
	n := min(len(x), classBlock)
	for i := 0; i < len(x); i += n {
		k := min(n, len(x)-i)
		v, loss, e := x[i:i+k], scratch[:k], scratch[n:][:k]
		vec.ReLU(loss, v)
		vec.Mul(e, t[i:i+k], v)
		vec.Sub(loss, loss, e)
		vec.Abs(e, v)
		vec.Scale(e, -1)
		vec.Exp(e, e)
		addLog1p(loss, e, scratch[2*n:][:k], scratch[3*n:][:k])
		if w == nil {
			sum += vec.Sum(loss)
		} else {
			sum += float64(vec.Dot(loss, w[i:i+k]))
		}
	}
	return T(quotient(sum, total(w, len(x))))
}

// addLog1p adds log(1+x) to y for x >= 0, as log(u) + (x-(u-1))/u where u is the rounded 1+x: this
// is also exact for small x. u and v are scratch, and x is overwritten.
func addLog1p[T Float](y, x, u, v []T) {
	vec.Fill(u, 1)
	vec.Fill(v, -1)
	vec.Accumulate(u, x)
	vec.Accumulate(v, u)
	vec.Sub(x, x, v)
	vec.Div(x, x, u)
	vec.Accumulate(y, x)
	vec.Log(u, u)
	vec.Accumulate(y, u)
}

// MeanBinaryGrad is the gradient of [MeanBinary] with respect to x, which dx may be.
func MeanBinaryGrad[T Float](dx, x, t, w []T, dloss T) {
	vec.Sigmoid(dx, x)
	vec.Sub(dx, dx, t)
	scaleSlopes(dx, w, dloss)
}
