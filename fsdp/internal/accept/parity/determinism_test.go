package parity_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// TestKnobsDoNotChangeBits trains a GPT with dropout and active clipping with one knob turned at a
// time.
func TestKnobsDoNotChangeBits(t *testing.T) {
	model := kit.TinyGPT(3)
	model.Dropout = 0.1
	base := fsdp.Config{WrapPolicy: kit.Blocks, Seed: 7}
	knobs := map[string]func(*fsdp.Config){
		"again":             func(*fsdp.Config) {},
		"no prefetch":       func(c *fsdp.Config) { c.Prefetch = fsdp.NoPrefetch },
		"prefetch 2":        func(c *fsdp.Config) { c.Prefetch = 2 },
		"prefetch 3":        func(c *fsdp.Config) { c.Prefetch = 3 },
		"poison":            func(c *fsdp.Config) { c.Poison = true },
		"checkpoint blocks": func(c *fsdp.Config) { c.Activations.Recompute = kit.Blocks },
		"checkpoint all":    func(c *fsdp.Config) { c.Activations.Recompute = fsdp.WrapEach() },
		"keep all":          func(c *fsdp.Config) { c.Activations.Save = fsdp.WrapEach() },
		"traced":            func(c *fsdp.Config) { c.Observers = append(c.Observers, fsdp.TraceFunc(func(fsdp.Event) {})) },
	}
	for world := 1; world <= 3; world++ {
		want := kit.Train(t, model, world, 20, 0.5, base)
		for name, turn := range knobs {
			t.Run(fmt.Sprintf("%s/%d ranks", name, world), func(t *testing.T) {
				cfg := base
				turn(&cfg)
				kit.RequireSameBits(t, want, kit.Train(t, model, world, 20, 0.5, cfg))
			})
		}
	}
}

// TestProcessorsDoNotChangeBits trains with 1 to 4 processors.
func TestProcessorsDoNotChangeBits(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	cfg := fsdp.Config{WrapPolicy: kit.Blocks}
	want := kit.Train(t, kit.TinyGPT(2), 3, 20, 0.5, cfg)
	for procs := 1; procs <= 4; procs++ {
		runtime.GOMAXPROCS(procs)
		kit.RequireSameBits(t, want, kit.Train(t, kit.TinyGPT(2), 3, 20, 0.5, cfg), procs, " processors")
	}
}

// TestThreadsDoNotChangeBits trains a GPT of which several threads have a share in every kernel, on
// one to four threads a rank, and on another number on each rank.
func TestThreadsDoNotChangeBits(t *testing.T) {
	kit.Needs(t, kit.Processor)
	model := &nn.GPT{Vocab: 70, Context: kit.TinyContext, Layers: 2, Dim: 96, Heads: 4, Dropout: 0.1}
	for _, compute := range []fsdp.DType{fsdp.Float32, fsdp.Float64, fsdp.BFloat16} {
		base := fsdp.Config{WrapPolicy: kit.Blocks, Precision: fsdp.Precision{Compute: compute}}
		run := func(world int, threads func(rank int) int) kit.Bits {
			states := make([]kit.Bits, world)
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				cfg := base
				cfg.Group, cfg.Threads = g, threads(g.Rank())
				m := kit.Wrap(t, model, cfg)
				update := kit.Updater(t, m, 0.5)
				for step := range 3 {
					kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step, g.Rank(), 5, kit.TinyContext))
					update(ctx)
				}
				states[g.Rank()] = kit.StateBits(t, ctx, m)
				require.NoError(t, m.Close())
			})
			return states[0]
		}
		for world := 1; world <= 2; world++ {
			want := run(world, func(int) int { return 0 })
			for threads := 1; threads <= 4; threads++ {
				kit.RequireSameBits(t, want, run(world, func(int) int { return threads }), threads, " threads")
			}
			kit.RequireSameBits(t, want, run(world, func(rank int) int { return 3 - 2*rank }), "3 threads and 1")
		}
	}
	var beside [3]int // each thread packs operands of its own
	for threads := 1; threads <= 2; threads++ {
		m := kit.Wrap(t, model, fsdp.Config{Threads: threads})
		plan, err := m.Plan(kit.TinyBatch(0, 0, 5, kit.TinyContext)...)
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

// TestWrappingDoesNotChangeBits trains under every policy, with clipping in every step: the norm is
// the same to the last bit, whatever the layout.
func TestWrappingDoesNotChangeBits(t *testing.T) {
	model := kit.TinyGPT(3)
	model.Dropout, model.Tied = 0.1, true
	for world := 1; world <= 3; world++ {
		want := kit.Train(t, model, world, 20, 0.5, fsdp.Config{})
		for name, policy := range kit.WrapPolicies {
			t.Run(fmt.Sprintf("%s/%d ranks", name, world), func(t *testing.T) {
				kit.RequireSameBits(t, want, kit.Train(t, model, world, 20, 0.5, fsdp.Config{WrapPolicy: policy}))
			})
		}
	}
}

// TestParametersDoNotDependOnSharding compares the initial parameters at several world sizes and
// under every policy.
func TestParametersDoNotDependOnSharding(t *testing.T) {
	want := kit.Train(t, kit.TinyGPT(2), 1, 0, 1, fsdp.Config{Seed: 3})
	for name, policy := range kit.WrapPolicies {
		for world := 1; world <= 5; world++ {
			kit.RequireSameBits(t, want, kit.Train(t, kit.TinyGPT(2), world, 0, 1, fsdp.Config{Seed: 3, WrapPolicy: policy}), name, ", ranks: ", world)
		}
	}
	require.NotEqual(t, want, kit.Train(t, kit.TinyGPT(2), 1, 0, 1, fsdp.Config{Seed: 4}), "another seed")
}

func drawActions(t *rapid.T, label string, steps int) []kit.DrawnAction {
	flip := rapid.Bool()
	actions := make([]kit.DrawnAction, steps)
	for i := range actions {
		actions[i] = kit.DrawnAction{Eval: flip.Draw(t, label+" eval"), Measure: flip.Draw(t, label+" measure")}
	}
	return actions
}

// TestRandomConfigurations draws a run and compares its result between two random configurations of
// the knobs and of what happens between the steps.
func TestRandomConfigurations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := kit.DrawRun(t)
		calls, steps := r.Model.Layers+4, len(r.Shapes)
		a := r.Run(t, kit.DrawnKnobs(t, "a", calls), drawActions(t, "a", steps))
		b := r.Run(t, kit.DrawnKnobs(t, "b", calls), drawActions(t, "b", steps))
		kit.RequireSameBits(t, a, b)
	})
}
