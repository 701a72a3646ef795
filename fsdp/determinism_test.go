package fsdp_test

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// train makes steps updates of a new model on n ranks and returns the bits of its parameters, which
// it requires to be the same on every rank.
func train(t require.TestingT, model fsdp.Model, n, steps int, limit float64, cfg fsdp.Config) bits {
	states := make([]bits, n)
	onRanks(t, n, func(ctx context.Context, g comm.Group) {
		cfg := cfg
		cfg.Group = g
		m := wrap(t, model, cfg)
		update := updater(t, m, limit)
		for step := range steps {
			forwardBackward(t, ctx, m, tinyBatch(step, g.Rank(), 2, tinyContext))
			update(ctx)
		}
		states[g.Rank()] = stateBits(t, ctx, m)
	})
	for r, s := range states {
		requireSameBits(t, states[0], s, "rank ", r)
	}
	return states[0]
}

// blocks is the policy of most tests.
var blocks = fsdp.WrapTypes(&nn.Block{})

// TestKnobsDoNotChangeBits trains a GPT with dropout and active clipping with one knob turned at a
// time.
func TestKnobsDoNotChangeBits(t *testing.T) {
	model := tinyGPT(3)
	model.Dropout = 0.1
	base := fsdp.Config{Wrap: blocks, Seed: 7}
	knobs := map[string]func(*fsdp.Config){
		"again":             func(*fsdp.Config) {},
		"no prefetch":       func(c *fsdp.Config) { c.Prefetch = fsdp.NoPrefetch },
		"prefetch 2":        func(c *fsdp.Config) { c.Prefetch = 2 },
		"prefetch 3":        func(c *fsdp.Config) { c.Prefetch = 3 },
		"poison":            func(c *fsdp.Config) { c.Poison = true },
		"checkpoint blocks": func(c *fsdp.Config) { c.Checkpoint = blocks },
		"checkpoint all":    func(c *fsdp.Config) { c.Checkpoint = fsdp.WrapEach() },
		"keep all":          func(c *fsdp.Config) { c.Keep = fsdp.WrapEach() },
		"traced":            func(c *fsdp.Config) { c.Trace = func(fsdp.Event) {} },
	}
	for world := 1; world <= 3; world++ {
		want := train(t, model, world, 20, 0.5, base)
		for name, turn := range knobs {
			t.Run(fmt.Sprintf("%s/%d ranks", name, world), func(t *testing.T) {
				cfg := base
				turn(&cfg)
				requireSameBits(t, want, train(t, model, world, 20, 0.5, cfg))
			})
		}
	}
}

// TestProcessorsDoNotChangeBits trains with 1 to 4 processors.
func TestProcessorsDoNotChangeBits(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	cfg := fsdp.Config{Wrap: blocks}
	want := train(t, tinyGPT(2), 3, 20, 0.5, cfg)
	for procs := 1; procs <= 4; procs++ {
		runtime.GOMAXPROCS(procs)
		requireSameBits(t, want, train(t, tinyGPT(2), 3, 20, 0.5, cfg), procs, " processors")
	}
}

