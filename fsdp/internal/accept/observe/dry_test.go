package observe_test

import (
	"context"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/optim"
)

// makers make makers with different state.
var makers = map[string]func([]optim.Param) (optim.Optimizer, error){
	"none":     nil,
	"sgd":      optim.SGD{}.New,
	"momentum": optim.SGD{Momentum: 0.9}.New,
	"adamw":    optim.AdamW{}.New,
	"8 bits":   optim.AdamW{Bits: 8}.New,
	"16 bits":  optim.SGD{Momentum: 0.9, Bits: 16}.New,
}

// drawnStrategy draws what decides how parameters and gradients lie and travel.
func drawnStrategy(t *rapid.T, cfg fsdp.Config, world int) fsdp.Config {
	cfg.Strategy = rapid.SampledFrom([]fsdp.Strategy{
		fsdp.FullShard, fsdp.ShardGradOp, fsdp.NoShard, fsdp.HybridShard, fsdp.HybridGradOp, kit.LastStrategy,
	}).Draw(t, "strategy")
	if cfg.Strategy >= fsdp.HybridShard {
		cfg.ShardRanks = rapid.SampledFrom([]int{1, 2 - world%2, world}).Draw(t, "shard ranks")
	}
	if cfg.Precision.Compute == fsdp.Float32 {
		types := rapid.SampledFrom([]fsdp.DType{fsdp.Float32, fsdp.BFloat16, fsdp.Float16})
		cfg.Precision.Gather, cfg.Precision.Reduce = types.Draw(t, "gather"), types.Draw(t, "reduce")
		cfg.Precision.TypesOf = kit.DrawnTypes(t, cfg.Precision.Compute)
	}
	if cfg.Precision.Compute == fsdp.BFloat16 {
		cfg.Precision.Reduce = rapid.SampledFrom([]fsdp.DType{fsdp.Float32, fsdp.BFloat16}).Draw(t, "reduce")
	}
	frozen := rapid.SampledFrom([]string{"", "wte.weight", "blocks.0.fc.weight"}).Draw(t, "frozen")
	cfg.Frozen = func(name string) bool { return name == frozen }
	cfg.Logger = slog.New(slog.DiscardHandler) // it would warn that this selects nothing
	return cfg
}

// drawnOptions draws what else decides what is held: what calls keep, what lies in files, and units
// with groups of their own, of the ranks that share a color.
func drawnOptions(t *rapid.T, cfg fsdp.Config, calls int, dir string) (_ fsdp.Config, colors int) {
	if keep := rapid.Bool().Draw(t, "keep"); keep {
		cfg.Activations.Save, cfg.Activations.Recompute = kit.DrawnPolicy(t, "keep", calls), nil
	}
	if rapid.Bool().Draw(t, "files") {
		cfg.Offload.Dir, cfg.Activations.Offload = dir, kit.DrawnPolicy(t, "spill", calls)
	}
	if rapid.Bool().Draw(t, "ignored") {
		cfg.Ignored = func(name string) bool { return name == "wpe.weight" || name == "blocks.0.fc.weight" }
	}
	if (cfg.Strategy == fsdp.FullShard || cfg.Strategy == fsdp.ShardGradOp) && rapid.Bool().Draw(t, "groups") {
		colors = rapid.IntRange(1, 2).Draw(t, "colors")
	}
	return cfg, colors
}

// withGroups gives units with blocks groups of their own.
func withGroups(cfg fsdp.Config, own comm.Group) fsdp.Config {
	cfg.Unit = kit.GroupOf(func(u fsdp.UnitConfig) comm.Group {
		if u.Root {
			return nil
		}
		return own
	})
	return cfg
}

