package memory_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
)

// The models of this file are chains of units l0, l1, … of which some parameters are frozen. They
// are wide and their batches are small, so that parameters and gradients are nearly all of the
// memory.

const (
	frozenRows  = 2
	frozenDim   = 32
	frozenDepth = 6
)

// frozenModel is a chain with what must follow from what is frozen.
type frozenModel struct {
	model    kit.Model
	trained  func(name string) bool // all others are frozen
	reads    string                 // parameters that backward reads
	backward string                 // calls that run backward besides the distance, in order
}

// chain is a model of layers l0, l1, …, each made by its index.
func chain(layer func(i int) fsdp.Module) kit.Model {
	return func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := in[0]
		for i := range frozenDepth {
			m := layer(i)
			if d, ok := m.(*kit.Dense); ok && d.Mem {
				x = t.Call(fmt.Sprint("l", i), m, x, in[0])
			} else {
				x = t.Call(fmt.Sprint("l", i), m, x)
			}
		}
		return kit.Regress(t, in, x), nil
	}
}

func plainLayer(int) fsdp.Module { return &kit.Dense{Dim: frozenDim} }

// moduleOf returns a module that computes f of its input and its parameters.
func moduleOf(params []fsdp.Param, f func(x *gorgonia.Node, params gorgonia.Nodes) (*gorgonia.Node, error)) *kit.Module {
	return &kit.Module{Parameters: params, Graph: func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		var nodes gorgonia.Nodes
		for _, p := range params {
			n, err := b.Param(p.Name)
			if err != nil {
				return nil, err
			}
			nodes = append(nodes, n)
		}
		y, err := f(in[0], nodes)
		return gorgonia.Nodes{y}, err
	}}
}

// drawn is a parameter with random values.
func drawn(name string, shape ...int) fsdp.Param {
	return fsdp.Param{Name: name, Shape: shape, Init: fsdp.Uniform(-0.3, 0.3)}
}

// shifted is y = x + s: no gradient depends on s.
var shifted = moduleOf([]fsdp.Param{drawn("s", frozenRows, frozenDim)}, func(x *gorgonia.Node, p gorgonia.Nodes) (*gorgonia.Node, error) {
	return gorgonia.Add(x, p[0])
})

// biased is y = tanh(x·w + s).
var biased = moduleOf([]fsdp.Param{drawn("w", frozenDim, frozenDim), drawn("s", frozenRows, frozenDim)},
	func(x *gorgonia.Node, p gorgonia.Nodes) (*gorgonia.Node, error) {
		y, err := gorgonia.Mul(x, p[0])
		if err == nil {
			y, err = gorgonia.Add(y, p[1])
		}
		if err != nil {
			return nil, err
		}
		return gorgonia.Tanh(y)
	})

// adapted is y = tanh(x·w + (x·a)·b): a dense layer with a small trained part beside it.
var adapted = moduleOf([]fsdp.Param{drawn("w", frozenDim, frozenDim), drawn("a", frozenDim, 3), drawn("b", 3, frozenDim)},
	func(x *gorgonia.Node, p gorgonia.Nodes) (*gorgonia.Node, error) {
		y, err := gorgonia.Mul(x, p[0])
		if err != nil {
			return nil, err
		}
		small, err := gorgonia.Mul(x, p[1])
		if err == nil {
			small, err = gorgonia.Mul(small, p[2])
		}
		if err == nil {
			y, err = gorgonia.Add(y, small)
		}
		if err != nil {
			return nil, err
		}
		return gorgonia.Tanh(y)
	})

// oneOf tells whether a name is in a list of words.
func oneOf(words string) func(string) bool {
	list := strings.Fields(words)
	return func(name string) bool { return slices.Contains(list, name) }
}

// hasSuffix tells whether a name ends so.
func hasSuffix(suffixes ...string) func(string) bool {
	return func(name string) bool {
		return slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) })
	}
}

