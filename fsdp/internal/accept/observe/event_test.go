package observe_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
)

// gptReads: every call of a GPT reads parameters in backward, for the gradient of its input, but
// for the embeddings: tokens have no gradient, and that of a sum does not depend on what is added.
func gptReads(call, _ string) bool { return call != "wte" && call != "wpe" }

// requireStepsAsPlanned runs two steps, each followed by an evaluation, and checks events and
// memory on every rank.
func requireStepsAsPlanned(t require.TestingT, model fsdp.Model, world int, cfg fsdp.Config) {
	kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
		w := kit.Watch(cfg, gptReads)
		w.Cfg.Group = g
		m := kit.Wrap(t, model, w.Cfg)
		for step := range 2 {
			batch := kit.TinyBatch(step, g.Rank(), 1+step, 3)
			plan, err := m.Plan(batch...)
			require.NoError(t, err)
			w.Planned(t, plan)
			require.Equal(t, plan.ShardBytes, m.Memory().Live)
			m.ResetPeak()
			w.Events = nil
			kit.ForwardBackward(t, ctx, m, batch)
			require.Equal(t, plan.Peak(), m.Memory().Peak)
			require.Equal(t, plan.ShardBytes, m.Memory().Live)
			require.Equal(t, plan.Schedule, kit.Schedule(w.Events))
			require.NoError(t, w.Check(w.Events))
			require.NoError(t, w.CheckReductions(w.Events, true))
			w.Events = nil
			_, err = m.Eval(ctx, batch...)
			require.NoError(t, err)
			require.Equal(t, plan.ShardBytes, m.Memory().Live, "after an evaluation")
			require.NoError(t, w.Check(w.Events))
			require.NoError(t, w.CheckReductions(w.Events, false))
			require.NotContains(t, strings.Join(kit.Schedule(w.Events), "\n"), "backward")
		}
	})
}

// TestJustInTime checks what is gathered when, and that counted memory peaks where the plan says,
// for every policy and prefetch depth.
func TestJustInTime(t *testing.T) {
	for name, policy := range kit.WrapPolicies {
		for _, prefetch := range []int{fsdp.NoPrefetch, 0, 2, 3} {
			for _, checkpoint := range []fsdp.Policy{nil, kit.Blocks} {
				t.Run(fmt.Sprintf("%s/prefetch %d/checkpoint %t", name, prefetch, checkpoint != nil), func(t *testing.T) {
					model := kit.TinyGPT(4)
					model.Tied = true
					cfg := fsdp.Config{WrapPolicy: policy, Prefetch: prefetch, Activations: fsdp.Activations{Recompute: checkpoint}, Poison: true}
					requireStepsAsPlanned(t, model, 2, cfg)
				})
			}
		}
	}
}

// TestJustInTimeAtRandom does the same for random assignments of calls to units and random
// strategies.
func TestJustInTimeAtRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		model := kit.TinyGPT(rapid.IntRange(0, 5).Draw(t, "layers"))
		model.Tied = rapid.Bool().Draw(t, "tied")
		cfg := kit.DrawnKnobs(t, "", model.Layers+4)
		kept := rapid.SliceOfN(rapid.Bool(), 5, 5).Draw(t, "kept")
		cfg.Unit = kit.StrategyOf(func(u fsdp.UnitConfig) fsdp.Strategy {
			if kept[len(u.Name)%5] || u.Root {
				return fsdp.ShardGradOp
			}
			return u.Strategy
		})
		requireStepsAsPlanned(t, model, rapid.IntRange(1, 3).Draw(t, "world"), cfg)
	})
}

// TestUnitsAtOnce states what follows for a chain of units: no more than Prefetch+1 are whole at a
// time, and those always while there are that many to come.
func TestUnitsAtOnce(t *testing.T) {
	for prefetch, depth := range map[int]int{fsdp.NoPrefetch: 0, 0: 1, 2: 2, 3: 3} {
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			w := kit.Watch(fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Prefetch: prefetch}, gptReads)
			m := kit.Wrap(t, kit.TinyGPT(8), w.Cfg)
			kit.ForwardBackward(t, ctx, m, kit.GoodBatch(0))
			whole, most := 0, 0
			for _, e := range w.Events {
				if strings.HasPrefix(e.Group, "blocks.") {
					switch e.Kind {
					case "gather":
						whole++
					case "free":
						whole--
					}
				}
				most = max(most, whole)
			}
			require.Equal(t, depth+1, most, "prefetch %d", prefetch)
		})
	}
}

// TestOneRankGathersNothing: a rank that has all parameters computes with them where they are. Only
// those that are rounded on their way are gathered.
func TestOneRankGathersNothing(t *testing.T) {
	for name, narrow := range map[string]bool{"float32": false, "bfloat16": true} {
		t.Run(name, func(t *testing.T) {
			cfg := fsdp.Config{WrapPolicy: kit.Blocks}
			if narrow {
				cfg.Precision.Gather = fsdp.BFloat16
			}
			w := kit.Watch(cfg, gptReads)
			m := kit.Wrap(t, kit.TinyGPT(2), w.Cfg)
			plan, err := m.Plan(kit.GoodBatch(0)...)
			require.NoError(t, err)
			kit.ForwardBackward(t, t.Context(), m, kit.GoodBatch(0))
			require.Equal(t, narrow, strings.Contains(strings.Join(kit.Schedule(w.Events), "\n"), "gather"))
			require.Equal(t, plan.Peak(), m.Memory().Peak)
		})
	}
}

// TestEvents checks the fields of an event.
func TestEvents(t *testing.T) {
	w := kit.Watch(fsdp.Config{WrapPolicy: kit.Blocks}, gptReads)
	m := kit.Wrap(t, kit.TinyGPT(1), w.Cfg)
	batch := kit.TinyBatch(0, 0, 1, 3)
	kit.ForwardBackward(t, t.Context(), m, batch)
	plan, err := m.Plan(batch...)
	require.NoError(t, err)
	most := 0
	for i, e := range w.Events {
		require.Zero(t, e.Rank)
		require.Equal(t, w.Events[0].Pass, e.Pass, "forward and backward are one pass")
		require.GreaterOrEqual(t, e.Duration, 0*e.Duration)
		if i > 0 {
			require.False(t, e.Begin.Before(w.Events[i-1].Begin))
		}
		most = max(most, e.Live)
	}
	require.LessOrEqual(t, most, plan.Peak())
	require.Greater(t, most, plan.ShardBytes)
}
