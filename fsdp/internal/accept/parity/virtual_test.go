package parity_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
	"github.com/gofsdp/gofsdp/optim"
)

// virtual is a training on virtual ranks.
type virtual struct {
	ranks int
	cfg   fsdp.Config
	none  func(step, v int) bool // no batch for a virtual rank; nil is never
}

// A way is how many ranks a training runs on, and how they accumulate.
type way struct {
	ranks  int
	noSync bool
	sync   bool // with noSync: the last micro-batch, too, and then SyncGrads
	dummy  bool // a rank without a batch computes with another one
}

// ways are those that virtual ranks may run in.
func (v *virtual) ways() (list []way) {
	for n := 1; n <= v.ranks; n++ {
		list = append(list, way{ranks: n})
		if l := v.ranks / n; v.ranks%n == 0 && l > 1 && (n == 1 || l&(l-1) == 0) {
			list = append(list, way{ranks: n, noSync: true}, way{ranks: n, noSync: true, sync: true})
		}
	}
	return list
}

// leaf returns the virtual rank of micro-batch k of as many as passes.
func (w way) leaf(g comm.Group, k, passes int) int {
	if w.noSync {
		return g.Rank()*passes + k
	}
	return k*g.Size() + g.Rank()
}

// passes returns the number of micro-batches of a step on each rank.
func (v *virtual) passes(ranks int) int { return (v.ranks + ranks - 1) / ranks }

// batches returns those of a rank in a step, nil where there is none.
func (v *virtual) batches(g comm.Group, w way, step int) [][]fsdp.Tensor {
	list := make([][]fsdp.Tensor, v.passes(g.Size()))
	for k := range list {
		leaf := w.leaf(g, k, len(list))
		if leaf < v.ranks && (v.none == nil || !v.none(step, leaf)) {
			list[k] = kit.TinyBatch(step, leaf, 1+leaf%2, kit.TinyContext)
		}
	}
	return list
}

// train makes steps on the ranks of g, from one on, and returns the bits of everything.
func (v *virtual) train(t require.TestingT, ctx context.Context, g comm.Group, w way, from, to int, dir string) kit.Bits {
	model, cfg := kit.TinyGPT(2), v.cfg
	model.Dropout = 0.1
	cfg.Group, cfg.VirtualRanks, cfg.Seed = g, v.ranks, 7
	m := kit.Wrap(t, model, cfg)
	opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Params())
	require.NoError(t, err)
	if from > 0 {
		_, err := m.Load(ctx, dir, opt, nil)
		require.NoError(t, err)
	}
	var norms []uint64
	passes := v.passes(g.Size())
	joining := []fsdp.JoinOption{fsdp.RefuseUneven()}
	if w.dummy {
		joining = append(joining, fsdp.Dummy(kit.TinyBatch(9, 9, 1, kit.TinyContext)...))
	}
	for step := from; step < to; step++ {
		k := 0
		for batch, err := range m.Join(ctx, fsdp.Batches(v.batches(g, w, step)...), joining...) {
			require.NoError(t, err)
			var opts []fsdp.BackwardOption
			if cfg.GradAverage == fsdp.ByWeights {
				opts = append(opts, fsdp.Weight(float64(w.leaf(g, k, passes))+0.1))
			}
			run := func() error { kit.ForwardBackward(t, ctx, m, batch, opts...); return nil }
			if w.noSync && (k < passes-1 || w.sync) {
				require.NoError(t, m.NoSync(run))
			} else {
				require.NoError(t, run())
			}
			k++
		}
		require.Equal(t, passes, k)
		if w.sync {
			require.NoError(t, m.SyncGrads(ctx))
		}
		norm, err := m.ClipGradNorm(ctx, 0.5)
		require.NoError(t, err)
		norms = append(norms, math.Float64bits(norm))
		require.NoError(t, opt.Step(1e-2))
		m.ZeroGrad()
	}
	if from == 0 && dir != "" {
		require.NoError(t, m.Save(ctx, dir, opt, nil))
	}
	all := kit.StateBits(t, ctx, m)
	all["norms"] = norms
	full, err := m.OptimStateDict(ctx, opt, nil)
	require.NoError(t, err)
	if g.Rank() == 0 {
		for _, e := range full.Entries() {
			for _, x := range kit.CopyOf(t, e.Data).F32 {
				all[e.Param+" "+e.Name] = append(all[e.Param+" "+e.Name], uint64(math.Float32bits(x)))
			}
		}
	}
	require.NoError(t, m.Close())
	return all
}