// frozenModels: of y = tanh(x·w) the gradient of x reads w, and that of w reads x. So the backward
// of a layer reads what is multiplied with its input if something before it is trained.
var frozenModels = map[string]frozenModel{
	"trained head": {chain(plainLayer), oneOf("l5.w"), "", "l5"},
	"trained foot": {chain(plainLayer), oneOf("l0.w"), "l1.w l2.w l3.w l4.w l5.w", "l5 l4 l3 l2 l1 l0"},
	"alternating":  {chain(plainLayer), oneOf("l0.w l2.w l4.w"), "l1.w l2.w l3.w l4.w l5.w", "l5 l4 l3 l2 l1 l0"},
	"prefix":       {chain(plainLayer), oneOf("l3.w l4.w l5.w"), "l4.w l5.w", "l5 l4 l3"},
	"middle":       {chain(plainLayer), oneOf("l2.w"), "l3.w l4.w l5.w", "l5 l4 l3 l2"},
	"one bias":     {chain(func(int) fsdp.Module { return biased }), oneOf("l2.s"), "l3.w l4.w l5.w", "l5 l4 l3 l2"},
	"biases":       {chain(func(int) fsdp.Module { return biased }), hasSuffix(".s"), "l1.w l2.w l3.w l4.w l5.w", "l5 l4 l3 l2 l1 l0"},
	"adapters": {chain(func(int) fsdp.Module { return adapted }), hasSuffix(".a", ".b"),
		"l0.b l1.w l1.a l1.b l2.w l2.a l2.b l3.w l3.a l3.b l4.w l4.a l4.b l5.w l5.a l5.b", "l5 l4 l3 l2 l1 l0"},
	"adapters above": {chain(func(i int) fsdp.Module {
		if i < 3 {
			return plainLayer(i)
		}
		return adapted
	}), hasSuffix(".a", ".b"), "l3.b l4.w l4.a l4.b l5.w l5.a l5.b", "l5 l4 l3"},
	"part of a unit": {chain(func(int) fsdp.Module { return &kit.Dense{Dim: frozenDim, Mem: true} }), hasSuffix(".v"), "l1.w l2.w l3.w l4.w l5.w", "l5 l4 l3 l2 l1 l0"},
	"value not read": {chain(func(i int) fsdp.Module {
		if i%2 == 1 {
			return shifted
		}
		return plainLayer(i)
	}), hasSuffix(".w"), "l2.w l4.w", "l5 l4 l3 l2 l1 l0"},
	"all trained": {chain(plainLayer), func(string) bool { return true }, "l1.w l2.w l3.w l4.w l5.w", "l5 l4 l3 l2 l1 l0"},
}

// config returns a configuration under which every call is a unit and only what is trained is not
// frozen.
func (f *frozenModel) config(prefetch int) fsdp.Config {
	return fsdp.Config{
		WrapPolicy: fsdp.WrapEach(), Prefetch: prefetch, Precision: kit.Float64s, Poison: true, Seed: 3,
		Frozen: func(name string) bool { return !f.trained(name) },
	}
}

// watch returns a configuration to wrap with on one rank.
func (f *frozenModel) watch(g comm.Group, cfg fsdp.Config) *kit.Watched {
	cfg.Group = g
	reads := oneOf(f.reads)
	return kit.Watch(cfg, func(_, param string) bool { return reads(param) })
}

// frozenBatch is the batch of a rank in a step.
func frozenBatch(step, rank int) []fsdp.Tensor {
	seed := 100*step + 2*rank
	return []fsdp.Tensor{kit.Floats(seed+1, frozenRows, frozenDim), kit.Floats(seed+2, frozenRows, frozenDim)}
}

// onFrozenModels runs f for every model, depth and number of ranks.
func onFrozenModels(t *testing.T, f func(t require.TestingT, ctx context.Context, g comm.Group, f frozenModel, cfg fsdp.Config)) {
	for name, fm := range frozenModels {
		for _, prefetch := range []int{fsdp.NoPrefetch, 1, 2} {
			for world := 1; world <= 3; world++ {
				t.Run(fmt.Sprintf("%s/prefetch %d/%d ranks", name, prefetch, world), func(t *testing.T) {
					kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) { f(t, ctx, g, fm, fm.config(prefetch)) })
				})
			}
		}
	}
}

// TestFrozenUnitsAreFreedInBackward holds the events and the memory of training passes against the
// strict rules, under every strategy, with some units kept, inside NoSync and after it.
func TestFrozenUnitsAreFreedInBackward(t *testing.T) {
	depths := map[int][]int{3: {1}, 4: {fsdp.NoPrefetch, 1, 2}} // by ranks; two ranks are TestCheckerIsStrict's
	for name, f := range frozenModels {
		for world, depths := range depths {
			t.Run(name, func(t *testing.T) {
				kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
					kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
						for _, prefetch := range depths {
							own := f.config(prefetch)
							own.Strategy, own.ShardRanks = cfg.Strategy, cfg.ShardRanks
							f.requirePasses(t, ctx, g, own)
							if own.Unit = keepOdd[own.Strategy]; own.Unit != nil && prefetch == 1 {
								f.requirePasses(t, ctx, g, own)
							}
						}
					})
				})
			})
		}
	}
}

