package program

import (
	"fmt"
	"slices"
)

// Verify checks a program against the rules of fully sharded training and reports the first
// violation:
//
//   - no call runs without its parameters, and no group is gathered that no call reads;
//   - parameters are freed after the last call that reads them, and apart from kept units, no more
//     units are resident than Prefetch+1 calls can need;
//   - every call that the pass needs runs once: forwards before the turn and after their inputs,
//     backwards after the backwards of all calls that read their outputs;
//   - every gradient is first written by the call that Model.First names, and reduced exactly once,
//     when it is complete (with NoSync never), over shards and then replicas;
//   - the bytes in flight stay within the limit, and nothing is left at the end.
func Verify(p *Program) error {
	v := &verifier{
		p: p, groups: make([]groupState, len(p.Model.Groups)), needed: p.Model.NeedsBackward(),
		first: p.Model.First(), begun: make([]bool, len(p.Model.Params)),
		forward: make([]int, len(p.Model.Calls)), backward: make([]int, len(p.Model.Calls)),
		resident: make(map[string]int), limit: p.maxResident(),
	}
	v.lastReads()
	for i, op := range p.Ops {
		if err := v.step(i, op); err != nil {
			return fmt.Errorf("program: operation %d, %s: %w", i, p.Text(op), err)
		}
	}
	return v.finish()
}

// groupState is the state of a group while a program is checked.
type groupState struct {
	gathered, full bool // a gather was issued; it was waited for
	used           bool // a call has read the full parameters
	written        bool // the buffer of full gradients has been written
	reduced        bool // its reduction was issued
	synced         bool // its sum over the replicas was issued
	drained        bool
}

type verifier struct {
	p                 *Program
	groups            []groupState
	lastRead          []int  // by group: the last operation that reads its parameters, or -1
	needed            []bool // which calls run backward when training
	first             [][]bool
	begun             []bool // by parameter: its gradient has been written
	forward, backward []int  // number of runs of each call
	turned            bool

	resident map[string]int // number of gathered groups of a unit that is not kept
	limit    int            // units that may be resident
	inFlight int            // bytes
}

// lastReads finds the last reader of every group.
func (v *verifier) lastReads() {
	v.lastRead = slices.Repeat([]int{-1}, len(v.groups))
	for i, op := range v.p.Ops {
		if op.Kind == Forward || op.Kind == Backward {
			for _, g := range v.p.reads(op) {
				v.lastRead[g] = i
			}
		}
	}
}

// reads returns the groups that a forward or backward needs gathered.
func (p *Program) reads(op Op) []int {
	return p.Model.reads(op.Call, op.Kind == Backward, p.Options.reads(op.Call))
}

// maxResident returns the largest number of units that may be resident at once, without kept units:
// Prefetch+1 times the number of units of the call that reads most.
func (p *Program) maxResident() int {
	widest := 1
	for c := range p.Model.Calls {
		units := make(map[string]bool)
		for _, g := range p.Model.reads(c, false, nil) {
			if q := &p.Model.Groups[g]; q.Hold == Use {
				units[q.unit()] = true
			}
		}
		widest = max(widest, len(units))
	}
	return (min(p.Options.Prefetch, len(p.Model.Groups)) + 1) * widest
}

func (v *verifier) step(i int, op Op) error {
	switch op.Kind {
	case Forward, Backward:
		return v.compute(i, op)
	case Turn:
		if v.turned {
			return fmt.Errorf("the pass has turned from forward to backward already")
		}
		v.turned = true
		return nil
	}
	g, q := &v.groups[op.Group], &v.p.Model.Groups[op.Group]
	switch op.Kind {
	case Gather:
		if g.gathered || q.Hold == Always {
			return fmt.Errorf("the group is already gathered")
		}
		g.gathered = true
		return v.gather(q)
	case Wait:
		if !g.gathered || g.full {
			return fmt.Errorf("the group has no gather in flight")
		}
		g.full = true
		v.inFlight -= q.Bytes
	case Free:
		if !g.full || !g.used {
			return fmt.Errorf("the group is not gathered, or no call has read it since its gather")
		}
		g.gathered, g.full, g.used = false, false, false
		v.count(q, -1)
	default:
		return v.reduction(op, g, q)
	}
	return nil
}

// gather returns an error if one more group makes too many units resident.
func (v *verifier) gather(q *Group) error {
	if v.count(q, 1); len(v.resident) > v.limit {
		return fmt.Errorf("%d units are resident, the limit is %d", len(v.resident), v.limit)
	}
	return v.issue(q)
}