// on trains on ranks that are goroutines.
func (v *virtual) on(t require.TestingT, w way, steps int) (all kit.Bits) {
	kit.OnRanks(t, w.ranks, func(ctx context.Context, g comm.Group) {
		if b := v.train(t, ctx, g, w, 0, steps, ""); g.Rank() == 0 {
			all = b
		}
	})
	return all
}

// TestVirtualRanks: a training on virtual ranks has the same bits on all numbers of ranks, however
// they accumulate.
func TestVirtualRanks(t *testing.T) {
	for _, n := range []int{2, 3, 4, 5, 6, 7, 8, 12} {
		v := &virtual{ranks: n, cfg: fsdp.Config{WrapPolicy: kit.Blocks}}
		want := v.on(t, way{ranks: n}, 2)
		for _, w := range v.ways() {
			if n > 8 && w.ranks > 7 { // no other case than with 8 of them
				continue
			}
			kit.RequireSameBits(t, want, v.on(t, w, 2), n, w)
		}
	}
}

// TestVirtualRanksWithEverything turns on what passes may depend on, one thing at a time.
func TestVirtualRanksWithEverything(t *testing.T) {
	wire := func(d fsdp.DType) fsdp.Precision { return fsdp.Precision{Gather: d, Reduce: d} }
	some := func(step, v int) bool { return kit.U24(step, v)%3 == 0 }
	types := kit.TypesByName(fsdp.Int8, fsdp.BFloat16, map[string][2]fsdp.DType{"wte.weight": {}, "blocks.1.fc.weight": {fsdp.BFloat16, fsdp.Float16}})
	for name, v := range map[string]*virtual{
		"no shard":         {cfg: fsdp.Config{WrapPolicy: kit.Blocks, Strategy: fsdp.NoShard}},
		"ignored":          {cfg: fsdp.Config{WrapPolicy: kit.Blocks, Ignored: func(name string) bool { return name == "lnf.weight" }}},
		"hybrid":           {cfg: fsdp.Config{WrapPolicy: kit.Blocks, Strategy: fsdp.HybridShard, ShardRanks: 1}},
		"checkpointed":     {cfg: fsdp.Config{WrapPolicy: kit.Blocks, Strategy: fsdp.ShardGradOp, Activations: fsdp.Activations{Recompute: kit.Blocks}, Threads: 2}},
		"frozen":           {cfg: fsdp.Config{WrapPolicy: kit.Blocks, Frozen: regexp.MustCompile(`^wte|attn`).MatchString}},
		"sums":             {cfg: fsdp.Config{WrapPolicy: kit.Blocks, GradAverage: fsdp.ByOne}},
		"bfloat16":         {cfg: fsdp.Config{WrapPolicy: kit.Blocks, Precision: fsdp.BF16()}},
		"bfloat16 masters": {cfg: fsdp.Config{WrapPolicy: kit.Blocks, Precision: masters16, Threads: 2}},
		"bfloat16 on wire": {cfg: fsdp.Config{WrapPolicy: kit.Blocks, Precision: wire(fsdp.BFloat16)}},
		"float16 on wire":  {cfg: fsdp.Config{WrapPolicy: kit.Blocks, Precision: wire(fsdp.Float16)}},
		"types of each":    {cfg: fsdp.Config{WrapPolicy: kit.Blocks, Precision: fsdp.Precision{TypesOf: types}}},
		"float64":          {cfg: fsdp.Config{WrapPolicy: kit.Blocks, Precision: fsdp.Precision{Compute: fsdp.Float64}}},
		"uneven":           {cfg: fsdp.Config{WrapPolicy: kit.Blocks}, none: some},
		"uneven bfloat16":  {cfg: fsdp.Config{Precision: wire(fsdp.BFloat16)}, none: some},
		"weights":          {cfg: fsdp.Config{WrapPolicy: kit.Blocks, GradAverage: fsdp.ByWeights}},
		"uneven weights":   {cfg: fsdp.Config{WrapPolicy: kit.Blocks, GradAverage: fsdp.ByWeights, Precision: wire(fsdp.BFloat16)}, none: some},
		"active":           {cfg: fsdp.Config{WrapPolicy: kit.Blocks, GradAverage: fsdp.ByActive}, none: some},
		"one has a batch":  {cfg: fsdp.Config{WrapPolicy: kit.Blocks}, none: func(step, v int) bool { return v != step%4 }},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "types of each" {
				kit.Needs(t, kit.EightBits)
			}
			v.ranks = 4
			want := v.on(t, way{ranks: 4}, 3)
			for _, w := range v.ways() {
				kit.RequireSameBits(t, want, v.on(t, w, 3), w)
			}
		})
	}
	t.Run("hybrid over 2", func(t *testing.T) {
		for n, ways := range map[int][]way{
			8: {{ranks: 8}, {ranks: 4}, {ranks: 4, noSync: true}, {ranks: 2}, {ranks: 6}},
			7: {{ranks: 2}, {ranks: 4}, {ranks: 6}}, // on 4 and 6, one of two ranks has no last batch
		} {
			v := &virtual{ranks: n, cfg: fsdp.Config{WrapPolicy: kit.Blocks}}
			want := v.on(t, way{ranks: n}, 2)
			v.cfg.Strategy, v.cfg.ShardRanks = fsdp.HybridShard, 2
			for _, w := range ways {
				kit.RequireSameBits(t, want, v.on(t, w, 2), n, w)
			}
		}
	})
}