// keepOdd has choices by which l1, l3 and l5 are kept and the others are not.
var keepOdd = map[fsdp.Strategy]func(*fsdp.UnitConfig){
	fsdp.FullShard:   oddOnes(fsdp.ShardGradOp),
	fsdp.HybridShard: oddOnes(fsdp.HybridGradOp),
}

// oddOnes returns a choice of a strategy for the units with odd numbers.
func oddOnes(s fsdp.Strategy) func(*fsdp.UnitConfig) {
	return func(u *fsdp.UnitConfig) {
		if u.Name[len(u.Name)-1]%2 == 1 {
			u.Strategy = s
		}
	}
}

// frozenPasses are the passes that are looked at: those with true run inside NoSync.
var frozenPasses = []bool{false, true, true, false}

// requirePasses checks the events and the memory of some passes.
func (f *frozenModel) requirePasses(t require.TestingT, ctx context.Context, g comm.Group, cfg fsdp.Config) {
	w := f.watch(g, cfg)
	m := kit.Wrap(t, f.model, w.Cfg)
	grads := make(map[string]bool)
	for step, noSync := range frozenPasses {
		run := func() error {
			plan, err := m.Plan(frozenBatch(0, 0)...)
			require.NoError(t, err)
			w.Planned(t, plan)
			require.Equal(t, w.Shards(), plan.ShardBytes)
			require.Equal(t, w.Shards()+w.Bytes(grads), m.Memory().Live)
			m.ResetPeak()
			w.Events = nil
			kit.ForwardBackward(t, ctx, m, frozenBatch(step, g.Rank()))
			require.Equal(t, plan.Peak(), m.Memory().Peak)
			require.Equal(t, plan.Schedule, kit.Schedule(w.Events))
			return f.checkPass(w, w.Events, noSync, grads)
		}
		if noSync {
			require.NoError(t, m.NoSync(run))
		} else {
			require.NoError(t, run())
		}
		require.Equal(t, w.Shards()+w.Bytes(grads), m.Memory().Live)
	}
	require.Empty(t, grads)
	for _, p := range m.Params() {
		require.True(t, f.trained(p.Name), p.Name)
	}
	require.NoError(t, m.Close())
}

// checkPass checks the events of a pass. grads are the groups whose gradients are whole before it,
// and then after it.
func (f *frozenModel) checkPass(w *kit.Watched, events []fsdp.Event, noSync bool, grads map[string]bool) error {
	return errors.Join(w.Check(events), w.CheckReductions(events, !noSync), w.CheckFrees(events), f.checkBackward(events),
		f.checkMemory(w, events, grads))
}

// checkBackward checks which calls run backward, that nothing that they do not read is gathered for
// them, and that what is frozen is not reduced.
func (f *frozenModel) checkBackward(events []fsdp.Event) error {
	reads := oneOf(f.reads)
	var calls []string
	turned := false
	for _, e := range events {
		layer, part, _ := strings.Cut(e.Group, " ")
		switch e.Kind {
		case "turn":
			turned = true
		case "backward":
			calls = append(calls, e.Call)
		case "gather":
			params := slices.DeleteFunc(strings.Fields(layer+".w "+layer+".v "+layer+".s "+layer+".a "+layer+".b"), func(p string) bool {
				return part != "" && f.trained(p) // that of a group of frozen parameters
			})
			if turned && !slices.ContainsFunc(params, reads) {
				return fmt.Errorf("%s is gathered for backward, which reads none of it", e.Group)
			}
		case "reduce", "drain":
			if part != "" || !slices.ContainsFunc([]string{".w", ".v", ".s", ".a", ".b"}, func(p string) bool { return f.trained(layer + p) }) {
				return fmt.Errorf("%s of %s, which is frozen", e.Kind, e.Group)
			}
		}
	}
	if want := append([]string{"distance"}, strings.Fields(f.backward)...); !slices.Equal(want, calls) {
		return fmt.Errorf("%v run backward, want %v", calls, want)
	}
	return nil
}