// TestDryIsThePlanOfWrap compares a plan without ranks with that of wrapped models, and after a
// Freeze: every figure, and the schedule.
func TestDryIsThePlanOfWrap(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		r := kit.DrawRun(t)
		r.Model.LoRA.Rank = rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "adapter")
		cfg := kit.DrawnKnobs(t, "knobs", r.Model.Layers+4)
		cfg.Precision.Compute, cfg.Precision.Master = r.DType, r.Master
		cfg = drawnStrategy(t, cfg, r.World)
		cfg, colors := drawnOptions(t, cfg, r.Model.Layers+4, dir)
		if r.Model.LoRA.Rank > 0 {
			cfg.Frozen = func(name string) bool { return !nn.IsAdapter(name) }
		}
		freeze := rapid.Bool().Draw(t, "freeze") && cfg.Precision.Compute != fsdp.BFloat16
		name := rapid.SampledFrom([]string{"none", "sgd", "momentum", "adamw", "8 bits", "16 bits"}).Draw(t, "optimizer")
		if strings.HasSuffix(name, " bits") && r.DType == fsdp.Float64 {
			name = "adamw"
		}
		if name == "8 bits" && r.Master == fsdp.BFloat16 {
			name = "16 bits"
		}
		rows, cols := r.Shapes[0][0][0], r.Shapes[0][0][1]
		kit.OnRanks(t, r.World, func(ctx context.Context, g comm.Group) {
			cfg, there := cfg, cfg
			cfg.Group, there.Group = comm.World{Ranks: g.Size(), Place: g.Rank()}, g
			if colors > 0 && g.Size()%colors == 0 {
				own, err := g.Split(ctx, g.Rank()%colors, g.Rank())
				require.NoError(t, err)
				defer own.Close()
				cfg, there = withGroups(cfg, comm.World{Ranks: own.Size(), Place: own.Rank()}), withGroups(there, own)
			}
			dry, err := fsdp.Planner{Model: r.Model, Config: cfg, NewOptimizer: makers[name], Batch: []fsdp.Shape{fsdp.Ints(rows, cols), fsdp.Ints(rows, cols)}}.Plan()
			require.NoError(t, err)
			m := kit.Wrap(t, r.Model, there)
			if makers[name] != nil {
				_, err = makers[name](m.Params())
				require.NoError(t, err)
			}
			plan, err := m.Plan(kit.TinyBatch(0, g.Rank(), rows, cols)...)
			require.NoError(t, err)
			require.Equal(t, plan, dry)
			if freeze {
				cfg.Frozen = func(name string) bool { return strings.HasSuffix(name, "bias") }
				dry, err = fsdp.Planner{Model: r.Model, Config: cfg, Batch: []fsdp.Shape{fsdp.Ints(rows, cols), fsdp.Ints(rows, cols)}}.Plan()
				require.NoError(t, err)
				_, err = m.Freeze(ctx, cfg.Frozen, nil)
				require.NoError(t, err)
				plan, err = m.Plan(kit.TinyBatch(0, g.Rank(), rows, cols)...)
				require.NoError(t, err)
				require.Equal(t, plan, dry, "after a Freeze")
			}
			require.NoError(t, m.Close())
		})
	})
}

// TestDryOfATrillion plans GPT-3 and a model of a trillion parameters, on more ranks than anybody
// has, in the memory of a laptop.
func TestDryOfATrillion(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, c := range []struct {
		layers, dim, heads, ranks int
		params                    float64
	}{{96, 12288, 96, 128, 175e9}, {96, 12288, 96, 100_000, 175e9}, {128, 25600, 160, 1024, 1009e9}} {
		model := &nn.GPT{Vocab: 50304, Context: 2048, Layers: c.layers, Dim: c.dim, Heads: c.heads, Tied: true}
		p, err := fsdp.Planner{Model: model, Config: fsdp.Config{
			Group: comm.World{Ranks: c.ranks}, WrapPolicy: kit.Blocks, Activations: fsdp.Activations{Recompute: kit.Blocks}, Precision: fsdp.Precision{Compute: fsdp.BFloat16},
		}, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{fsdp.Ints(1, 2048), fsdp.Ints(1, 2048)}}.Plan()
		require.NoError(t, err)
		require.InEpsilon(t, c.params, p.Params, 0.01)
		require.InEpsilon(t, 16*c.params/float64(c.ranks), p.ShardBytes+p.StateBytes, 0.02, "masters, gradients and moments in float32")
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100<<20))
}

