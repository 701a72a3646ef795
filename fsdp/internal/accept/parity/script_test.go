package parity_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// A script is a whole training at random: everything that may be done to a model in any order,
// updates, freezing, buffers and what is refused included. It is played by a naive model, where
// every rank is a model of its own and sums are taken by hand, and by ranks under two settings.
// What is seen must be the same: nearly as the naive model, and to the bit between settings.
type script struct {
	history
	narrow   bool // parameters and gradients travel in 16 bits: rounded, so that there is no naive model of the values
	half     bool // then, computation is in bfloat16
	settings [2]kit.Setting
}

// acts are the kinds of deeds in a script.
var acts = []string{
	"forward", "forward", "forward", "backward", "backward", "backward", "hold", "held backward", "held backward", "discard",
	"update", "update", "sync", "zero", "clip", "norms", "grads", "state", "eval", "average", "set", "write back", "freeze", "step",
}

func drawScript(t *rapid.T) *script {
	s := &script{history: history{
		Model:  rapid.SampledFrom([]string{"statistics", "statistics", "recurrence", "tied across groups", "an unused call"}).Draw(t, "model"),
		World:  rapid.IntRange(1, 4).Draw(t, "world"),
		Divide: rapid.SampledFrom([]fsdp.GradAverage{fsdp.ByRanks, fsdp.ByWeights, fsdp.ByOne}).Draw(t, "divide"),
	}}
	s.narrow, s.half = rapid.IntRange(0, 4).Draw(t, "narrow") == 0, rapid.Bool().Draw(t, "half")
	for i := range s.settings {
		k := &s.settings[i]
		k.Knobs = kit.DrawKnobs(t, s.World)
		if rapid.Bool().Draw(t, "far ahead") { // gathers for a backward are in flight before it begins
			k.Wrap, k.Prefetch = "each", 4
		}
		k.InFlight = rapid.SampledFrom([]int{0, 300, 700}).Draw(t, "bytes in flight")
		k.Strict = rapid.Bool().Draw(t, "strict group")
		if s.narrow { // those that round alike
			k.Strategy %= fsdp.HybridShard
		} else {
			k.Ignored = rapid.Bool().Draw(t, "ignored")
		}
	}
	for i := range kit.ScriptLength {
		d := deed{
			Kind:  "nothing",
			Batch: rapid.IntRange(0, 9).Draw(t, "batch"), Scale: rapid.SampledFrom([]float64{1, 0.5, -2}).Draw(t, "scale"),
			Which: rapid.IntRange(0, 2).Draw(t, "which"), NoSync: rapid.Bool().Draw(t, "no sync"),
		}
		if k := rapid.IntRange(0, 1<<16).Draw(t, "kind"); k > 0 { // small numbers are drawn more often than large ones
			d.Kind = acts[kit.U24(i, k)%len(acts)]
		}
		for range s.World {
			d.Weights = append(d.Weights, float64(rapid.IntRange(0, 3).Draw(t, "weight")))
		}
		d.Weights[d.Which%s.World]++
		s.Deeds = append(s.Deeds, d)
	}
	s.Deeds = append(s.Deeds, deed{Kind: "update"}, deed{Kind: "state"})
	return s
}

// batch is what a forward of d takes on a rank.
func (d *deed) batch(rank int) []fsdp.Tensor {
	rows := 2 + (d.Batch+rank)%2
	return []fsdp.Tensor{kit.Floats(20*d.Batch+2*rank, rows, kit.ShapeDim), kit.Floats(20*d.Batch+2*rank+1, rows, kit.ShapeDim)}
}

// given are the values that a deed sets parameters and buffers to.
func (d *deed) given(state kit.Params) kit.Params {
	out := make(kit.Params)
	for name, v := range state {
		if len(name)%2 != d.Which%2 {
			continue
		}
		out[name] = kit.Floats(d.Batch+len(name), v.Shape()...)
		for i, x := range kit.Elements(out[name]) {
			kit.Elements(out[name])[i] = 0.2 + x*x/2 // variances are positive
		}
	}
	return out
}

// What is refused, and why.
const (
	noForward  = "Backward has no pending Forward"
	notReduced = "inside NoSync are not reduced"
	areHeld    = "put aside by Hold are waiting"
)

