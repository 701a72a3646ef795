package kit

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// CutAll returns a Config.Unit that cuts all units alike.
func CutAll(c shard.Cut) func(*fsdp.UnitConfig) {
	return func(u *fsdp.UnitConfig) { u.Cut = c }
}

// StrategyOf returns a Config.Unit that sets the strategy of each unit.
func StrategyOf(f func(u fsdp.UnitConfig) fsdp.Strategy) func(*fsdp.UnitConfig) {
	return func(u *fsdp.UnitConfig) { u.Strategy = f(*u) }
}

// GroupOf returns a Config.Unit that sets the process group of each unit, or none.
func GroupOf(f func(u fsdp.UnitConfig) comm.Group) func(*fsdp.UnitConfig) {
	return func(u *fsdp.UnitConfig) { u.Group = f(*u) }
}

// CutOf returns a Config.Unit that sets the cut of each unit.
func CutOf(f func(u fsdp.UnitConfig) shard.Cut) func(*fsdp.UnitConfig) {
	return func(u *fsdp.UnitConfig) { u.Cut = f(*u) }
}

// Units returns a Config.Unit that calls several, except for nil.
func Units(list ...func(*fsdp.UnitConfig)) func(*fsdp.UnitConfig) {
	return func(u *fsdp.UnitConfig) {
		for _, f := range list {
			if f != nil {
				f(u)
			}
		}
	}
}

// UnitGroup returns the group that a configuration gives a unit of this name.
func UnitGroup(cfg fsdp.Config, name string) comm.Group {
	u := fsdp.UnitConfig{Name: name}
	cfg.Unit(&u)
	return u.Group
}

// Blocks is the policy of most tests.
var Blocks = fsdp.WrapTypes(&nn.Block{})

// WrapPolicies are all the ways to wrap a tiny GPT.
var WrapPolicies = map[string]fsdp.Policy{
	"root only":          nil,
	"WrapTypes":          Blocks,
	"WrapEach":           fsdp.WrapEach(),
	"WrapNames":          fsdp.WrapNames(regexp.MustCompile(`^blocks\.[01]|^w.e`)),
	"WrapMinParams":      fsdp.WrapMinParams(900),
	"WrapMinParams, all": fsdp.WrapMinParams(1),
	"two of each":        EveryOther,
	"WrapAny":            fsdp.WrapAny(EveryOther, Blocks),
	"WrapAllBut":         fsdp.WrapAllBut(Blocks),
}

// EveryOther assigns calls alternately to two units, so that neighbours are in different units and
// distant calls in the same.
func EveryOther(calls []fsdp.CallInfo) []string {
	names := make([]string, len(calls))
	for i := range calls {
		names[i] = []string{"even", "odd"}[i%2]
	}
	return names
}

// DrawnPolicy is a random assignment of calls to any number of units, adjacent or not.
func DrawnPolicy(t *rapid.T, label string, calls int) fsdp.Policy {
	names := rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b", "c", "d"}), calls, calls).Draw(t, label)
	return func([]fsdp.CallInfo) []string { return names }
}

// DrawnKnobs is a random configuration of the settings that must not change the result.
func DrawnKnobs(t *rapid.T, label string, calls int) fsdp.Config {
	return fsdp.Config{
		Prefetch:    rapid.SampledFrom([]int{fsdp.NoPrefetch, 0, 1, 2, 3, 9}).Draw(t, label+" prefetch"),
		WrapPolicy:  DrawnPolicy(t, label+" wrap", calls),
		Activations: fsdp.Activations{Recompute: DrawnPolicy(t, label+" checkpoint", calls)},
		Poison:      rapid.Bool().Draw(t, label+" poison"),
	}
}

// DrawnAction is an action between steps that must not change them.
type DrawnAction struct{ Eval, Measure bool }

// DrawnRun is a run of the metamorphic test: a model, and the shape of the batch for every step and
// rank.
type DrawnRun struct {
	Model  *nn.GPT
	World  int
	DType  fsdp.DType
	Master fsdp.DType // Float32, or BFloat16 if DType is
	Shapes [][][2]int // by step and rank
}