// checkMemory accounts for the memory that is counted at every computation: shards, the parameters
// of its window and of what is kept, whatever the events say of frees, the gradients of what is
// trained from their first use to their drain, and activations, which are less than a unit. grads
// are the groups whose gradients are there before the pass, and then after it.
func (f *frozenModel) checkMemory(w *kit.Watched, events []fsdp.Event, grads map[string]bool) error {
	const unit = frozenDim * frozenDim * 8
	places, next := w.Places(events), 0
	for i, e := range events {
		switch e.Kind {
		case "drain":
			delete(grads, e.Group)
		case "backward":
			for _, name := range w.Params[e.Call] {
				if f.trained(name) {
					grads[w.Home[name]] = true
				}
			}
			fallthrough
		case "forward":
			whole := w.WholeAt(places, next)
			next++
			if rest := e.Live - w.Shards() - w.Bytes(whole) - w.Bytes(grads) - w.Seconds(events, i); rest < 0 || rest >= unit {
				return fmt.Errorf("event %d, %s %s: %d bytes are live, %d more than shards, parameters of %v and gradients of %v",
					i, e.Kind, e.Call, e.Live, rest, slices.Sorted(maps.Keys(whole)), slices.Sorted(maps.Keys(grads)))
			}
		}
	}
	return nil
}

// TestFrozenMemoryIsSaved compares the peaks of a pass with those of the same model unfrozen.
func TestFrozenMemoryIsSaved(t *testing.T) {
	peak := func(f frozenModel) (n int) {
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			cfg := f.config(fsdp.NoPrefetch)
			cfg.Group = g
			plan, err := kit.Wrap(t, f.model, cfg).Plan(frozenBatch(0, g.Rank())...)
			require.NoError(t, err)
			if g.Rank() == 0 {
				n = plan.PassBytes
			}
		})
		return n
	}
	const unit = 8 * frozenDim * frozenDim
	all := peak(frozenModels["all trained"])
	require.Greater(t, all, 3*unit, "parameters, and gradients of the unit and of the one that is reduced")
	require.InDelta(t, 2*unit, peak(frozenModels["trained foot"]), unit/2)
	require.InDelta(t, unit, peak(frozenModels["one bias"]), unit)
	require.InDelta(t, all-2*unit, peak(frozenModels["biases"]), unit/2)
}

// TestFreezingChangesNoBit compares loss and trained gradients with those of the same model
// unfrozen, over two accumulating passes.
func TestFreezingChangesNoBit(t *testing.T) {
	onFrozenModels(t, func(t require.TestingT, ctx context.Context, g comm.Group, f frozenModel, cfg fsdp.Config) {
		run := func(cfg fsdp.Config) (losses []float64, grads kit.Bits) {
			cfg.Group = g
			m := kit.Wrap(t, f.model, cfg)
			defer m.Close()
			for step := range 2 {
				losses = append(losses, kit.ForwardBackward(t, ctx, m, frozenBatch(step, g.Rank())))
			}
			return losses, kit.GradBits(t, ctx, m)
		}
		frozenLosses, frozenGrads := run(cfg)
		cfg.Frozen = nil
		losses, grads := run(cfg)
		require.Equal(t, losses, frozenLosses)
		for name := range grads {
			if !f.trained(name) {
				delete(grads, name)
			}
		}
		require.NotEmpty(t, grads)
		kit.RequireSameBits(t, grads, frozenGrads)
	})
}

// TestFrozenStays: five steps of AdamW, with decay and clipping, change every trained parameter and
// no bit of a frozen one.
func TestFrozenStays(t *testing.T) {
	for name, f := range frozenModels {
		t.Run(name, func(t *testing.T) {
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				cfg := f.config(0)
				cfg.Group = g
				m := kit.Wrap(t, f.model, cfg)
				before := kit.StateBits(t, ctx, m)
				update := kit.Updater(t, m, 0.1)
				for step := range 5 {
					kit.ForwardBackward(t, ctx, m, frozenBatch(step, g.Rank()))
					update(ctx)
				}
				for name, got := range kit.StateBits(t, ctx, m) {
					require.Equal(t, !f.trained(name), slices.Equal(before[name], got), name)
				}
			})
		})
	}
}

// TestAllFrozen: a model without anything to train has no backward, and no gradients.
func TestAllFrozen(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		f := frozenModel{model: chain(plainLayer), trained: func(string) bool { return false }}
		w := f.watch(g, f.config(0))
		m := kit.Wrap(t, f.model, w.Cfg)
		require.Empty(t, m.Params())
		kit.ForwardBackward(t, ctx, m, frozenBatch(0, g.Rank()))
		require.NotContains(t, strings.Join(kit.Schedule(w.Events), "\n"), "backward")
		require.Empty(t, kit.GradBits(t, ctx, m))
	})
}

