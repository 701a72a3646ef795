package gpu

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/shard"
)

// drawModel draws a chain of calls, some of which read an earlier value as well, with parameters of
// a few groups of all kinds.
func drawModel(t *rapid.T) *program.Model {
	m := &program.Model{Inputs: 1}
	for g := range rapid.IntRange(1, 5).Draw(t, "groups") {
		m.Groups = append(m.Groups, program.Group{
			Name: fmt.Sprint("g", g), Hold: program.Hold(rapid.IntRange(0, 2).Draw(t, "hold")), Frozen: rapid.IntRange(0, 4).Draw(t, "frozen") == 0,
			Bytes: 8, Shards: rapid.IntRange(1, 2).Draw(t, "shards"), Replicas: rapid.IntRange(1, 2).Draw(t, "replicas"),
		})
		m.Params = append(m.Params, program.Param{Name: fmt.Sprint("p", g), Group: g})
	}
	for c := range rapid.IntRange(1, 8).Draw(t, "calls") {
		call := program.Call{Name: fmt.Sprint("c", c), In: []program.Ref{{Call: c - 1}}}
		if c > 1 && rapid.Bool().Draw(t, "skip") {
			call.In = append(call.In, program.Ref{Call: rapid.IntRange(0, c-2).Draw(t, "from")})
		}
		call.Params = rapid.SliceOfNDistinct(rapid.IntRange(0, len(m.Params)-1), 0, 2, rapid.ID[int]).Draw(t, "params")
		m.Calls = append(m.Calls, call)
	}
	m.Results = []program.Ref{{Call: len(m.Calls) - 1}}
	return m
}

// drawCompiled draws a pass of a model, as the engine binds it.
func drawCompiled(t *rapid.T) *engine.Compiled {
	m := drawModel(t)
	v := engine.Variant{Eval: rapid.Bool().Draw(t, "eval")}
	if !v.Eval {
		v.NoSync, v.Pending = rapid.Bool().Draw(t, "nosync"), rapid.Bool().Draw(t, "pending")
	}
	prog, err := program.Compile(m, program.Options{Prefetch: rapid.IntRange(0, 2).Draw(t, "prefetch"), Eval: v.Eval, NoSync: v.NoSync, Pending: v.Pending})
	require.NoError(t, err)
	c := &engine.Compiled{
		Variant: v, Absent: rapid.IntRange(0, 5).Draw(t, "absent") == 0, Model: m,
		Inputs: []exec.Value{{Shape: tensor.Shape{rapid.IntRange(1, 50).Draw(t, "batch")}, DType: tensor.Int}},
	}
	bytes, virtual := rapid.IntRange(0, 2000), rapid.Bool().Draw(t, "virtual ranks")
	sizes := &program.Sizes{}
	for g := range m.Groups {
		sizes.Group = append(sizes.Group, program.GroupSizes{Params: bytes.Draw(t, "params"), Grads: bytes.Draw(t, "grads")})
		if virtual {
			sizes.Group[g].ReduceWork, sizes.Group[g].SyncWork = bytes.Draw(t, "reduce work"), bytes.Draw(t, "sync work")
		}
		c.Home, c.Zero = append(c.Home, layout.Place{Group: g}), append(c.Zero, nil)
		if c.Absent || rapid.Bool().Draw(t, "padding") {
			c.Zero[g] = []shard.Span{{Start: 0, End: 1}}
		}
	}
	for i, call := range m.Calls {
		if c.Absent {
			c.Inputs = nil
			break
		}
		z := program.CallSizes{
			Out: []int{bytes.Draw(t, "out")}, KeepOut: []bool{rapid.Bool().Draw(t, "keep")}, KeepIn: make([]bool, len(call.In)), GradIn: make([]int, len(call.In)),
			Saved: bytes.Draw(t, "saved"), Work: bytes.Draw(t, "work"), BackWork: bytes.Draw(t, "back work"),
		}
		for j, r := range call.In {
			z.KeepIn[j] = rapid.Bool().Draw(t, "keep")
			if i > 0 && m.Trained()[r.Call] {
				z.GradIn[j] = sizes.Call[r.Call].Out[0]
			}
		}
		sizes.Call = append(sizes.Call, z)
	}
	c.Plan, err = program.NewPlan(prog, sizes)
	require.NoError(t, err)
	bind(c)
	return c
}