// TestVirtualRanksOverTransports trains on groups as processes have them.
func TestVirtualRanksOverTransports(t *testing.T) {
	v := &virtual{ranks: 8, cfg: fsdp.Config{WrapPolicy: kit.Blocks}}
	want := v.on(t, way{ranks: 1}, 2)
	kit.RequireSameBits(t, want, v.on(t, way{ranks: 3, dummy: true}, 2))
	for name, change := range kit.Transports {
		for _, w := range []way{{ranks: 2}, {ranks: 4, noSync: true}, {ranks: 3}, {ranks: 7}} {
			kit.OnGroups(t, kit.Connect(t, w.ranks, change), func(ctx context.Context, g comm.Group) {
				if b := v.train(t, ctx, g, w, 0, 2, ""); g.Rank() == 0 {
					kit.RequireSameBits(t, want, b, name, w)
				}
			})
		}
	}
}

// TestVirtualRanksChangeNothing: on as many ranks they have the bits of a training without.
func TestVirtualRanksChangeNothing(t *testing.T) {
	const n = 3
	v := &virtual{ranks: n, cfg: fsdp.Config{WrapPolicy: kit.Blocks}}
	got := v.on(t, way{ranks: n}, 5)
	kit.OnRanks(t, n, func(ctx context.Context, g comm.Group) {
		model := kit.TinyGPT(2)
		model.Dropout = 0.1
		m := kit.Wrap(t, model, fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Seed: 7})
		update := kit.Updater(t, m, 0.5)
		for step := range 5 {
			kit.ForwardBackward(t, ctx, m, v.batches(g, way{}, step)[0])
			update(ctx)
		}
		for name, want := range kit.StateBits(t, ctx, m) {
			require.Equal(t, want, got[name])
		}
	})
}

