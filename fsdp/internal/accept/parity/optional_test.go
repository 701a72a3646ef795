package parity_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
)

// An optionalRun is a training at random of a model at random, calls of which may be absent. It is
// defined by one process that has, for each rank and batch, a model without options, whose loss
// depends on the calls that are there alone; and compared with ranks under two settings.
type optionalRun struct {
	Nodes    []optionalNode
	World    int
	Divide   fsdp.GradAverage
	Grouped  int // ranks that share the unit of one call, 0 if all do
	Frozen   int
	NoSync   bool
	Clip     bool
	Steps    [][]optionalPass // each ends in an update
	settings [2]kit.Setting
}

// An optionalNode is a value of the model. Values 0, 1 and 2 are batch tensors, of which the last two
// may be absent; the nodes follow.
type optionalNode struct {
	Kind string // "call", "two" inputs, "again", "tied", "halves", "or", or "when" a bit of the batch is set
	In   [2]int // the second is a number of something else for some kinds
}

// An optionalPass is what ranks do in a pass.
type optionalPass struct {
	Batch  [][]bool  // by rank: which tensors and bits are there; nil for a rank without a batch
	Weight []float64 // by rank
}

const optionalBits = 2

func drawOptional(t *rapid.T) *optionalRun {
	o := &optionalRun{
		World:  rapid.IntRange(1, 8).Draw(t, "world"),
		Divide: rapid.SampledFrom([]fsdp.GradAverage{fsdp.ByRanks, fsdp.ByActive, fsdp.ByWeights, fsdp.ByOne}).Draw(t, "divide"),
		Frozen: rapid.IntRange(0, 3).Draw(t, "frozen"), NoSync: rapid.Bool().Draw(t, "no sync"), Clip: rapid.Bool().Draw(t, "clip"),
	}
	if o.World%2 == 0 && rapid.IntRange(0, 3).Draw(t, "groups") == 0 {
		o.Grouped = o.World / 2
	}
	kinds := []string{"call", "call", "two", "again", "tied", "halves", "or", "or", "when"}
	for i := range rapid.IntRange(1, 9).Draw(t, "nodes") {
		n := optionalNode{Kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
		n.In[0], n.In[1] = rapid.IntRange(0, 2+i).Draw(t, "of"), rapid.IntRange(0, 2+i).Draw(t, "and")
		o.Nodes = append(o.Nodes, n)
	}
	if o.grouped() == "" {
		o.Grouped = 0
	}
	for i := range o.settings {
		k := &o.settings[i]
		k.Knobs = kit.DrawKnobs(t, o.World)
		k.ShardRanks = rapid.SampledFrom(kit.PowersIn(o.World)).Draw(t, "ranks of a shard")
		k.InFlight = rapid.SampledFrom([]int{0, 300, 700}).Draw(t, "bytes in flight")
		k.Ignored = rapid.Bool().Draw(t, "ignored")
		if o.Grouped > 0 {
			k.Wrap, k.Ignored = "each", false
		}
	}
	for range rapid.IntRange(1, 3).Draw(t, "steps") {
		var passes []optionalPass
		for range rapid.IntRange(1, 3).Draw(t, "passes") {
			p := optionalPass{}
			for r := range o.World {
				p.Weight = append(p.Weight, float64(rapid.IntRange(1, 3).Draw(t, "weight")))
				p.Batch = append(p.Batch, nil)
				if r == 0 || rapid.IntRange(0, 4).Draw(t, "batch") > 0 {
					p.Batch[r] = rapid.SliceOfN(rapid.Bool(), 2+optionalBits, 2+optionalBits).Draw(t, "there")
				}
			}
			passes = append(passes, p)
		}
		o.Steps = append(o.Steps, passes)
	}
	return o
}

// optionalBatch returns the batch of a rank: an input, what it is compared with, whose last elements are the
// bits, and two inputs that may be nil.
func optionalBatch(seed int, there []bool) []fsdp.Tensor {
	if there == nil {
		return nil
	}
	rows := 2 + seed%2
	batch := []fsdp.Tensor{kit.Floats(4*seed, rows, kit.ShapeDim), kit.Floats(4*seed+1, rows, kit.ShapeDim), nil, nil}
	for i := range 2 {
		if there[i] {
			batch[2+i] = kit.Floats(4*seed+2+i, rows, kit.ShapeDim)
		}
	}
	for i := range optionalBits {
		if kit.Elements(batch[1])[i] = 0.5; there[2+i] {
			kit.Elements(batch[1])[i] = 2
		}
	}
	return batch
}

// optionalModel names its inputs, so that it takes all of them.
type optionalModel struct{ kit.Model }

func (optionalModel) Inputs() []string { return []string{"x", "y", "a", "b"} }

// model returns the model: with options if there is nil, and else without, as a batch that has this has
// it. Then the first input stands for absent values, and the loss depends on none of them.
func (o *optionalRun) model(there []bool) fsdp.Model {
	return optionalModel{func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		plain := there != nil
		values, is := []fsdp.Ref{in[0], in[2], in[3]}, []bool{true, !plain || there[0], !plain || there[1]}
		for k := range 2 {
			if !plain {
				values[1+k] = t.Optional(in[2+k])
			} else if !there[k] {
				values[1+k] = in[0]
			}
		}
		first := "" // call
		for k, n := range o.Nodes {
			name, a, b := fmt.Sprint("n", k), values[n.In[0]], values[n.In[1]]
			v, here := a, is[n.In[0]]
			switch {
			case n.Kind == "or" && !plain:
				v = a.Or(b)
			case n.Kind == "or" && !here:
				v, here = b, is[n.In[1]]
			case n.Kind == "or":
			case n.Kind == "when" && plain:
				here = here && there[2+n.In[1]%optionalBits]
			case n.Kind == "when":
				v = t.Optional(a, func(batch []fsdp.Tensor) bool { return kit.Elements(batch[1])[n.In[1]%optionalBits] > 1 })
			case n.Kind == "two":
				v, here = t.Call(name, &kit.Dense{Dim: kit.ShapeDim, Mem: true}, a, b), here && is[n.In[1]]
			case n.Kind == "again" && first != "":
				v = t.Again(first, a)
			case n.Kind == "tied" && first != "":
				w := fsdp.Param{Name: "w", Shape: []int{kit.ShapeDim, kit.ShapeDim}, Tied: first + ".w"}
				v = t.Call(name, &kit.Module{Parameters: []fsdp.Param{w}, Graph: (&kit.Dense{Dim: kit.ShapeDim}).Graph}, a)
			case n.Kind == "halves":
				v = t.Call(name, kit.Halves(kit.ShapeDim), a).At(n.In[1] % 2)
			default:
				v = t.Call(name, &kit.Dense{Dim: kit.ShapeDim}, a)
				if first == "" {
					first = name
				}
			}
			values, is = append(values, v), append(is, here)
		}
		x := t.Call("base", &kit.Dense{Dim: kit.ShapeDim}, in[0])
		last := values[len(values)-1]
		if !plain {
			last = last.Or(x)
		} else if !is[len(is)-1] {
			last = x
		}
		return kit.Regress(t, in, t.Call("end", &kit.Dense{Dim: kit.ShapeDim, Mem: true}, x, last)), nil
	}}
}

