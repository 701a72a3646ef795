package vec

// ReLU sets y = max(x, 0). NaN stays NaN.
func ReLU[T Float](y, x []T) { each2("ReLU", table[T]().relu, y, x) }

// ReLUGrad sets dx = dy where x > 0 or x is NaN, and 0 elsewhere.
func ReLUGrad[T Float](dx, x, dy []T) { each3("ReLUGrad", table[T]().reluGrad, dx, x, dy) }

// SiLU sets y = x·σ(x) = x/(1 + e⁻ˣ), the sigmoid linear unit or swish
// (https://arxiv.org/abs/1702.03118). In float32 the error is at most 2e-7·max(1, |x|).
func SiLU[T Float](y, x []T) { each2("SiLU", table[T]().silu, y, x) }

// SiLUGrad sets dx = dy·(σ(x) + x·σ(x)·(1 - σ(x))). In float32 the error of the factor of dy is at
// most 3e-7·max(1, |x|).
func SiLUGrad[T Float](dx, x, dy []T) { each3("SiLUGrad", table[T]().siluGrad, dx, x, dy) }

// TanhGrad sets dx = dy·(1 - tanh²x). In float32 the error of the factor of dy is at most 3e-7.
func TanhGrad[T Float](dx, x, dy []T) { each3("TanhGrad", table[T]().tanhGrad, dx, x, dy) }

// SigmoidGrad sets dx = dy·σ(x)·(1 - σ(x)). In float32 the error of the factor of dy is at most
// 2e-7.
func SigmoidGrad[T Float](dx, x, dy []T) { each3("SigmoidGrad", table[T]().sigmoidGrad, dx, x, dy) }

// GELUErf sets y = x·Φ(x) = x/2·(1 + erf(x/√2)), the Gaussian error linear unit
// (https://arxiv.org/abs/1606.08415). In float32 the error is at most 1e-7·max(1, |x|), and at most
// 7 units in the last place for |x| <= 12: the left tail keeps its digits.
func GELUErf[T Float](y, x []T) { each2("GELUErf", table[T]().geluErf, y, x) }

// GELUErfGrad sets dx = dy·(Φ(x) + x·φ(x)), φ being the density of the standard normal
// distribution. In float32 the error of the factor of dy is at most 2.5e-7·max(1, |x|), and the
// factor is 1 or 0 at ±Inf.
func GELUErfGrad[T Float](dx, x, dy []T) { each3("GELUErfGrad", table[T]().geluErfGrad, dx, x, dy) }

// GELUTanh sets y = x/2·(1 + tanh u), u = √(2/π)·(x + 0.044715·x³): the approximation of [GELUErf]
// that GPT-2 and T5 v1.1 were trained with. In float32 the error is at most 2e-7·max(1, |x|).
func GELUTanh[T Float](y, x []T) { each2("GELUTanh", table[T]().geluTanh, y, x) }

// GELUTanhGrad sets dx = dy times the derivative of [GELUTanh] at x. In float32 the error of that
// factor is at most 3e-7·max(1, |x|).
func GELUTanhGrad[T Float](dx, x, dy []T) { each3("GELUTanhGrad", table[T]().geluTanhGrad, dx, x, dy) }

// A Gate is the activation of a gated linear unit.
type Gate uint8

// These are the gates. Each is the function of its name.
const (
	GateSiLU Gate = iota
	GateGELUErf
	GateGELUTanh
	GateReLU
	GateSigmoid
	gates
)

// String returns the name of the gate.
func (g Gate) String() string {
	return [gates]string{"silu", "gelu", "gelu tanh", "relu", "sigmoid"}[g]
}

// GLU sets y = gate(x)·up (https://arxiv.org/abs/2002.05202), to the accuracy of the activation.
func GLU[T Float](gate Gate, y, x, up []T) { each3("GLU", table[T]().glu[gate], y, x, up) }

// GLUGrad sets dx = dy·up·gate'(x) and dup = dy·gate(x). dx may be x or dy, and dup may be up.
func GLUGrad[T Float](gate Gate, dx, dup, x, up, dy []T) {
	n := len(x)
	same("GLUGrad", n, len(dx), len(dup), len(up), len(dy))
	k := table[T]().gluGrad[gate]
	for i := 0; i < n; i += piece {
		j := min(i+piece, n)
		k(dx[i:j], dup[i:j], x[i:j], up[i:j], dy[i:j])
	}
}
