package optim

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Compose makes one optimizer of several over different parameters: AdamW for the matrices and SGD
// for the embeddings, say. What it does, it does to all of them or, if there is an error, to none.
// [Rule] is enough where only the learning rate or the weight decay differ.
//
// The optimizers must come from this package and have had equally many steps. They are not to be
// used on their own any more. A parameter belongs to one of them: if two hold pieces of it, the
// error names both. All ranks should compose the same kinds in the same order, of which some may be
// empty on some ranks. State lists their state one behind the other. Restore and Adopt give each
// entry to the optimizer that holds its parameter. Entries of parameters that none holds are passed
// over, as by a single optimizer, if one of them keeps state of that name.
func Compose(optimizers ...Optimizer) (Optimizer, error) {
	c := &optimizer{}
	for i, o := range optimizers {
		o, ok := o.(*optimizer)
		if !ok {
			return nil, fmt.Errorf("optim: compose: optimizer %d is %T, which is not of this package", i, optimizers[i])
		}
		for _, p := range o.parts {
			if err := c.add(p, o.steps); err != nil {
				return nil, fmt.Errorf("optim: compose: %w", err)
			}
			c.lr = o.lr
		}
		for _, g := range o.guards {
			if !slices.Contains(c.guards, g) {
				c.guards = append(c.guards, g)
			}
		}
	}
	return c, nil
}

// Params returns the pieces that an optimizer of this package was made of, with [Compose] those of
// all its parts. It tells whose memory an optimizer works on. Of other optimizers it returns none.
func Params(o Optimizer) (list []Param) {
	if o, ok := o.(*optimizer); ok {
		for _, part := range o.parts {
			list = slices.Grow(list, len(part.pieces))
			for i := range part.pieces {
				list = append(list, part.pieces[i].Param)
			}
		}
	}
	return list
}

// All or nothing
//
// Step, Restore and Adopt change every piece that they are about, in all parts, or none. So each
// has two halves. The first does whatever can fail: Step asks every Ready, Restore and Adopt plan
// every copy. The second updates or copies, and cannot fail as long as the memory does not. If a
// Vec reports that its memory has failed, values and state are undefined; a Host never does.
//
// A parameter belongs to one part, so every entry has one receiver, and a plan for that part covers
// everything that the entry changes.
//
// Each call is all or nothing, a sequence of calls is not. Who adopts one parameter after the
// other, so as to hold the state of only one beside the optimizer, has a mixed state if it breaks
// off. It is up to Ready to refuse Step until a complete load has succeeded.

// optimizer is every Optimizer of this package: one part is what New makes, Compose puts several
// together. The parts hold different parameters.
type optimizer struct {
	parts  []*part
	guards []Guard // of all pieces, each once
	steps  int     // calls of Step
	lr     float64 // that the last one was given
}

// add appends a part that has had a number of steps, unless it does not go with those before it.
func (o *optimizer) add(p *part, steps int) error {
	if slices.Contains(o.parts, p) {
		return fmt.Errorf("%s is there twice", p.kind)
	}
	if len(o.parts) == 0 {
		o.steps = steps
	}
	if steps != o.steps {
		return fmt.Errorf("%s has had %d steps, %s %d", o.parts[0].kind, o.steps, p.kind, steps)
	}
	for _, q := range p.pieces {
		if i := o.holder(q.Name); i >= 0 {
			other := o.parts[i]
			held := other.pieces[other.index[q.Name][0]]
			return fmt.Errorf("parameter %q: %s holds elements [%d:%d], %s holds [%d:%d]",
				q.Name, other.kind, held.Offset, held.end(), p.kind, q.Offset, q.end())
		}
	}
	o.parts = append(o.parts, p)
	return nil
}

// holder returns the index of the part that holds pieces of a parameter, or -1.
func (o *optimizer) holder(param string) int {
	return slices.IndexFunc(o.parts, func(p *part) bool { return len(p.index[param]) > 0 })
}

// Step implements Optimizer.
func (o *optimizer) Step(lr float64) error {
	if err := enter(o.guards, "Step", false); err != nil {
		return fmt.Errorf("optim: %w", err)
	}
	defer leave(o.guards)
	if err := checkHyper("learning rate", lr, math.Inf(1)); err != nil {
		return fmt.Errorf("optim: step %d: %w", o.steps, err)
	}
	for _, p := range o.parts {
		if err := p.ready(); err != nil {
			return fmt.Errorf("optim: %s: step %d: %w", p.kind, o.steps, err)
		}
	}
	o.steps, o.lr = o.steps+1, lr
	for _, p := range o.parts {
		if err := p.update(lr, o.steps); err != nil {
			return fmt.Errorf("optim: %s: step %d: %w", p.kind, o.steps-1, err)
		}
	}
	for _, p := range o.parts {
		if err := p.flush(); err != nil {
			return fmt.Errorf("optim: %s: step %d: %w", p.kind, o.steps-1, err)
		}
	}
	return nil
}

// Steps implements Optimizer.
func (o *optimizer) Steps() int { return o.steps }

// State implements Optimizer.
func (o *optimizer) State() (entries []Entry) {
	if enter(o.guards, "State", true) != nil {
		return nil
	}
	defer leave(o.guards)
	for _, p := range o.parts {
		entries = p.state(entries)
	}
	return entries
}

// Restore implements Optimizer.
func (o *optimizer) Restore(steps int, entries []Entry) error {
	return o.load("Restore", steps, entries, true)
}

// Adopt implements Optimizer.
func (o *optimizer) Adopt(steps int, entries []Entry) error {
	return o.load("Adopt", steps, entries, false)
}

// load refills all pieces, or those of parameters that some entry is about.
func (o *optimizer) load(method string, steps int, entries []Entry, all bool) error {
	verb := strings.ToLower(method)
	if steps < 0 {
		return fmt.Errorf("optim: %s: %d steps", verb, steps)
	}
	if err := enter(o.guards, method, false); err != nil {
		return fmt.Errorf("optim: %w", err)
	}
	defer leave(o.guards)
	lists, err := o.byPart(entries)
	if err != nil {
		return fmt.Errorf("optim: %s: %w", verb, err)
	}
	plans := make([][]refill, len(o.parts))
	for i, p := range o.parts {
		if plans[i], err = p.plan(lists[i], all); err != nil {
			return fmt.Errorf("optim: %s: %s: %w", p.kind, verb, err)
		}
	}
	for i, p := range o.parts {
		if err := p.refill(plans[i]); err != nil {
			return fmt.Errorf("optim: %s: %s: %w", p.kind, verb, err)
		}
	}
	o.steps = steps
	return nil
}

// byPart sorts entries by the part that gets them. An entry of a parameter that no part holds goes
// to the first that keeps state of its name, which checks it like others and has no use for it.
func (o *optimizer) byPart(entries []Entry) ([][]Entry, error) {
	if len(o.parts) == 1 {
		return [][]Entry{entries}, nil
	}
	lists := make([][]Entry, len(o.parts))
	for _, e := range entries {
		i := o.holder(e.Param)
		if i < 0 {
			i = slices.IndexFunc(o.parts, func(p *part) bool { return slices.Contains(p.names, e.Name) })
		}
		if i < 0 {
			return nil, fmt.Errorf("parameter %q has state %q, none of these optimizers keeps that", e.Param, e.Name)
		}
		lists[i] = append(lists[i], e)
	}
	return lists, nil
}