// grouped returns the unit that has a group of its own, if one has.
func (o *optionalRun) grouped() string {
	for k, n := range o.Nodes {
		if o.Grouped > 0 && slices.Contains([]string{"call", "two", "halves"}, n.Kind) {
			return fmt.Sprint("n", k)
		}
	}
	return ""
}

// frozen tells which parameters are.
func (o *optionalRun) frozen(name string) bool {
	return o.Frozen > 0 && kit.U24(len(name)+int(name[1]), o.Frozen)%3 == 0
}

// optionalSeen are the parameters of a rank after each step, and the losses of its passes, gradients
// and their norms.
type optionalSeen []kit.Record

// train trains one rank and returns what it sees, beginning with the parameters before.
func (o *optionalRun) train(t require.TestingT, ctx context.Context, g comm.Group, k kit.Setting) (seen optionalSeen) {
	cfg := k.Config()
	cfg.Group, cfg.GradAverage, cfg.InFlight, cfg.Frozen = g, o.Divide, k.InFlight, o.frozen
	if k.Ignored {
		cfg.Ignored = func(name string) bool { return len(name)%2 == 1 }
	}
	if unit := o.grouped(); unit != "" {
		cfg.Unit = kit.Units(kit.GroupedBy(t, ctx, g, unit, o.Grouped).Unit, cfg.Unit, func(i *fsdp.UnitConfig) {
			if i.Name == unit {
				i.Strategy = fsdp.FullShard
			}
		})
	}
	m := kit.Wrap(t, o.model(nil), cfg)
	opt, err := kit.ScriptOptimizer(m.Params())
	require.NoError(t, err)
	look := func(of func(context.Context, *fsdp.Sharded) (kit.Params, error)) {
		all, err := of(ctx, m)
		require.NoError(t, err)
		seen = append(seen, kit.RecordOf(all))
	}
	look(kit.OwnState)
	for s, passes := range o.Steps {
		i := 0
		for batch, err := range m.Join(ctx, kit.Batches(len(passes), func(i int) []fsdp.Tensor {
			return optionalBatch(o.seed(s, i, g.Rank()), passes[i].Batch[g.Rank()])
		})) {
			require.NoError(t, err)
			loss, err := m.Forward(ctx, batch...)
			require.NoError(t, err)
			seen = append(seen, kit.Record{"loss": {loss}})
			var opts []fsdp.BackwardOption
			if o.Divide == fsdp.ByWeights {
				opts = append(opts, fsdp.Weight(passes[i].Weight[g.Rank()]))
			}
			if i++; o.NoSync && i%2 == 1 {
				require.NoError(t, m.NoSync(func() error { return m.Backward(ctx, opts...) }))
			} else {
				require.NoError(t, m.Backward(ctx, opts...))
			}
		}
		require.NoError(t, m.SyncGrads(ctx))
		look(func(ctx context.Context, m *fsdp.Sharded) (kit.Params, error) { return m.FullGrads(ctx) })
		if o.Clip {
			_, err := m.ClipGradNorm(ctx, kit.ScriptLimit)
			require.NoError(t, err)
		}
		require.NoError(t, opt.Step(kit.ScriptRate))
		m.ZeroGrad()
		look(kit.OwnState)
	}
	require.NoError(t, m.Close())
	return seen
}