// TestFits takes the advice that it gets, each by itself, and finds that it saves what was said.
func TestFits(t *testing.T) {
	model := &nn.GPT{Vocab: kit.TinyVocab, Context: kit.TinyContext, Layers: 3, Dim: 64, Heads: 2} // state of 8 bits is for 4,096 elements
	shapes := []fsdp.Shape{fsdp.Ints(4, kit.TinyContext), fsdp.Ints(4, kit.TinyContext)}
	halves := []fsdp.Shape{fsdp.Ints(2, kit.TinyContext), fsdp.Ints(2, kit.TinyContext)}
	newOptimizer := optim.AdamW{}.New
	take := map[string]func(c *fsdp.Config, batch *[]fsdp.Shape){
		"training on 8 ranks": func(c *fsdp.Config, _ *[]fsdp.Shape) {
			c.Group, c.ShardRanks = comm.World{Ranks: 8, Place: 1}, 2*c.ShardRanks
		},
		"Strategy: FullShard":    func(c *fsdp.Config, _ *[]fsdp.Shape) { c.Strategy, c.ShardRanks = fsdp.FullShard, 0 },
		"WrapPolicy: WrapEach()": func(c *fsdp.Config, _ *[]fsdp.Shape) { c.WrapPolicy = fsdp.WrapEach() },
		"Activations.Recompute: WrapEach()": func(c *fsdp.Config, _ *[]fsdp.Shape) {
			c.Activations.Recompute, c.Activations.Save = fsdp.WrapEach(), nil
		},
		"no Activations.Save":                           func(c *fsdp.Config, _ *[]fsdp.Shape) { c.Activations.Save = nil },
		"Prefetch: NoPrefetch":                          func(c *fsdp.Config, _ *[]fsdp.Shape) { c.Prefetch = fsdp.NoPrefetch },
		"Precision: BF16()":                             func(c *fsdp.Config, _ *[]fsdp.Shape) { c.Precision = fsdp.BF16() },
		"Precision.Reduce: BFloat16 (rounds gradients)": func(c *fsdp.Config, _ *[]fsdp.Shape) { c.Precision.Reduce = fsdp.BFloat16 },
		"Precision.Master: BFloat16 (rounds parameters and gradients)": func(c *fsdp.Config, _ *[]fsdp.Shape) {
			c.Precision.Master = fsdp.BFloat16
		},
		"Offload.Dir (on a GPU Offload.Pinned)":     func(c *fsdp.Config, _ *[]fsdp.Shape) { c.Offload.Dir = t.TempDir() },
		"optim.AdamW{Bits: 8} (rounds differently)": func(*fsdp.Config, *[]fsdp.Shape) { newOptimizer = optim.AdamW{Bits: 8}.New },
		"half the batch": func(_ *fsdp.Config, batch *[]fsdp.Shape) { *batch = halves },
	}
	taken := make(map[string]bool)
	for _, cfg := range []fsdp.Config{
		{}, {WrapPolicy: kit.Blocks, Prefetch: 2, Activations: fsdp.Activations{Save: kit.Blocks}}, {WrapPolicy: kit.Blocks, Strategy: fsdp.ShardGradOp}, {WrapPolicy: kit.Blocks, Strategy: fsdp.HybridShard, ShardRanks: 2},
		{WrapPolicy: kit.Blocks, Activations: fsdp.Activations{Recompute: kit.Blocks}, Precision: fsdp.BF16(), Prefetch: fsdp.NoPrefetch},
	} {
		cfg.Group = comm.World{Ranks: 4, Place: 1}
		base, err := fsdp.Planner{Model: model, Config: cfg, NewOptimizer: optim.AdamW{}.New, Batch: shapes}.Plan()
		require.NoError(t, err)
		peak := func(p *fsdp.Plan) int { return p.Pass.Ops[p.Pass.Peak()].Live.Total() }
		require.NoError(t, fsdp.Planner{Model: model, Config: cfg, NewOptimizer: optim.AdamW{}.New, Batch: shapes}.Fits(peak(base)))
		err = fsdp.Planner{Model: model, Config: cfg, NewOptimizer: optim.AdamW{}.New, Batch: shapes}.Fits(peak(base) - 1)
		require.ErrorContains(t, err, "fsdp: rank 1 of 4: plan: ")
		var misfit *plan.Misfit
		require.ErrorAs(t, err, &misfit)
		require.NotEmpty(t, misfit.Changes)
		require.NotEmpty(t, misfit.Units)
		before := peak(base)
		for _, c := range misfit.Changes {
			changed, batch := cfg, shapes
			newOptimizer = optim.AdamW{}.New
			take[c.Name](&changed, &batch)
			p, err := fsdp.Planner{Model: model, Config: changed, NewOptimizer: newOptimizer, Batch: batch}.Plan()
			require.NoError(t, err, c.Name)
			require.Equal(t, p.RAMBytes, c.Memory, c.Name)
			require.Equal(t, peak(base)-p.RAMBytes, c.Saved, c.Name)
			require.Positive(t, c.Saved)
			require.LessOrEqual(t, c.Saved, before, "the best first")
			before, taken[c.Name] = c.Saved, true
			require.NoError(t, fsdp.Planner{Model: model, Config: changed, NewOptimizer: newOptimizer, Batch: batch}.Fits(c.Memory))
		}
	}
	require.Len(t, taken, len(take), "every change helps somewhere")
	require.ErrorContains(t, fsdp.Planner{Model: model, Config: fsdp.Config{}}.Fits(1), "the batch has 0 shapes")
	require.ErrorContains(t, fsdp.Planner{Model: model, Config: fsdp.Config{}, Batch: shapes}.Fits(1), "Each of these alone helps: ")
}