// TestVirtualRanksGoOnElsewhere: a checkpoint of 4 ranks goes on on 2, and on 1, with the bits of
// 4.
func TestVirtualRanksGoOnElsewhere(t *testing.T) {
	v := &virtual{ranks: 8, cfg: fsdp.Config{WrapPolicy: kit.Blocks}}
	dir := t.TempDir()
	want := v.on(t, way{ranks: 4}, 6)
	kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) { v.train(t, ctx, g, way{ranks: 4}, 0, 3, dir) })
	for _, w := range []way{{ranks: 2}, {ranks: 1}, {ranks: 4, noSync: true}, {ranks: 8}, {ranks: 3}} {
		kit.OnRanks(t, w.ranks, func(ctx context.Context, g comm.Group) {
			got := v.train(t, ctx, g, w, 3, 6, dir)
			got["norms"] = append(want["norms"][:3:3], got["norms"]...)
			if g.Rank() == 0 {
				kit.RequireSameBits(t, want, got, w)
			}
		})
	}
}

// TestVirtualRanksMemory: the counted peak of a step is the planned one.
func TestVirtualRanksMemory(t *testing.T) {
	for _, passes := range []int{1, 2, 4, 6, 8} {
		for _, noSync := range []bool{false, true} {
			w := way{ranks: 2, noSync: noSync, sync: noSync}
			if noSync && passes == 6 {
				w.ranks = 1
			}
			v := &virtual{ranks: w.ranks * passes}
			kit.OnRanks(t, w.ranks, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, VirtualRanks: v.ranks})
				batch := kit.TinyBatch(0, g.Rank(), 2, kit.TinyContext)
				var plan *fsdp.Plan
				step := func() (err error) {
					plan, err = m.Plan(batch...)
					for range passes {
						kit.ForwardBackward(t, ctx, m, batch)
					}
					return err
				}
				if noSync {
					require.NoError(t, m.NoSync(step))
					require.NoError(t, m.SyncGrads(ctx))
				} else {
					require.NoError(t, step())
				}
				require.Equal(t, plan.Peak(), m.Memory().Peak, "%d passes, %v", passes, w)
				if !noSync {
					dry, err := fsdp.Planner{Model: kit.TinyGPT(2),
						Config: fsdp.Config{Group: comm.World{Ranks: w.ranks}, WrapPolicy: kit.Blocks, VirtualRanks: v.ranks}, Batch: []fsdp.Shape{fsdp.Ints(2, kit.TinyContext), fsdp.Ints(2, kit.TinyContext)}}.Plan()
					require.NoError(t, err)
					require.Equal(t, plan.Peak(), dry.Peak())
				}
				require.Equal(t, passes > 1, plan.VirtualBytes > 0)
				require.NoError(t, m.Close())
				require.Zero(t, m.Memory().Live)
			})
		}
	}
}

// TestVirtualRanksMemoryOfLeaves: likewise where ranks receive leaves one by one.
func TestVirtualRanksMemoryOfLeaves(t *testing.T) {
	for _, c := range []struct {
		ranks, virtual int
		cfg            fsdp.Config
	}{
		{2, 3, fsdp.Config{}}, {3, 4, fsdp.Config{}}, {3, 9, fsdp.Config{Precision: fsdp.Precision{Reduce: fsdp.BFloat16}}},
		{3, 5, fsdp.Config{Strategy: fsdp.NoShard}}, {6, 7, fsdp.Config{Strategy: fsdp.HybridShard, ShardRanks: 2}},
	} {
		v := &virtual{ranks: c.virtual}
		kit.OnRanks(t, c.ranks, func(ctx context.Context, g comm.Group) {
			cfg := c.cfg
			cfg.Group, cfg.WrapPolicy, cfg.VirtualRanks = g, kit.Blocks, c.virtual
			m, batch := kit.Wrap(t, kit.TinyGPT(2), cfg), kit.TinyBatch(0, 0, 2, kit.TinyContext)
			plan, err := m.Plan(batch...)
			require.NoError(t, err)
			for k := range 2 * v.passes(c.ranks) { // the first step allocates the sums
				if (way{}).leaf(g, k%v.passes(c.ranks), 0) < c.virtual {
					kit.ForwardBackward(t, ctx, m, batch)
				} else {
					kit.ForwardBackward(t, ctx, m, nil)
				}
			}
			require.Equal(t, plan.Peak(), m.Memory().Peak, "%d virtual ranks on %d", c.virtual, c.ranks)
			cfg.Group = comm.World{Ranks: c.ranks}
			dry, err := fsdp.Planner{Model: kit.TinyGPT(2), Config: cfg, Batch: []fsdp.Shape{fsdp.Ints(2, kit.TinyContext), fsdp.Ints(2, kit.TinyContext)}}.Plan()
			require.NoError(t, err)
			require.Equal(t, []int{plan.Peak(), plan.VirtualBytes}, []int{dry.Peak(), dry.VirtualBytes})
			require.NoError(t, m.Close())
			require.Zero(t, m.Memory().Live)
		})
	}
}

