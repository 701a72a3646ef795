package program

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/arena"
)

// touched lists the buffers that an operation reads or writes, straight from the meaning of the
// operation.
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
		if op.Kind == Wait && m.Groups[op.Group].Second > 0 && gathers(p, op.Group) > 1 {
			use(GroupSecond, op.Group, 0)
		}
	case Reduce, Sync, Drain:
		use(GroupGrads, op.Group, 0)
	case Turn:
		use(CallOut, loss.Call, loss.Out)
		if back[loss.Call] {
			use(CallGradOut, loss.Call, loss.Out)
		}
	case Forward, Backward:
		c := op.Call
		for _, g := range finds(p, op) {
			use(GroupParams, g, 0)
		}
		for _, g := range writes(p, op) {
			use(GroupGrads, g, 0)
		}
		if back[c] {
			use(CallSaved, c, 0)
		}
		for o := range s.Call[c].Update {
			if op.Kind == Forward || s.Call[c].KeepUpdate[o] {
				use(CallUpdate, c, o)
			}
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

// gathers returns how often a pass gathers a group.
func gathers(p *Program, g int) (n int) {
	for _, op := range p.Ops {
		n += count(op == Op{Gather, g, -1})
	}
	return n
}

// receives tells whether a value that depends on parameters gets a gradient: from a reader, or
// because it is the loss.
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
	case GroupSecond:
		return b.Bytes // see TestSecondCopy
	case CallSaved:
		return s.Call[b.Index].Saved
	case CallUpdate:
		return s.Call[b.Index].Update[b.Out]
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

// randomSizes draws sizes for the calls of a program: gradients flow to what depends on parameters.
func randomSizes(t *rapid.T, m *Model) *Sizes {
	bytes := rapid.IntRange(1, 1000)
	keep := rapid.SliceOfN(rapid.Bool(), outputs, outputs)
	trained := m.Trained()
	s := &Sizes{}
	for range m.Groups {
		s.Group = append(s.Group, GroupSizes{Params: bytes.Draw(t, "params"), Grads: bytes.Draw(t, "grads")})
	}
	for _, call := range m.Calls {
		z := CallSizes{
			Out: rapid.SliceOfN(bytes, outputs, outputs).Draw(t, "out"), KeepOut: keep.Draw(t, "keep out"),
			KeepIn: rapid.SliceOfN(rapid.Bool(), len(call.In), len(call.In)).Draw(t, "keep in"), GradIn: make([]int, len(call.In)),
			Saved: rapid.IntRange(0, 1000).Draw(t, "saved"), Work: bytes.Draw(t, "work"), BackWork: bytes.Draw(t, "back work"),
			Update: rapid.SliceOfN(bytes, 0, 2).Draw(t, "update"), Spill: rapid.Bool().Draw(t, "spill"),
		}
		z.KeepUpdate = rapid.SliceOfN(rapid.Bool(), len(z.Update), len(z.Update)).Draw(t, "keep update")
		for j, r := range call.In {
			if r.Call != Batch && trained[r.Call] {
				z.GradIn[j] = s.Call[r.Call].Out[r.Out]
			}
		}
		s.Call = append(s.Call, z)
	}
	return s
}

// A memory is the imaginary one that a plan runs over: the buffers that are live, without their
// sizes.
type memory struct {
	s     *Sizes
	live  map[Buffer]bool
	bytes int
}

// name strips a buffer of what only its kind and size decide.
func name(b Buffer) Buffer { return Buffer{Kind: b.Kind, Index: b.Index, Out: b.Out} }

func (m *memory) alloc(t *rapid.T, b Buffer) {
	require.NotContains(t, m.live, name(b), "allocated again")
	require.Equal(t, size(m.s, b), b.Bytes)
	m.live[name(b)] = true
	m.bytes += b.Bytes
}

func (m *memory) free(t *rapid.T, b Buffer) {
	require.Contains(t, m.live, name(b))
	delete(m.live, name(b))
	m.bytes -= b.Bytes
}

// TestPlan runs the plans of random models over imaginary memory: nothing is used before it is
// allocated or after it is freed, everything is freed by the operation that uses it last, and the
// peak is what it says.
func TestPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := randomProgram(t)
		s := randomSizes(t, p.Model)
		plan, err := NewPlan(p, s)
		require.NoError(t, err)
		require.Len(t, plan.Steps, len(p.Ops))
		last := make(map[Buffer]int) // step of the last use
		for i, op := range p.Ops {
			for _, b := range touched(p, s, op) {
				last[b] = i
			}
		}
		m := &memory{s: s, live: make(map[Buffer]bool)}
		for _, id := range plan.Inherited {
			m.alloc(t, plan.Buffers[id])
		}
		peak := 0
		for i, step := range plan.Steps {
			require.Equal(t, p.Ops[i], step.Op)
			for _, id := range step.Alloc {
				b := plan.Buffers[id]
				require.Equal(t, id, plan.Lookup(b.Kind, b.Index, b.Out))
				m.alloc(t, b)
				require.Contains(t, touched(p, s, step.Op), name(b), "step %d allocates it too early", i)
			}
			for _, b := range touched(p, s, step.Op) {
				require.Contains(t, m.live, b, "step %d, %s", i, p.Text(step.Op))
			}
			require.Equal(t, work(s, step.Op), step.Work)
			peak = max(peak, m.bytes+step.Work)
			for _, id := range step.Free {
				b := plan.Buffers[id]
				m.free(t, b)
				if b.Kind != GroupParams { // which come again in backward
					require.Equal(t, last[name(b)], i, "%+v is freed at the wrong step", b)
				}
			}
		}
		require.Equal(t, peak, plan.Peak)
		requireLeft(t, plan, m)
	})
}