// TestKeepIsProposed gives a model less and less memory. Fits and Tune propose Keep as long as a
// pass with it fits, and Fits proposes nothing where it would save nothing.
func TestKeepIsProposed(t *testing.T) {
	model, shape, c := kit.TinyGPT(3), fsdp.Ints(2, kit.TinyContext), plan.Clusters()["h100"]
	peak := func(cfg fsdp.Config) int {
		p, err := fsdp.Planner{Model: model, Config: cfg, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{shape, shape}}.Plan()
		require.NoError(t, err)
		return p.Pass.Ops[p.Pass.Peak()].Live.Total()
	}
	some := fsdp.Config{WrapPolicy: kit.Blocks, Prefetch: 1}
	all, full := some, some
	all.Activations.Save, full.Activations.Recompute = fsdp.WrapEach(), kit.Blocks
	require.Greater(t, peak(all), peak(some))
	for _, x := range []struct {
		cfg      fsdp.Config
		memory   int
		proposal string // of Fits
	}{
		{some, peak(all), `msg="fsdp: memory allows Activations.Save: WrapEach(): backward would recompute nothing" rank=0 takes="` + plan.Bytes(peak(all)) + `" now="` + plan.Bytes(peak(some))},
		{some, peak(all) - 1, ""},
		{full, peak(all), "Activations.Save: WrapEach() in place of Recompute: backward"},
		{full, peak(all) - 1, ""},
		{all, peak(all), ""},
	} {
		var said strings.Builder
		x.cfg.Logger = slog.New(slog.NewTextHandler(&said, nil))
		require.NoError(t, fsdp.Planner{Model: model, Config: x.cfg, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{shape, shape}}.Fits(x.memory))
		require.Contains(t, said.String(), x.proposal)
		require.Equal(t, x.proposal == "", said.Len() == 0, "%s", &said)

		cfg, choices, err := fsdp.Planner{Model: model, Config: some, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{shape, shape}}.Tune(c, x.memory)
		require.NoError(t, err)
		require.Equal(t, x.memory == peak(all), cfg.Activations.Save != nil, choices[0].Setting)
		require.Nil(t, cfg.Activations.Recompute)
	}
}

func TestDryMistakes(t *testing.T) {
	shape := fsdp.Ints(2, kit.TinyContext)
	for want, run := range map[string]func() (*fsdp.Plan, error){
		"fsdp: a plan for rank 3 of 2: Config.Group has no such rank": func() (*fsdp.Plan, error) {
			return fsdp.Planner{Model: kit.TinyGPT(1), Config: fsdp.Config{Group: comm.World{Ranks: 2, Place: 3}}, Batch: []fsdp.Shape{shape, shape}}.Plan()
		},
		"fsdp: a plan for rank 0 of 1: the batch has 1 shapes, but the model takes 2 tensors": func() (*fsdp.Plan, error) {
			return fsdp.Planner{Model: kit.TinyGPT(1), Config: fsdp.Config{}, Batch: []fsdp.Shape{shape}}.Plan()
		},
		"the shape [2 0] is empty": func() (*fsdp.Plan, error) {
			return fsdp.Planner{Model: kit.TinyGPT(1), Config: fsdp.Config{}, Batch: []fsdp.Shape{shape, fsdp.Ints(2, 0)}}.Plan()
		},
		"index is float32, want int": func() (*fsdp.Plan, error) {
			return fsdp.Planner{Model: kit.TinyGPT(1), Config: fsdp.Config{}, Batch: []fsdp.Shape{fsdp.Floats(2, kit.TinyContext), shape}}.Plan()
		},
		"Config.Prefetch is -3": func() (*fsdp.Plan, error) {
			return fsdp.Planner{Model: kit.TinyGPT(1), Config: fsdp.Config{Prefetch: -3}, Batch: []fsdp.Shape{shape, shape}}.Plan()
		},
	} {
		_, err := run()
		require.ErrorContains(t, err, want)
	}
	_, err := fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Group: comm.World{Ranks: 2}})
	require.ErrorIs(t, err, comm.ErrWorld)
}

