package plan

import (
	"fmt"
	"slices"
	"strings"
)

// Memory is the memory of a rank at one time, in bytes, by use. It leaves out files
// (fsdp.Config.Offload.Dir) and, on a GPU, the memory of the host (fsdp.Config.Offload).
type Memory struct {
	Shard      int // parameters and gradients of the rank
	State      int // state of the optimizer
	Gathered   int // whole parameters
	Gradient   int // whole gradients
	Activation int // values between calls, and their gradients
	Saved      int // values that calls keep for their backward
	Work       int // scratch of the call that runs
}

// Total returns the sum.
func (m Memory) Total() int {
	return m.Shard + m.State + m.Gathered + m.Gradient + m.Activation + m.Saved + m.Work
}

// add adds sign times the counts of o.
func (m *Memory) add(o *Memory, sign int) {
	m.Shard += sign * o.Shard
	m.State += sign * o.State
	m.Gathered += sign * o.Gathered
	m.Gradient += sign * o.Gradient
	m.Activation += sign * o.Activation
	m.Saved += sign * o.Saved
	m.Work += sign * o.Work
}

// part is a part of a Memory, with advice that makes it smaller.
type part struct {
	name   string
	bytes  int
	advice string
}

func (m Memory) parts() []part {
	return []part{
		{"parameters and gradients of this rank", m.Shard, "cut them over more ranks"},
		{"optimizer state", m.State, "cut it over more ranks, or keep it in 8 or 16 bits"},
		{"gathered parameters", m.Gathered, "free units after use, wrap smaller ones, gather fewer ahead, or compute in bfloat16"},
		{"whole gradients", m.Gradient, "wrap smaller units, or reduce in bfloat16"},
		{"activations between calls", m.Activation, "take a smaller micro batch"},
		{"values kept for backward", m.Saved, "recompute calls, or take a smaller micro batch"},
		{"scratch of one call", m.Work, "take a smaller micro batch"},
	}
}

// String lists the parts that are not empty, the largest first.
func (m Memory) String() string {
	var b strings.Builder
	fmt.Fprint(&b, Bytes(m.Total()))
	for i, p := range m.largest() {
		sep := ", "
		if i == 0 {
			sep = ": "
		}
		fmt.Fprintf(&b, "%s%s %s", sep, p.name, Bytes(p.bytes))
	}
	return b.String()
}

// Peak returns the operation that holds the most memory, an index into Ops.
func (p *Pass) Peak() int {
	at := 0
	for i, op := range p.Ops {
		if op.Live.Total() > p.Ops[at].Live.Total() {
			at = i
		}
	}
	return at
}

// A Misfit reports that a pass does not fit in memory.
type Misfit struct {
	Limit   int      // bytes that are available
	Op      string   // operation that holds the most
	Live    Memory   // memory at that operation
	Units   []Holder // the same by group and call, the largest first
	Help    string   // advice that makes the largest part smaller
	Changes []Change // changes that were tried, the largest saving first; only fsdp.Planner tries any
}

// A Change is another way to train, with the memory that it saves.
type Change struct {
	Name   string // what to change
	Memory int    // bytes at the peak with the change
	Saved  int    // bytes fewer than before
}

func (e *Misfit) Error() string {
	text := fmt.Sprintf("plan: %s are too few for the memory in use at %q, %v", Bytes(e.Limit), e.Op, e.Live)
	for i, u := range e.Units[:min(3, len(e.Units))] {
		text += [...]string{"; most for ", ", ", ", "}[i] + u.Name + " " + Bytes(u.Total())
	}
	if len(e.Changes) == 0 {
		return text + ": " + e.Help
	}
	return text + ". Each of these alone helps: " + e.Advice()
}

// Advice lists the changes that save most.
func (e *Misfit) Advice() string {
	const most = 4
	var list []string
	for _, c := range e.Changes[:min(most, len(e.Changes))] {
		text := fmt.Sprintf("%s saves %s", c.Name, Bytes(c.Saved))
		if c.Memory <= e.Limit {
			text += ", which is enough"
		}
		list = append(list, text)
	}
	return strings.Join(list, "; ")
}

// Fits returns nil, or a [*Misfit] if the peak exceeds the given number of bytes. It tries no
// changes: Fits of fsdp.Planner does.
func (p *Pass) Fits(bytes int) error {
	if len(p.Ops) == 0 {
		return nil
	}
	at := p.Peak()
	op := p.Ops[at]
	if op.Live.Total() <= bytes {
		return nil
	}
	return &Misfit{Limit: bytes, Op: p.Text(op), Live: op.Live, Units: p.Holders(at), Help: op.Live.largest()[0].advice}
}

// largest returns the parts that are not empty, the largest first.
func (m Memory) largest() []part {
	list := slices.DeleteFunc(m.parts(), func(p part) bool { return p.bytes == 0 })
	slices.SortStableFunc(list, func(a, b part) int { return b.bytes - a.bytes })
	return list
}

// Bytes writes a number of bytes in a unit that suits it.
func Bytes(n int) string {
	switch {
	case n < 1e6:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	case n < 1e9:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case int64(n) < 1e12:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	default:
		return fmt.Sprintf("%.2f TB", float64(n)/1e12)
	}
}