// bind looks up the buffers.
func bind(c *engine.Compiled) {
	for g := range c.Model.Groups {
		c.Params, c.Grads = append(c.Params, c.Plan.Lookup(program.GroupParams, g, 0)), append(c.Grads, c.Plan.Lookup(program.GroupGrads, g, 0))
	}
	c.Seed = c.Plan.Lookup(program.CallGradOut, len(c.Model.Calls)-1, 0)
	for i, call := range c.Model.Calls {
		b := engine.Call{Unit: &exec.Unit{}, Out: []int{c.Plan.Lookup(program.CallOut, i, 0)}, GradOut: []int{c.Plan.Lookup(program.CallGradOut, i, 0)}}
		b.Saved = c.Plan.Lookup(program.CallSaved, i, 0)
		for _, r := range call.In {
			if r.Call == program.Batch {
				b.In, b.GradIn = append(b.In, -1), append(b.GradIn, -1)
			} else {
				b.In, b.GradIn = append(b.In, c.Plan.Lookup(program.CallOut, r.Call, 0)), append(b.GradIn, c.Plan.Lookup(program.CallGradOut, r.Call, 0))
			}
		}
		c.Calls = append(c.Calls, b)
	}
}

// TestScriptLayout: buffers that are live at the same time lie apart, aligned and inside of the
// slab, and so does the scratch memory of a step.
func TestScriptLayout(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCompiled(t)
		deterministic := rapid.Bool().Draw(t, "deterministic")
		s, err := newScript(c, rapid.Bool().Draw(t, "poison"), deterministic)
		require.NoError(t, err)
		for i := range c.Plan.Steps[:len(c.Plan.Steps)-1] {
			kind := c.Plan.Steps[i].Kind
			if sum := kind == program.Reduce || kind == program.Sync; sum || kind == program.Gather {
				joins := c.Plan.Steps[i+1].Kind == kind && !(sum && (deterministic || c.Plan.Steps[i].Work > 0))
				require.Equal(t, joins, s.ops[s.steps[i].run].joins, "step %d: %v", i, kind)
			}
		}
		live := make(map[int][2]int)
		for i, v := range c.Inputs {
			live[-1-i] = [2]int{s.batch[i], s.batch[i] + 8*v.Len()}
		}
		for i, step := range c.Plan.Steps {
			for k, id := range step.Alloc {
				if !outlives(c.Plan, id) {
					live[id] = [2]int{s.steps[i].alloc[k], s.steps[i].alloc[k] + c.Plan.Buffers[id].Bytes}
				}
			}
			live[-100] = [2]int{s.steps[i].work, s.steps[i].work + step.Work}
			for id, at := range live {
				require.Zero(t, at[0]%alignment)
				require.LessOrEqual(t, at[1], s.bytes)
				for other, o := range live {
					require.True(t, id == other || at[0] == at[1] || o[0] == o[1] || at[1] <= o[0] || o[1] <= at[0], "step %d: buffers %d and %d", i, id, other)
				}
			}
			for _, id := range step.Free {
				delete(live, id)
			}
		}
	})
}

