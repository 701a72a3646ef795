package optim

import (
	"fmt"
	"math"
	"strings"

	"github.com/gofsdp/gofsdp/optim/vec"
)

// Adam is the configuration of Adam (https://arxiv.org/abs/1412.6980) with L2 regularisation: the
// decay is added to the gradient and thus passes through the moments. With gradient g, at the
// parameter's own update t = 1, 2, …:
//
//	g = g + WeightDecay·p
//	m = Beta1·m + (1 - Beta1)·g
//	v = Beta2·v + (1 - Beta2)·g²
//	p = p - lr/(1 - Beta1^t) · m / (√v/√(1 - Beta2^t) + Eps)
//
// m and v are the state entries "exp_avg" and "exp_avg_sq"; both begin at zero. A zero Beta1, Beta2
// or Eps means its default; [Zero] means zero.
type Adam struct {
	Beta1       float64 // decay of the first moment, in [0, 1); default 0.9
	Beta2       float64 // decay of the second moment, in [0, 1); default 0.999
	Eps         float64 // added to the denominator; default 1e-8
	WeightDecay float64 // default 0, none
	Bits        int     // per element of m and v: 8, see [Blockwise], or 16, see [BFloat16]; default 0, the type of the value
	Rules       []Rule  // exceptions for some parameters
}

// New returns Adam over params, with its state at zero. It returns an error that names the
// parameter or the field if pieces overlap or are malformed, if a value does not implement
// [vec.AdamVec], or if a hyper-parameter is out of range. New retains only the memory and the
// functions in params.
func (c Adam) New(params []Param) (Optimizer, error) { return c.new(kindAdam, params) }

// AdamW is the configuration of Adam with decoupled weight decay
// (https://arxiv.org/abs/1711.05101). It differs from [Adam] in the first line only: the decay
// shrinks the parameter and does not change the gradient:
//
//	p = p - lr·WeightDecay·p
//
// A zero Beta1, Beta2 or Eps means its default; [Zero] means zero.
type AdamW struct {
	Beta1       float64 // decay of the first moment, in [0, 1); default 0.9
	Beta2       float64 // decay of the second moment, in [0, 1); default 0.999
	Eps         float64 // added to the denominator; default 1e-8
	WeightDecay float64 // default 0, none
	Bits        int     // per element of m and v: 8, see [Blockwise], or 16, see [BFloat16]; default 0, the type of the value
	Rules       []Rule  // exceptions for some parameters
}

// New returns AdamW over params, as [Adam.New] does.
func (c AdamW) New(params []Param) (Optimizer, error) { return Adam(c).new(kindAdamW, params) }

// new makes Adam or AdamW.
func (c Adam) new(kind string, params []Param) (Optimizer, error) {
	s := Settings{
		Kind:        kind,
		LRScale:     1,
		WeightDecay: c.WeightDecay,
		Betas:       [2]float64{orDefault(c.Beta1, 0.9), orDefault(c.Beta2, 0.999)},
		Eps:         orDefault(c.Eps, 1e-8),
		Bits:        c.Bits,
	}
	name := strings.ToLower(kind)
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("optim: %s: %w", name, err)
	}
	values, err := valuesAs[vec.AdamVec](name, params)
	if err != nil {
		return nil, err
	}
	return newOptimizer(s, []string{"exp_avg", "exp_avg_sq"}, &adam{values: values}, params, c.Rules)
}

// orDefault resolves a configuration field whose zero value stands for a default.
func orDefault(v, def float64) float64 {
	switch v {
	case 0:
		return def
	case Zero:
		return 0
	}
	return v
}

// adam does the updates of Adam and AdamW.
type adam struct {
	values []vec.AdamVec // of the pieces
	step   vec.AdamStep  // with the corrections for t, which is nearly always the same for the next piece
	t      int
}

func (a *adam) update(i int, p *piece, lr float64) error {
	s := &a.step
	if a.t != p.steps {
		a.t = p.steps
		s.BiasCorrection1 = 1 - math.Pow(s.Beta1, float64(a.t))
		s.BiasCorrection2Sqrt = math.Sqrt(1 - math.Pow(s.Beta2, float64(a.t)))
	}
	s.LR, s.WeightDecay, s.Round = lr, p.weightDecay, p.round
	switch m := p.vecs[0].(type) {
	case *Blockwise:
		return p.Value.(vec.Adam8Vec).Adam8(p.Grad, m.words, p.vecs[1].(Packed).Words(), p.Offset, *s)
	case *BFloat16:
		return p.Value.(vec.BFloat16Vec).Adam16(p.Grad, m.words, p.vecs[1].(Packed).Words(), m.rounding(p.steps), *s)
	}
	return a.values[i].Adam(p.Grad, p.vecs[0], p.vecs[1], *s)
}

func (a *adam) set(s *Settings) {
	a.step = vec.AdamStep{Beta1: s.Betas[0], Beta2: s.Betas[1], Eps: s.Eps, Decoupled: s.Kind == kindAdamW}
	a.t = 0 // the corrections were computed from other betas
}