// TestTuneOfATrillion searches the settings of a model of a trillion parameters on 1,024 GPUs.
func TestTuneOfATrillion(t *testing.T) {
	model := &nn.GPT{Vocab: 50304, Context: 2048, Layers: 128, Dim: 25600, Heads: 160, Tied: true}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c := plan.Clusters()["b200"]
	cfg, choices, err := fsdp.Planner{Model: model,
		Config:       fsdp.Config{Group: comm.World{Ranks: 1024}, Precision: fsdp.Precision{Compute: fsdp.BFloat16}},
		NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{fsdp.Ints(1, 2048), fsdp.Ints(1, 2048)}}.Tune(c, c.Device.Memory)
	require.NoError(t, err)
	require.NotNil(t, cfg.WrapPolicy)
	require.Equal(t, fsdp.FullShard, cfg.Strategy, "nothing else fits")
	best := choices[0]
	for _, other := range choices[1:] {
		if other.Time != nil {
			require.LessOrEqual(t, best.Time.Total, other.Time.Total)
			require.LessOrEqual(t, other.Memory, c.Device.Memory)
		} else {
			require.Greater(t, other.Memory, c.Device.Memory)
		}
	}
	runtime.ReadMemStats(&after)
	require.Less(t, int(after.HeapSys)-int(before.HeapSys), 400<<20)
}

// TestTuneChangesNoBit trains as Tune chooses for clusters with fast and with slow links, with much
// memory and with little, and compares the bits with those of the settings that it replaces.
func TestTuneChangesNoBit(t *testing.T) {
	model := kit.TinyGPT(4)
	for world := 1; world <= 4; world++ {
		want := kit.Train(t, model, world, 5, 0.5, fsdp.Config{})
		chosen := make(map[string]bool)
		for _, slow := range []float64{1, 1e3} {
			c := plan.Clusters()["h100"]
			c.PerHost = 2
			c.Inside.Bandwidth, c.Between.Bandwidth, c.Software.Step = c.Inside.Bandwidth/slow, c.Between.Bandwidth/slow, 0
			shape := fsdp.Ints(2, kit.TinyContext)
			_, all, err := fsdp.Planner{Model: model,
				Config: fsdp.Config{Group: comm.World{Ranks: world}}, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{shape, shape}}.Tune(c, 1<<40)
			require.NoError(t, err)
			_, again, err := fsdp.Planner{Model: model,
				Config: fsdp.Config{Group: comm.World{Ranks: world}}, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{shape, shape}}.Tune(c, 1<<40)
			require.NoError(t, err)
			require.Equal(t, all, again, "the same question has the same answer")
			for _, memory := range []int{1 << 40, all[0].Memory - 1} {
				cfg, choices, err := fsdp.Planner{Model: model,
					Config: fsdp.Config{Group: comm.World{Ranks: world}}, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{shape, shape}}.Tune(c, memory)
				if err != nil { // the first choice needs least
					var misfit *plan.Misfit
					require.ErrorAs(t, err, &misfit)
					continue
				}
				chosen[choices[0].Setting.String()] = true
				cfg.Group = nil
				kit.RequireSameBits(t, want, kit.Train(t, model, world, 5, 0.5, cfg), choices[0].Setting)
			}
		}
		require.Greater(t, len(chosen), 1, "the question matters: %v", chosen)
	}
}