// TestScriptOrder: leaving out any one wait of a pass is noticed, and operations on the wire run
// beside computation: with a unit gathered ahead, the calls of a chain wait for the wire and not
// for the calls.
func TestScriptOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCompiled(t)
		w := newWriter(c, false, false)
		for i := range c.Plan.Steps {
			w.step(i)
		}
		events, _ := order(w.ops)
		require.NoError(t, check(w.ops, events))
		turn := slices.IndexFunc(w.ops, func(op operation) bool { return op.name == "turn" })
		for i := range w.ops {
			for k, after := range w.ops[i].after {
				require.False(t, i > turn && after < turn && w.ops[after].lane != onWork, "%s waits across the turn for %s", w.ops[i].name, w.ops[after].name)
				less := slices.Clone(w.ops)
				less[i].after = slices.Delete(slices.Clone(less[i].after), k, k+1)
				require.ErrorContains(t, check(less, events), "neither waits for the other")
			}
		}
	})
}

// TestScriptOverlaps: in a chain with a unit gathered ahead, a gather waits for the call whose
// parameters were in its place. Another call runs beside it. The first two gathers are one launch.
func TestScriptOverlaps(t *testing.T) {
	m, n := &program.Model{Inputs: 1}, 6
	sizes := &program.Sizes{}
	c := &engine.Compiled{Variant: engine.Variant{Eval: true}, Model: m, Zero: make([][]shard.Span, n)}
	for g := range n {
		m.Groups = append(m.Groups, program.Group{Name: fmt.Sprint("g", g), Shards: 2})
		m.Params = append(m.Params, program.Param{Name: fmt.Sprint("p", g), Group: g})
		m.Calls = append(m.Calls, program.Call{Name: fmt.Sprint("c", g), In: []program.Ref{{Call: g - 1}}, Params: []int{g}})
		c.Home = append(c.Home, layout.Place{Group: g})
		sizes.Group = append(sizes.Group, program.GroupSizes{Params: 4096, Grads: 4096})
		sizes.Call = append(sizes.Call, program.CallSizes{Out: []int{512}, KeepOut: []bool{false}, KeepIn: []bool{false}, GradIn: []int{0}})
	}
	m.Results = []program.Ref{{Call: n - 1}}
	prog, err := program.Compile(m, program.Options{Prefetch: 1, Eval: true})
	require.NoError(t, err)
	c.Plan, err = program.NewPlan(prog, sizes)
	require.NoError(t, err)
	bind(c)
	s, err := newScript(c, false, false)
	require.NoError(t, err)
	require.Equal(t, 2*4096+2*512, s.bytes)
	for _, op := range s.ops {
		var k int
		if _, err := fmt.Sscanf(op.name, "gather g%d", &k); err == nil && k >= 2 {
			require.Equal(t, fmt.Sprint("forward c", k-2), s.ops[op.after[0]].name)
		} else if _, err := fmt.Sscanf(op.name, "forward c%d", &k); err == nil && k != 1 {
			require.Equal(t, fmt.Sprint("gather g", max(k, 1)), s.ops[op.after[0]].name)
		}
	}
}

// TestScriptTurnWaits: a pass without a batch clears gradients at the place of parameters that were
// gathered before the turn. No call has waited for that gather, so the turn does.
func TestScriptTurnWaits(t *testing.T) {
	m := &program.Model{Inputs: 1, Results: []program.Ref{{Call: 1}}}
	c := &engine.Compiled{Absent: true, Model: m, Zero: make([][]shard.Span, 2)}
	sizes := &program.Sizes{}
	for g := range 2 {
		m.Groups = append(m.Groups, program.Group{Name: fmt.Sprint("g", g), Shards: 2})
		m.Params = append(m.Params, program.Param{Name: fmt.Sprint("p", g), Group: g})
		m.Calls = append(m.Calls, program.Call{Name: fmt.Sprint("c", g), In: []program.Ref{{Call: g - 1}}, Params: []int{g}})
		c.Home, c.Zero[g] = append(c.Home, layout.Place{Group: g}), []shard.Span{{Start: 0, End: 1}}
		sizes.Group = append(sizes.Group, program.GroupSizes{Params: 256 * (1 - g), Grads: 256 * g})
	}
	prog, err := program.Compile(m, program.Options{})
	require.NoError(t, err)
	c.Plan, err = program.NewPlan(prog, sizes)
	require.NoError(t, err)
	bind(c)
	c.Calls = nil
	s, err := newScript(c, false, false)
	require.NoError(t, err)
	turn := slices.IndexFunc(s.ops, func(op operation) bool { return op.name == "turn" })
	require.Len(t, s.ops[turn].after, 1)
	require.Equal(t, "gather g0", s.ops[s.ops[turn].after[0]].name)
	require.Equal(t, "clearing before backward c1", s.ops[turn+1].name)
	require.Empty(t, s.ops[turn+1].after)
}