// TestVirtualRanksRefused names what does not go with virtual ranks, when the model is wrapped.
func TestVirtualRanksRefused(t *testing.T) {
	own := comm.Local(1)[0]
	for _, c := range []struct {
		ranks int
		model fsdp.Model
		cfg   fsdp.Config
		want  string
	}{
		{2, kit.TinyGPT(1), fsdp.Config{VirtualRanks: 1}, "Config.VirtualRanks is 1: want at least the 2 ranks"},
		{2, kit.TinyGPT(1), fsdp.Config{VirtualRanks: -2}, "Config.VirtualRanks is -2: want at least the 2 ranks"},
		{1, kit.TinyGPT(1), fsdp.Config{VirtualRanks: 2, GradAverage: fsdp.ByWeights, Precision: fsdp.Precision{Reduce: fsdp.Float16}},
			"Config.GradAverage is ByWeights: with Config.VirtualRanks gradients are divided after they have travelled"},
		{1, kit.TinyGPT(1), fsdp.Config{VirtualRanks: 2, WrapPolicy: kit.Blocks, Unit: kit.GroupOf(func(fsdp.UnitConfig) comm.Group { return own })},
			"its own group, so its parameters depend on the number of ranks"},
		{6, kit.TinyGPT(1), fsdp.Config{VirtualRanks: 6, Strategy: fsdp.HybridShard, ShardRanks: 3},
			"over 3 ranks sums in another order: Config.ShardRanks must be a power of two"},
		{4, kit.TinyGPT(1), fsdp.Config{VirtualRanks: 4, Strategy: fsdp.HybridShard, ShardRanks: 2, Precision: fsdp.Precision{Reduce: fsdp.BFloat16}},
			"rounds gradients twice if they are reduced as bfloat16: set Config.Precision.Reduce to float32, or use another strategy"},
		{4, kit.TinyGPT(1), fsdp.Config{VirtualRanks: 4, Strategy: fsdp.HybridShard, ShardRanks: 2, Precision: fsdp.Precision{TypesOf: kit.TypesByName(0, fsdp.Float16, nil)}},
			"rounds gradients twice if they are reduced as float16: set Config.Precision.Reduce to float32, or use another strategy"},
		{1, kit.TinyGPT(1), fsdp.Config{VirtualRanks: 2, Precision: fsdp.Precision{Reduce: fsdp.Int8}},
			"Config.Precision is {Reduce: int8, Full: set}: Config.VirtualRanks: rounding gradients to int8 loses bits of a rank, not of a virtual rank"},
		{1, kit.TinyGPT(1), fsdp.Config{VirtualRanks: 2, Precision: fsdp.Precision{TypesOf: kit.TypesByName(0, fsdp.Int8, nil)}},
			"parameter wte.weight: Config.Precision.TypesOf returned float32 and int8: Config.VirtualRanks: rounding gradients to int8"},
		{1, kit.Twice, fsdp.Config{VirtualRanks: 2}, "Config.VirtualRanks does not support buffers, such as "},
		{2, &sighted{}, fsdp.Config{VirtualRanks: 2, GradAverage: fsdp.ByActive}, "Config.VirtualRanks does not support Config.GradAverage = ByActive for a model with optional calls"},
	} {
		for _, err := range kit.ErrorsOf(t, c.ranks, func(_ context.Context, g comm.Group) error {
			cfg := c.cfg
			cfg.Group = g
			_, err := fsdp.Wrap(c.model, cfg)
			return err
		}) {
			require.ErrorContains(t, err, c.want)
		}
	}
}