func (o *optionalRun) seed(step, pass, rank int) int { return 100*step + 10*pass + rank }

// apart tells whether ranks have other parameters of that name.
func (o *optionalRun) apart(name string, a, b int) bool {
	unit := o.grouped()
	return unit != "" && name[:len(name)-2] == unit && a/o.Grouped != b/o.Grouped
}

// define returns what each rank should see after the parameters that it begins with.
func (o *optionalRun) define(t require.TestingT, states []kit.Record) (seen []optionalSeen) {
	seen = make([]optionalSeen, o.World)
	velocity := make([]kit.Record, o.World)
	for r := range velocity {
		velocity[r] = kit.Record{}
	}
	for s, passes := range o.Steps {
		grads := make([]kit.Record, o.World)
		for r := range grads {
			grads[r] = kit.Record{}
		}
		for i := range passes {
			o.pass(t, &passes[i], states, grads, seen, func(rank int) int { return o.seed(s, i, rank) })
		}
		for r := range states {
			seen[r] = append(seen[r], grads[r])
		}
		o.update(states, grads, velocity)
		for r := range states {
			next := kit.Record{}
			kit.AddTo(next, states[r], 1)
			seen[r] = append(seen[r], next)
		}
	}
	return seen
}

// pass adds the gradients of a pass to those of each rank.
func (o *optionalRun) pass(t require.TestingT, p *optionalPass, states, grads []kit.Record, seen []optionalSeen, seed func(rank int) int) {
	ctx := context.Background()
	each := make([]kit.Record, o.World)
	active, weights := 0.0, 0.0
	for r, there := range p.Batch {
		loss := 0.0
		if there != nil {
			m := kit.Wrap(t, o.model(there), fsdp.Config{Precision: kit.Float64s})
			state := kit.Params{}
			for name, v := range states[r] {
				state[name] = kit.TensorOf(v)
			}
			require.NoError(t, m.LoadStateDict(ctx, 0, state))
			batch := optionalBatch(seed(r), []bool{true, true, there[2], there[3]})
			loss = kit.ForwardBackward(t, ctx, m, batch)
			each[r] = kit.GradsOf(t, ctx, m)
			require.NoError(t, m.Close())
			active, weights = active+1, weights+p.Weight[r]
		}
		seen[r] = append(seen[r], kit.Record{"loss": {loss}})
	}
	for to := range grads {
		for from, g := range each {
			for name, v := range g {
				if o.frozen(name) || o.apart(name, from, to) {
					continue
				}
				have, might := 0.0, 0.0
				for r := range each {
					if !o.apart(name, from, r) && p.Batch[r] != nil {
						might++
						if each[r][name] != nil {
							have++
						}
					}
				}
				kit.AddTo(grads[to], kit.Record{name: v}, map[fsdp.GradAverage]float64{
					fsdp.ByRanks: 1 / float64(o.World), fsdp.ByActive: might / have / active, fsdp.ByWeights: p.Weight[from] / weights, fsdp.ByOne: 1,
				}[o.Divide])
			}
		}
	}
}

