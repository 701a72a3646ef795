package optim

import (
	"cmp"
	"errors"
	"math"
	"regexp"
)

// Rule gives some parameters other hyper-parameters than the rest. A nil field changes nothing, so
// a rule can set zero:
//
//	optim.Rule{Match: optim.MatchName(regexp.MustCompile(`^wte\.`)), LRScale: new(0.1)}
//
// If several rules match a parameter, the first that sets a field decides that field: a rule about
// decay does not hide a later one about learning rates.
type Rule struct {
	// Match reports whether the rule is for a parameter; required. It should read Name and Shape
	// only: the rest depends on how the parameter happens to be cut.
	Match func(Param) bool
	// LRScale multiplies the learning rate given to Step.
	LRScale *float64
	// WeightDecay replaces the optimizer's.
	WeightDecay *float64
	// Bits replaces the Bits of Adam, AdamW and SGD with Momentum. It applies to parameters of any
	// size, whereas the optimizer's Bits leave small ones out.
	Bits *int

	usual bool // it is for any model: matching nothing is no mistake
}

// NoDecay is the usual exception from weight decay: parameters of fewer than two dimensions, which
// are biases and the gains of norms. Decay would pull the gains to zero, and biases are too few to
// overfit.
func NoDecay() Rule {
	return Rule{Match: func(p Param) bool { return len(p.Shape) < 2 }, WeightDecay: new(0.0), usual: true}
}

// MatchName matches parameters whose full name contains a match of the pattern.
func MatchName(pattern *regexp.Regexp) func(Param) bool {
	return func(p Param) bool { return pattern.MatchString(p.Name) }
}

// check returns an error unless the rule can be applied.
func (r Rule) check(s *Settings) error {
	if r.Match == nil {
		return errors.New("field Match is nil")
	}
	var bits error
	switch {
	case r.Bits == nil:
	case s.Kind == kindAdam || s.Kind == kindAdamW || s.Kind == kindSGD && s.Momentum != 0:
		bits = checkBits(s.Kind, *r.Bits)
	default:
		bits = errors.New("field Bits is for Adam, AdamW and SGD with Momentum only")
	}
	return cmp.Or(checkOverride("LRScale", r.LRScale), checkOverride("WeightDecay", r.WeightDecay), bits)
}

// checkOverride is checkHyper for a field that may be nil.
func checkOverride(name string, v *float64) error {
	if v == nil {
		return nil
	}
	return checkHyper(name, *v, math.Inf(1))
}

// hyper is the result of the rules for one parameter.
type hyper struct {
	lrScale     float64
	weightDecay float64
	bits        int
}

// resolve applies the rules to p, the last one first so that earlier ones prevail.
func resolve(rules []Rule, p Param, s *Settings) hyper {
	h := hyper{lrScale: 1, weightDecay: s.WeightDecay}
	if n, _ := p.checkInterval(); n >= leastPacked {
		h.bits = s.Bits
	}
	for i := len(rules) - 1; i >= 0; i-- {
		if r := rules[i]; r.Match(p) {
			if r.LRScale != nil {
				h.lrScale = *r.LRScale
			}
			if r.WeightDecay != nil {
				h.weightDecay = *r.WeightDecay
			}
			if r.Bits != nil {
				h.bits = *r.Bits
			}
		}
	}
	return h
}