// TestCheckerIsStrict takes good traces and spoils them in every way that matters: the checks must
// notice each. Freeing what is frozen at the end of backward is noticed by the order of events, by
// the rule about units and by the memory, each alone.
func TestCheckerIsStrict(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	for name, f := range frozenModels {
		for s := fsdp.FullShard; s <= fsdp.SecondaryShard; s++ {
			t.Run(fmt.Sprintf("%s/%v", name, s), func(t *testing.T) {
				cfg := f.config(1)
				cfg.Strategy = s
				if s >= fsdp.HybridShard {
					cfg.ShardRanks = 2
				}
				kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) { f.requireStrictPasses(t, ctx, f.watch(g, cfg)) })
			})
		}
	}
}

// requireStrictPasses runs passes and spoils the events of rank 0.
func (f *frozenModel) requireStrictPasses(t *testing.T, ctx context.Context, w *kit.Watched) {
	rank := w.Cfg.Group.Rank()
	m := kit.Wrap(t, f.model, w.Cfg)
	plan, err := m.Plan(frozenBatch(0, rank)...)
	require.NoError(t, err)
	w.Planned(t, plan)
	before := make(map[string]bool)
	for _, noSync := range frozenPasses {
		w.Events = nil
		run := func() error { kit.ForwardBackward(t, ctx, m, frozenBatch(0, rank)); return nil }
		if noSync {
			require.NoError(t, m.NoSync(run))
		} else {
			require.NoError(t, run())
		}
		after := maps.Clone(before)
		require.NoError(t, f.checkPass(w, w.Events, noSync, after))
		if rank == 0 {
			f.requireStrict(t, w, noSync, before)
		}
		before = after
	}
}

// requireStrict spoils the events of a pass. grads are the groups whose gradients are whole before
// it.
func (f *frozenModel) requireStrict(t *testing.T, w *kit.Watched, noSync bool, grads map[string]bool) {
	check := func(events []fsdp.Event) error { return f.checkPass(w, events, noSync, maps.Clone(grads)) }
	backwardReads := slices.ContainsFunc(strings.Fields(f.reads), func(name string) bool {
		return !f.trained(name) && w.Plan[w.Home[name]].Ranks > 1
	})
	late := w.Late(w.Events)
	require.Equal(t, backwardReads, !slices.Equal(kit.Schedule(w.Events), kit.Schedule(late)))
	if backwardReads {
		require.Error(t, w.Check(late))
		require.Error(t, w.CheckFrees(late))
		require.Error(t, f.checkMemory(w, late, maps.Clone(grads)))
	}
	for i, e := range w.Events {
		switch e.Kind {
		case "free":
			require.Error(t, check(later(w.Events, i)), "free %s after the next operation", e.Group)
			require.Error(t, check(slices.Delete(slices.Clone(w.Events), i, i+1)), "no free %s", e.Group)
		case "gather":
			require.Error(t, check(earlier(w.Events, i)), "gather %s before the computation before it", e.Group)
			twice := slices.Insert(slices.Clone(w.Events), i, e)
			require.Error(t, check(twice), "gather %s twice", e.Group)
		case "reduce", "drain", "wait", "backward":
			require.Error(t, check(slices.Delete(slices.Clone(w.Events), i, i+1)), "without %s %s%s", e.Kind, e.Group, e.Call)
		}
	}
}

// later moves event i, a free, behind the next event that is none, or a computation if it is the
// last.
func later(events []fsdp.Event, i int) []fsdp.Event {
	moved := slices.Delete(slices.Clone(events), i, i+1)
	for i < len(moved) && moved[i].Kind == "free" {
		i++
	}
	if i == len(moved) {
		return moved // left out
	}
	return slices.Insert(moved, i+1, events[i])
}

// earlier moves event i, a gather, before the computation before it, or leaves it out.
func earlier(events []fsdp.Event, i int) []fsdp.Event {
	moved := slices.Delete(slices.Clone(events), i, i+1)
	for at := i - 1; at >= 0; at-- {
		if k := events[at].Kind; k == "forward" || k == "backward" {
			return slices.Insert(moved, at, events[i])
		}
	}
	return moved
}