// count adds n to the resident groups of a unit.
func (v *verifier) count(q *Group, n int) {
	if q.Hold != Use {
		return
	}
	if v.resident[q.unit()] += n; v.resident[q.unit()] == 0 {
		delete(v.resident, q.unit())
	}
}

// issue returns an error if one more collective puts too many bytes in flight.
func (v *verifier) issue(q *Group) error {
	before, limit := v.inFlight, v.p.Options.InFlight
	v.inFlight += q.Bytes
	if limit > 0 && before > 0 && v.inFlight > limit {
		return fmt.Errorf("%d bytes are in flight, the limit is %d", v.inFlight, limit)
	}
	return nil
}

// reduction checks the three steps of a reduction.
func (v *verifier) reduction(op Op, g *groupState, q *Group) error {
	switch op.Kind {
	case Reduce:
		if !g.written || g.reduced || v.p.Options.NoSync {
			return fmt.Errorf("the group has no gradients to reduce, or has reduced them already")
		}
		g.reduced = true
		return v.issue(q)
	case Sync:
		if !g.reduced || g.synced || !q.twice() {
			return fmt.Errorf("the group has no reduction in flight, or no replicas")
		}
		g.synced = true
	case Drain:
		if !g.reduced || g.drained || q.twice() && !g.synced {
			return fmt.Errorf("the group has no reduction in flight")
		}
		g.drained = true
		v.inFlight -= q.Bytes
	default:
		return fmt.Errorf("unknown operation")
	}
	return nil
}

func (v *verifier) compute(i int, op Op) error {
	m := v.p.Model
	for _, g := range v.p.reads(op) {
		if !v.groups[g].full {
			return fmt.Errorf("parameters of group %s are not gathered", m.Groups[g].Name)
		}
		v.groups[g].used = true
	}
	for g, s := range v.groups {
		if s.gathered && v.lastRead[g] < i {
			return fmt.Errorf("parameters of group %s are still gathered after their last use", m.Groups[g].Name)
		}
	}
	if op.Kind == Backward {
		return v.computeBackward(op.Call)
	}
	if v.turned {
		return fmt.Errorf("forward after the turn")
	}
	v.forward[op.Call]++
	for _, r := range m.Calls[op.Call].In {
		if r.Call != Batch && v.forward[r.Call] == 0 {
			return fmt.Errorf("its input %s has not been computed", m.Calls[r.Call].Name)
		}
	}
	return nil
}

func (v *verifier) computeBackward(c int) error {
	m := v.p.Model
	switch {
	case !v.turned || v.forward[c] != 1:
		return fmt.Errorf("backward without forward")
	case !v.needed[c]:
		return fmt.Errorf("this backward trains no parameter")
	}
	v.backward[c]++
	for i, reader := range m.Calls {
		if v.needed[i] && v.backward[i] == 0 && slices.ContainsFunc(reader.In, func(r Ref) bool { return r.Call == c }) {
			return fmt.Errorf("%s, which reads its output, has not run backward", reader.Name)
		}
	}
	for _, g := range m.trains(c) {
		if v.groups[g].reduced {
			return fmt.Errorf("gradients of group %s are already reduced", m.Groups[g].Name)
		}
		v.groups[g].written = true
	}
	for j, q := range m.Calls[c].Params {
		if !m.frozen(q) && v.first[c][j] == v.begun[q] {
			return fmt.Errorf("the wrong call is marked as the first to write the gradient of %s", m.Params[q].Name)
		}
		v.begun[q] = true
	}
	return nil
}

func (v *verifier) finish() error {
	m := v.p.Model
	back := make([]bool, len(m.Calls))
	if !v.p.Options.Eval {
		back = v.needed
	}
	for c, need := range m.NeedsForward(m.Ends(v.p.Options.Eval)) {
		if v.forward[c] != count(need) || v.backward[c] != count(back[c]) {
			return fmt.Errorf("program: call %s runs %d times forward and %d times backward, want %d and %d",
				m.Calls[c].Name, v.forward[c], v.backward[c], count(need), count(back[c]))
		}
	}
	if v.turned == v.p.Options.Eval {
		return fmt.Errorf("program: the turn from forward to backward is missing, or an evaluation has one")
	}
	for i, g := range v.groups {
		if g.gathered || g.written && g.drained == v.p.Options.NoSync {
			return fmt.Errorf("program: group %s is not freed or not reduced at the end: %+v", m.Groups[i].Name, g)
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