// DrawRun draws a run.
func DrawRun(t *rapid.T) DrawnRun {
	r := DrawnRun{
		Model: TinyGPT(rapid.IntRange(0, 3).Draw(t, "layers")),
		World: rapid.IntRange(1, 4).Draw(t, "world"),
		DType: rapid.SampledFrom([]fsdp.DType{fsdp.Float32, fsdp.Float64, fsdp.BFloat16}).Draw(t, "dtype"),
	}
	if r.DType == fsdp.BFloat16 {
		r.Master = rapid.SampledFrom([]fsdp.DType{fsdp.Float32, fsdp.BFloat16}).Draw(t, "master")
	}
	r.Model.Tied = rapid.Bool().Draw(t, "tied")
	r.Model.NoBias = rapid.Bool().Draw(t, "no bias")
	r.Model.Dropout = rapid.SampledFrom([]float64{0, 0.2}).Draw(t, "dropout")
	for range rapid.IntRange(1, 4).Draw(t, "steps") {
		var ranks [][2]int
		for range r.World {
			ranks = append(ranks, [2]int{rapid.IntRange(1, 2).Draw(t, "rows"), rapid.SampledFrom([]int{1, 3, TinyContext}).Draw(t, "cols")})
		}
		r.Shapes = append(r.Shapes, ranks)
	}
	return r
}

// Run trains under a configuration, with actions between the steps, and returns the bits of the
// parameters. It also compares the counted memory with the plan.
func (r DrawnRun) Run(t require.TestingT, cfg fsdp.Config, actions []DrawnAction) Bits {
	var result Bits
	OnRanks(t, r.World, func(ctx context.Context, g comm.Group) {
		cfg := cfg
		cfg.Group, cfg.Precision.Compute, cfg.Precision.Master = g, r.DType, r.Master
		m := Wrap(t, r.Model, cfg)
		update := Updater(t, m, 0.5)
		state := 0 // bytes of the optimizer: two numbers for each number that this rank owns
		for _, p := range m.Params() {
			state += 2 * p.Value.Len() * map[fsdp.DType]int{fsdp.Float32: 4, fsdp.Float64: 8, fsdp.BFloat16: 4}[r.DType]
		}
		for step, shapes := range r.Shapes {
			batch := TinyBatch(step, g.Rank(), shapes[g.Rank()][0], shapes[g.Rank()][1])
			if actions[step].Eval {
				_, err := m.Eval(ctx, batch...)
				require.NoError(t, err)
			}
			if actions[step].Measure {
				_, err := m.ClipGradNorm(ctx, math.Inf(1))
				require.NoError(t, err)
			}
			plan, err := m.Plan(batch...)
			require.NoError(t, err)
			m.ResetPeak()
			ForwardBackward(t, ctx, m, batch)
			require.Equal(t, state, plan.StateBytes)
			require.Equal(t, plan.Peak(), m.Memory().Peak, "counted and planned peak")
			require.Equal(t, plan.ShardBytes+plan.StateBytes, m.Memory().Live, "memory after a step")
			update(ctx)
		}
		got := StateBits(t, ctx, m)
		if g.Rank() == 0 {
			result = got
		}
	})
	return result
}

// DrawnTypes draws a Precision.TypesOf, or nil.
func DrawnTypes(t *rapid.T, compute fsdp.DType) func(fsdp.CallInfo, fsdp.Param) (gather, reduce fsdp.DType) {
	if !rapid.Bool().Draw(t, "types") {
		return nil
	}
	choice := []fsdp.DType{fsdp.Float32, fsdp.BFloat16}
	if compute == fsdp.Float32 {
		choice = append(choice, fsdp.Float16)
	}
	if GroupsCarryPasses { // 8-bit types are sent only between processors
		choice = append(choice, fsdp.Int8)
	}
	list := rapid.SliceOfN(rapid.SampledFrom(choice), 8, 8).Draw(t, "types by length of the name")
	return func(_ fsdp.CallInfo, p fsdp.Param) (gather, reduce fsdp.DType) {
		i := len(p.Name) % 4
		return list[i], list[4+i]
	}
}

// Refreeze freezes other parameters and returns the next optimizer.
func Refreeze(t require.TestingT, ctx context.Context, m *fsdp.Sharded, frozen func(string) bool, opt optim.Optimizer, make func([]optim.Param) (optim.Optimizer, error)) optim.Optimizer {
	entries, err := m.Freeze(ctx, frozen, opt)
	require.NoError(t, err)
	next, err := make(m.Params())
	require.NoError(t, err)
	require.NoError(t, next.Adopt(opt.Steps(), entries))
	return next
}

