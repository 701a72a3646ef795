package fsdp_test

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
	"github.com/gofsdp/gofsdp/optim"
)

// groupedBy returns a configuration of shapes in which one unit is sharded over groups of ranks
// next to each other.
func groupedBy(t require.TestingT, ctx context.Context, g comm.Group, unit string, ranks int) fsdp.Config {
	own, err := g.Split(ctx, g.Rank()/ranks, g.Rank())
	require.NoError(t, err)
	return fsdp.Config{
		Group: g, Wrap: fsdp.WrapEach(), Precision: float64s, Poison: true, Seed: 5,
		GroupOf: func(u fsdp.UnitInfo) comm.Group {
			if u.Name == unit {
				return own
			}
			return nil
		},
	}
}

// ownState returns the whole parameters and buffers that this rank uses: of a unit with a group of
// its own, those of that group.
func ownState(ctx context.Context, m *fsdp.Sharded) (params, error) {
	own := params{}
	err := m.Full(ctx, nil, func(all params) error { maps.Copy(own, all); return nil })
	return own, err
}

// aloneWith returns the gradients of a rank's batch on one rank, in a model with these parameters.
func aloneWith(t require.TestingT, ctx context.Context, state params, rank int) map[string][]float64 {
	m := wrap(t, shapes["chain"], fsdp.Config{Precision: float64s})
	require.NoError(t, m.SetFull(ctx, 0, state))
	forwardBackward(t, ctx, m, shapeBatch(rank))
	return gradsOf(t, ctx, m)
}