// TestTuneKeepsWhatIsSet searches what a configuration leaves open, and nothing else.
func TestTuneKeepsWhatIsSet(t *testing.T) {
	shape := fsdp.Ints(2, kit.TinyContext)
	given := fsdp.Config{
		Group: comm.World{Ranks: 4}, WrapPolicy: fsdp.WrapEach(), Strategy: fsdp.ShardGradOp, Prefetch: 2, Activations: fsdp.Activations{Recompute: kit.Blocks},
	}
	cfg, choices, err := fsdp.Planner{Model: kit.TinyGPT(2), Config: given, Batch: []fsdp.Shape{shape, shape}}.Tune(plan.Clusters()["h100"], 1<<40)
	require.NoError(t, err)
	require.Len(t, choices, 1)
	require.Equal(t, fsdp.ShardGradOp, cfg.Strategy)
	require.Equal(t, 2, cfg.Prefetch)
	_, _, err = fsdp.Planner{Model: kit.TinyGPT(2), Config: given, Batch: []fsdp.Shape{shape, shape}}.Tune(plan.Clusters()["h100"], 1000)
	require.ErrorContains(t, err, "fsdp: tuning for 4 ranks: plan: 1.0 kB are too few for the memory in use at")
	require.ErrorContains(t, err, "Each of these alone helps: ")
	_, _, err = fsdp.Planner{Model: kit.TinyGPT(2), Config: given, Batch: []fsdp.Shape{shape}}.Tune(plan.Clusters()["h100"], 1000)
	require.ErrorContains(t, err, "the batch has 1 shapes, but the model takes 2 tensors")
	_, _, err = fsdp.Planner{Model: kit.TinyGPT(2), Config: given, Batch: []fsdp.Shape{shape, shape}}.Tune(nil, 1<<40)
	require.ErrorContains(t, err, "fsdp: tuning: plan: the cluster is empty: use one of Clusters")
	broken := *plan.Clusters()["h100"]
	broken.Device.Peak = math.NaN()
	_, _, err = fsdp.Planner{Model: kit.TinyGPT(2), Config: given, Batch: []fsdp.Shape{shape, shape}}.Tune(&broken, 1<<40)
	require.ErrorContains(t, err, `plan: cluster "`+broken.Name+`": Device.Peak is NaN`)
	_, err = plan.Search(new(plan.Space), 1<<40, nil, nil)
	require.ErrorContains(t, err, "plan: the cluster is empty")
}

// TestTuneFindsSecondCopies gives a model on two hosts less and less memory: the backward of one
// strategy gathers within hosts alone without keeping all parameters that a host has. A GPU does
// not have it.
func TestTuneFindsSecondCopies(t *testing.T) {
	const world = 4
	model, shape := kit.TinyGPT(4), fsdp.Ints(2, kit.TinyContext)
	want := kit.Train(t, model, world, 2, 0.5, fsdp.Config{})
	c := plan.Clusters()["epyc-2"]
	c.Between.Bandwidth /= 1e3
	given := fsdp.Config{Group: comm.World{Ranks: world}, WrapPolicy: kit.Blocks, Prefetch: 1, Activations: fsdp.Activations{Recompute: kit.Blocks}}
	found := make(map[fsdp.Strategy]bool)
	for memory := 1 << 40; ; {
		cfg, choices, err := fsdp.Planner{Model: model, Config: given, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{shape, shape}}.Tune(c, memory)
		if err != nil {
			var misfit *plan.Misfit
			require.ErrorAs(t, err, &misfit)
			break
		}
		found[cfg.Strategy], memory = true, choices[0].Memory-1
		if cfg.Strategy == fsdp.SecondaryShard {
			require.Equal(t, c.PerHost, cfg.ShardRanks)
			cfg.Group = nil
			kit.RequireSameBits(t, want, kit.Train(t, model, world, 2, 0.5, cfg), cfg.Strategy)
		}
	}
	require.True(t, found[fsdp.SecondaryShard], "%v", found)
	c.Cores = 0
	_, choices, err := fsdp.Planner{Model: model, Config: given, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{shape, shape}}.Tune(c, 1<<40)
	require.NoError(t, err)
	for _, other := range choices {
		require.NotEqual(t, "SecondaryShard", other.Strategy)
	}
}

// TestTuneIsNeverWorse compares the choice for several models on hosts of two cores with the
// defaults and with what else there was, by the clock of the cluster.
func TestTuneIsNeverWorse(t *testing.T) {
	for i := range 8 {
		model := &nn.GPT{Vocab: 10 + 61*i, Context: 32, Layers: 1 + i%4, Dim: 16 * (8 - i), Heads: 2}
		given := fsdp.Config{Group: comm.World{Ranks: 1 + i}} // on up to four hosts
		if i%2 == 1 {
			given.Precision = fsdp.BF16()
		}
		c, shape := plan.Clusters()["epyc-2"], fsdp.Ints(2, 32)
		cfg, choices, err := fsdp.Planner{Model: model, Config: given, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{shape, shape}}.Tune(c, 1<<40)
		require.NoError(t, err)
		seconds := func(cfg fsdp.Config) float64 {
			p, err := fsdp.Planner{Model: model, Config: cfg, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{shape, shape}}.Plan()
			require.NoError(t, err)
			return p.Pass.Time(c, 1).Total
		}
		best := seconds(cfg)
		require.Equal(t, choices[0].Time.Total, best)
		require.LessOrEqual(t, best, seconds(given))
		for _, other := range choices {
			require.LessOrEqual(t, best, other.Time.Total)
		}
	}
}
