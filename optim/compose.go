package optim

import (
	"fmt"
	"slices"
)

// Compose makes one optimizer of several over different parameters: AdamW for the matrices and SGD for the embeddings, say.
// What it does, it does to all of them or, if there is an error, to none. [Rule] is enough where only the learning
// rate or the weight decay differ.
//
// The optimizers must come from this package, have had equally many steps, and be left to the composed one from now on.
// A parameter belongs to one of them: if two hold pieces of it, the error names both. All ranks should compose the same
// kinds in the same order, of which some may be empty on some ranks. State lists theirs one behind the other. Restore and
// Adopt give each entry to the optimizer that holds its parameter. Entries of parameters that none holds here are passed
// over, as in an optimizer alone, as long as one of them keeps state of that name.
func Compose(optimizers ...Optimizer) (Optimizer, error) {
	c := &composed{}
	for i, o := range optimizers {
		switch o := o.(type) {
		case member:
			c.members = append(c.members, o)
		case *composed:
			c.members = append(c.members, o.members...)
		default:
			return nil, fmt.Errorf("optim: compose: optimizer %d is %T, which is not of this package", i, o)
		}
	}
	for i, m := range c.members {
		if err := c.take(i, m); err != nil {
			return nil, fmt.Errorf("optim: compose: %w", err)
		}
	}
	return c, nil
}

// member is an optimizer in parts, so that several can check before any of them changes.
type member interface {
	Optimizer
	base() *stepper
	update(lr float64) error // what Step does once it has checked
}

// composed is the optimizer. Its members hold different parameters and have had equally many steps.
type composed struct {
	members []member
	steps   int // also of every member; there may be none
}

// holder returns the index of the member that holds pieces of a parameter, or -1.
func (c *composed) holder(param string) int {
	return slices.IndexFunc(c.members, func(m member) bool { return len(m.base().index[param]) > 0 })
}

// take checks member i against those before it.
func (c *composed) take(i int, m member) error {
	if slices.Contains(c.members[:i], m) {
		return fmt.Errorf("%s is there twice", m.base().kind)
	}
	if i == 0 {
		c.steps = m.Steps()
	}
	if m.Steps() != c.steps {
		return fmt.Errorf("%s has had %d steps, %s %d", c.members[0].base().kind, c.steps, m.base().kind, m.Steps())
	}
	for _, p := range m.base().pieces {
		if j := c.holder(p.Name); j != i {
			other := c.members[j].base()
			q := other.pieces[other.index[p.Name][0]]
			return fmt.Errorf("parameter %q: %s holds elements [%d:%d], %s holds [%d:%d]",
				p.Name, other.kind, q.Offset, q.end(), m.base().kind, p.Offset, p.end())
		}
	}
	return nil
}

// Step implements Optimizer.
func (c *composed) Step(lr float64) error {
	if err := checkRate(lr); err != nil {
		return fmt.Errorf("optim: step %d: %w", c.steps, err)
	}
	for _, m := range c.members {
		if err := m.base().check(lr); err != nil {
			return err
		}
	}
	c.steps++
	for _, m := range c.members {
		if err := m.update(lr); err != nil {
			return err
		}
	}
	return nil
}

// Steps implements Optimizer.
func (c *composed) Steps() int { return c.steps }

// State implements Optimizer.
func (c *composed) State() []Entry {
	var entries []Entry
	for _, m := range c.members {
		entries = append(entries, m.State()...)
	}
	return entries
}

// Restore implements Optimizer.
func (c *composed) Restore(steps int, entries []Entry) error {
	return c.load("restore", steps, entries, true)
}

// Adopt implements Optimizer.
func (c *composed) Adopt(steps int, entries []Entry) error {
	return c.load("adopt", steps, entries, false)
}

// load plans for every member before it refills the first.
func (c *composed) load(verb string, steps int, entries []Entry, all bool) error {
	if steps < 0 {
		return fmt.Errorf("optim: %s: %d steps", verb, steps)
	}
	hands, err := c.deal(entries)
	if err != nil {
		return fmt.Errorf("optim: %s: %w", verb, err)
	}
	plans := make([][]refill, len(c.members))
	for i, m := range c.members {
		if plans[i], err = m.base().plan(verb, steps, hands[i], all); err != nil {
			return err
		}
	}
	for i, m := range c.members {
		if err := m.base().refill(verb, steps, plans[i]); err != nil {
			return err
		}
	}
	c.steps = steps
	return nil
}

// deal sorts entries by the member that gets them. One of a parameter that nobody holds goes to the first that has entries
// of its name, which checks it like others and has no use for it.
func (c *composed) deal(entries []Entry) ([][]Entry, error) {
	hands := make([][]Entry, len(c.members))
	for _, e := range entries {
		i := c.holder(e.Param)
		if i < 0 {
			i = slices.IndexFunc(c.members, func(m member) bool { return slices.Contains(m.base().names, e.Name) })
		}
		if i < 0 {
			return nil, fmt.Errorf("parameter %q has state %q, none of these optimizers keeps that", e.Param, e.Name)
		}
		hands[i] = append(hands[i], e)
	}
	return hands, nil
}