// TestThreadsDoNotChangeBits trains a GPT of which several threads have a share in every kernel, on
// one to four threads a rank, and on another number on each rank.
func TestThreadsDoNotChangeBits(t *testing.T) {
	model := &nn.GPT{Vocab: 70, Context: tinyContext, Layers: 2, Dim: 96, Heads: 4, Dropout: 0.1}
	for _, compute := range []fsdp.DType{fsdp.Float32, fsdp.Float64, fsdp.BFloat16} {
		base := fsdp.Config{Wrap: blocks, Precision: fsdp.Precision{Compute: compute}}
		run := func(world int, threads func(rank int) int) bits {
			states := make([]bits, world)
			onRanks(t, world, func(ctx context.Context, g comm.Group) {
				cfg := base
				cfg.Group, cfg.Threads = g, threads(g.Rank())
				m := wrap(t, model, cfg)
				update := updater(t, m, 0.5)
				for step := range 3 {
					forwardBackward(t, ctx, m, tinyBatch(step, g.Rank(), 5, tinyContext))
					update(ctx)
				}
				states[g.Rank()] = stateBits(t, ctx, m)
				require.NoError(t, m.Close())
			})
			return states[0]
		}
		for world := 1; world <= 2; world++ {
			want := run(world, func(int) int { return 0 })
			for threads := 1; threads <= 4; threads++ {
				requireSameBits(t, want, run(world, func(int) int { return threads }), threads, " threads")
			}
			requireSameBits(t, want, run(world, func(rank int) int { return 3 - 2*rank }), "3 threads and 1")
		}
	}
	var beside [3]int // each thread packs operands of its own
	for threads := 1; threads <= 2; threads++ {
		m := wrap(t, model, fsdp.Config{Threads: threads})
		plan, err := m.Plan(tinyBatch(0, 0, 5, tinyContext)...)
		require.NoError(t, err)
		beside[threads] = plan.BesideBytes
		require.NoError(t, m.Close())
	}
	require.Greater(t, beside[2], beside[1]+100_000)
	for _, threads := range []int{-1, 1025} {
		_, err := fsdp.Wrap(model, fsdp.Config{Threads: threads})
		require.EqualError(t, err, fmt.Sprintf("fsdp: rank 0: Config.Threads is %d: want a number of cores, at most 1024, or 0", threads))
	}
}

// wrapPolicies are all the ways to wrap a tiny GPT.
var wrapPolicies = map[string]fsdp.Policy{
	"root only":          nil,
	"WrapTypes":          blocks,
	"WrapEach":           fsdp.WrapEach(),
	"WrapNames":          fsdp.WrapNames(regexp.MustCompile(`^blocks\.[01]|^w.e`)),
	"WrapMinParams":      fsdp.WrapMinParams(900),
	"WrapMinParams, all": fsdp.WrapMinParams(1),
	"two of each":        everyOther,
	"WrapAny":            fsdp.WrapAny(everyOther, blocks),
	"WrapAllBut":         fsdp.WrapAllBut(blocks),
}

// everyOther puts calls in two units in turn, so that neighbours are in different units and distant
// calls in the same.
func everyOther(calls []fsdp.CallInfo) []string {
	names := make([]string, len(calls))
	for i := range calls {
		names[i] = []string{"even", "odd"}[i%2]
	}
	return names
}

// TestWrappingDoesNotChangeBits trains under every policy, with clipping in every step: the norm is
// the same to the last bit, whatever the layout.
func TestWrappingDoesNotChangeBits(t *testing.T) {
	model := tinyGPT(3)
	model.Dropout, model.Tied = 0.1, true
	for world := 1; world <= 3; world++ {
		want := train(t, model, world, 20, 0.5, fsdp.Config{})
		for name, policy := range wrapPolicies {
			t.Run(fmt.Sprintf("%s/%d ranks", name, world), func(t *testing.T) {
				requireSameBits(t, want, train(t, model, world, 20, 0.5, fsdp.Config{Wrap: policy}))
			})
		}
	}
}

// TestParametersDoNotDependOnSharding compares the initial parameters at several world sizes and
// under every policy.
func TestParametersDoNotDependOnSharding(t *testing.T) {
	want := train(t, tinyGPT(2), 1, 0, 1, fsdp.Config{Seed: 3})
	for name, policy := range wrapPolicies {
		for world := 1; world <= 5; world++ {
			requireSameBits(t, want, train(t, tinyGPT(2), world, 0, 1, fsdp.Config{Seed: 3, Wrap: policy}), name, ", ranks: ", world)
		}
	}
	require.NotEqual(t, want, train(t, tinyGPT(2), 1, 0, 1, fsdp.Config{Seed: 4}), "another seed")
}

// drawnPolicy is a random assignment of calls to units: any number of them, of calls next to each
// other or not.
func drawnPolicy(t *rapid.T, label string, calls int) fsdp.Policy {
	names := rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b", "c", "d"}), calls, calls).Draw(t, label)
	return func([]fsdp.CallInfo) []string { return names }
}

// drawnKnobs is a configuration that only differs in what must not change the result.
func drawnKnobs(t *rapid.T, label string, calls int) fsdp.Config {
	return fsdp.Config{
		Prefetch:   rapid.SampledFrom([]int{fsdp.NoPrefetch, 0, 1, 2, 3, 9}).Draw(t, label+" prefetch"),
		Wrap:       drawnPolicy(t, label+" wrap", calls),
		Checkpoint: drawnPolicy(t, label+" checkpoint", calls),
		Poison:     rapid.Bool().Draw(t, label+" poison"),
	}
}

