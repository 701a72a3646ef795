package optim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// A Group is a set of parameters that an optimizer updates alike, like one of PyTorch's
// param_groups.
type Group struct {
	Settings
	Params []string `json:"params"` // full names
}

// Settings are the hyper-parameters of an optimizer for a parameter, with defaults resolved. JSON
// has PyTorch's names, except for lr_scale: PyTorch's lr is LR times LRScale.
type Settings struct {
	Kind        string     `json:"kind"` // "SGD", "Adam", "AdamW", "Muon", or the kind of an [Elementwise]
	LR          float64    `json:"lr"`   // of the last Step, 0 before the first
	LRScale     float64    `json:"lr_scale"`
	WeightDecay float64    `json:"weight_decay"`
	Betas       [2]float64 `json:"betas,omitzero"`        // of Adam and AdamW
	Eps         float64    `json:"eps,omitzero"`          // of Adam, AdamW and Muon
	Momentum    float64    `json:"momentum,omitzero"`     // of SGD and Muon
	Nesterov    bool       `json:"nesterov,omitzero"`     // of SGD and Muon
	Bits        int        `json:"bits,omitzero"`         // 8 if the state is [Blockwise], 16 if it is [BFloat16], or 0
	Scale       string     `json:"adjust_lr_fn,omitzero"` // of Muon: a [Scale]
	NSSteps     int        `json:"ns_steps,omitzero"`     // of Muon
	Numbers     string     `json:"numbers,omitzero"`      // of an [Elementwise], such as "beta1=0.9 beta2=0.99"
	EMA         float64    `json:"ema,omitzero"`          // decay of [EMA], or 0
}

// Facts describes the settings: first the kind, such as "AdamW" or, with Bits 8, "AdamW8bit", then
// numbers, such as "weight decay 0.1". LR is not among them, because every Step has its own.
func (s *Settings) Facts() []string {
	kind := s.Kind
	if s.Bits != 0 {
		kind += fmt.Sprintf("%dbit", s.Bits)
	}
	facts := []string{kind, fmt.Sprintf("weight decay %v", s.WeightDecay), fmt.Sprintf("LRScale %v", s.LRScale)}
	switch s.Kind {
	case kindSGD:
		facts = append(facts, fmt.Sprintf("Momentum %v", s.Momentum), fmt.Sprintf("Nesterov %v", s.Nesterov))
	case kindMuon:
		facts = append(facts, fmt.Sprintf("Momentum %v", s.Momentum), fmt.Sprintf("Nesterov %v", s.Nesterov),
			fmt.Sprintf("Eps %v", s.Eps), fmt.Sprintf("Scale %s", s.Scale), fmt.Sprintf("NSSteps %d", s.NSSteps))
	case kindAdam, kindAdamW:
		facts = append(facts, fmt.Sprintf("Beta1 %v", s.Betas[0]), fmt.Sprintf("Beta2 %v", s.Betas[1]), fmt.Sprintf("Eps %v", s.Eps))
	default:
		for _, number := range strings.Fields(s.Numbers) {
			facts = append(facts, strings.Replace(number, "=", " ", 1))
		}
	}
	if s.EMA != 0 {
		facts = append(facts, fmt.Sprintf("EMA %v", s.EMA))
	}
	return facts
}

// The kinds.
const (
	kindSGD   = "SGD"
	kindAdam  = "Adam"
	kindAdamW = "AdamW"
)

// check returns an error if no optimizer can have the settings.
func (s *Settings) check() error {
	err := cmp.Or(
		checkHyper("Beta1", s.Betas[0], 1),
		checkHyper("Beta2", s.Betas[1], 1),
		checkHyper("Eps", s.Eps, math.Inf(1)),
		checkHyper("Momentum", s.Momentum, 1),
		checkHyper("WeightDecay", s.WeightDecay, math.Inf(1)),
		checkHyper("LRScale", s.LRScale, math.Inf(1)),
		checkHyper("LR", s.LR, math.Inf(1)),
		checkHyper("EMA", s.EMA, 1),
		checkBits(s.Kind, s.Bits))
	if err == nil {
		_, err = parseNumbers(s.Numbers)
	}
	if err == nil && s.Kind == kindMuon && (s.NSSteps < 1 || s.Scale != MatchAdamW.String() && s.Scale != ByShape.String()) {
		err = fmt.Errorf("field Scale is %s and NSSteps is %d: want MatchAdamW or ByShape, and at least 1 step", s.Scale, s.NSSteps)
	}
	if err == nil && s.Nesterov && s.Momentum == 0 {
		err = errors.New("field Nesterov needs Momentum")
	}
	if err == nil && s.Kind == kindSGD && s.Bits != 0 && s.Momentum == 0 {
		err = errors.New("field Bits needs Momentum: without it there is no state")
	}
	return err
}

