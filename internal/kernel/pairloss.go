package kernel

import (
	"math"

	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// MeanSquares returns the mean of (y - t)². scratch holds [PairLossScratch] elements.
func MeanSquares[T Float](y, t, scratch []T) T {
	check("MeanSquares", "t", len(t), len(y))
	var sum float64
	for i := 0; i < len(y); i += classBlock {
		k := min(i+classBlock, len(y))
		d := scratch[:k-i]
		vec.Sub(d, y[i:k], t[i:k])
		sum += vec.SumSquares(d)
	}
	return T(sum / float64(max(1, len(y))))
}

// PairLossScratch is the scratch of losses of n pairs.
func PairLossScratch(n int) int { return min(n, classBlock) }

// MeanSquaresGrad is the gradient of [MeanSquares] with respect to y, which dy may be.
func MeanSquaresGrad[T Float](dy, y, t []T, dloss T) {
	vec.Sub(dy, y, t)
	vec.Scale(dy, 2*dloss/T(max(1, len(y))))
}

// MeanBinary returns the mean of the cross-entropies of probabilities σ(x) with those in t, in nats:
// log(1 + eˣ) - t·x, without overflow. It takes no scratch.
func MeanBinary[T Float](x, t, _ []T) T {
	check("MeanBinary", "t", len(t), len(x))
	var sum float64
	for i, v := range x {
		x := float64(v)
		sum += max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) - float64(t[i])*x
	}
	return T(sum / float64(max(1, len(x))))
}

// MeanBinaryGrad is the gradient of [MeanBinary] with respect to x, which dx may be.
func MeanBinaryGrad[T Float](dx, x, t []T, dloss T) {
	vec.Sigmoid(dx, x)
	vec.Sub(dx, dx, t)
	vec.Scale(dx, dloss/T(max(1, len(x))))
}