// naive plays a script without any of what is tested: one model on one rank for each rank, whose
// gradients are added up in a ledger as each backward is defined. A forward has its backward at
// once, and keeps the gradients for when they count.
type naive struct {
	*script
	t        require.TestingT
	ranks    []*fsdp.Sharded
	frozen   func(string) bool
	book     *ledger
	velocity map[string][]float64
	last     []map[string][]float64 // gradients by rank of the forward that has no backward yet
	held     [][]map[string][]float64
}

func newNaive(t require.TestingT, s *script) *naive {
	n := &naive{script: s, t: t, frozen: kit.Freezable[0], velocity: map[string][]float64{}}
	for range s.World {
		n.ranks = append(n.ranks, kit.Wrap(t, kit.ScriptModel(s.Model), fsdp.Config{Precision: kit.Float64s, Seed: 5}))
	}
	n.zero()
	return n
}

func (n *naive) zero() {
	n.book = &ledger{grads: map[string][]float64{}, pending: map[string][]float64{}}
}

// do does a deed and returns what each rank sees, or what the refusal says.
func (n *naive) do(d *deed) (seen []kit.Record, refusal string) {
	ctx := context.Background()
	seen = make([]kit.Record, n.World)
	each := func(f func(rank int, m *fsdp.Sharded) kit.Record) {
		for r, m := range n.ranks {
			seen[r] = f(r, m)
		}
	}
	common := func(r kit.Record) { each(func(int, *fsdp.Sharded) kit.Record { return r }) }
	switch d.Kind {
	case "forward", "step":
		n.last = nil
		each(func(r int, m *fsdp.Sharded) kit.Record {
			m.ZeroGrad()
			loss := kit.ForwardBackward(n.t, ctx, m, d.batch(r))
			grads := kit.GradsOf(n.t, ctx, m)
			for name := range grads {
				if n.frozen(name) || strings.HasPrefix(name, "aside") { // the loss does not depend on that call
					delete(grads, name)
				}
			}
			n.last = append(n.last, grads)
			return kit.Record{"loss": {loss}}
		})
		if d.Kind == "step" {
			n.book.backward(&n.history, d, n.last)
			n.last = nil
		}
	case "backward":
		if n.last == nil {
			return nil, noForward
		}
		n.book.backward(&n.history, d, n.last)
		n.last = nil
	case "hold":
		if n.last != nil {
			n.held = append(n.held, n.last)
			n.last = nil
		}
	case "held backward", "discard":
		if d.Which < len(n.held) {
			if d.Kind != "discard" {
				n.book.backward(&n.history, d, n.held[d.Which])
			}
			n.held = slices.Delete(n.held, d.Which, d.Which+1)
		}
	case "eval":
		n.last = nil
		each(func(r int, m *fsdp.Sharded) kit.Record {
			out, err := m.Eval(ctx, d.batch(r)...)
			require.NoError(n.t, err)
			return kit.Record{"loss": kit.Elements(out[0]), "output": kit.Elements(out[1])}
		})
	case "zero":
		n.zero()
	case "sync":
		n.book.sync()
	case "clip", "norms", "grads":
		if n.book.passes > 0 {
			return nil, notReduced
		}
		common(n.look(d.Kind))
	case "state":
		each(func(r int, m *fsdp.Sharded) kit.Record { return n.state(r) })
	case "update":
		n.last, n.held = nil, nil
		n.book.sync()
		n.update()
		if d.NoSync {
			n.zero()
		}
	case "average":
		sum := map[string][]float64{}
		each(func(r int, m *fsdp.Sharded) kit.Record { kit.AddTo(sum, n.state(r), 1/float64(n.World)); return nil })
		each(func(r int, m *fsdp.Sharded) kit.Record {
			n.set(r, sum, func(name string) bool { return strings.Contains(name, "running") })
			return nil
		})
	case "set", "write back":
		if len(n.held) > 0 {
			return nil, areHeld
		}
		n.last = nil
		state, err := n.ranks[0].StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(n.t, err)
		each(func(r int, m *fsdp.Sharded) kit.Record {
			require.NoError(n.t, m.LoadStateDict(ctx, 0, d.given(state)))
			return nil
		})
	case "freeze":
		switch {
		case len(n.held) > 0:
			return nil, areHeld
		case n.book.passes > 0:
			return nil, notReduced
		}
		n.last, n.frozen = nil, kit.Freezable[d.Which]
		n.zero()
		for name := range n.velocity {
			if n.frozen(name) {
				delete(n.velocity, name)
			}
		}
	}
	return seen, ""
}