// requireLeft requires that results of an evaluation, gradients that wait for a later pass, and
// nothing else are left in memory; and that gradients of an earlier pass are inherited if there are
// any.
func requireLeft(t *rapid.T, plan *Plan, m *memory) {
	p := plan.Program
	want, grads := make(map[Buffer]bool), make(map[Buffer]bool)
	if p.Options.Eval {
		for _, r := range p.Model.Results {
			want[Buffer{Kind: CallOut, Index: r.Call, Out: r.Out}] = true
		}
	}
	for _, op := range p.Ops {
		for _, g := range writes(p, op) {
			grads[Buffer{Kind: GroupGrads, Index: g}] = true
		}
	}
	names := func(ids []int) map[Buffer]bool {
		list := make(map[Buffer]bool)
		for _, id := range ids {
			list[name(plan.Buffers[id])] = true
		}
		require.Len(t, list, len(ids), "each once")
		return list
	}
	if p.Options.NoSync {
		maps.Copy(want, grads)
		require.Equal(t, grads, names(plan.Left))
	} else {
		require.Empty(t, plan.Left)
	}
	if p.Options.Pending {
		require.Equal(t, grads, names(plan.Inherited))
	} else {
		require.Empty(t, plan.Inherited)
	}
	require.Equal(t, want, m.live)
}

// TestPlansFollow runs two passes over one memory: what the first leaves is what the second
// inherits.
func TestPlansFollow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := randomModel(t)
		s := randomSizes(t, m)
		plan := func(o Options) *Plan {
			p, err := NewPlan(compiled(t, m, o), s)
			require.NoError(t, err)
			return p
		}
		buffers := func(p *Plan, ids []int) (list []Buffer) {
			for _, id := range ids {
				list = append(list, p.Buffers[id])
			}
			return list
		}
		first, second := plan(Options{NoSync: true}), plan(Options{Pending: true})
		require.ElementsMatch(t, buffers(first, first.Left), buffers(second, second.Inherited))
	})
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
	p := compiled(t, chain(3), Options{Prefetch: 1})
	same := GroupSizes{Params: 100, Grads: 100, ParamsWire: 100, GradsWire: 100, SumsWire: 100}
	s := &Sizes{Group: []GroupSizes{same, same, same}}
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
	// The backward of the middle call, with its own and the prefetched group, its own and the reduced
	// gradients, one kept input, two gradients of values, what two calls saved, and scratch memory.
	require.Equal(t, 2*100+2*100+10+2*10+2*1+5, plan.Peak)
	// Three groups are gathered, the first one twice, and three are reduced; each rank sends 3/4 of
	// every one.
	require.Equal(t, (4+3)*75, plan.Traffic())
	require.Equal(t, -1, plan.Lookup(GroupParams, 3, 0), "there is no such group")
}

