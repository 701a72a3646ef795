package program

import (
	"fmt"
	"slices"
)

// Options select a schedule.
type Options struct {
	// Prefetch is the number of stages whose groups are gathered ahead of the computing stage.
	Prefetch int
	// Eval compiles only the forward pass.
	Eval bool
	// NoSync omits the reductions: the full gradients are kept for a later pass.
	NoSync bool
	// Pending says that an earlier pass has left full gradients. This pass adds to them.
	Pending bool
	// InFlight limits the bytes of issued collectives that have not been waited for. A gather is
	// issued ahead only within the limit. A collective that is needed now first waits for others.
	// If it exceeds the limit by itself, it is issued alone. 0 means no limit.
	InFlight int
	// Reads says for each call, in the order of its parameters, which of them its backward reads.
	// Nil means all, for a call or for the model.
	Reads [][]bool
}

// reads returns Reads for call c.
func (o *Options) reads(c int) []bool {
	if o.Reads == nil {
		return nil
	}
	return o.Reads[c]
}

// check reports options that do not fit the model.
func (o *Options) check(m *Model) error {
	switch {
	case o.Prefetch < 0:
		return fmt.Errorf("program: prefetch depth %d is negative", o.Prefetch)
	case o.InFlight < 0:
		return fmt.Errorf("program: limit of %d bytes in flight is negative", o.InFlight)
	case o.Eval && (o.NoSync || o.Pending):
		return fmt.Errorf("program: an evaluation has no gradients")
	case o.Reads != nil && len(o.Reads) != len(m.Calls):
		return fmt.Errorf("program: Reads has %d calls, but the model has %d", len(o.Reads), len(m.Calls))
	}
	for c, call := range m.Calls {
		if r := o.reads(c); r != nil && len(r) != len(call.Params) {
			return fmt.Errorf("program: Reads has %d parameters for call %s, which has %d", len(r), call.Name, len(call.Params))
		}
	}
	return nil
}

// Compile returns the program of one pass: forward and backward, or only forward.
func Compile(m *Model, o Options) (*Program, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	if err := o.check(m); err != nil {
		return nil, err
	}
	c := &compiler{p: &Program{Model: m, Options: o}, state: make([]state, len(m.Groups))}
	c.places()
	c.stages()
	c.uses()
	c.emit()
	return c.p, nil
}

// place is the forward or the backward of one call, in the order of the pass.
type place struct {
	call     int
	backward bool
	reads    []int // groups that must be gathered for it
	next     []int // for each of these groups: the next place that reads it, or the number of places
	trains   []int // groups whose gradients it writes
}

// state is the compiler's state of a group at the current place.
type state struct {
	resident, waited bool
	lastGrad         int // last place that writes its gradients, or -1
}

type compiler struct {
	p     *Program
	list  []place
	ends  []int // ends of the stages: runs of places that read the same units
	state []state

	fetched   int   // places whose groups have been gathered: all earlier places, and the prefetched ones
	inFlight  int   // bytes
	gathering []int // groups with a gather in flight, in the order of issue
	reducing  []int // groups with the first half of a reduction in flight: the sum over the replicas is not yet issued
	draining  []int // groups with the last half of a reduction in flight
}

// places lists the forwards and backwards of the pass.
func (c *compiler) places() {
	m, o := c.p.Model, &c.p.Options
	for i, need := range m.NeedsForward(m.Ends(o.Eval)) {
		if need {
			c.list = append(c.list, place{call: i, reads: m.reads(i, false, nil)})
		}
	}
	if !o.Eval {
		for i, need := range slices.Backward(m.NeedsBackward()) {
			if need {
				c.list = append(c.list, place{call: i, backward: true, reads: m.reads(i, true, o.reads(i)), trains: m.trains(i)})
			}
		}
	}
}

// stages cuts the list into runs of places that read the same units. Places that read no unit
// belong to the next stage: they run while its groups are gathered. Only the last stage may have no
// units at all.
func (c *compiler) stages() {
	kept := make(map[string]bool)
	var last []string
	for i := range c.list {
		units := c.units(&c.list[i], kept)
		switch n := len(c.ends); {
		case len(units) == 0:
		case n > 0 && slices.Equal(units, last):
			c.ends[n-1] = i + 1
		default:
			c.ends, last = append(c.ends, i+1), units
		}
	}
	if n := len(c.ends); n == 0 || c.ends[n-1] < len(c.list) {
		c.ends = append(c.ends, len(c.list))
	}
}

// units returns the units of the groups that may have to be gathered for p. A kept unit counts only
// at its first reader: another group of it, for example with other types, does not begin a new
// stage.
func (c *compiler) units(p *place, kept map[string]bool) []string {
	var units []string
	for _, g := range p.reads {
		q := &c.p.Model.Groups[g]
		if q.Hold == Keep && kept[q.unit()] {
			continue
		}
		units = append(units, q.unit())
		kept[q.unit()] = kept[q.unit()] || q.Hold == Keep
	}
	slices.Sort(units)
	return slices.Compact(units)
}

