package optim

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
)

// stepper is what the optimizers share: the pieces with their hyper-parameters and state, and the step count. It is an
// Optimizer but for Step.
type stepper struct {
	kind   string   // "adamw", for messages
	names  []string // entry i of every piece is called names[i]
	pieces []piece
	index  map[string][]int // positions in pieces, by parameter, ascending
	steps  int              // calls of Step
}

// piece is a Param and what belongs to it.
type piece struct {
	Param
	hyper
	state [2]Vec // the first len(names) are in use, zeroed at New
	steps int    // updates that state has had; zero means that it is zero
}

// begin reports whether the piece has a gradient and, if so, counts the update that follows.
func (p *piece) begin() bool {
	if p.Absent != nil && p.Absent() {
		return false
	}
	p.steps++
	return true
}

// newStepper checks the parameters and allocates their state.
func newStepper(kind string, names []string, params []Param, rules []Rule, weightDecay float64) (stepper, error) {
	s := stepper{kind: kind, names: names, index: make(map[string][]int)}
	params = slices.Clone(params)
	for i, p := range params {
		params[i] = p.withVecs()
	}
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
		for i, name := range names {
			var err error
			if piece.state[i], err = p.newState(); err != nil {
				return s, fmt.Errorf("optim: %s: %s of %w", kind, name, err)
			}
		}
		s.index[p.Name] = append(s.index[p.Name], len(s.pieces))
		s.pieces = append(s.pieces, piece)
	}
	return s, nil
}

// valuesAs returns the values of params as vectors with the update that an optimizer needs.
func valuesAs[V Vec](kind string, params []Param) ([]V, error) {
	values := make([]V, len(params))
	for i, p := range params {
		var ok bool
		if values[i], ok = p.withVecs().Value.(V); !ok {
			return nil, fmt.Errorf("optim: %s: parameter %q: a value of type %T has no such update, it is no %v",
				kind, p.Name, p.Value, reflect.TypeFor[V]())
		}
	}
	return values, nil
}

// failed is the error of an update of p that has failed in the middle of a Step.
func (s *stepper) failed(p *piece, err error) error {
	return fmt.Errorf("optim: %s: step %d: parameter %q: %w", s.kind, s.steps-1, p.Name, err)
}

// base returns what the optimizers share.
func (s *stepper) base() *stepper { return s }

// Params returns the pieces that an optimizer of this package was made of, with [Compose] those of all its parts. It tells whose
// memory an optimizer works on. Of other optimizers it knows none.
func Params(o Optimizer) (list []Param) {
	switch o := o.(type) {
	case member:
		for _, p := range o.base().pieces {
			list = append(list, p.Param)
		}
	case *composed:
		for _, m := range o.members {
			list = append(list, Params(m)...)
		}
	}
	return list
}

// check is the error of Step.
func (s *stepper) check(lr float64) error {
	err := checkRate(lr)
	for i := 0; i < len(s.pieces) && err == nil; i++ {
		if ready := s.pieces[i].Ready; ready != nil {
			err = ready()
		}
	}
	if err != nil {
		return fmt.Errorf("optim: %s: step %d: %w", s.kind, s.steps, err)
	}
	return nil
}

// checkRate returns an error unless Step takes lr.
func checkRate(lr float64) error { return checkHyper("learning rate", lr, math.Inf(1)) }

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
			entries = append(entries, Entry{
				Param: p.Name, Name: name, Shape: p.Shape, Offset: p.Offset, Steps: p.steps, Data: p.state[i],
			})
		}
	}
	return entries
}

// tensor identifies a state tensor of the whole model.
type tensor struct{ param, name string }

// refill is what Restore and Adopt do to one piece.
type refill struct {
	piece  *piece
	steps  int // -1 until an entry says
	copies []transfer
}

// transfer is one copy of a refill.
type transfer struct{ dst, src Vec }

// Restore implements Optimizer.
func (s *stepper) Restore(steps int, entries []Entry) error {
	return s.load("restore", steps, entries, true)
}

// Adopt implements Optimizer.
func (s *stepper) Adopt(steps int, entries []Entry) error {
	return s.load("adopt", steps, entries, false)
}