// TestVirtualRanksThawed: what goes with virtual ranks while it is frozen is refused when it would
// be trained.
func TestVirtualRanksThawed(t *testing.T) {
	half := func(name string) bool { return name == "wte.weight" }
	types := kit.TypesByName(0, 0, map[string][2]fsdp.DType{"wte.weight": {0, fsdp.BFloat16}})
	for _, err := range kit.ErrorsOf(t, 4, func(ctx context.Context, g comm.Group) error {
		cfg := fsdp.Config{Group: g, VirtualRanks: 4, Strategy: fsdp.HybridShard, ShardRanks: 2, Frozen: half, Precision: fsdp.Precision{TypesOf: types}}
		return kit.ErrorOf(kit.Wrap(t, kit.TinyGPT(1), cfg).Freeze(ctx, nil, nil))
	}) {
		require.ErrorContains(t, err, "rounds gradients twice if they are reduced as bfloat16: set")
	}
}

// TestVirtualRanksOutOfTurn: what cannot come in the middle of a step says so, and changes nothing.
func TestVirtualRanksOutOfTurn(t *testing.T) {
	v := &virtual{ranks: 4, cfg: fsdp.Config{WrapPolicy: kit.Blocks}}
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, VirtualRanks: v.ranks})
		defer m.Close()
		opt, err := optim.AdamW{}.New(m.Params())
		require.NoError(t, err)
		sync, whole := v.batches(g, way{}, 0), v.batches(g, way{noSync: true}, 0)
		inside := func(f func() error) error { return m.NoSync(f) }
		forward := func() error { _, err := m.Forward(ctx, sync[1]...); return err }
		step := func() error {
			kit.ForwardBackward(t, ctx, m, sync[0])
			return nil
		}

		require.NoError(t, step())
		begun := "Config.VirtualRanks makes 2 micro-batches of a step on each rank, but only 1 have run: run the others, or call ZeroGrad"
		_, err = m.ClipGradNorm(ctx, 1)
		require.ErrorContains(t, err, begun)
		_, err = m.FullGrads(ctx)
		require.ErrorContains(t, err, begun)
		require.ErrorContains(t, opt.Step(1), begun)
		_, err = m.Freeze(ctx, nil, nil)
		require.ErrorContains(t, err, begun)
		require.ErrorContains(t, m.SyncGrads(ctx), "a step has 2 micro-batches on each rank, but only 1 have run")
		require.ErrorContains(t, inside(forward), "micro-batch 2 of 2 of the step is inside NoSync, but the first was not")
		require.NoError(t, forward())
		require.ErrorContains(t, inside(func() error { return m.Backward(ctx) }), "run a Forward and its Backward both inside NoSync or both outside")
		require.NoError(t, forward())
		m.ZeroGrad()
		require.ErrorContains(t, m.Backward(ctx), "ZeroGrad or SyncGrads has ended the step since the Forward")
		require.NoError(t, forward())
		require.ErrorContains(t, m.Hold().Backward(ctx), "with Config.VirtualRanks all ranks run the same passes, one after the other")
		require.ErrorContains(t, m.JoinCalls(ctx, forward), "with Config.VirtualRanks all ranks run the same passes, one after the other")

		m.ZeroGrad()
		require.NoError(t, m.JoinCalls(ctx, func() error { _, err := m.Eval(ctx, whole[0]...); return err }), "as generation does")
		for range 2 {
			require.NoError(t, inside(func() error { kit.ForwardBackward(t, ctx, m, whole[0]); return nil }))
		}
		require.ErrorContains(t, inside(forward), "all 2 micro-batches of the step have run inside NoSync: call SyncGrads or ZeroGrad next")
		require.ErrorContains(t, opt.Step(1), "the gradients of 2 passes inside NoSync are not reduced")

		m.ZeroGrad()
		for range m.Join(ctx, fsdp.Batches(sync[:2-g.Rank()]...), fsdp.StopAtShortest()) {
			require.NoError(t, step())
		}
		before := kit.StateBits(t, ctx, m)
		require.NoError(t, opt.Step(1), "the step that one rank could not finish has not begun")
		kit.RequireSameBits(t, before, kit.StateBits(t, ctx, m))
		require.Zero(t, opt.Steps()-1)
	})
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, VirtualRanks: 4})
		defer m.Close()
		batch := kit.TinyBatch(0, 0, 1, 2)
		forward := func() error { _, err := m.Forward(ctx, batch...); return err }
		require.ErrorContains(t, m.NoSync(forward), "inside NoSync all ranks must have the same number of micro-batches, but Config.VirtualRanks makes 4 for 3 ranks")
		kit.ForwardBackward(t, ctx, m, batch)
		require.ErrorContains(t, forward(), "micro-batch 2 of 2 of the step would belong to virtual rank 4, but Config.VirtualRanks is 4: call Forward without a batch")
		var err error
		if g.Rank() == 0 { // the others leave out their pass without a batch
			err = forward()
		} else {
			_, err = m.ClipGradNorm(ctx, 1)
		}
		require.ErrorContains(t, err, fmt.Sprintf("rank %d: ", max(1, g.Rank())))
		require.ErrorContains(t, err, "Config.VirtualRanks makes 2 micro-batches of a step on each rank, but only 1 have run: "+
			"run the others, without a batch on a rank that has no virtual rank left, or call ZeroGrad")
		_, err = m.Forward(ctx) // and rank 0 leaves out its batch
		require.ErrorContains(t, err, "the batch has 0 tensors, the model takes 2")
	})
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, VirtualRanks: 6})
		defer m.Close()
		err := m.NoSync(func() error { _, err := m.Forward(ctx, kit.TinyBatch(0, 0, 1, 2)...); return err })
		require.ErrorContains(t, err, "the number of micro-batches of a rank must be a power of two, but Config.VirtualRanks makes it 3")
		for range m.Join(ctx, fsdp.Batches(nil, nil, nil)) {
			if _, err = m.Forward(ctx); err == nil {
				err = m.Backward(ctx)
			}
		}
		require.ErrorContains(t, err, "no rank has a batch", "in none of the micro-batches")
	})
}