// uses finds the next reader of every group that a place reads, and the last writer of every
// group's gradients.
func (c *compiler) uses() {
	next := slices.Repeat([]int{len(c.list)}, len(c.state))
	for g := range c.state {
		c.state[g].lastGrad = -1
	}
	for i := range c.list {
		for _, g := range c.list[i].trains {
			c.state[g].lastGrad = i
		}
	}
	for i := range slices.Backward(c.list) {
		p := &c.list[i]
		for _, g := range p.reads {
			p.next = append(p.next, next[g])
			next[g] = i
		}
	}
}

// emit writes the operations. Before each place it gathers the groups of the window, as far as the
// limit allows. After each place it frees the groups outside of the next place's window: no more
// than one window and the kept groups are ever resident. The window extends from the place to the
// horizon of its stage.
func (c *compiler) emit() {
	turned, stage := c.p.Options.Eval, 0
	for i, p := range c.list {
		c.gatherUntil(c.horizon(stage), i)
		if p.backward && !turned {
			turned = true
			c.add(Turn, -1, -1)
		}
		for _, g := range p.reads {
			c.wait(g)
		}
		c.compute(p)
		if i+1 == c.ends[stage] {
			stage++
		}
		c.freeBeyond(c.horizon(stage), p)
		c.reduce(i)
	}
	if !turned {
		c.add(Turn, -1, -1)
	}
	c.sync()
	c.drain()
}

// horizon returns the end of the stage that is Prefetch stages after the given one.
func (c *compiler) horizon(stage int) int {
	last := len(c.ends) - 1
	if c.p.Options.Prefetch < last-stage {
		last = stage + c.p.Options.Prefetch
	}
	return c.ends[last]
}

// gatherUntil gathers the groups that the places before end read, in the order of first use. It
// stops at the first group that does not fit, unless place i needs it: no group overtakes one that
// is needed earlier.
func (c *compiler) gatherUntil(end, i int) {
	for ; c.fetched < end; c.fetched++ {
		for _, g := range c.list[c.fetched].reads {
			s := &c.state[g]
			if s.resident {
				continue
			}
			if c.fetched > i && !c.fits(g) {
				return
			}
			s.resident = true
			c.issue(Gather, g)
			c.gathering = append(c.gathering, g)
		}
	}
}

// fits reports whether a collective of group g may be issued in addition to those in flight.
func (c *compiler) fits(g int) bool {
	limit := c.p.Options.InFlight
	return limit == 0 || c.inFlight+c.p.Model.Groups[g].Bytes <= limit
}

// issue issues a collective of group g. If it does not fit, it first waits for collectives in
// flight: for reductions, whose results no computation needs, and then for gathers, the oldest
// first.
func (c *compiler) issue(k Kind, g int) {
	if !c.fits(g) {
		c.sync()
		c.drain()
	}
	for len(c.gathering) > 0 && !c.fits(g) {
		c.wait(c.gathering[0])
	}
	c.inFlight += c.p.Model.Groups[g].Bytes
	c.add(k, g, -1)
}

func (c *compiler) wait(g int) {
	if s := &c.state[g]; !s.waited {
		s.waited = true
		c.gathering = slices.DeleteFunc(c.gathering, func(h int) bool { return h == g })
		c.inFlight -= c.p.Model.Groups[g].Bytes
		c.add(Wait, g, -1)
	}
}

func (c *compiler) compute(p place) {
	if p.backward {
		c.add(Backward, -1, p.call)
	} else {
		c.add(Forward, -1, p.call)
	}
}

// freeBeyond frees, after place p, the groups that no place before end reads, except groups that
// are kept for a later place. Only groups that p has read can be freed here.
func (c *compiler) freeBeyond(end int, p place) {
	for j, g := range p.reads {
		held := c.p.Model.Groups[g].Hold == Keep && p.next[j] < len(c.list)
		if !held && p.next[j] >= end {
			c.state[g].resident, c.state[g].waited = false, false
			c.add(Free, g, -1)
		}
	}
}

// reduce issues the reductions of the groups whose gradients are complete after place i. Only the
// reductions of one place are in flight at a time. They are drained when the next are issued, so
// they overlap with the computation of a whole unit. Groups with replicas need two such rounds, one
// for each half, and keep the full gradients of one more unit in memory.
func (c *compiler) reduce(i int) {
	var due []int
	for _, g := range c.list[i].trains {
		if c.state[g].lastGrad == i && !c.p.Options.NoSync {
			due = append(due, g)
		}
	}
	if len(due) > 0 {
		c.drain()
	}
	c.sync()
	for _, g := range due {
		c.issue(Reduce, g)
		if c.p.Model.Groups[g].twice() {
			c.reducing = append(c.reducing, g)
		} else {
			c.draining = append(c.draining, g)
		}
	}
}

// sync issues the second half of the reductions in flight, over the replicas. It comes one place
// after the first half, so that the first half has had time to complete.
func (c *compiler) sync() {
	for _, g := range c.reducing {
		c.add(Sync, g, -1)
	}
	c.draining = append(c.draining, c.reducing...)
	c.reducing = c.reducing[:0]
}

// drain waits for the reductions whose last half has been issued.
func (c *compiler) drain() {
	for _, g := range c.draining {
		c.inFlight -= c.p.Model.Groups[g].Bytes
		c.add(Drain, g, -1)
	}
	c.draining = c.draining[:0]
}

func (c *compiler) add(k Kind, group, call int) { c.p.Ops = append(c.p.Ops, Op{k, group, call}) }