// common returns the settings without the ones that may differ between parameters of one optimizer.
func (s Settings) common() Settings {
	s.LR, s.LRScale, s.WeightDecay, s.Bits = 0, 0, 0, 0
	return s
}

// Groups returns the parameters of an optimizer of this package by their settings, sorted by name.
// For other optimizers it returns none.
func Groups(o Optimizer) []Group {
	own, ok := o.(*optimizer)
	if !ok {
		return nil
	}
	names := make(map[Settings][]string)
	for _, part := range own.parts {
		s := part.settings.common
		s.LR = own.lr
		for i := range part.pieces {
			p := &part.pieces[i]
			s.LRScale, s.WeightDecay, s.Bits = p.lrScale, p.weightDecay, p.bits
			names[s] = append(names[s], p.Name)
		}
	}
	var list []Group
	for s, of := range names {
		slices.Sort(of)
		list = append(list, Group{s, slices.Compact(of)})
	}
	slices.SortFunc(list, func(a, b Group) int { return cmp.Compare(a.Params[0], b.Params[0]) })
	return list
}

// Regroup prepares to give an optimizer of this package the settings in groups. It changes nothing.
// The returned function applies them, and must be called between two calls of Step. Parameters in
// no group keep their LRScale and weight decay, and all parameters keep the Bits of their state.
// Regroup returns an error if a group is of another kind, if settings are out of range, if LR
// differs, or if settings that no [Rule] can change differ within the parameters of one optimizer.
func Regroup(o Optimizer, groups []Group) (apply func(), err error) {
	own, ok := o.(*optimizer)
	if !ok {
		return nil, fmt.Errorf("optim: regroup: %T is not of this package", o)
	}
	of, lr := make(map[string]*Settings), own.lr
	for i := range groups {
		if err := groups[i].check(); err != nil {
			return nil, fmt.Errorf("optim: regroup: group %d: %w", i, err)
		}
		if lr = groups[i].LR; lr != groups[0].LR {
			return nil, fmt.Errorf("optim: regroup: LR is %v in one group and %v in another: use one LR, and LRScale for differences", groups[0].LR, lr)
		}
		for _, name := range groups[i].Params {
			of[name] = &groups[i].Settings
		}
	}
	commons := make([]Settings, len(own.parts))
	for i, part := range own.parts {
		if commons[i], err = part.regroup(of); err != nil {
			return nil, fmt.Errorf("optim: regroup: %s: %w", part.kind, err)
		}
	}
	return func() {
		own.lr = lr
		for i, part := range own.parts {
			part.settings = newSettings(commons[i])
			part.updater.set(&commons[i])
			for j := range part.pieces {
				if p := &part.pieces[j]; of[p.Name] != nil {
					p.lrScale, p.weightDecay = of[p.Name].LRScale, of[p.Name].WeightDecay
				}
			}
		}
	}, nil
}

// regroup returns the settings that all pieces of the part are to have, or an error.
func (a *part) regroup(of map[string]*Settings) (Settings, error) {
	mine, first := a.settings.common, ""
	for i := range a.pieces {
		name := a.pieces[i].Name
		if of[name] == nil {
			continue
		}
		switch s := of[name].common(); {
		case s.Kind != mine.Kind:
			return mine, fmt.Errorf("parameter %q: its settings are for %s", name, s.Kind)
		case !sameNames(s.Numbers, mine.Numbers):
			return mine, fmt.Errorf("parameter %q: cannot replace the numbers %q by %q: they must have the same names", name, mine.Numbers, s.Numbers)
		case (s.EMA == 0) != (a.settings.common.EMA == 0):
			return mine, fmt.Errorf("parameter %q: EMA cannot change from %v to %v: only an optimizer with EMA has an average", name, mine.EMA, s.EMA)
		case (s.Momentum == 0) != (a.settings.common.Momentum == 0) && s.Kind == kindSGD:
			return mine, fmt.Errorf("parameter %q: Momentum cannot change from %v to %v: only an optimizer with Momentum has its state", name, mine.Momentum, s.Momentum)
		case first != "" && s != mine:
			return mine, fmt.Errorf("one optimizer cannot have %v for parameter %q and %v for %q", mine.Facts()[3:], first, s.Facts()[3:], name)
		default:
			mine, first = s, name
		}
	}
	return mine, nil
}
