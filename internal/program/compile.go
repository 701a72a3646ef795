package program

import (
	"fmt"
	"hash/fnv"
	"io"
	"slices"
)

// Kind is what an operation does.
type Kind uint8

// The operations of a program. Gather and Reduce are collectives: every rank issues them in the same order.
const (
	Gather   Kind = iota // issue the all-gather of the group's parameters
	Wait                 // wait for it: the parameters are now full
	Forward              // run the call's forward
	Turn                 // the loss is known; what follows is backward
	Free                 // drop the full parameters
	Backward             // run the call's backward
	Reduce               // issue the reduce-scatter of the group's gradients
	Drain                // wait for it, add to the gradient shard, drop the full gradients
)

var kindNames = [...]string{"gather", "wait", "forward", "turn", "free", "backward", "reduce", "drain"}

// String returns the operation's name in lower case.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// An Op is one operation, on group Group or call Call.
type Op struct {
	Kind        Kind
	Group, Call int // the one that the kind does not use is -1
}

// Options select a schedule.
type Options struct {
	// Prefetch is the number of groups gathered ahead of the one that computes.
	Prefetch int
	// Eval compiles the forward pass alone.
	Eval bool
}

// A Program is one pass over a model.
type Program struct {
	Model   *Model
	Options Options
	Ops     []Op
	// First tells for each call, in order of its parameters, whether its backward is the first to write the gradient
	// of that parameter in the pass. The others add to it.
	First [][]bool
}

// Compile returns the program of one pass: forward and backward, or forward alone.
func Compile(m *Model, o Options) (*Program, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	if o.Prefetch < 0 {
		return nil, fmt.Errorf("program: prefetch depth %d is negative", o.Prefetch)
	}
	c := &compiler{p: &Program{Model: m, Options: o}, resident: make([]bool, len(m.Groups)), waited: make([]bool, len(m.Groups))}
	c.places()
	c.stages()
	c.emit()
	c.p.First = c.first()
	return c.p, nil
}

// place is one forward or backward of a call, in the order of the pass.
type place struct {
	call     int
	backward bool
	groups   []int // that it needs, without the root
}

// stage is a run of places that need the same groups, up to the place before end in the list. It may begin with places
// that need none, which run while its groups are on their way; only the last stage may have no groups at all.
type stage struct {
	groups []int
	end    int
}

type compiler struct {
	p                *Program
	list             []place
	run              []stage
	resident, waited []bool
	pending          int   // group whose reduction is in flight, or -1
	lastGrad         []int // by group: index in list of the last backward that writes its gradients, or -1
}

// places lists the forwards and backwards of the pass.
func (c *compiler) places() {
	m := c.p.Model
	results := m.Results
	if !c.p.Options.Eval {
		results = results[:1]
	}
	for i, need := range m.NeedsForward(results) {
		if need {
			c.list = append(c.list, place{call: i, groups: withoutRoot(m.groups(i))})
		}
	}
	if c.p.Options.Eval {
		return
	}
	need := m.NeedsBackward()
	for i := len(need) - 1; i >= 0; i-- {
		if need[i] {
			c.list = append(c.list, place{call: i, backward: true, groups: withoutRoot(m.groups(i))})
		}
	}
}

func withoutRoot(groups []int) []int {
	return slices.DeleteFunc(groups, func(g int) bool { return g == Root })
}

// stages cuts the list into runs that need the same groups, and finds the last writers of the gradients.
func (c *compiler) stages() {
	c.lastGrad = slices.Repeat([]int{-1}, len(c.p.Model.Groups))
	for i, p := range c.list {
		if p.backward {
			for _, g := range c.p.Model.groups(p.call) {
				c.lastGrad[g] = i
			}
		}
		n := len(c.run)
		switch {
		case len(p.groups) == 0:
		case n > 0 && slices.Equal(p.groups, c.run[n-1].groups):
			c.run[n-1].end = i + 1
		default:
			c.run = append(c.run, stage{p.groups, i + 1})
		}
	}
	if n := len(c.run); n == 0 || c.run[n-1].end < len(c.list) {
		c.run = append(c.run, stage{end: len(c.list)})
	}
}

// window returns the groups that are resident during stage i: its own and those of the prefetched stages, in order of
// first use.
func (c *compiler) window(i int) []int {
	var groups []int
	for j, s := range c.run[min(i, len(c.run)):] {
		if j > c.p.Options.Prefetch {
			break
		}
		for _, g := range s.groups {
			if !slices.Contains(groups, g) {
				groups = append(groups, g)
			}
		}
	}
	return groups
}