// load refills all pieces, or those of parameters that some entry is about. It plans every copy before it makes the first.
func (s *stepper) load(verb string, steps int, entries []Entry, all bool) error {
	plan, err := s.plan(verb, steps, entries, all)
	if err != nil {
		return err
	}
	return s.refill(verb, steps, plan)
}

// plan is the part of load that can fail, and changes nothing.
func (s *stepper) plan(verb string, steps int, entries []Entry, all bool) ([]refill, error) {
	if steps < 0 {
		return nil, fmt.Errorf("optim: %s: %s: %d steps", s.kind, verb, steps)
	}
	sources, err := s.sortEntries(entries)
	if err != nil {
		return nil, fmt.Errorf("optim: %s: %s: %w", s.kind, verb, err)
	}
	var plan []refill
	for _, i := range s.affected(sources, all) {
		p := &s.pieces[i]
		if p.Value.Len() == 0 {
			continue
		}
		r := refill{piece: p, steps: -1}
		for j, name := range s.names {
			if err := r.add(p.state[j], sources[tensor{p.Name, name}]); err != nil {
				return nil, fmt.Errorf("optim: %s: %s: %s of parameter %q: %w", s.kind, verb, name, p.Name, err)
			}
		}
		plan = append(plan, r)
	}
	return plan, nil
}

// affected returns the positions of the pieces that a load is about, ascending: all, or those of
// the parameters that sources are about. Its time depends on them only, as a job may load one
// parameter after the other.
func (s *stepper) affected(sources map[tensor][]Entry, all bool) (list []int) {
	if all {
		for i := range s.pieces {
			list = append(list, i)
		}
		return list
	}
	for key := range sources {
		list = append(list, s.index[key.param]...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// refill carries out a plan.
func (s *stepper) refill(verb string, steps int, plan []refill) error {
	for _, r := range plan {
		for _, c := range r.copies {
			if err := copyVec(c.dst, c.src); err != nil {
				return fmt.Errorf("optim: %s: %s: parameter %q: %w", s.kind, verb, r.piece.Name, err)
			}
		}
		r.piece.steps = max(r.steps, 0) // no entry says where the optimizer keeps none: then nobody asks
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
		if e.Steps < 0 {
			return nil, fmt.Errorf("%s of parameter %q: %d steps", e.Name, e.Param, e.Steps)
		}
		if twoTypes(e.Data) {
			return nil, fmt.Errorf("%s of parameter %q: data is both float32 and float64", e.Name, e.Param)
		}
		if lenOf(e.Data) > 0 {
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
func (e Entry) end() int { return e.Offset + lenOf(e.Data) }

// add plans how to fill dst, one state buffer of the piece, from sources that are ascending and disjoint.
func (r *refill) add(dst Vec, sources []Entry) error {
	p, next := r.piece, r.piece.Offset
	for _, e := range sources {
		from, to := max(e.Offset, p.Offset), min(e.end(), p.end())
		if from >= to {
			continue
		}
		if from > next {
			break
		}
		if r.steps < 0 {
			r.steps = e.Steps
		}
		switch {
		case !slices.Equal(e.Shape, p.Shape):
			return fmt.Errorf("shape %v, parameter has %v", e.Shape, p.Shape)
		case e.Data.Float64() != p.Value.Float64():
			return fmt.Errorf("state is %s, parameter %s", dtype(e.Data), dtype(p.Value))
		case e.Steps != r.steps:
			return fmt.Errorf("elements [%d:%d] have had %d steps, others of this piece %d", from, to, e.Steps, r.steps)
		}
		next = to
		src := e.Data.Slice(from-e.Offset, to-e.Offset)
		if e.Steps == 0 {
			if zero, err := isZero(src); err != nil {
				return err
			} else if !zero {
				return fmt.Errorf("elements [%d:%d] have had no step and are not zero", from, to)
			}
		}
		if e.Offset != p.Offset || !sameVec(e.Data, dst) { // else they are where they belong
			r.copies = append(r.copies, transfer{dst.Slice(from-p.Offset, to-p.Offset), src})
		}
	}
	if next < p.end() {
		return fmt.Errorf("element %d is missing", next)
	}
	return nil
}
