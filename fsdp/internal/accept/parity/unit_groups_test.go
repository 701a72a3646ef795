package parity_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// aloneWith returns the gradients of a rank's batch on one rank, in a model with these parameters.
func aloneWith(t require.TestingT, ctx context.Context, state kit.Params, rank int) map[string][]float64 {
	m := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Precision: kit.Float64s})
	require.NoError(t, m.LoadStateDict(ctx, 0, state))
	kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(rank))
	return kit.GradsOf(t, ctx, m)
}

// TestUnitGroups gives one unit groups of one, two and all of four ranks, under both strategies
// that allow it, and compares with every rank on its own: other parameters in every group, and the
// gradients of the mean loss of all.
func TestUnitGroups(t *testing.T) {
	const world = 4
	for _, ranks := range []int{1, 2, 4} {
		for _, strategy := range []fsdp.Strategy{fsdp.FullShard, fsdp.ShardGradOp} {
			for divide, divisor := range map[fsdp.GradAverage]float64{fsdp.ByRanks: world, fsdp.ByOne: 1} {
				t.Run(fmt.Sprintf("%d ranks/%v/%d", ranks, strategy, divide), func(t *testing.T) {
					states := make([]kit.Params, world)
					kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
						cfg := kit.GroupedBy(t, ctx, g, "l1", ranks)
						cfg.Strategy, cfg.GradAverage = strategy, divide
						m := kit.Wrap(t, kit.Shapes["chain"], cfg)
						var err error
						states[g.Rank()], err = kit.OwnState(ctx, m)
						require.NoError(t, err)
						require.NoError(t, g.Barrier(ctx))
						want := map[string][]float64{}
						for r := range world {
							grads := aloneWith(t, ctx, states[r], r)
							if r/ranks != g.Rank()/ranks {
								delete(grads, "l1.w") // another's
							}
							kit.AddTo(want, grads, 1/divisor)
						}
						for range 2 { // at once, and accumulated whole
							kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
							kit.RequireNear(t, want, kit.GradsOf(t, ctx, m), 1e-13)
							m.ZeroGrad()
							require.NoError(t, m.NoSync(func() error { kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank())); return nil }))
							require.NoError(t, m.SyncGrads(ctx))
							kit.RequireNear(t, want, kit.GradsOf(t, ctx, m), 1e-13)
							m.ZeroGrad()
						}
						kit.RequireIdle(t, ctx, m, kit.ShapeBatch(g.Rank()))
					})
					for r, state := range states {
						b := kit.BitsOf(state)
						for name, first := range kit.BitsOf(states[0]) {
							same := name != "l1.w" || r/ranks == 0
							require.Equal(t, same, slices.Equal(first, b[name]), "%s of rank %d", name, r)
						}
						group := kit.BitsOf(states[r/ranks*ranks])
						require.Equal(t, group["l1.w"], b["l1.w"], "one group, one value")
					}
				})
			}
		}
	}
}

// TestUnitGroupsTrain trains with a unit of experts and checks that what is shared stays the same
// on all ranks, and that a group of all ranks is no group at all.
func TestUnitGroupsTrain(t *testing.T) {
	run := func(ranks int) []kit.Bits {
		states := make([]kit.Bits, 4)
		kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
			cfg := kit.GroupedBy(t, ctx, g, "l2", max(ranks, 1))
			if ranks == 0 {
				cfg.Unit = kit.GroupOf(func(fsdp.UnitConfig) comm.Group { return g })
			}
			m := kit.Wrap(t, kit.Shapes["chain"], cfg)
			update := kit.Updater(t, m, 0.01)
			for range 4 {
				kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
				update(ctx)
			}
			own, err := kit.OwnState(ctx, m)
			require.NoError(t, err)
			states[g.Rank()] = kit.BitsOf(own)
		})
		return states
	}
	all, two := run(4), run(2)
	kit.RequireSameBits(t, all[0], run(0)[3])
	for r := range two {
		require.Equal(t, two[0]["l0.w"], two[r]["l0.w"])
		require.Equal(t, r < 2, slices.Equal(two[0]["l2.w"], two[r]["l2.w"]))
	}
}