// emit writes the operations. Between two stages it frees what the next window does not hold, then gathers what it adds:
// never more is resident than one window.
func (c *compiler) emit() {
	c.pending = -1
	root := c.usesRoot()
	if root {
		c.gather(Root)
	}
	turned := c.p.Options.Eval
	index := 0
	for i, s := range c.run {
		for _, g := range c.window(i) {
			c.gather(g)
		}
		for ; index < s.end; index++ {
			p := c.list[index]
			if p.backward && !turned {
				turned = true
				c.add(Turn, -1, -1)
			}
			c.compute(p, root)
			if index == s.end-1 {
				c.freeOutside(c.window(i + 1))
			}
			c.reduce(index)
		}
	}
	if !turned {
		c.add(Turn, -1, -1)
	}
	if root {
		c.free(Root)
	}
	c.drain()
}

// compute writes a place, after waiting for the groups that it needs. The first one waits for the root, if any does.
func (c *compiler) compute(p place, root bool) {
	if root {
		c.wait(Root)
	}
	for _, g := range p.groups {
		c.wait(g)
	}
	if p.backward {
		c.add(Backward, -1, p.call)
	} else {
		c.add(Forward, -1, p.call)
	}
}

// usesRoot tells whether any place needs the root group.
func (c *compiler) usesRoot() bool {
	return slices.ContainsFunc(c.list, func(p place) bool { return slices.Contains(c.p.Model.groups(p.call), Root) })
}

func (c *compiler) gather(g int) {
	if !c.resident[g] {
		c.resident[g] = true
		c.add(Gather, g, -1)
	}
}

func (c *compiler) wait(g int) {
	if !c.waited[g] {
		c.waited[g] = true
		c.add(Wait, g, -1)
	}
}

func (c *compiler) free(g int) {
	c.resident[g], c.waited[g] = false, false
	c.add(Free, g, -1)
}

// freeOutside frees every group but the root and those in keep.
func (c *compiler) freeOutside(keep []int) {
	for g, r := range c.resident {
		if r && g != Root && !slices.Contains(keep, g) {
			c.free(g)
		}
	}
}

// reduce issues the reductions of the groups whose gradients are complete after place i. One reduction is in flight at a
// time: it is drained when the next is due, with the computation of a whole group between.
func (c *compiler) reduce(i int) {
	for g, last := range c.lastGrad {
		if last == i {
			c.drain()
			c.add(Reduce, g, -1)
			c.pending = g
		}
	}
}

func (c *compiler) drain() {
	if c.pending >= 0 {
		c.add(Drain, c.pending, -1)
		c.pending = -1
	}
}

func (c *compiler) add(k Kind, group, call int) { c.p.Ops = append(c.p.Ops, Op{k, group, call}) }

// first finds the first writer of every gradient.
func (c *compiler) first() [][]bool {
	m := c.p.Model
	written := make([]bool, len(m.Params))
	first := make([][]bool, len(m.Calls))
	for _, p := range c.list {
		if !p.backward {
			continue
		}
		for _, q := range m.Calls[p.call].Params {
			first[p.call] = append(first[p.call], !written[q])
			written[q] = true
		}
	}
	return first
}

// Describe writes the program as text, one operation a line with the names of groups and calls.
func (p *Program) Describe(w io.Writer) {
	for _, op := range p.Ops {
		fmt.Fprintln(w, p.Text(op))
	}
}

// Text returns op with the name of its group or call.
func (p *Program) Text(op Op) string {
	switch {
	case op.Group >= 0:
		return fmt.Sprintf("%v %s", op.Kind, p.Model.Groups[op.Group].Name)
	case op.Call >= 0:
		return fmt.Sprintf("%v %s", op.Kind, p.Model.Calls[op.Call].Name)
	default:
		return op.Kind.String()
	}
}

// Hash returns a fingerprint of the program: the same on every machine for the same model and options.
func (p *Program) Hash() uint64 {
	h := fnv.New64a()
	fmt.Fprintln(h, p.Model.Inputs, p.Model.Results)
	for _, c := range p.Model.Calls {
		fmt.Fprintln(h, c.Name, c.In, c.Params)
	}
	for _, q := range p.Model.Params {
		fmt.Fprintln(h, q.Name, q.Group)
	}
	p.Describe(h)
	return h.Sum64()
}