// TestSecondCopy plans a group that is gathered twice: the first wait keeps a piece of what has
// come, the last one drops it, and the second gather is over fewer ranks.
func TestSecondCopy(t *testing.T) {
	p := compiled(t, chain(3).each(func(g *Group) { g.Second = 2 }), Options{Prefetch: 1})
	same := GroupSizes{Params: 100, Grads: 100, ParamsWire: 100, GradsWire: 100, SumsWire: 100}
	plan, err := NewPlan(p, &Sizes{Group: []GroupSizes{same, same, same}})
	require.NoError(t, err)
	piece := plan.Lookup(GroupSecond, 0, 0)
	require.Equal(t, Buffer{GroupSecond, 0, 0, 50, arena.Gathered}, plan.Buffers[piece])
	var at []string
	for _, s := range plan.Steps {
		if slices.Contains(s.Alloc, piece) {
			at = append(at, "from "+p.Text(s.Op))
		}
		if slices.Contains(s.Free, piece) {
			at = append(at, "to "+p.Text(s.Op))
		}
		if s.Second > 0 {
			at = append(at, fmt.Sprint(p.Text(s.Op), " over ", s.Second))
		}
	}
	require.Equal(t, []string{"from wait h.0", "gather h.0 over 2", "to wait h.0", "wait h.0 over 2"}, at)
	require.Negative(t, plan.Lookup(GroupSecond, 1, 0), "it is gathered once")
	require.Equal(t, (3+3)*75+50, plan.Traffic())
	require.Equal(t, p.Counts().Gathers, compiled(t, chain(3), Options{Prefetch: 1}).Counts().Gathers)
}

// TestPlanErrors refuses sizes of another model.
func TestPlanErrors(t *testing.T) {
	p, err := Compile(chain(2), Options{})
	require.NoError(t, err)
	_, err = NewPlan(p, &Sizes{})
	require.EqualError(t, err, "program: got sizes of 0 groups and 0 calls, but the model has 2 groups and 2 calls")
}

// TestBufferClasses counts buffers under the right class. A call that spills takes with it what it
// saves, and the output of another call that its backward reads.
func TestBufferClasses(t *testing.T) {
	p := compiled(t, chain(2), Options{})
	s := &Sizes{Group: make([]GroupSizes, 2)}
	for range 2 {
		s.Call = append(s.Call, CallSizes{
			Out: []int{1}, GradIn: []int{1}, KeepIn: []bool{true}, KeepOut: []bool{true}, Saved: 1, Update: []int{1}, KeepUpdate: []bool{false},
		})
	}
	s.Call[0].GradIn[0] = 0
	s.Call[1].Spill = true
	plan, err := NewPlan(p, s)
	require.NoError(t, err)
	class := func(kind BufferKind, index int) arena.Class { return plan.Buffers[plan.Lookup(kind, index, 0)].Class }
	require.Equal(t, arena.Gathered, class(GroupParams, 0))
	require.Equal(t, arena.Gradient, class(GroupGrads, 0))
	require.Equal(t, arena.Spilled, class(CallOut, 0))
	require.Equal(t, arena.Activation, class(CallOut, 1))
	require.Equal(t, arena.Activation, class(CallGradOut, 0))
	require.Equal(t, arena.Activation, class(CallUpdate, 0))
	require.Equal(t, arena.Saved, class(CallSaved, 0))
	require.Equal(t, arena.Spilled, class(CallSaved, 1))
	plan, err = NewPlan(compiled(t, chain(2), Options{Eval: true}), s)
	require.NoError(t, err)
	require.Equal(t, arena.Activation, class(CallOut, 0), "an evaluation keeps nothing for a backward")
}