// look returns what can be seen of the gradients, and clips them.
func (n *naive) look(what string) kit.Record {
	seen, all := kit.Record{}, 0.0
	for name, g := range n.book.grads {
		squares := 0.0
		for _, x := range g {
			squares += x * x
		}
		all += squares
		switch what {
		case "grads":
			seen[name] = slices.Clone(g)
		case "norms":
			seen[name] = []float64{math.Sqrt(squares)}
		}
	}
	if what == "clip" {
		seen["norm"] = []float64{math.Sqrt(all)}
		if c := kit.ScriptLimit / (math.Sqrt(all) + 1e-6); c < 1 {
			for _, g := range n.book.grads {
				for i := range g {
					g[i] *= c
				}
			}
		}
	}
	return seen
}

// update is a step of SGD with momentum and weight decay, of what has a gradient.
func (n *naive) update() {
	state := n.state(0)
	for name, g := range n.book.grads {
		v := n.velocity[name]
		if v == nil {
			v = make([]float64, len(g))
			n.velocity[name] = v
		}
		for i := range g {
			v[i] = kit.ScriptMomentum*v[i] + g[i] + kit.ScriptDecay*state[name][i]
			state[name][i] -= kit.ScriptRate * v[i]
		}
	}
	for r := range n.ranks {
		n.set(r, state, func(name string) bool { return n.book.grads[name] != nil })
	}
}