// TestVirtualRanksDropped: a step that is given up, because a micro-batch has a loss that is not
// finite, counts once for dropout, wherever in the step it was.
func TestVirtualRanksDropped(t *testing.T) {
	for bad := range 4 {
		var want kit.Bits
		for _, ranks := range []int{4, 3, 2, 1} {
			kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, &sighted{dropout: true}, fsdp.Config{Group: g, Precision: kit.Float64s, VirtualRanks: 4, Seed: 3})
				defer m.Close()
				update := kit.Updater(t, m, 0.1)
				for step := range 3 {
					var err error
					for v := g.Rank(); v < 4+g.Rank() && err == nil; v += ranks {
						batch := sightedBatch(10*step+v, true)
						if step == 1 && v == bad {
							batch[1].Data().([]float64)[0] = math.NaN()
						}
						if v >= 4 {
							batch = nil
						}
						err = kit.TrainStep(ctx, m, batch)
					}
					if step != 1 {
						require.NoError(t, err)
						update(ctx)
						continue
					}
					require.ErrorContains(t, err, "the loss of pass")
					m.ZeroGrad()
				}
				if got := kit.StateBits(t, ctx, m); g.Rank() == 0 && want == nil {
					want = got
				} else if g.Rank() == 0 {
					kit.RequireSameBits(t, want, got, "virtual rank ", bad, " fails on ", ranks, " ranks")
				}
			})
		}
	}
}

