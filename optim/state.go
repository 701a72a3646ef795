package optim

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// stepper is what the optimizers share: the pieces with their hyper-parameters and state, and the step count. It is an
// Optimizer but for Step.
type stepper struct {
	kind   string   // "adamw", for messages
	names  []string // entry i of every piece is called names[i]
	pieces []piece
	steps  int
}

// piece is a Param and what belongs to it.
type piece struct {
	Param
	hyper
	state [2]Vec // the first len(names) are in use, zeroed at New
}

// newStepper checks the parameters and allocates their state.
func newStepper(kind string, names []string, params []Param, rules []Rule, weightDecay float64) (stepper, error) {
	s := stepper{kind: kind, names: names}
	if err := checkParams(params); err != nil {
		return s, err
	}
	for i, r := range rules {
		if err := r.check(); err != nil {
			return s, fmt.Errorf("optim: %s: rule %d: %w", kind, i, err)
		}
	}
	for _, p := range params {
		piece := piece{Param: p, hyper: resolve(rules, p, weightDecay)}
		piece.Shape = slices.Clone(p.Shape)
		for i := range names {
			piece.state[i] = p.Value.like()
		}
		s.pieces = append(s.pieces, piece)
	}
	return s, nil
}

// checkLR is the error of Step.
func (s *stepper) checkLR(lr float64) error {
	if err := checkHyper("learning rate", lr, math.Inf(1)); err != nil {
		return fmt.Errorf("optim: %s: step %d: %w", s.kind, s.steps, err)
	}
	return nil
}

// checkHyper returns an error unless v is in [0, below).
func checkHyper(name string, v, below float64) error {
	if v >= 0 && v < below {
		return nil
	}
	return fmt.Errorf("%s is %v: must be in [0, %v)", name, v, below)
}

// Steps implements Optimizer.
func (s *stepper) Steps() int { return s.steps }

// State implements Optimizer.
func (s *stepper) State() []Entry {
	var entries []Entry
	for _, p := range s.pieces {
		if p.Value.Len() == 0 {
			continue
		}
		for i, name := range s.names {
			entries = append(entries, Entry{Param: p.Name, Name: name, Shape: p.Shape, Offset: p.Offset, Data: p.state[i]})
		}
	}
	return entries
}

// tensor identifies a state tensor of the whole model.
type tensor struct{ param, name string }

// transfer is one copy of a Restore.
type transfer struct {
	dst   Vec
	to    int
	src   Vec
	at, n int
}

// Restore implements Optimizer. It plans every copy before it makes the first.
func (s *stepper) Restore(steps int, entries []Entry) error {
	if steps < 0 {
		return fmt.Errorf("optim: %s: restore: %d steps", s.kind, steps)
	}
	sources, err := s.sortEntries(entries)
	if err != nil {
		return fmt.Errorf("optim: %s: restore: %w", s.kind, err)
	}
	var plan []transfer
	for i := range s.pieces {
		p := &s.pieces[i]
		for j, name := range s.names {
			plan, err = appendTransfers(plan, p, p.state[j], sources[tensor{p.Name, name}])
			if err != nil {
				return fmt.Errorf("optim: %s: restore: %s of %w", s.kind, name, err)
			}
		}
	}
	for _, c := range plan {
		c.dst.copyFrom(c.to, c.src, c.at, c.n)
	}
	s.steps = steps
	return nil
}

// sortEntries groups entries by tensor, each group ascending and free of overlap.
func (s *stepper) sortEntries(entries []Entry) (map[tensor][]Entry, error) {
	groups := make(map[tensor][]Entry)
	for _, e := range entries {
		if !slices.Contains(s.names, e.Name) {
			return nil, fmt.Errorf("parameter %q has state %q, this optimizer keeps %q", e.Param, e.Name, s.names)
		}
		if e.Data.Len() > 0 {
			key := tensor{e.Param, e.Name}
			groups[key] = append(groups[key], e)
		}
	}
	for key, group := range groups {
		slices.SortFunc(group, func(a, b Entry) int { return cmp.Compare(a.Offset, b.Offset) })
		for i := 1; i < len(group); i++ {
			if end := group[i-1].end(); end > group[i].Offset {
				return nil, fmt.Errorf("%s of parameter %q: element %d is there twice", key.name, key.param, group[i].Offset)
			}
		}
	}
	return groups, nil
}

// end returns the position after the last element.
func (e Entry) end() int { return e.Offset + e.Data.Len() }

// appendTransfers plans how to fill one state buffer of p from sources that are ascending and disjoint.
func appendTransfers(plan []transfer, p *piece, dst Vec, sources []Entry) ([]transfer, error) {
	next := p.Offset
	for _, e := range sources {
		from, to := max(e.Offset, p.Offset), min(e.end(), p.end())
		if from >= to {
			continue
		}
		if from > next {
			break
		}
		if !slices.Equal(e.Shape, p.Shape) {
			return nil, fmt.Errorf("parameter %q: shape %v, parameter has %v", p.Name, e.Shape, p.Shape)
		}
		if e.Data.dtype() != p.Value.dtype() {
			return nil, fmt.Errorf("parameter %q: state is %s, parameter %s", p.Name, e.Data.dtype(), p.Value.dtype())
		}
		plan = append(plan, transfer{dst: dst, to: from - p.Offset, src: e.Data, at: from - e.Offset, n: to - from})
		next = to
	}
	if next < p.end() {
		return nil, fmt.Errorf("parameter %q: element %d is missing", p.Name, next)
	}
	return plan, nil
}