// TestUnitGroupErrors checks what Wrap and LoadStateDict refuse.
func TestUnitGroupErrors(t *testing.T) {
	for name, c := range map[string]struct {
		change func(ctx context.Context, g comm.Group, cfg *fsdp.Config)
		want   string
	}{
		"sizes differ": {func(ctx context.Context, g comm.Group, cfg *fsdp.Config) {
			own, err := g.Split(ctx, g.Rank()/2, 0) // 2 and 1 of 3
			require.NoError(t, err)
			cfg.Unit = kit.GroupOf(func(u fsdp.UnitConfig) comm.Group { return own })
		}, "in a group of "},
		"only one": {func(ctx context.Context, g comm.Group, cfg *fsdp.Config) {
			if g.Rank() == 1 {
				cfg.Unit = nil
			}
		}, "in a group of 1"},
		"NoShard": {func(_ context.Context, g comm.Group, cfg *fsdp.Config) {
			cfg.Strategy = fsdp.NoShard
		}, "unit l1: Config.Unit gives the unit its own group, over which NoShard is not supported: want FullShard or ShardGradOp"},
		"HybridShard": {func(_ context.Context, g comm.Group, cfg *fsdp.Config) {
			cfg.Strategy, cfg.ShardRanks = fsdp.HybridShard, 1
		}, "over which HybridShard is not supported"},
		"panic": {func(_ context.Context, g comm.Group, cfg *fsdp.Config) {
			if g.Rank() == 2 {
				cfg.Unit = kit.GroupOf(func(fsdp.UnitConfig) comm.Group { panic("no groups today") })
			}
		}, "Config.Unit panicked at "},
	} {
		t.Run(name, func(t *testing.T) {
			for _, err := range kit.ErrorsOf(t, 3, func(ctx context.Context, g comm.Group) error {
				cfg := kit.GroupedBy(t, ctx, g, "l1", 1)
				c.change(ctx, g, &cfg)
				_, err := fsdp.Wrap(kit.Shapes["chain"], cfg)
				return err
			}) {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Shapes["chain"], kit.GroupedBy(t, ctx, g, "l1", 1))
		want := kit.StateBits(t, ctx, m)
		state, err := kit.OwnState(ctx, m)
		require.NoError(t, err)
		err = m.LoadStateDict(ctx, 1, state)
		require.ErrorContains(t, err, "parameter l1.w belongs to a unit with its own process group")
		err = m.Summon(ctx, []string{"l1.w"}, func(kit.Params) error { return nil }, fsdp.WriteBack(0))
		require.ErrorContains(t, err, "parameter l1.w belongs to a unit with its own process group")
		require.NoError(t, m.Summon(ctx, []string{"l1.w"}, func(p kit.Params) error {
			require.Equal(t, kit.BitsOf(state)["l1.w"], kit.BitsOf(p)["l1.w"])
			return nil
		}))
		kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
		delete(state, "l1.w")
		require.NoError(t, m.LoadStateDict(ctx, 1, state))
		kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))

		all, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		all["l1.w@5"] = all["l1.w@0"]
		require.ErrorContains(t, m.LoadStateDict(ctx, 1, all), `the model has no parameter "l1.w@5"`)
		kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
		delete(all, "l1.w@5")
		all["l1.w@0"], all["l1.w@1"] = all["l1.w@1"], all["l1.w@0"]
		require.NoError(t, m.LoadStateDict(ctx, 1, all))
		now, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		kit.RequireSameBits(t, kit.BitsOf(all), kit.BitsOf(now))
	})
}

// TestFailureInOneUnitGroup lets one rank fail in the middle of a pass, at every operation in turn:
// ranks that share only the world with it, and wait for others in a group of their own, must be
// told as well. The groups know nothing of each other.
func TestFailureInOneUnitGroup(t *testing.T) {
	gone := errors.New("time for lunch")
	plan, err := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Precision: kit.Float64s, WrapPolicy: fsdp.WrapEach()}).Plan(kit.ShapeBatch(0)...)
	require.NoError(t, err)
	for stop := range len(plan.Schedule) - 1 {
		own := slices.Concat(comm.Local(2), comm.Local(2))
		for _, err := range kit.ErrorsOf(t, 4, func(ctx context.Context, g comm.Group) error {
			defer own[g.Rank()].Close()
			cfg := fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: kit.Float64s}
			cfg.Unit = kit.GroupOf(func(u fsdp.UnitConfig) comm.Group {
				if u.Name == "l1" {
					return own[g.Rank()]
				}
				return nil
			})
			if g.Rank() == 0 {
				var cancel context.CancelCauseFunc
				ctx, cancel = context.WithCancelCause(ctx)
				left := stop
				cfg.Observers = append(cfg.Observers, fsdp.TraceFunc(func(fsdp.Event) {
					if left--; left < 0 {
						cancel(gone)
					}
				}))
			}
			m := kit.Wrap(t, kit.Shapes["chain"], cfg)
			_, err := m.Forward(ctx, kit.ShapeBatch(g.Rank())...)
			if err == nil {
				err = m.Backward(ctx)
			}
			if err == nil {
				_, err = m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true}) // a rank that was done already is told now
			}
			return errors.Join(err, m.Close())
		}) {
			require.ErrorContains(t, err, gone.Error(), "stopped after %s", plan.Schedule[stop])
		}
	}
}

// TestBrokenUnitGroup gives one rank a group that is closed. The others, whose groups work, must
// not wait for it.
func TestBrokenUnitGroup(t *testing.T) {
	var done sync.WaitGroup
	done.Add(3)
	for _, err := range kit.ErrorsOf(t, 3, func(ctx context.Context, g comm.Group) error {
		cfg := kit.GroupedBy(t, ctx, g, "l1", 1)
		if g.Rank() == 1 {
			require.NoError(t, kit.UnitGroup(cfg, "l1").Close())
		}
		_, err := fsdp.WrapContext(ctx, kit.Shapes["chain"], cfg)
		done.Done()
		done.Wait() // a rank that leaves would tell the others
		return err
	}) {
		require.ErrorContains(t, err, "unit l1: exchanging ranks in a group of Config.Unit")
		require.ErrorContains(t, err, "rank 1")
	}
}

