package plan

import (
	"fmt"
	"slices"
	"strings"
)

// Memory is what a rank holds at a time, in bytes, by what it is. What lies in files
// (fsdp.Config.OffloadDir) is not in it, nor on a GPU what lies in memory of the host
// (fsdp.Config.Offload).
type Memory struct {
	Shard      int // its parameters and gradients
	State      int // of the optimizer
	Gathered   int // whole parameters
	Gradient   int // whole gradients
	Activation int // values between calls, and their gradients
	Saved      int // what calls keep for their backward
	Work       int // scratch of the call that runs
}

// Total returns the sum.
func (m Memory) Total() int {
	return m.Shard + m.State + m.Gathered + m.Gradient + m.Activation + m.Saved + m.Work
}

// add adds what o has, sign times.
func (m *Memory) add(o *Memory, sign int) {
	m.Shard += sign * o.Shard
	m.State += sign * o.State
	m.Gathered += sign * o.Gathered
	m.Gradient += sign * o.Gradient
	m.Activation += sign * o.Activation
	m.Saved += sign * o.Saved
	m.Work += sign * o.Work
}

// part is a part of a Memory, with what makes it smaller.
type part struct {
	name   string
	bytes  int
	advice string
}

func (m Memory) parts() []part {
	return []part{
		{"parameters and gradients of this rank", m.Shard, "cut them over more ranks"},
		{"optimizer state", m.State, "cut it over more ranks, or keep it in 8 bits"},
		{"gathered parameters", m.Gathered, "free units after use, wrap smaller ones, gather fewer ahead, or gather in 16 bits"},
		{"whole gradients", m.Gradient, "wrap smaller units, or reduce in 16 bits"},
		{"activations between calls", m.Activation, "take a smaller micro batch"},
		{"values kept for backward", m.Saved, "checkpoint calls, or take a smaller micro batch"},
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

// Peak returns the operation during which most is held, an index into Ops.
func (p *Pass) Peak() int {
	at := 0
	for i, op := range p.Ops {
		if op.Live.Total() > p.Ops[at].Live.Total() {
			at = i
		}
	}
	return at
}

// A Misfit says that a pass does not fit in memory.
type Misfit struct {
	Limit   int      // bytes that there are
	Op      string   // during which most is held
	Live    Memory   // then
	Units   []Holder // the same by group and call, the most first
	Help    string   // what makes the largest part smaller
	Changes []Change // what was tried, that which saves most first; only fsdp.Fits and fsdp.Tune try
}

// A Change is another way to train with what it saves.
type Change struct {
	Name   string // what to change
	Memory int    // bytes at the peak then
	Saved  int    // fewer than before
}

func (e *Misfit) Error() string {
	text := fmt.Sprintf("plan: %s do not hold what is live at %q, %v", Bytes(e.Limit), e.Op, e.Live)
	for i, u := range e.Units[:min(3, len(e.Units))] {
		text += [...]string{"; most for ", ", ", ", "}[i] + u.Name + " " + Bytes(u.Total())
	}
	if len(e.Changes) == 0 {
		return text + ": " + e.Help
	}
	return text + ". What helps, each by itself: " + e.Advice()
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

// Fits returns nil, or a [*Misfit] if more than so many bytes are held at once. It has tried no
// changes: fsdp.Fits does.
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