// TestScriptReplicas: sums over replicas have a lane of their own. A gather in backward waits for
// none but the sum whose memory it takes, which is not the last.
func TestScriptReplicas(t *testing.T) {
	m, n := &program.Model{Inputs: 1}, 6
	sizes := &program.Sizes{}
	c := &engine.Compiled{Model: m, Zero: make([][]shard.Span, n)}
	for g := range n {
		m.Groups = append(m.Groups, program.Group{Name: fmt.Sprint("g", g), Shards: 2, Replicas: 2})
		m.Params = append(m.Params, program.Param{Name: fmt.Sprint("p", g), Group: g})
		m.Calls = append(m.Calls, program.Call{Name: fmt.Sprint("c", g), In: []program.Ref{{Call: g - 1}}, Params: []int{g}})
		c.Home = append(c.Home, layout.Place{Group: g})
		sizes.Group = append(sizes.Group, program.GroupSizes{Params: 4096, Grads: 8192})
		sizes.Call = append(sizes.Call, program.CallSizes{Out: []int{512}, KeepOut: []bool{false}, KeepIn: []bool{true}, GradIn: []int{512 * min(g, 1)}})
	}
	m.Results = []program.Ref{{Call: n - 1}}
	prog, err := program.Compile(m, program.Options{Prefetch: 1})
	require.NoError(t, err)
	c.Plan, err = program.NewPlan(prog, sizes)
	require.NoError(t, err)
	bind(c)
	s, err := newScript(c, false, false)
	require.NoError(t, err)
	last, gathers := -1, 0
	for i, op := range s.ops {
		kind, _, _ := strings.Cut(op.name, " ")
		require.Equal(t, kind == "sync" || kind == "drain", op.lane == onReplicas, op.name)
		if kind == "gather" && last >= 0 {
			gathers++
			require.NotContains(t, op.after, last, op.name)
		}
		if kind == "drain" {
			last = i
		}
	}
	require.Positive(t, gathers)
	require.Equal(t, []lane{onReplicas}, s.ends)
}

// TestScriptTurn: gradients that a pass adds to without a call of its own are added behind its
// turn, since other work may have changed them after the forward.
func TestScriptTurn(t *testing.T) {
	m := &program.Model{
		Inputs: 1, Groups: []program.Group{{Name: "g", Shards: 2}}, Params: []program.Param{{Name: "p"}},
		Calls: []program.Call{{Name: "c", In: []program.Ref{{Call: program.Batch}}, Params: []int{0}}}, Results: []program.Ref{{}},
	}
	prog, err := program.Compile(m, program.Options{Pending: true})
	require.NoError(t, err)
	c := &engine.Compiled{Variant: engine.Variant{Pending: true}, Absent: true, Model: m, Zero: make([][]shard.Span, 1), Home: []layout.Place{{}}}
	c.Plan, err = program.NewPlan(prog, &program.Sizes{Group: []program.GroupSizes{{Params: 8, Grads: 8}}})
	require.NoError(t, err)
	bind(c)
	s, err := newScript(c, false, false)
	require.NoError(t, err)
	drain := s.ops[len(s.ops)-1]
	require.Equal(t, "drain g", drain.name)
	require.Equal(t, "turn", s.ops[drain.after[0]].name)
}