// state returns the parameters and buffers of a rank.
func (n *naive) state(rank int) kit.Record {
	state, err := n.ranks[rank].StateDict(context.Background(), &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(n.t, err)
	return kit.RecordOf(state)
}

// set sets those of a rank that are chosen.
func (n *naive) set(rank int, values kit.Record, chosen func(name string) bool) {
	given := make(kit.Params)
	for name, v := range values {
		if chosen(name) {
			shape := []int{len(v)}
			if shape[0] == kit.ShapeDim*kit.ShapeDim {
				shape = []int{kit.ShapeDim, kit.ShapeDim}
			}
			given[name] = tensor.New(tensor.WithShape(shape...), tensor.WithBacking(slices.Clone(v)))
		}
	}
	require.NoError(n.t, n.ranks[rank].LoadStateDict(context.Background(), 0, given))
}

// actor plays a script on one rank.
type actor struct {
	*script
	t    require.TestingT
	g    comm.Group
	m    *fsdp.Sharded
	opt  optim.Optimizer
	held []*fsdp.Pass
}

// do does a deed and returns what this rank sees.
func (a *actor) do(ctx context.Context, d *deed) (seen kit.Record, err error) {
	m, seen := a.m, kit.Record{}
	switch d.Kind {
	case "forward":
		forward := func() error { return a.forward(ctx, d, seen) }
		if d.NoSync {
			return seen, m.NoSync(forward)
		}
		return seen, forward()
	case "backward":
		return seen, a.backward(ctx, d, m.Backward)
	case "step":
		return seen, a.step(ctx, d, seen)
	case "hold":
		if p := m.Hold(); p.Loss() > 0 { // else there was no forward
			a.held = append(a.held, p)
		}
	case "held backward", "discard":
		if d.Which >= len(a.held) {
			return seen, nil
		}
		p := a.held[d.Which]
		a.held = slices.Delete(a.held, d.Which, d.Which+1)
		if d.Kind == "discard" {
			return seen, p.Discard(ctx)
		}
		return seen, a.backward(ctx, d, p.Backward)
	case "eval":
		out, err := m.Eval(ctx, a.batch(d)...)
		if err == nil {
			seen["loss"], seen["output"] = kit.Elements(out[0]), kit.Elements(out[1])
		}
		return seen, err
	case "zero":
		m.ZeroGrad()
	case "sync":
		return seen, m.SyncGrads(ctx)
	case "clip":
		norm, err := m.ClipGradNorm(ctx, kit.ScriptLimit)
		seen["norm"] = []float64{norm}
		return seen, err
	case "norms":
		norms, err := m.GradNorms(ctx, fsdp.L2Norm)
		for name, x := range norms {
			seen[name] = []float64{x}
		}
		return seen, err
	case "grads", "state":
		look := m.FullGrads
		if d.Kind == "state" {
			look = func(ctx context.Context) (map[string]*tensor.Dense, error) {
				return m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
			}
		}
		tensors, err := look(ctx)
		return kit.RecordOf(tensors), err
	case "update":
		a.settle(ctx)
		require.NoError(a.t, m.SyncGrads(ctx))
		require.NoError(a.t, a.opt.Step(kit.ScriptRate))
		if d.NoSync {
			m.ZeroGrad()
		}
	case "average":
		return seen, m.AverageBuffers(ctx)
	case "set", "write back":
		return seen, a.set(ctx, d)
	case "freeze":
		entries, err := m.Freeze(ctx, kit.Freezable[d.Which], a.opt)
		if err != nil {
			return seen, err
		}
		steps := a.opt.Steps()
		a.opt, err = kit.ScriptOptimizer(m.Params())
		require.NoError(a.t, err)
		return seen, a.opt.Adopt(steps, entries)
	}
	return seen, nil
}

func (a *actor) batch(d *deed) []fsdp.Tensor {
	if a.narrow {
		return kit.InType(d.batch(a.g.Rank()), fsdp.Float32)
	}
	return d.batch(a.g.Rank())
}

func (a *actor) forward(ctx context.Context, d *deed, seen kit.Record) error {
	loss, err := a.m.Forward(ctx, a.batch(d)...)
	seen["loss"] = []float64{loss}
	return err
}

func (a *actor) backward(ctx context.Context, d *deed, f func(context.Context, ...fsdp.BackwardOption) error) error {
	opts := []fsdp.BackwardOption{fsdp.Scale(d.Scale)}
	if a.Divide == fsdp.ByWeights {
		opts = append(opts, fsdp.Weight(d.Weights[a.g.Rank()]))
	}
	if d.NoSync {
		return a.m.NoSync(func() error { return f(ctx, opts...) })
	}
	return f(ctx, opts...)
}

// step is a forward and its backward, whose memory is as planned if nothing else is kept.
func (a *actor) step(ctx context.Context, d *deed, seen kit.Record) error {
	_ = a.m.Hold().Discard(ctx)
	run := func() error {
		plan, err := a.m.Plan(a.batch(d)...)
		require.NoError(a.t, err)
		a.m.ResetPeak()
		if err := a.forward(ctx, d, seen); err != nil {
			return err
		}
		if err := a.backward(ctx, d, a.m.Backward); err != nil {
			return err
		}
		if len(a.held) == 0 {
			require.Equal(a.t, plan.Peak(), a.m.Memory().Peak)
		}
		return nil
	}
	if d.NoSync {
		return a.m.NoSync(run)
	}
	return run()
}

// set gives values that one rank alone has, by either method.
func (a *actor) set(ctx context.Context, d *deed) error {
	root := d.Batch % a.World
	given := func(state kit.Params) kit.Params {
		out := d.given(state)
		if a.g.Rank() != root {
			kit.ClearAll(out)
		} else if a.narrow {
			for name, v := range out {
				out[name] = kit.InType([]fsdp.Tensor{v}, fsdp.Float32)[0].(*tensor.Dense)
			}
		}
		return out
	}
	if d.Kind == "write back" {
		return a.m.Summon(ctx, nil, func(p kit.Params) error {
			out := given(p)
			clear(p) // what is left would be given to all, buffers included
			maps.Copy(p, out)
			return nil
		}, fsdp.WriteBack(root))
	}
	state, err := a.m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(a.t, err)
	return a.m.LoadStateDict(ctx, root, given(state))
}

// settle ends all forwards and requires that nothing but the shards, and gradients that are not
// reduced, is left.
func (a *actor) settle(ctx context.Context) {
	for _, p := range append(a.held, a.m.Hold()) {
		require.NoError(a.t, p.Discard(ctx))
	}
	a.held = nil
	require.NoError(a.t, a.m.SyncGrads(ctx))
	plan, err := a.m.Plan(a.batch(&deed{})...)
	require.NoError(a.t, err)
	require.Equal(a.t, plan.ShardBytes+plan.StateBytes, a.m.Memory().Live, "bytes that nobody owns")
}

// play plays the script on one rank and compares with what the naive model has seen and refused.
func (s *script) play(t require.TestingT, ctx context.Context, g comm.Group, k kit.Setting, want [][]kit.Record, refusals []string) kit.Bits {
	book := new(kit.StrictBook)
	if k.Strict {
		g = &kit.StrictGroup{Group: g, Book: book}
	}
	cfg := k.Config()
	cfg.Group, cfg.GradAverage, cfg.InFlight, cfg.Frozen = g, s.Divide, k.InFlight, kit.Freezable[0]
	switch {
	case s.narrow && s.half:
		cfg.Precision = fsdp.BF16()
	case s.narrow:
		cfg.Precision = fsdp.Precision{Gather: fsdp.BFloat16, Reduce: fsdp.Float16}
	}
	if k.Ignored {
		cfg.Ignored = func(name string) bool { return len(name)%3 == 1 }
	}
	a := &actor{script: s, t: t, g: g, m: kit.Wrap(t, kit.ScriptModel(s.Model), cfg)}
	var err error
	a.opt, err = kit.ScriptOptimizer(a.m.Params())
	require.NoError(t, err)
	all := make(kit.Bits)
	for i := range s.Deeds {
		d := &s.Deeds[i]
		seen, err := a.do(ctx, d)
		if refusals[i] != "" {
			require.ErrorContains(t, err, refusals[i], "deed %d: %s", i, d.Kind)
			continue
		}
		require.NoError(t, err, "deed %d: %s", i, d.Kind)
		if !s.narrow {
			requireSeen(t, want[i][g.Rank()], seen, "deed %d: %s: ", i, d.Kind)
		}
		for name, values := range seen {
			for _, x := range values {
				key := fmt.Sprintf("deed %d: %s: %s of rank %d", i, d.Kind, name, g.Rank())
				all[key] = append(all[key], math.Float64bits(x))
			}
		}
	}
	if s.Deeds[0].NoSync { // something is in flight when it is closed
		require.NoError(t, a.forward(ctx, &s.Deeds[0], kit.Record{}))
		a.m.Hold()
		require.NoError(t, a.forward(ctx, &s.Deeds[0], kit.Record{}))
	}
	require.NoError(t, a.m.Close())
	book.Require(t)
	return all
}

// requireSeen compares what was seen after a deed, all of whose numbers are near 1 or smaller.
func requireSeen(t require.TestingT, want, got kit.Record, where string, args ...any) {
	where = fmt.Sprintf(where, args...)
	require.Len(t, got, len(want), where)
	for name, w := range want {
		require.Len(t, got[name], len(w), where+name)
		for i, x := range w {
			if !(math.Abs(got[name][i]-x) <= 1e-8*(1+math.Abs(x))) {
				require.Failf(t, "not what the naive model has", "%s%s[%d] is %v, want %v", where, name, i, got[name][i], x)
			}
		}
	}
}

// TestScripts plays random scripts.
func TestScripts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawScript(t)
		t.Logf("%+v", s)
		n := newNaive(t, s)
		want, refusals := make([][]kit.Record, len(s.Deeds)), make([]string, len(s.Deeds))
		for i := range s.Deeds {
			want[i], refusals[i] = n.do(&s.Deeds[i])
		}
		var seen [2][]kit.Bits
		for i, k := range s.settings {
			seen[i] = make([]kit.Bits, s.World)
			kit.OnRanks(t, s.World, func(ctx context.Context, g comm.Group) {
				seen[i][g.Rank()] = s.play(t, ctx, g, k, want, refusals)
			})
		}
		for r := range s.World {
			kit.RequireSameBits(t, seen[0][r], seen[1][r])
		}
	})
}
