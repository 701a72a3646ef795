package optim

import (
	"fmt"

	"github.com/gofsdp/gofsdp/optim/vec"
)

// SGD is the configuration of stochastic gradient descent with momentum
// (http://proceedings.mlr.press/v28/sutskever13.html, in PyTorch's form). The zero value is plain
// gradient descent. With gradient g:
//
//	g = g + WeightDecay·p
//	b = g at the parameter's own first update, then Momentum·b + g
//	p = p - lr·d,   d = g + Momentum·b if Nesterov, b if Momentum is set, else g
//
// b is the state entry "momentum_buffer"; without momentum there is no state.
type SGD struct {
	Momentum    float64 // in [0, 1); default 0, none
	WeightDecay float64 // default 0, none
	Nesterov    bool    // look ahead; needs Momentum
	Bits        int     // per element of b: 16, see [BFloat16]; needs Momentum; default 0, the type of the value
	Rules       []Rule  // exceptions for some parameters
}

// New returns SGD over params, with its state at zero. It returns an error that names the parameter
// or the field if pieces overlap or are malformed, if a value does not implement [vec.SGDVec], or
// if a hyper-parameter is out of range. New retains only the memory and the functions in params.
func (c SGD) New(params []Param) (Optimizer, error) {
	s := Settings{Kind: kindSGD, LRScale: 1, WeightDecay: c.WeightDecay, Momentum: c.Momentum, Nesterov: c.Nesterov, Bits: c.Bits}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("optim: sgd: %w", err)
	}
	values, err := valuesAs[vec.SGDVec]("sgd", params)
	if err != nil {
		return nil, err
	}
	var names []string
	if c.Momentum != 0 {
		names = []string{"momentum_buffer"}
	}
	return newOptimizer(s, names, &sgd{values: values}, params, c.Rules)
}

// sgd does the updates of SGD.
type sgd struct {
	values []vec.SGDVec // of the pieces
	step   vec.SGDStep
}

func (u *sgd) update(i int, p *piece, lr float64) error {
	u.step.LR, u.step.WeightDecay, u.step.First, u.step.Round = lr, p.weightDecay, p.steps == 1, p.round
	var momentum Vec
	if len(p.vecs) > 0 {
		momentum = p.vecs[0]
	}
	if b, ok := momentum.(*BFloat16); ok {
		return p.Value.(vec.BFloat16Vec).SGD16(p.Grad, b.words, b.rounding(p.steps), u.step)
	}
	return u.values[i].SGD(p.Grad, momentum, u.step)
}

func (u *sgd) set(s *Settings) { u.step = vec.SGDStep{Momentum: s.Momentum, Nesterov: s.Nesterov} }