// TestUnitGroups gives one unit groups of one, two and all of four ranks, under both strategies
// that allow it, and compares with every rank on its own: other parameters in every group, and the
// gradients of the mean loss of all.
func TestUnitGroups(t *testing.T) {
	const world = 4
	for _, ranks := range []int{1, 2, 4} {
		for _, strategy := range []fsdp.Strategy{fsdp.FullShard, fsdp.ShardGradOp} {
			for divide, divisor := range map[fsdp.Divide]float64{fsdp.ByRanks: world, fsdp.ByOne: 1} {
				t.Run(fmt.Sprintf("%d ranks/%v/%d", ranks, strategy, divide), func(t *testing.T) {
					states := make([]params, world)
					onRanks(t, world, func(ctx context.Context, g comm.Group) {
						cfg := groupedBy(t, ctx, g, "l1", ranks)
						cfg.Strategy, cfg.Divide = strategy, divide
						m := wrap(t, shapes["chain"], cfg)
						var err error
						states[g.Rank()], err = ownState(ctx, m)
						require.NoError(t, err)
						require.NoError(t, g.Barrier(ctx))
						want := map[string][]float64{}
						for r := range world {
							grads := aloneWith(t, ctx, states[r], r)
							if r/ranks != g.Rank()/ranks {
								delete(grads, "l1.w") // another's
							}
							add(want, grads, 1/divisor)
						}
						for range 2 { // at once, and accumulated whole
							forwardBackward(t, ctx, m, shapeBatch(g.Rank()))
							requireNear(t, want, gradsOf(t, ctx, m), 1e-13)
							m.ZeroGrad()
							require.NoError(t, m.NoSync(func() error { forwardBackward(t, ctx, m, shapeBatch(g.Rank())); return nil }))
							require.NoError(t, m.SyncGrads(ctx))
							requireNear(t, want, gradsOf(t, ctx, m), 1e-13)
							m.ZeroGrad()
						}
						requireIdle(t, ctx, m, shapeBatch(g.Rank()))
					})
					for r, state := range states {
						b := bitsOf(state)
						for name, first := range bitsOf(states[0]) {
							same := name != "l1.w" || r/ranks == 0
							require.Equal(t, same, slices.Equal(first, b[name]), "%s of rank %d", name, r)
						}
						group := bitsOf(states[r/ranks*ranks])
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
	run := func(ranks int) []bits {
		states := make([]bits, 4)
		onRanks(t, 4, func(ctx context.Context, g comm.Group) {
			cfg := groupedBy(t, ctx, g, "l2", max(ranks, 1))
			if ranks == 0 {
				cfg.GroupOf = func(fsdp.UnitInfo) comm.Group { return g }
			}
			m := wrap(t, shapes["chain"], cfg)
			update := updater(t, m, 0.01)
			for range 4 {
				forwardBackward(t, ctx, m, shapeBatch(g.Rank()))
				update(ctx)
			}
			own, err := ownState(ctx, m)
			require.NoError(t, err)
			states[g.Rank()] = bitsOf(own)
		})
		return states
	}
	all, two := run(4), run(2)
	requireSameBits(t, all[0], run(0)[3])
	for r := range two {
		require.Equal(t, two[0]["l0.w"], two[r]["l0.w"])
		require.Equal(t, r < 2, slices.Equal(two[0]["l2.w"], two[r]["l2.w"]))
	}
}

// TestUnitGroupErrors checks what Wrap and SetFull refuse.
func TestUnitGroupErrors(t *testing.T) {
	for name, c := range map[string]struct {
		change func(ctx context.Context, g comm.Group, cfg *fsdp.Config)
		want   string
	}{
		"sizes differ": {func(ctx context.Context, g comm.Group, cfg *fsdp.Config) {
			own, err := g.Split(ctx, g.Rank()/2, 0) // 2 and 1 of 3
			require.NoError(t, err)
			cfg.GroupOf = func(u fsdp.UnitInfo) comm.Group { return own }
		}, "in a group of "},
		"only one": {func(ctx context.Context, g comm.Group, cfg *fsdp.Config) {
			if g.Rank() == 1 {
				cfg.GroupOf = nil
			}
		}, "in a group of 1"},
		"NoShard": {func(_ context.Context, g comm.Group, cfg *fsdp.Config) {
			cfg.Strategy = fsdp.NoShard
		}, "unit l1: Config.GroupOf gives a group of its own, over which NoShard is not possible: want FullShard or ShardGradOp"},
		"HybridShard": {func(_ context.Context, g comm.Group, cfg *fsdp.Config) {
			cfg.Strategy, cfg.ShardRanks = fsdp.HybridShard, 1
		}, "over which HybridShard is not possible"},
		"panic": {func(_ context.Context, g comm.Group, cfg *fsdp.Config) {
			if g.Rank() == 2 {
				cfg.GroupOf = func(fsdp.UnitInfo) comm.Group { panic("no groups today") }
			}
		}, "Config.StrategyOf, GroupOf or CutOf panicked at "},
	} {
		t.Run(name, func(t *testing.T) {
			for _, err := range errorsOf(t, 3, func(ctx context.Context, g comm.Group) error {
				cfg := groupedBy(t, ctx, g, "l1", 1)
				c.change(ctx, g, &cfg)
				_, err := fsdp.Wrap(shapes["chain"], cfg)
				return err
			}) {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := wrap(t, shapes["chain"], groupedBy(t, ctx, g, "l1", 1))
		want := stateBits(t, ctx, m)
		state, err := ownState(ctx, m)
		require.NoError(t, err)
		err = m.SetFull(ctx, 1, state)
		require.ErrorContains(t, err, "parameter l1.w belongs to a unit with a process group of its own")
		err = m.Full(ctx, []string{"l1.w"}, func(params) error { return nil }, fsdp.WriteBack(0))
		require.ErrorContains(t, err, "parameter l1.w belongs to a unit with a process group of its own")
		require.NoError(t, m.Full(ctx, []string{"l1.w"}, func(p params) error {
			require.Equal(t, bitsOf(state)["l1.w"], bitsOf(p)["l1.w"])
			return nil
		}))
		requireSameBits(t, want, stateBits(t, ctx, m))
		delete(state, "l1.w")
		require.NoError(t, m.SetFull(ctx, 1, state))
		requireSameBits(t, want, stateBits(t, ctx, m))

		all, err := m.FullState(ctx)
		require.NoError(t, err)
		all["l1.w@5"] = all["l1.w@0"]
		require.ErrorContains(t, m.SetFull(ctx, 1, all), `the model has no parameter "l1.w@5"`)
		requireSameBits(t, want, stateBits(t, ctx, m))
		delete(all, "l1.w@5")
		all["l1.w@0"], all["l1.w@1"] = all["l1.w@1"], all["l1.w@0"]
		require.NoError(t, m.SetFull(ctx, 1, all))
		now, err := m.FullState(ctx)
		require.NoError(t, err)
		requireSameBits(t, bitsOf(all), bitsOf(now))
	})
}

// TestFailureInOneUnitGroup lets one rank fail in the middle of a pass, at every operation in turn:
// ranks that share only the world with it, and wait for others in a group of their own, must be
// told as well. The groups know nothing of each other.
func TestFailureInOneUnitGroup(t *testing.T) {
	gone := errors.New("time for lunch")
	plan, err := wrap(t, shapes["chain"], fsdp.Config{Precision: float64s, Wrap: fsdp.WrapEach()}).Plan(shapeBatch(0)...)
	require.NoError(t, err)
	for stop := range len(plan.Schedule) - 1 {
		own := slices.Concat(comm.Local(2), comm.Local(2))
		for _, err := range errorsOf(t, 4, func(ctx context.Context, g comm.Group) error {
			defer own[g.Rank()].Close()
			cfg := fsdp.Config{Group: g, Wrap: fsdp.WrapEach(), Precision: float64s}
			cfg.GroupOf = func(u fsdp.UnitInfo) comm.Group {
				if u.Name == "l1" {
					return own[g.Rank()]
				}
				return nil
			}
			if g.Rank() == 0 {
				var cancel context.CancelCauseFunc
				ctx, cancel = context.WithCancelCause(ctx)
				left := stop
				cfg.Trace = func(fsdp.Event) {
					if left--; left < 0 {
						cancel(gone)
					}
				}
			}
			m := wrap(t, shapes["chain"], cfg)
			_, err := m.Forward(ctx, shapeBatch(g.Rank())...)
			if err == nil {
				err = m.Backward(ctx)
			}
			if err == nil {
				_, err = m.FullState(ctx) // a rank that was done already is told now
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
	for _, err := range errorsOf(t, 3, func(ctx context.Context, g comm.Group) error {
		cfg := groupedBy(t, ctx, g, "l1", 1)
		if g.Rank() == 1 {
			require.NoError(t, cfg.GroupOf(fsdp.UnitInfo{Name: "l1"}).Close())
		}
		_, err := fsdp.WrapContext(ctx, shapes["chain"], cfg)
		done.Done()
		done.Wait() // a rank that leaves would tell the others
		return err
	}) {
		require.ErrorContains(t, err, "unit l1: meeting the ranks of a group of GroupOf")
		require.ErrorContains(t, err, "rank 1")
	}
}

// TestUnitGroupsOutliveTheModel checks that Close leaves the user's groups open, for a next model.
func TestUnitGroupsOutliveTheModel(t *testing.T) {
	onRanks(t, 4, func(ctx context.Context, g comm.Group) {
		cfg := groupedBy(t, ctx, g, "l1", 2)
		var first bits
		for range 2 {
			m := wrap(t, shapes["chain"], cfg)
			forwardBackward(t, ctx, m, shapeBatch(g.Rank()))
			if got := gradBits(t, ctx, m); first == nil {
				first = got
			} else {
				requireSameBits(t, first, got)
			}
			require.NoError(t, m.Close())
		}
		require.NoError(t, cfg.GroupOf(fsdp.UnitInfo{Name: "l1"}).Barrier(ctx))
	})
}

// TestFreezeWithUnitGroups freezes around a unit of experts and checks that every group keeps its
// own parameters and momentum.
func TestFreezeWithUnitGroups(t *testing.T) {
	onRanks(t, 4, func(ctx context.Context, g comm.Group) {
		m := wrap(t, shapes["chain"], groupedBy(t, ctx, g, "l1", 2))
		opt, err := optim.SGD{Momentum: 0.9}.New(m.Shards())
		require.NoError(t, err)
		forwardBackward(t, ctx, m, shapeBatch(g.Rank()))
		require.NoError(t, opt.Step(0.1))
		want := stateBits(t, ctx, m)
		grads := gradsOf(t, ctx, m) // the momentum after one step
		entries, err := m.Freeze(ctx, func(name string) bool { return name == "l3.w" }, opt)
		require.NoError(t, err)
		requireSameBits(t, want, stateBits(t, ctx, m))
		var names []string
		for _, e := range entries {
			for i, x := range numbers(t, e.Data) {
				require.Equal(t, grads[e.Param][e.Offset+i], x, e.Param)
			}
			names = append(names, e.Param)
		}
		for _, name := range names {
			require.NotEqual(t, "l3.w", name)
		}
		forwardBackward(t, ctx, m, shapeBatch(g.Rank()))
		require.NotContains(t, slices.Collect(maps.Keys(gradsOf(t, ctx, m))), "l3.w")
		_, err = m.ClipGradNorm(ctx, math.Inf(1))
		require.NoError(t, err)
		requireIdle(t, ctx, m, shapeBatch(g.Rank()))
	})
}

// TestUnitGroupsStayApart gives every group of ranks its own unit with statistics, and one with a
// parameter that is ignored. What is averaged and summed over the ranks of a group is nothing to
// the other one.
func TestUnitGroupsStayApart(t *testing.T) {
	const world = 4
	var states, grads [world]params
	run := func(model model, unit string, ignored func(string) bool, alone bool) {
		onRanks(t, world, func(ctx context.Context, g comm.Group) {
			whole := g
			cfg := groupedBy(t, ctx, g, unit, 2)
			if cfg.Ignored = ignored; alone { // the other group does not exist
				part, err := g.Split(ctx, g.Rank()/2, g.Rank())
				require.NoError(t, err)
				cfg.Group, cfg.GroupOf = part, nil
			}
			m := wrap(t, model, cfg)
			if alone { // but it had the same parameters
				state := states[whole.Rank()/2*2]
				require.NoError(t, m.SetFull(ctx, 0, state))
			}
			_, err := m.Forward(ctx, shapeBatch(whole.Rank())...)
			require.NoError(t, err)
			require.NoError(t, m.Backward(ctx))
			require.NoError(t, m.AverageBuffers(ctx))
			states[whole.Rank()], err = ownState(ctx, m)
			require.NoError(t, err)
			grads[whole.Rank()], err = m.FullGrads(ctx)
			require.NoError(t, err)
			require.NoError(t, whole.Barrier(ctx)) // a rank that leaves fails the groups that others are still in
		})
	}
	run(statistics, "bn", nil, false)
	for _, name := range []string{"bn.running_mean", "bn.running_var"} {
		for r := range world {
			require.Equal(t, elements(states[r/2*2][name]), elements(states[r][name]), "%s is the same in a group", name)
		}
		require.NotEqual(t, elements(states[0][name]), elements(states[2][name]), "%s of other ranks", name)
	}

	ignored := func(name string) bool { return name == "l1.w" }
	run(shapes["chain"], "l1", ignored, false)
	for r := range world {
		require.Equal(t, elements(states[r/2*2]["l1.w"]), elements(states[r]["l1.w"]), "one group, one value")
		require.Equal(t, elements(grads[r/2*2]["l1.w"]), elements(grads[r]["l1.w"]), "one group, one gradient")
	}
	require.NotEqual(t, elements(states[0]["l1.w"]), elements(states[2]["l1.w"]), "ranks in different groups start out different")
	whole := grads
	run(shapes["chain"], "l1", ignored, true)
	for r := range world {
		for i, x := range elements(grads[r]["l1.w"]) { // a mean over two ranks, not four
			require.InDelta(t, x/2, elements(whole[r]["l1.w"])[i], 1e-15)
		}
	}
}
