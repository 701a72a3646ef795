package program

import (
	"fmt"
	"slices"
)

// A Model is the part of a model that determines the schedule. It is the same on every rank.
type Model struct {
	Inputs  int     // batch tensors
	Calls   []Call  // in the order of the forward pass
	Params  []Param // of all calls, each once
	Groups  []Group
	Results []Ref // of the model; the first is the loss when training
	Losses  int   // number of first Results that may be the loss of a pass; 0 means 1
}

// A Ref names a value: output Out of call Call, or batch tensor Out if Call is Batch.
type Ref struct{ Call, Out int }

// Batch is the Call of a Ref to a batch tensor.
const Batch = -1

// None is the Call of a result that is missing in a pass.
const None = -2

// A Call is one use of a module, the smallest unit of computation.
type Call struct {
	Name   string
	In     []Ref
	Params []int // indices into Model.Params
}

// A Param is a parameter: the unit of naming.
type Param struct {
	Name  string
	Group int
}

// A Group is a set of parameters that is gathered, freed and reduced together: one flat buffer. The
// groups of a unit are scheduled together, but each is gathered and freed only where it is used: a
// unit with frozen and trained parameters has a group for each kind.
type Group struct {
	Name   string
	Unit   string // "" if the group is its own unit
	Hold   Hold
	Frozen bool // its parameters get no gradient
	Bytes  int  // of a gather or reduction, for Options.InFlight

	Shards   int // number of ranks that its parameters are sharded over; 0 means 1
	Replicas int // number of ranks with the same piece, over which gradients are also summed; 0 means 1
	// Second is the number of ranks over which a pass keeps gathered parameters sharded, so that
	// its later gathers are over these ranks. 0 means none: all gathers are over the Shards.
	Second int
}

// unit returns the common name of the groups of a unit.
func (g *Group) unit() string {
	if g.Unit != "" {
		return g.Unit
	}
	return g.Name
}

// twice reports whether gradients are reduced over the shards first and then over the replicas.
func (g *Group) twice() bool { return g.Shards > 1 && g.Replicas > 1 }

// Hold says how long the full parameters of a group are kept after they have been gathered.
type Hold uint8

// The values of Hold, from the least memory to the least traffic.
const (
	// Use frees the parameters as soon as no call of this stage and of the prefetched stages needs
	// them (ZeRO-3).
	Use Hold = iota
	// Keep frees the parameters after their last use in the pass (ZeRO-2, and the root unit of
	// ZeRO-3).
	Keep
	// Always needs no gather: every rank has all parameters (DDP).
	Always
)

// distinct returns the groups of the given parameters in ascending order, without repetition.
func (m *Model) distinct(params []int, want func(g *Group) bool) []int {
	var list []int
	for _, p := range params {
		if g := m.Params[p].Group; want(&m.Groups[g]) {
			list = append(list, g)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// trains returns the groups whose gradients the backward of call c writes.
func (m *Model) trains(c int) []int {
	return m.distinct(m.Calls[c].Params, func(g *Group) bool { return !g.Frozen })
}

// reads returns the groups that call c needs gathered, in forward or in backward. reads says which
// of its parameters backward reads; nil means all.
func (m *Model) reads(c int, backward bool, reads []bool) []int {
	params := m.Calls[c].Params
	if backward && reads != nil {
		params = nil
		for j, p := range m.Calls[c].Params {
			if reads[j] {
				params = append(params, p)
			}
		}
	}
	return m.distinct(params, func(g *Group) bool { return g.Hold != Always })
}

// check returns an error for the first invalid reference in the model. It also refuses a call that
// lists a parameter twice: the order of the two writes to its gradient would be undefined.
func (m *Model) check() error {
	if len(m.Results) == 0 {
		return fmt.Errorf("program: model has no results")
	}
	for i, p := range m.Params {
		if p.Group < 0 || p.Group >= len(m.Groups) {
			return fmt.Errorf("program: parameter %d (%s) is in group %d, but there are %d groups", i, p.Name, p.Group, len(m.Groups))
		}
	}
	valid := func(r Ref, before int) bool {
		if r.Call == Batch {
			return r.Out >= 0 && r.Out < m.Inputs
		}
		return r.Call >= 0 && r.Call < before && r.Out >= 0
	}
	for i, c := range m.Calls {
		for j, r := range c.In {
			if !valid(r, i) {
				return fmt.Errorf("program: input %d of call %s is %v, which is not computed before it", j, c.Name, r)
			}
		}
		for j, p := range c.Params {
			if p < 0 || p >= len(m.Params) {
				return fmt.Errorf("program: call %s uses parameter %d, but there are %d parameters", c.Name, p, len(m.Params))
			}
			if slices.Contains(c.Params[:j], p) {
				return fmt.Errorf("program: call %s uses parameter %s twice", c.Name, m.Params[p].Name)
			}
		}
	}
	for i, r := range m.Results {
		if r.Call == Batch || !valid(r, len(m.Calls)) {
			return fmt.Errorf("program: result %d is %v, which no call computes", i, r)
		}
	}
	return nil
}

// Ends returns the results that a pass computes: all results in an evaluation, the loss in
// training.
func (m *Model) Ends(eval bool) []Ref {
	if eval {
		return m.Results
	}
	return m.Results[:max(1, m.Losses)]
}

// NeedsForward reports for each call whether the given results depend on it.
func (m *Model) NeedsForward(results []Ref) []bool {
	need := make([]bool, len(m.Calls))
	for _, r := range results {
		if r.Call != None {
			need[r.Call] = true
		}
	}
	for c := len(m.Calls) - 1; c >= 0; c-- {
		if need[c] {
			for _, r := range m.Calls[c].In {
				if r.Call != Batch {
					need[r.Call] = true
				}
			}
		}
	}
	return need
}

// NeedsBackward reports for each call whether it runs backward: the loss depends on it, and it has
// parameters to train or inputs that depend on trained parameters. The calls of a frozen prefix do
// not run backward.
func (m *Model) NeedsBackward() []bool {
	need := m.NeedsForward(m.Ends(false))
	trained := m.Trained()
	for c := range need {
		need[c] = need[c] && trained[c]
	}
	return need
}

// Trained reports for each call whether its outputs depend on trained parameters, so that their
// gradient is needed.
func (m *Model) Trained() []bool {
	trained := make([]bool, len(m.Calls))
	for c, call := range m.Calls {
		trained[c] = slices.ContainsFunc(call.Params, func(p int) bool { return !m.frozen(p) })
		for _, r := range call.In {
			trained[c] = trained[c] || r.Call != Batch && trained[r.Call]
		}
	}
	return trained
}

func (m *Model) frozen(p int) bool { return m.Groups[m.Params[p].Group].Frozen }

// First reports for each call, in the order of its parameters, whether its backward is the first in
// a pass to write the gradient of that parameter. Later calls add to the gradient. It is false for
// frozen parameters.
func (m *Model) First() [][]bool {
	written := make([]bool, len(m.Params))
	first := make([][]bool, len(m.Calls))
	need := m.NeedsBackward()
	for c := len(m.Calls) - 1; c >= 0; c-- {
		if !need[c] {
			continue
		}
		for _, p := range m.Calls[c].Params {
			first[c] = append(first[c], !written[p] && !m.frozen(p))
			written[p] = true
		}
	}
	return first
}
