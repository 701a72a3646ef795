package optim

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// SGD is the configuration of stochastic gradient descent with momentum (http://proceedings.mlr.press/v28/sutskever13.html,
// in PyTorch's form). The zero value is plain gradient descent. With gradient g:
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
	Rules       []Rule  // exceptions for some parameters
}

// sgd is the optimizer. Its state is momentum_buffer, if momentum is set.
type sgd struct {
	stepper
	momentum float64
	nesterov bool
}

// New returns SGD over params, with its state at zero. It returns an error, naming the parameter, if pieces overlap or
// are malformed, or if a hyper-parameter is out of range. Only the buffers of params are retained.
func (c SGD) New(params []Param) (Optimizer, error) {
	err := cmp.Or(checkHyper("Momentum", c.Momentum, 1), checkHyper("WeightDecay", c.WeightDecay, math.Inf(1)))
	if err != nil {
		return nil, fmt.Errorf("optim: sgd: %w", err)
	}
	if c.Nesterov && c.Momentum == 0 {
		return nil, errors.New("optim: sgd: Nesterov needs Momentum")
	}
	var names []string
	if c.Momentum != 0 {
		names = []string{"momentum_buffer"}
	}
	s, err := newStepper("sgd", names, params, c.Rules, c.WeightDecay)
	if err != nil {
		return nil, err
	}
	return &sgd{stepper: s, momentum: c.Momentum, nesterov: c.Nesterov}, nil
}

// Step implements Optimizer.
func (o *sgd) Step(lr float64) error {
	if err := o.check(lr); err != nil {
		return err
	}
	o.update(lr)
	return nil
}

// update is Step once it has checked.
func (o *sgd) update(lr float64) {
	h := vec.SGDHyper{Momentum: o.momentum, GradScale: 1, Nesterov: o.nesterov}
	o.steps++
	for i := range o.pieces {
		p := &o.pieces[i]
		if !p.begin() {
			continue
		}
		h.LR, h.WeightDecay, h.First = lr*p.lrScale, p.weightDecay, p.steps == 1
		if b := p.state[0]; p.Value.F64 != nil {
			vec.SGD(p.Value.F64, p.Grad.F64, b.F64, h)
		} else {
			vec.SGD(p.Value.F32, p.Grad.F32, b.F32, h)
		}
	}
}
