package program

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/arena"
)

// touched lists the buffers that an operation reads or writes, straight from the meaning of the operation.
func touched(p *Program, s *Sizes, op Op) []Buffer {
	m, trained := p.Model, p.Model.Trained()
	back := make([]bool, len(m.Calls))
	if !p.Options.Eval {
		back = m.NeedsBackward()
	}
	var list []Buffer
	use := func(kind BufferKind, index, out int) { list = append(list, Buffer{Kind: kind, Index: index, Out: out}) }
	loss := m.Results[0]
	switch op.Kind {
	case Gather, Wait, Free:
		use(GroupParams, op.Group, 0)
	case Reduce, Drain:
		use(GroupGrads, op.Group, 0)
	case Turn:
		use(CallOut, loss.Call, loss.Out)
		if back[loss.Call] {
			use(CallGradOut, loss.Call, loss.Out)
		}
	case Forward, Backward:
		c := op.Call
		for _, g := range m.groups(c) {
			use(GroupParams, g, 0)
			if op.Kind == Backward {
				use(GroupGrads, g, 0)
			}
		}
		if back[c] {
			use(CallSaved, c, 0)
		}
		for j, r := range m.Calls[c].In {
			if r.Call == Batch {
				continue
			}
			if op.Kind == Forward || s.Call[c].KeepIn[j] {
				use(CallOut, r.Call, r.Out)
			}
			if op.Kind == Backward && trained[r.Call] {
				use(CallGradOut, r.Call, r.Out)
			}
		}
		for o := range outputs {
			if op.Kind == Forward || s.Call[c].KeepOut[o] {
				use(CallOut, c, o)
			}
			if op.Kind == Backward && receives(m, back, Ref{c, o}) {
				use(CallGradOut, c, o)
			}
		}
	}
	return list
}

// receives tells whether a value that depends on parameters gets a gradient: from a reader, or because it is the loss.
func receives(m *Model, back []bool, r Ref) bool {
	if r == m.Results[0] {
		return true
	}
	for c, call := range m.Calls {
		if back[c] && slices.Contains(call.In, r) {
			return true
		}
	}
	return false
}

// size returns the bytes of a buffer.
func size(s *Sizes, b Buffer) int {
	switch b.Kind {
	case GroupParams:
		return s.Group[b.Index].Params
	case GroupGrads:
		return s.Group[b.Index].Grads
	case CallSaved:
		return s.Call[b.Index].Saved
	default:
		return s.Call[b.Index].Out[b.Out]
	}
}

// work returns the scratch bytes of an operation.
func work(s *Sizes, op Op) int {
	switch op.Kind {
	case Forward:
		return s.Call[op.Call].Work
	case Backward:
		return s.Call[op.Call].BackWork
	default:
		return 0
	}
}

// TestPlan runs the plans of random models over imaginary memory: nothing is used before it is allocated or after it is
// freed, everything is freed by the operation that uses it last, and the peak is what it says.
func TestPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := randomProgram(t)
		s := randomSizes(t, p.Model)
		plan, err := NewPlan(p, s)
		require.NoError(t, err)
		require.Len(t, plan.Steps, len(p.Ops))
		memory := make(map[Buffer]int)
		bytes, peak := 0, 0
		last := make(map[Buffer]int) // step of the last use
		for i, op := range p.Ops {
			for _, b := range touched(p, s, op) {
				last[b] = i
			}
		}
		for i, step := range plan.Steps {
			require.Equal(t, p.Ops[i], step.Op)
			for _, id := range step.Alloc {
				b := plan.Buffers[id]
				require.Equal(t, size(s, b), b.Bytes)
				b.Bytes = 0
				require.Equal(t, id, plan.Lookup(b.Kind, b.Index, b.Out))
				require.NotContains(t, memory, b, "step %d allocates it again", i)
				memory[b] = plan.Buffers[id].Bytes
				bytes += memory[b]
				require.Contains(t, touched(p, s, step.Op), b, "step %d allocates it too early", i)
			}
			for _, b := range touched(p, s, step.Op) {
				require.Contains(t, memory, b, "step %d, %s", i, p.Text(step.Op))
			}
			peak = max(peak, bytes+work(s, step.Op))
			for _, id := range step.Free {
				b := plan.Buffers[id]
				b.Bytes = 0
				require.Contains(t, memory, b)
				if b.Kind != GroupParams { // which come again in backward
					require.Equal(t, last[b], i, "%+v is freed at the wrong step", b)
				}
				bytes -= memory[b]
				delete(memory, b)
			}
		}
		require.Equal(t, peak, plan.Peak)
		requireLeft(t, p, memory)
	})
}