// TestUnitGroupsOutliveTheModel checks that Close leaves the user's groups open, for a next model.
func TestUnitGroupsOutliveTheModel(t *testing.T) {
	kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
		cfg := kit.GroupedBy(t, ctx, g, "l1", 2)
		var first kit.Bits
		for range 2 {
			m := kit.Wrap(t, kit.Shapes["chain"], cfg)
			kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
			if got := kit.GradBits(t, ctx, m); first == nil {
				first = got
			} else {
				kit.RequireSameBits(t, first, got)
			}
			require.NoError(t, m.Close())
		}
		require.NoError(t, kit.UnitGroup(cfg, "l1").Barrier(ctx))
	})
}

// TestFreezeWithUnitGroups freezes around a unit of experts and checks that every group keeps its
// own parameters and momentum.
func TestFreezeWithUnitGroups(t *testing.T) {
	kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Shapes["chain"], kit.GroupedBy(t, ctx, g, "l1", 2))
		opt, err := optim.SGD{Momentum: 0.9}.New(m.Params())
		require.NoError(t, err)
		kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
		require.NoError(t, opt.Step(0.1))
		want := kit.StateBits(t, ctx, m)
		grads := kit.GradsOf(t, ctx, m) // the momentum after one step
		entries, err := m.Freeze(ctx, func(name string) bool { return name == "l3.w" }, opt)
		require.NoError(t, err)
		kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
		var names []string
		for _, e := range entries {
			for i, x := range kit.Numbers(t, e.Data) {
				require.Equal(t, grads[e.Param][e.Offset+i], x, e.Param)
			}
			names = append(names, e.Param)
		}
		for _, name := range names {
			require.NotEqual(t, "l3.w", name)
		}
		kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
		require.NotContains(t, slices.Collect(maps.Keys(kit.GradsOf(t, ctx, m))), "l3.w")
		_, err = m.ClipGradNorm(ctx, math.Inf(1))
		require.NoError(t, err)
		kit.RequireIdle(t, ctx, m, kit.ShapeBatch(g.Rank()))
	})
}

// TestUnitGroupsStayApart gives every group of ranks its own unit with statistics, and one with a
// parameter that is ignored. What is averaged and summed over the ranks of a group is nothing to
// the other one.
func TestUnitGroupsStayApart(t *testing.T) {
	const world = 4
	var states, grads [world]kit.Params
	run := func(model kit.Model, unit string, ignored func(string) bool, alone bool) {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			whole := g
			cfg := kit.GroupedBy(t, ctx, g, unit, 2)
			cfg.Ignored = ignored
			if alone { // the other group does not exist
				part, err := g.Split(ctx, g.Rank()/2, g.Rank())
				require.NoError(t, err)
				cfg.Group, cfg.Unit = part, nil
			}
			m := kit.Wrap(t, model, cfg)
			if alone { // but it had the same parameters
				state := states[whole.Rank()/2*2]
				require.NoError(t, m.LoadStateDict(ctx, 0, state))
			}
			_, err := m.Forward(ctx, kit.ShapeBatch(whole.Rank())...)
			require.NoError(t, err)
			require.NoError(t, m.Backward(ctx))
			require.NoError(t, m.AverageBuffers(ctx))
			states[whole.Rank()], err = kit.OwnState(ctx, m)
			require.NoError(t, err)
			grads[whole.Rank()], err = m.FullGrads(ctx)
			require.NoError(t, err)
			require.NoError(t, whole.Barrier(ctx)) // a rank that leaves fails the groups that others are still in
		})
	}
	run(kit.Statistics, "bn", nil, false)
	for _, name := range []string{"bn.running_mean", "bn.running_var"} {
		for r := range world {
			require.Equal(t, kit.Elements(states[r/2*2][name]), kit.Elements(states[r][name]), "%s is the same in a group", name)
		}
		require.NotEqual(t, kit.Elements(states[0][name]), kit.Elements(states[2][name]), "%s of other ranks", name)
	}

	ignored := func(name string) bool { return name == "l1.w" }
	run(kit.Shapes["chain"], "l1", ignored, false)
	for r := range world {
		require.Equal(t, kit.Elements(states[r/2*2]["l1.w"]), kit.Elements(states[r]["l1.w"]), "one group, one value")
		require.Equal(t, kit.Elements(grads[r/2*2]["l1.w"]), kit.Elements(grads[r]["l1.w"]), "one group, one gradient")
	}
	require.NotEqual(t, kit.Elements(states[0]["l1.w"]), kit.Elements(states[2]["l1.w"]), "ranks in different groups start out different")
	whole := grads
	run(kit.Shapes["chain"], "l1", ignored, true)
	for r := range world {
		for i, x := range kit.Elements(grads[r]["l1.w"]) { // a mean over two ranks, not four
			require.InDelta(t, x/2, kit.Elements(whole[r]["l1.w"])[i], 1e-15)
		}
	}
}
