package optim

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Compose makes one optimizer from several over different parameters, such as AdamW for the
// matrices and SGD for the embeddings. A call changes all of them or, if it returns an error, none.
// A [Rule] is enough if only the learning rate or the weight decay differs.
//
// The optimizers must come from this package and have made the same number of steps. Do not use
// them on their own any more. A parameter belongs to one of them: if two hold pieces of it, the
// error names both. All ranks should compose the same kinds in the same order; some may be empty on
// some ranks. State lists their state one after the other. Restore and Adopt give each entry to the
// optimizer that holds its parameter. They ignore entries of parameters that no optimizer holds, as
// a single optimizer does, if one of them keeps state of that name.
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

// Params returns the pieces that an optimizer of this package was made from; with [Compose], the
// pieces of all its parts. They show whose memory an optimizer works on. For other optimizers it
// returns none.
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
// Step, Restore and Adopt change every piece that they concern, in all parts, or none. So each has
// two halves. The first half does everything that can fail: Step calls every Ready, Restore and
// Adopt plan every copy. The second half updates or copies, and fails only if the memory fails. If
// a Vec reports failed memory, values and state are undefined; a Host never does.
//
// A parameter belongs to one part. So every entry has one receiver, and the plan for that part
// covers everything that the entry changes.
//
// Each call is all or nothing; a sequence of calls is not. A caller that calls Adopt once per
// parameter, to hold the state of only one besides the optimizer, and stops early leaves a
// partially loaded optimizer. Ready must refuse Step until a complete load has succeeded.

// optimizer implements every Optimizer of this package. New makes one part, and Compose joins
// several. The parts hold different parameters.
type optimizer struct {
	parts  []*part
	guards []Guard // of all pieces, each once
	steps  int     // calls of Step
	lr     float64 // learning rate of the last Step
}

// add appends a part that has made this number of steps, unless it conflicts with the parts before
// it.
func (o *optimizer) add(p *part, steps int) error {
	if slices.Contains(o.parts, p) {
		return fmt.Errorf("%s is given twice", p.kind)
	}
	if len(o.parts) == 0 {
		o.steps = steps
	}
	if steps != o.steps {
		return fmt.Errorf("%s has made %d steps, %s has made %d: compose optimizers after the same number of steps", o.parts[0].kind, o.steps, p.kind, steps)
	}
	for _, q := range p.pieces {
		if i := o.holder(q.Name); i >= 0 {
			other := o.parts[i]
			held := other.pieces[other.index[q.Name][0]]
			return fmt.Errorf("parameter %q: %s has elements [%d:%d], and %s has [%d:%d]: give each parameter to one optimizer",
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

// load refills all pieces, or only the pieces of parameters that have an entry.
func (o *optimizer) load(method string, steps int, entries []Entry, all bool) error {
	verb := strings.ToLower(method)
	if steps < 0 {
		return fmt.Errorf("optim: %s: the number of steps is %d: must not be negative", verb, steps)
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

// byPart sorts entries by the part that receives them. An entry of a parameter that no part holds
// goes to the first part that keeps state of its name. That part checks it like the others and
// ignores it.
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
			return nil, fmt.Errorf("parameter %q has state %q, which none of these optimizers keeps", e.Param, e.Name)
		}
		lists[i] = append(lists[i], e)
	}
	return lists, nil
}
