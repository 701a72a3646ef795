package program

import (
	"fmt"
	"slices"
)

// A Model is what the schedule needs to know of a model. It is the same on every rank.
type Model struct {
	Inputs  int     // batch tensors
	Calls   []Call  // in the order of the forward pass
	Params  []Param // of all calls, each once
	Groups  []Group // Groups[0] is the root group, which may be empty
	Results []Ref   // of the model; the first is the loss when training
}

// A Ref names a value: output Out of call Call, or batch tensor Out if Call is Batch.
type Ref struct{ Call, Out int }

// Batch is the Call of a Ref to a batch tensor.
const Batch = -1

// A Call is one use of a module, the granule of computation.
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

// A Group is a set of parameters that is gathered, freed and reduced together.
type Group struct{ Name string }

// Root is the index of the root group. It is gathered first and stays until the pass is over.
const Root = 0

// groups returns the groups, in ascending order, whose parameters call c uses.
func (m *Model) groups(c int) []int {
	var list []int
	for _, p := range m.Calls[c].Params {
		list = append(list, m.Params[p].Group)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// check reports the first reference in the model that leads nowhere, and parameters that one call lists twice: their two
// gradients would be written to the same memory in an order that nobody decided.
func (m *Model) check() error {
	if len(m.Groups) == 0 {
		return fmt.Errorf("program: model has no root group")
	}
	if len(m.Results) == 0 {
		return fmt.Errorf("program: model has no results")
	}
	for i, p := range m.Params {
		if p.Group < 0 || p.Group >= len(m.Groups) {
			return fmt.Errorf("program: parameter %d (%s) is in group %d of %d", i, p.Name, p.Group, len(m.Groups))
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
				return fmt.Errorf("program: call %s uses parameter %d of %d", c.Name, p, len(m.Params))
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

// NeedsForward tells which calls the given results depend on.
func (m *Model) NeedsForward(results []Ref) []bool {
	need := make([]bool, len(m.Calls))
	for _, r := range results {
		need[r.Call] = true
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

// NeedsBackward tells which calls run backward: those that the loss depends on and that have parameters, or inputs that
// depend on parameters.
func (m *Model) NeedsBackward() []bool {
	need := m.NeedsForward(m.Results[:1])
	trained := m.Trained()
	for c := range need {
		need[c] = need[c] && trained[c]
	}
	return need
}

// Trained tells which calls' outputs depend on parameters, so that a gradient with respect to them is of use.
func (m *Model) Trained() []bool {
	trained := make([]bool, len(m.Calls))
	for c, call := range m.Calls {
		trained[c] = len(call.Params) > 0
		for _, r := range call.In {
			trained[c] = trained[c] || r.Call != Batch && trained[r.Call]
		}
	}
	return trained
}