// drawnAction is something to do besides the steps that must not change them.
type drawnAction struct{ eval, measure bool }

func drawActions(t *rapid.T, label string, steps int) []drawnAction {
	flip := rapid.Bool()
	actions := make([]drawnAction, steps)
	for i := range actions {
		actions[i] = drawnAction{eval: flip.Draw(t, label+" eval"), measure: flip.Draw(t, label+" measure")}
	}
	return actions
}

// drawnRun is what a run of the metamorphic test does: a model, and for every step and rank the
// shape of the batch.
type drawnRun struct {
	model  *nn.GPT
	world  int
	dtype  fsdp.DType
	shapes [][][2]int // by step and rank
}

func drawRun(t *rapid.T) drawnRun {
	r := drawnRun{
		model: tinyGPT(rapid.IntRange(0, 3).Draw(t, "layers")),
		world: rapid.IntRange(1, 4).Draw(t, "world"),
		dtype: rapid.SampledFrom([]fsdp.DType{fsdp.Float32, fsdp.Float64, fsdp.BFloat16}).Draw(t, "dtype"),
	}
	r.model.Tied = rapid.Bool().Draw(t, "tied")
	r.model.NoBias = rapid.Bool().Draw(t, "no bias")
	r.model.Dropout = rapid.SampledFrom([]float64{0, 0.2}).Draw(t, "dropout")
	for range rapid.IntRange(1, 4).Draw(t, "steps") {
		var ranks [][2]int
		for range r.world {
			ranks = append(ranks, [2]int{rapid.IntRange(1, 2).Draw(t, "rows"), rapid.SampledFrom([]int{1, 3, tinyContext}).Draw(t, "cols")})
		}
		r.shapes = append(r.shapes, ranks)
	}
	return r
}

// run trains under a configuration, with actions between the steps, and returns the bits of the
// parameters. On the way it holds the counted memory against the plan.
func (r drawnRun) run(t require.TestingT, cfg fsdp.Config, actions []drawnAction) bits {
	var result bits
	onRanks(t, r.world, func(ctx context.Context, g comm.Group) {
		cfg := cfg
		cfg.Group, cfg.Precision.Compute = g, r.dtype
		m := wrap(t, r.model, cfg)
		update := updater(t, m, 0.5)
		state := 0 // bytes of the optimizer: two numbers for each that this rank owns
		for _, p := range m.Shards() {
			state += 2 * p.Value.Len() * map[fsdp.DType]int{fsdp.Float32: 4, fsdp.Float64: 8, fsdp.BFloat16: 4}[r.dtype]
		}
		for step, shapes := range r.shapes {
			batch := tinyBatch(step, g.Rank(), shapes[g.Rank()][0], shapes[g.Rank()][1])
			if actions[step].eval {
				_, err := m.Eval(ctx, batch...)
				require.NoError(t, err)
			}
			if actions[step].measure {
				_, err := m.ClipGradNorm(ctx, math.Inf(1))
				require.NoError(t, err)
			}
			plan, err := m.Plan(batch...)
			require.NoError(t, err)
			m.ResetPeak()
			forwardBackward(t, ctx, m, batch)
			require.Equal(t, state, plan.StateBytes)
			require.Equal(t, plan.Peak(), m.Memory().Peak, "counted and planned peak")
			require.Equal(t, plan.ShardBytes+plan.StateBytes, m.Memory().Live, "memory after a step")
			update(ctx)
		}
		got := stateBits(t, ctx, m)
		if g.Rank() == 0 {
			result = got
		}
	})
	return result
}

// TestRandomConfigurations draws a run and compares its result between two random configurations of
// the knobs and of what happens between the steps.
func TestRandomConfigurations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRun(t)
		calls, steps := r.model.Layers+4, len(r.shapes)
		a := r.run(t, drawnKnobs(t, "a", calls), drawActions(t, "a", steps))
		b := r.run(t, drawnKnobs(t, "b", calls), drawActions(t, "b", steps))
		requireSameBits(t, a, b)
	})
}
