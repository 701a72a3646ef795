package program

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// randomModel draws a model: calls with any number of inputs, from the batch and from earlier calls, and of parameters,
// from any group and shared at will; calls that the loss does not need; several results.
func randomModel(t *rapid.T) *Model {
	m := &Model{Inputs: rapid.IntRange(1, 3).Draw(t, "inputs")}
	for g := range rapid.IntRange(1, 6).Draw(t, "groups") {
		m.Groups = append(m.Groups, Group{Name: fmt.Sprint("g", g)})
	}
	for p := range rapid.IntRange(0, 10).Draw(t, "params") {
		m.Params = append(m.Params, Param{fmt.Sprint("p", p), rapid.IntRange(0, len(m.Groups)-1).Draw(t, "group")})
	}
	for c := range rapid.IntRange(1, 10).Draw(t, "calls") {
		call := Call{Name: fmt.Sprint("c", c)}
		for range rapid.IntRange(0, 3).Draw(t, "fan-in") {
			call.In = append(call.In, randomInput(t, m))
		}
		for p := range m.Params {
			if rapid.IntRange(0, 3).Draw(t, "uses") == 0 {
				call.Params = append(call.Params, p)
			}
		}
		m.Calls = append(m.Calls, call)
	}
	for range rapid.IntRange(1, 3).Draw(t, "results") {
		m.Results = append(m.Results, randomOutput(t, m, 0))
	}
	return m
}

// outputs is the number of outputs of every call of a random model.
const outputs = 2

// randomInput draws a tensor of the batch or an output of an earlier call, mostly of one just before.
func randomInput(t *rapid.T, m *Model) Ref {
	if len(m.Calls) == 0 || rapid.IntRange(0, 4).Draw(t, "batch") == 0 {
		return Ref{Batch, rapid.IntRange(0, m.Inputs-1).Draw(t, "tensor")}
	}
	if rapid.IntRange(0, 4).Draw(t, "far") == 0 {
		return randomOutput(t, m, 0)
	}
	return randomOutput(t, m, len(m.Calls)-2)
}

// randomOutput draws an output of call from, or of a later one.
func randomOutput(t *rapid.T, m *Model, from int) Ref {
	return Ref{rapid.IntRange(max(0, from), len(m.Calls)-1).Draw(t, "call"), rapid.IntRange(0, outputs-1).Draw(t, "output")}
}

// randomProgram compiles a random model.
func randomProgram(t *rapid.T) *Program {
	m := randomModel(t)
	p, err := Compile(m, Options{Prefetch: rapid.IntRange(0, 4).Draw(t, "prefetch"), Eval: rapid.Bool().Draw(t, "eval")})
	require.NoError(t, err)
	return p
}

// randomSizes draws sizes for the calls of a program: gradients flow to what depends on parameters.
func randomSizes(t *rapid.T, m *Model) *Sizes {
	bytes := rapid.IntRange(1, 1000)
	keep := rapid.SliceOfN(rapid.Bool(), outputs, outputs)
	trained := m.Trained()
	s := &Sizes{}
	for range m.Groups {
		s.Group = append(s.Group, GroupSizes{bytes.Draw(t, "params"), bytes.Draw(t, "grads")})
	}
	for _, call := range m.Calls {
		z := CallSizes{
			Out: rapid.SliceOfN(bytes, outputs, outputs).Draw(t, "out"), KeepOut: keep.Draw(t, "keep out"),
			KeepIn: rapid.SliceOfN(rapid.Bool(), len(call.In), len(call.In)).Draw(t, "keep in"), GradIn: make([]int, len(call.In)),
			Saved: rapid.IntRange(0, 1000).Draw(t, "saved"), Work: bytes.Draw(t, "work"), BackWork: bytes.Draw(t, "back work"),
		}
		for j, r := range call.In {
			if r.Call != Batch && trained[r.Call] {
				z.GradIn[j] = s.Call[r.Call].Out[r.Out]
			}
		}
		s.Call = append(s.Call, z)
	}
	return s
}

// TestCompiledProgramsAreSound verifies the programs of random models and counts their operations.
func TestCompiledProgramsAreSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := randomProgram(t)
		require.NoError(t, Verify(p))
		n := make(map[Op]int)
		for _, op := range p.Ops {
			n[op]++
		}
		for g := range p.Model.Groups {
			require.Equal(t, n[Op{Gather, g, -1}], n[Op{Wait, g, -1}])
			require.Equal(t, n[Op{Gather, g, -1}], n[Op{Free, g, -1}])
			require.Equal(t, n[Op{Reduce, g, -1}], n[Op{Drain, g, -1}])
			require.LessOrEqual(t, n[Op{Reduce, g, -1}], 1)
		}
		require.Equal(t, count(!p.Options.Eval), n[Op{Turn, -1, -1}])
		require.LessOrEqual(t, n[Op{Gather, Root, -1}], 1, "the root is gathered once")
	})
}

// TestFreedAfterTheLastUse looks at the last computation before every free: it is one that needed the group. So nothing is
// gathered in vain, and nothing stays through a computation that does not need it and comes before no other that does.
func TestFreedAfterTheLastUse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := randomProgram(t)
		var last []int // groups of the last computation
		for i, op := range p.Ops {
			switch {
			case op.Kind == Forward || op.Kind == Backward:
				last = p.Model.groups(op.Call)
			case op.Kind == Free && op.Group != Root:
				require.Contains(t, last, op.Group, "operation %d, %s", i, p.Text(op))
			}
		}
	})
}

// TestFirst finds exactly one first writer of every gradient that the pass writes.
func TestFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := randomProgram(t)
		writers, firsts := make([]int, len(p.Model.Params)), make([]int, len(p.Model.Params))
		for _, op := range p.Ops {
			if op.Kind != Backward {
				continue
			}
			for j, q := range p.Model.Calls[op.Call].Params {
				if p.First[op.Call][j] {
					require.Zero(t, writers[q], "%s comes first", p.Text(op))
					firsts[q]++
				}
				writers[q]++
			}
		}
		for q := range writers {
			require.Equal(t, count(writers[q] > 0), firsts[q])
		}
	})
}

// TestPrefetchChangesNoOrder compiles a model with any depth: calls, reductions and first writers are the same, so no sum is
// taken in another order.
func TestPrefetchChangesNoOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := randomModel(t)
		order := func(prefetch int) (ops []Op, first [][]bool) {
			p, err := Compile(m, Options{Prefetch: prefetch})
			require.NoError(t, err)
			return slices.DeleteFunc(p.Ops, func(op Op) bool { return op.Kind == Gather || op.Kind == Wait || op.Kind == Free }), p.First
		}
		ops, first := order(0)
		deep, deepFirst := order(rapid.IntRange(1, 4).Draw(t, "prefetch"))
		require.Equal(t, ops, deep)
		require.Equal(t, first, deepFirst)
	})
}