// TestVirtualRanksSavedMidStep: a model that was saved in the middle of a step begins it anew, to
// the bits of one that was saved before it.
func TestVirtualRanksSavedMidStep(t *testing.T) {
	losses := func(before int) (list []float64) {
		fsys, cfg := crashfs.New(), fsdp.Config{Precision: kit.Float64s, VirtualRanks: 2, Seed: 3}
		m := kit.Wrap(t, &sighted{dropout: true}, cfg)
		for k := range 2 + before {
			kit.ForwardBackward(t, t.Context(), m, sightedBatch(k, true))
		}
		require.NoError(t, m.Save(kit.OnFS(t.Context(), fsys), kit.Ckpt, nil, &fsdp.SaveOptions{Step: 1}))
		require.NoError(t, m.Close())
		m = kit.Wrap(t, &sighted{dropout: true}, cfg)
		_, err := m.Load(kit.OnFS(t.Context(), fsys), kit.Ckpt, nil, nil)
		require.NoError(t, err)
		for k := range 2 {
			list = append(list, kit.ForwardBackward(t, t.Context(), m, sightedBatch(10+k, true)))
		}
		require.NoError(t, m.Close())
		return list
	}
	require.Equal(t, losses(0), losses(1))
}

// TestVirtualRanksWithoutBatches: a step that no rank has a batch for is an error, on any number of
// ranks, also after one that was given up.
func TestVirtualRanksWithoutBatches(t *testing.T) {
	for _, ranks := range []int{4, 2} {
		for _, err := range kit.ErrorsOf(t, ranks, func(ctx context.Context, g comm.Group) error {
			m := kit.Wrap(t, &sighted{}, fsdp.Config{Group: g, Precision: kit.Float64s, VirtualRanks: 4})
			defer m.Close()
			_, err := m.Forward(ctx, sightedBatch(1, true)...)
			require.NoError(t, err)
			m.ZeroGrad()
			for batch, err := range m.Join(ctx, fsdp.Batches(make([][]fsdp.Tensor, 4/ranks)...)) {
				if err = errors.Join(err, kit.TrainStep(ctx, m, batch)); err != nil {
					return err
				}
			}
			return nil
		}) {
			require.ErrorContains(t, err, "no rank has a batch")
		}
	}
}

// TestVirtualRanksWeighted compares gradients of weighted means, and those of ranks that have a
// batch, with those of as many ranks.
func TestVirtualRanksWeighted(t *testing.T) {
	const n = 4
	none := func(_, v int) bool { return v == 2 }
	for _, divide := range []fsdp.GradAverage{fsdp.ByWeights, fsdp.ByActive} {
		gradients := func(ranks, leaves int) (grads kit.Bits) {
			v, w := &virtual{ranks: n, none: none}, way{ranks: ranks}
			kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, GradAverage: divide, VirtualRanks: leaves})
				defer m.Close()
				k := 0
				for batch, err := range m.Join(ctx, fsdp.Batches(v.batches(g, w, 0)...)) {
					require.NoError(t, err)
					var opts []fsdp.BackwardOption
					if divide == fsdp.ByWeights {
						opts = append(opts, fsdp.Weight(float64(300+100*w.leaf(g, k, v.passes(ranks)))))
					}
					kit.ForwardBackward(t, ctx, m, batch, opts...)
					k++
				}
				if b := kit.GradBits(t, ctx, m); g.Rank() == 0 {
					grads = b
				}
			})
			return grads
		}
		want := gradients(n, 0)
		for _, ranks := range []int{1, 3, 4} {
			for name, list := range gradients(ranks, n) {
				for i, x := range list {
					require.InDelta(t, math.Float64frombits(want[name][i]), math.Float64frombits(x), 1e-6, "%v: %s[%d]", divide, name, i)
				}
			}
		}
	}
	m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{GradAverage: fsdp.ByWeights, VirtualRanks: 2})
	defer m.Close()
	batch := kit.TinyBatch(0, 0, 1, 3)
	kit.ForwardBackward(t, t.Context(), m, batch, fsdp.Weight(0))
	_, err := m.Forward(t.Context(), batch...)
	require.NoError(t, err)
	require.ErrorContains(t, m.Backward(t.Context(), fsdp.Weight(0)), "the sum of the weights of the step is 0")
	m.ZeroGrad()
	for range 2 {
		kit.ForwardBackward(t, t.Context(), m, batch, fsdp.Weight(1))
	}
}