// requireLeft requires that the results of an evaluation, and nothing else, are left in memory.
func requireLeft(t *rapid.T, p *Program, memory map[Buffer]int) {
	results := make(map[Buffer]bool)
	if p.Options.Eval {
		for _, r := range p.Model.Results {
			results[Buffer{Kind: CallOut, Index: r.Call, Out: r.Out}] = true
		}
	}
	require.Len(t, memory, len(results))
	for b := range results {
		require.Contains(t, memory, b)
	}
}

// TestPlanTurn is where training stops between forward and backward.
func TestPlanTurn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := randomProgram(t)
		plan, err := NewPlan(p, randomSizes(t, p.Model))
		require.NoError(t, err)
		if p.Options.Eval {
			require.Equal(t, len(p.Ops), plan.Turn)
		} else {
			require.Equal(t, Turn, p.Ops[plan.Turn].Kind)
		}
	})
}

// TestPlanOfAChain gives the numbers of a model that can be worked out by hand.
func TestPlanOfAChain(t *testing.T) {
	m := chain(3)
	p, err := Compile(m, Options{Prefetch: 1})
	require.NoError(t, err)
	s := &Sizes{Group: []GroupSizes{{}, {100, 100}, {100, 100}, {100, 100}}}
	for c := range 3 {
		s.Call = append(s.Call, CallSizes{
			Out: []int{10}, GradIn: []int{10}, KeepIn: []bool{true}, KeepOut: []bool{false}, Saved: 1, Work: 3, BackWork: 5,
		})
		if c == 0 {
			s.Call[0].GradIn[0] = 0 // of the batch
		}
	}
	plan, err := NewPlan(p, s)
	require.NoError(t, err)
	// The backward of the middle call, with its own and the prefetched group, its own and the reduced gradients, one kept
	// input, two gradients of values, what two calls saved, and scratch memory.
	require.Equal(t, 2*100+2*100+10+2*10+2*1+5, plan.Peak)
	// Three groups are gathered, the first one twice, and three are reduced; each rank sends 3/4 of every one.
	require.Equal(t, (4+3)*75, plan.Traffic(4))
	require.Zero(t, plan.Traffic(1))
	require.Equal(t, -1, plan.Lookup(GroupParams, Root, 0), "the root is empty")
}

// TestPlanErrors refuses sizes of another model.
func TestPlanErrors(t *testing.T) {
	p, err := Compile(chain(2), Options{})
	require.NoError(t, err)
	_, err = NewPlan(p, &Sizes{})
	require.EqualError(t, err, "program: sizes of 0 groups and 0 calls, the model has 3 and 2")
}

// TestBufferClasses counts buffers under the right class.
func TestBufferClasses(t *testing.T) {
	require.Equal(t, map[BufferKind]arena.Class{
		GroupParams: arena.Gathered, GroupGrads: arena.Gradient, CallOut: arena.Activation, CallGradOut: arena.Activation, CallSaved: arena.Saved,
	}, map[BufferKind]arena.Class{
		GroupParams: GroupParams.Class(), GroupGrads: GroupGrads.Class(), CallOut: CallOut.Class(), CallGradOut: CallGradOut.Class(), CallSaved: CallSaved.Class(),
	})
}
