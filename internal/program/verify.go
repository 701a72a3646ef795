package program

import (
	"fmt"
	"slices"
)

// Verify checks a program against the rules of fully sharded training and reports the first that is broken: nothing
// computes without its parameters, every call the pass needs runs once, forwards before the turn and after their inputs,
// backwards after those of all calls that read their outputs, the first backward that writes a gradient and no other says
// so, no gradient is reduced before it is complete, each is reduced exactly once, nothing is left over, and no more groups
// are resident besides the root than Prefetch+1 calls can need.
func Verify(p *Program) error {
	v := &verifier{
		p: p, groups: make([]groupState, len(p.Model.Groups)), needed: p.Model.NeedsBackward(),
		forward: make([]int, len(p.Model.Calls)), backward: make([]int, len(p.Model.Calls)), written: make([]bool, len(p.Model.Params)),
	}
	for i, op := range p.Ops {
		if err := v.step(op); err != nil {
			return fmt.Errorf("program: operation %d, %s: %w", i, p.Text(op), err)
		}
	}
	return v.finish()
}

// groupState is the state of a group while a program is checked.
type groupState struct {
	gathered, full bool // a gather was issued; it was waited for
	written        bool // the buffer of full gradients holds something
	reduced        bool // its reduction was issued
	drained        bool
}

type verifier struct {
	p                 *Program
	groups            []groupState
	needed            []bool // which calls run backward when training
	forward, backward []int  // how often each call ran
	written           []bool // which parameters have a gradient
	turned            bool
}

func (v *verifier) step(op Op) error {
	switch op.Kind {
	case Forward, Backward:
		return v.compute(op)
	case Turn:
		if v.turned {
			return fmt.Errorf("the pass turned twice")
		}
		v.turned = true
		return nil
	}
	g := &v.groups[op.Group]
	switch op.Kind {
	case Gather:
		if g.gathered {
			return fmt.Errorf("already gathered")
		}
		g.gathered = true
		return v.bounded()
	case Wait:
		if !g.gathered || g.full {
			return fmt.Errorf("no gather in flight")
		}
		g.full = true
	case Free:
		if !g.full {
			return fmt.Errorf("not gathered and waited for")
		}
		g.gathered, g.full = false, false
	case Reduce:
		if !g.written || g.reduced {
			return fmt.Errorf("no gradients, or reduced before")
		}
		g.reduced = true
	case Drain:
		if !g.reduced || g.drained {
			return fmt.Errorf("no reduction in flight")
		}
		g.drained = true
	default:
		return fmt.Errorf("unknown operation")
	}
	return nil
}

func (v *verifier) compute(op Op) error {
	for _, g := range v.p.Model.groups(op.Call) {
		if !v.groups[g].full {
			return fmt.Errorf("parameters of group %s are not there", v.p.Model.Groups[g].Name)
		}
	}
	if op.Kind == Backward {
		return v.computeBackward(op.Call)
	}
	if v.turned {
		return fmt.Errorf("forward after the turn")
	}
	v.forward[op.Call]++
	for _, r := range v.p.Model.Calls[op.Call].In {
		if r.Call != Batch && v.forward[r.Call] == 0 {
			return fmt.Errorf("its input %s has not been computed", v.p.Model.Calls[r.Call].Name)
		}
	}
	return nil
}

func (v *verifier) computeBackward(c int) error {
	m := v.p.Model
	if !v.turned || v.forward[c] != 1 {
		return fmt.Errorf("backward without forward")
	}
	v.backward[c]++
	for i, reader := range m.Calls {
		if v.needed[i] && v.backward[i] == 0 && slices.ContainsFunc(reader.In, func(r Ref) bool { return r.Call == c }) {
			return fmt.Errorf("%s, which reads its output, has not run backward", reader.Name)
		}
	}
	for _, g := range m.groups(c) {
		if v.groups[g].reduced {
			return fmt.Errorf("gradients of group %s were reduced already", m.Groups[g].Name)
		}
		v.groups[g].written = true
	}
	if len(v.p.First) != len(m.Calls) || len(v.p.First[c]) != len(m.Calls[c].Params) {
		return fmt.Errorf("field First does not fit the model")
	}
	for j, q := range m.Calls[c].Params {
		if v.p.First[c][j] == v.written[q] {
			return fmt.Errorf("field First is %t for parameter %s", v.written[q], m.Params[q].Name)
		}
		v.written[q] = true
	}
	return nil
}

// bounded checks the number of groups that are resident at once.
func (v *verifier) bounded() error {
	resident, widest := 0, 1
	for i, g := range v.groups {
		if g.gathered && i != Root {
			resident++
		}
	}
	for c := range v.p.Model.Calls {
		widest = max(widest, len(withoutRoot(v.p.Model.groups(c))))
	}
	if limit := (min(v.p.Options.Prefetch, len(v.groups)) + 1) * widest; resident > limit {
		return fmt.Errorf("%d groups are resident, at most %d may be", resident, limit)
	}
	return nil
}

func (v *verifier) finish() error {
	m := v.p.Model
	results, back := m.Results, make([]bool, len(m.Calls))
	if !v.p.Options.Eval {
		results, back = results[:1], v.needed
	}
	for c, need := range m.NeedsForward(results) {
		if v.forward[c] != count(need) || v.backward[c] != count(back[c]) {
			return fmt.Errorf("program: call %s runs %d times forward and %d times backward, want %d and %d",
				m.Calls[c].Name, v.forward[c], v.backward[c], count(need), count(back[c]))
		}
	}
	if v.turned == v.p.Options.Eval {
		return fmt.Errorf("program: the turn from forward to backward is missing, or in an evaluation")
	}
	for i, g := range v.groups {
		if g.gathered || g.written && !g.drained {
			return fmt.Errorf("program: group %s is left over at the end: %+v", m.Groups[i].Name, g)
		}
	}
	return nil
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}
