package vec

// AdamHyper holds the numbers of one Adam step. They are float64 whatever the element type, so that
// 1-beta and the bias corrections of long runs are exact before the one rounding to that type.
type AdamHyper struct {
	LR                  float64 // learning rate
	Beta1, Beta2        float64 // decay rates of the two moments
	Eps                 float64 // added to the denominator after the root and its correction
	WeightDecay         float64
	BiasCorrection1     float64 // 1 - Beta1^t at step t, counted from 1
	BiasCorrection2Sqrt float64 // √(1 - Beta2^t)
	GradScale           float64 // the gradient is GradScale·g: clipping and unscaling without another pass
	Decoupled           bool    // AdamW: the decay shrinks p directly and is not added to the gradient
}

// adamStep is [AdamHyper] in the form the kernels use.
type adamStep[T Float] struct {
	decay, l2, gradScale T // p·decay, g·gradScale + l2·p
	beta1, rest1         T // m = beta1·m + rest1·g
	beta2, rest2         T // v = beta2·v + rest2·g²
	rate, inverse, eps   T // p -= rate·m / (√v·inverse + eps)
}

func newAdamStep[T Float](h AdamHyper) adamStep[T] {
	decay, l2 := 1.0, h.WeightDecay
	if h.Decoupled {
		decay, l2 = 1-h.LR*h.WeightDecay, 0
	}
	return adamStep[T]{
		decay: T(decay), l2: T(l2), gradScale: T(h.GradScale),
		beta1: T(h.Beta1), rest1: T(1 - h.Beta1),
		beta2: T(h.Beta2), rest2: T(1 - h.Beta2),
		rate: T(h.LR / h.BiasCorrection1), inverse: T(1 / h.BiasCorrection2Sqrt), eps: T(h.Eps),
	}
}

// Adam makes one step of Adam (https://arxiv.org/abs/1412.6980) or, if Decoupled, AdamW
// (https://arxiv.org/abs/1711.05101) in one pass over memory, by the formulas of torch.optim:
//
//	g = GradScale·g + WeightDecay·p          (decoupled: p = (1 - LR·WeightDecay)·p, g = GradScale·g)
//	m = Beta1·m + (1-Beta1)·g
//	v = Beta2·v + (1-Beta2)·g²
//	p = p - LR/BiasCorrection1 · m / (√v/BiasCorrection2Sqrt + Eps)
//
// It writes p, m and v, which must be different memory, and only reads g. Arithmetic is in the
// element type.
func Adam[T Float](p, g, m, v []T, h AdamHyper) {
	same("Adam", len(p), len(g), len(m), len(v))
	c := newAdamStep[T](h)
	k := table[T]()
	for i := 0; i < len(p); i += piece {
		j := min(i+piece, len(p))
		k.adam(p[i:j], g[i:j], m[i:j], v[i:j], c)
	}
}

// SGDHyper holds the numbers of one step of [SGD].
type SGDHyper struct {
	LR, Momentum, WeightDecay float64
	GradScale                 float64 // the gradient is GradScale·g
	Nesterov                  bool
	First                     bool // the first step: the momentum buffer is set to the gradient, and its old contents are ignored
}

// sgdStep is [SGDHyper] in the form the kernels use.
type sgdStep[T Float] struct{ rate, momentum, l2, gradScale T }

// SGD makes one step of stochastic gradient descent in one pass over memory, by the formulas of
// torch.optim:
//
//	g   = GradScale·g + WeightDecay·p
//	buf = Momentum·buf + g                   (First: buf = g)
//	p   = p - LR·buf     (Nesterov: p - LR·(g + Momentum·buf); without momentum: p - LR·g)
//
// It writes p and buf, and only reads g. buf must be nil if and only if Momentum is 0.
func SGD[T Float](p, g, buf []T, h SGDHyper) {
	k := table[T]()
	c := sgdStep[T]{T(h.LR), T(h.Momentum), T(h.WeightDecay), T(h.GradScale)}
	if h.Momentum == 0 {
		if buf != nil {
			panic("vec: SGD: a momentum buffer without momentum")
		}
		each2("SGD", func(p, g []T) { k.sgd(p, g, c) }, p, g)
		return
	}
	if h.First {
		clear(buf)
	}
	step := k.momentum
	if h.Nesterov {
		step = k.nesterov
	}
	each3("SGD", func(p, g, buf []T) { step(p, g, buf, c) }, p, g, buf)
}