// HiddenMatrices divides the parameters of a GPT.
func HiddenMatrices(params []optim.Param) (hidden, rest []optim.Param) {
	for _, p := range params {
		if len(p.Shape) == 2 && strings.HasPrefix(p.Name, "blocks.") {
			hidden = append(hidden, p)
		} else {
			rest = append(rest, p)
		}
	}
	return hidden, rest
}

// Offloads are configurations that differ in the place of memory.
var Offloads = map[string]func(c *fsdp.Config, dir string){
	"shards": func(c *fsdp.Config, dir string) { c.Offload.Dir = dir },
	"shards and activations": func(c *fsdp.Config, dir string) {
		c.Offload.Dir, c.Activations.Offload, c.Activations.Save = dir, fsdp.WrapEach(), fsdp.WrapEach()
	},
	"shards and checkpoints": func(c *fsdp.Config, dir string) {
		c.Offload.Dir, c.Activations.Offload, c.Activations.Recompute = dir, Blocks, Blocks
	},
	"on one rank only": func(c *fsdp.Config, dir string) {
		if c.Group.Rank() == 0 {
			c.Offload.Dir, c.Activations.Offload = dir, Blocks
		}
	},
}

// Knobs are settings that must not change one bit.
type Knobs struct {
	Strategy   fsdp.Strategy
	ShardRanks int
	Wrap       string
	Prefetch   int
	Checkpoint bool
}

// DrawKnobs draws knobs for a number of ranks.
func DrawKnobs(t *rapid.T, world int) Knobs {
	k := Knobs{
		Strategy:   fsdp.Strategy(rapid.IntRange(0, int(LastStrategy)).Draw(t, "strategy")),
		Wrap:       rapid.SampledFrom([]string{"root", "each", "two"}).Draw(t, "wrap"),
		Prefetch:   rapid.IntRange(-1, 3).Draw(t, "prefetch"),
		Checkpoint: rapid.Bool().Draw(t, "checkpoint"),
		ShardRanks: 1,
	}
	if world%2 == 0 {
		k.ShardRanks = rapid.IntRange(1, 2).Draw(t, "shard ranks")
	}
	return k
}

// Config returns the configuration that has the knobs.
func (k Knobs) Config() fsdp.Config {
	cfg := fsdp.Config{Strategy: k.Strategy, ShardRanks: k.ShardRanks, Prefetch: k.Prefetch, Precision: Float64s, Poison: true, Seed: 5}
	cfg.WrapPolicy = map[string]fsdp.Policy{"each": fsdp.WrapEach(), "two": EveryOther}[k.Wrap]
	if k.Checkpoint {
		cfg.Activations.Recompute = fsdp.WrapEach()
	}
	return cfg
}

// EveryStrategy runs f under every strategy over world ranks, and the hybrid ones over half of
// them.
func EveryStrategy(t *testing.T, world int, f func(t *testing.T, cfg fsdp.Config)) {
	for s := fsdp.FullShard; s <= LastStrategy; s++ {
		if hybrid := s >= fsdp.HybridShard; !hybrid || world%2 == 0 {
			t.Run(fmt.Sprintf("%v/%d ranks", s, world), func(t *testing.T) {
				cfg := fsdp.Config{Strategy: s, Poison: true}
				if hybrid {
					cfg.ShardRanks = world / 2
				}
				f(t, cfg)
			})
		}
	}
}

// GroupedBy returns a configuration of Shapes in which one unit is sharded over groups of adjacent
// ranks.
func GroupedBy(t require.TestingT, ctx context.Context, g comm.Group, unit string, ranks int) fsdp.Config {
	own, err := g.Split(ctx, g.Rank()/ranks, g.Rank())
	require.NoError(t, err)
	return fsdp.Config{
		Group: g, WrapPolicy: fsdp.WrapEach(), Precision: Float64s, Poison: true, Seed: 5,
		Unit: GroupOf(func(u fsdp.UnitConfig) comm.Group {
			if u.Name == unit {
				return own
			}
			return nil
		}),
	}
}