// update clips, and makes a step of SGD with momentum and weight decay.
func (o *optionalRun) update(states, grads, velocity []kit.Record) {
	c := 1.0
	if o.Clip {
		squares := 0.0
		for r, g := range grads {
			for name, v := range g {
				if r == 0 || o.apart(name, 0, r) && r%o.Grouped == 0 {
					for _, x := range v {
						squares += x * x
					}
				}
			}
		}
		c = min(1, kit.ScriptLimit/(math.Sqrt(squares)+1e-6))
	}
	for r, g := range grads {
		for name, v := range g {
			if velocity[r][name] == nil {
				velocity[r][name] = make([]float64, len(v))
			}
			for i := range v {
				velocity[r][name][i] = kit.ScriptMomentum*velocity[r][name][i] + c*v[i] + kit.ScriptDecay*states[r][name][i]
				states[r][name][i] -= kit.ScriptRate * velocity[r][name][i]
			}
		}
	}
}

// check trains under both settings, and compares them with the definition, and with each other to the
// bit.
func (o *optionalRun) check(t require.TestingT) {
	var seen [2][]optionalSeen
	for i, k := range o.settings {
		seen[i] = make([]optionalSeen, o.World)
		kit.OnRanks(t, o.World, func(ctx context.Context, g comm.Group) { seen[i][g.Rank()] = o.train(t, ctx, g, k) })
	}
	initial := make([]kit.Record, o.World)
	for r := range initial {
		initial[r] = kit.Record{}
		kit.AddTo(initial[r], seen[0][r][0], 1)
	}
	for r, want := range o.define(t, initial) {
		got := seen[0][r][1:]
		require.Len(t, got, len(want))
		for i := range want {
			require.Equal(t, slices.Sorted(maps.Keys(want[i])), slices.Sorted(maps.Keys(got[i])), "rank %d, sight %d", r, i)
			for name, x := range want[i] {
				kit.RequireWithin(t, x, got[i][name], 1e-12, fmt.Sprintf("rank %d, sight %d: %s", r, i, name))
			}
		}
		require.Equal(t, seen[0][r], seen[1][r], "rank %d: bits under the other setting", r)
	}
}

// TestOptionalAtRandom compares trainings with the definition of what they do.
func TestOptionalAtRandom(t *testing.T) {
	kit.Needs(t, kit.ActiveRanks)
	rapid.Check(t, func(t *rapid.T) { drawOptional(t).check(t) })
}

// TestOptionalNeverWaits runs some of those trainings where time stands still as long as any rank can
// go on.
func TestOptionalNeverWaits(t *testing.T) {
	kit.Needs(t, kit.FakeTime)
	runs := rapid.Custom(drawOptional)
	for seed := range 8 {
		o := runs.Example(seed)
		synctest.Test(t, func(t *testing.T) { o.check(t) })
	}
}
