package vec

// ReLU sets y = max(x, 0). NaN stays NaN.
func ReLU[T Float](y, x []T) { each2("ReLU", table[T]().relu, y, x) }

// ReLUGrad sets dx = dy where x > 0 or x is NaN, and 0 elsewhere.
func ReLUGrad[T Float](dx, x, dy []T) { each3("ReLUGrad", table[T]().reluGrad, dx, x, dy) }

// GELUErf sets y = x·Φ(x) = x/2·(1 + erf(x/√2)), the Gaussian error linear unit
// (https://arxiv.org/abs/1606.08415). In float32 the result is within 1e-7·max(1, |x|) of that, and
// within 7 units in the last place for |x| <= 12: the left tail keeps its digits.
func GELUErf[T Float](y, x []T) { each2("GELUErf", table[T]().geluErf, y, x) }

// GELUErfGrad sets dx = dy·(Φ(x) + x·φ(x)), φ being the density of the standard normal
// distribution. In float32 the factor of dy is within 2.5e-7·max(1, |x|) of that, and 1 or 0 at
// ±Inf.
func GELUErfGrad[T Float](dx, x, dy []T) { each3("GELUErfGrad", table[T]().geluErfGrad, dx, x, dy) }

// GELUTanh sets y = x/2·(1 + tanh u), u = √(2/π)·(x + 0.044715·x³): the approximation of [GELUErf]
// that GPT-2 and T5 v1.1 were trained with. In float32 the result is within 2e-7·max(1, |x|) of
// that.
func GELUTanh[T Float](y, x []T) { each2("GELUTanh", table[T]().geluTanh, y, x) }

// GELUTanhGrad sets dx = dy times the derivative of [GELUTanh] at x. In float32 that factor is
// within 3e-7·max(1, |x|) of the exact one.
func GELUTanhGrad[T Float](dx, x, dy []T) { each3("GELUTanhGrad", table[T]().geluTanhGrad, dx, x, dy) }
