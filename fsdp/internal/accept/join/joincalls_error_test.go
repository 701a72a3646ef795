package join_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// rounds are what three ranks do while something goes wrong with one.
var rounds = [][]errand{
	{{"train", 0, 1}, {"", 1, 1}, {"quiet", 2, 1}},
	{{"decode", 3, 1}, {"step", 0, 1}, {"train", 4, 1}},
	{{"encode", 5, 1}, {"drop", 1, 1}, {"", 2, 1}},
}

// doomed runs the rounds on a rank. before is called before each of its errands, and at the end.
func doomed(ctx context.Context, m *fsdp.Sharded, rank int, before func(i int) error) error {
	return m.JoinCalls(ctx, func() error {
		for i := 0; ; i++ {
			if err := before(i); err != nil || i == len(rounds[rank]) {
				return err
			}
			if _, err := rounds[rank][i].run(ctx, m, fsdp.ByOne); err != nil {
				return err
			}
		}
	})
}

// downfalls is what can happen to a rank between two of its calls. After those that ranks agree on
// the model goes on.
var downfalls = map[string]struct {
	do     func(ctx context.Context, m *fsdp.Sharded, cancel context.CancelCauseFunc) error
	goesOn bool
}{
	"an error": {func(context.Context, *fsdp.Sharded, context.CancelCauseFunc) error { return kit.ErrOops }, true},
	"a panic":  {func(context.Context, *fsdp.Sharded, context.CancelCauseFunc) error { panic(kit.ErrOops) }, true},
	"a bad batch": {func(ctx context.Context, m *fsdp.Sharded, _ context.CancelCauseFunc) error {
		if _, err := m.Forward(ctx, wholeBatch(0)[:1]...); err != nil {
			return fmt.Errorf("%w: %w", kit.ErrOops, err)
		}
		return nil
	}, true},
	"a bad batch that it does not mind": {func(ctx context.Context, m *fsdp.Sharded, _ context.CancelCauseFunc) error {
		_, _ = m.EvalProgram(ctx, kit.ErrOops.Error())
		return nil
	}, true},
	"a bad backward": {func(ctx context.Context, m *fsdp.Sharded, _ context.CancelCauseFunc) error {
		if _, err := m.Forward(ctx, wholeBatch(0)...); err != nil {
			return err
		}
		return fmt.Errorf("%w: %w", kit.ErrOops, m.Backward(ctx, fsdp.Scale(math.NaN())))
	}, true},
	"no forward": {func(ctx context.Context, m *fsdp.Sharded, _ context.CancelCauseFunc) error {
		if _, err := m.EvalProgram(ctx, "encode", wholeBatch(0)[:1]...); err != nil {
			return err
		}
		return fmt.Errorf("%w: %w", kit.ErrOops, m.Backward(ctx))
	}, true},
	"a cancelled context": {func(_ context.Context, _ *fsdp.Sharded, cancel context.CancelCauseFunc) error {
		cancel(kit.ErrOops)
		return nil
	}, false},
	"a death": {func(context.Context, *fsdp.Sharded, context.CancelCauseFunc) error { runtime.Goexit(); return nil }, false},
}

// onDoomedRanks runs f on three ranks with a context of their own, in fake time, of which none may
// pass, and returns their errors.
func onDoomedRanks(t *testing.T, f func(ctx context.Context, cancel context.CancelCauseFunc, g comm.Group) (goesOn bool, err error)) (errs [3]error) {
	ctx, cancel := context.WithTimeout(t.Context(), kit.Patience)
	defer cancel()
	_ = comm.Run(ctx, 3, func(ctx context.Context, g comm.Group) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		var goesOn bool
		if goesOn, errs[g.Rank()] = f(ctx, cancel, g); goesOn {
			return nil
		}
		return errs[g.Rank()]
	})
	require.NoError(t, ctx.Err(), "time has passed")
	return errs
}

// TestJoinCallsFail has each rank fail at each of its calls, in every way. All ranks return, with its
// reason, before any time has passed.
func TestJoinCallsFail(t *testing.T) {
	kit.Needs(t, kit.FakeTime)
	for name, fall := range downfalls {
		for faulty := range rounds {
			for at := range len(rounds[faulty]) + 1 {
				t.Run(fmt.Sprintf("%s/rank %d, call %d", name, faulty, at), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						errs := onDoomedRanks(t, func(ctx context.Context, cancel context.CancelCauseFunc, g comm.Group) (bool, error) {
							m := kit.Wrap(t, wholeTranslator{}, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: kit.Float64s, Poison: true})
							err := doomed(ctx, m, g.Rank(), func(i int) error {
								if i == at && g.Rank() == faulty {
									return fall.do(ctx, m, cancel)
								}
								return nil
							})
							if fall.goesOn {
								require.True(t, strings.HasPrefix(err.Error(), fmt.Sprintf("fsdp: rank %d: ", g.Rank())) || errors.Is(err, kit.ErrOops), "%v", err)
								require.Equal(t, 0, strings.Count(err.Error(), fmt.Sprintf("rank %d: fsdp", faulty)), "%v", err)
								m.ZeroGrad()
								require.NoError(t, kit.TrainStep(ctx, m, wholeBatch(g.Rank())))
								kit.RequireIdle(t, ctx, m, wholeBatch(0))
							}
							return fall.goesOn, err
						})
						for r, err := range errs {
							if name == "a death" {
								if r != faulty {
									require.ErrorContains(t, err, fmt.Sprintf("rank %d", faulty))
									require.ErrorContains(t, err, "the function has ended its goroutine")
								}
								continue
							}
							switch name {
							case "a bad batch":
								require.ErrorContains(t, err, "Forward: the batch has 1 tensors, the model takes 3")
							case "a bad backward":
								require.ErrorContains(t, err, "Scale is NaN")
							case "no forward":
								require.ErrorContains(t, err, "Backward has no pending Forward")
							default:
								require.ErrorContains(t, err, kit.ErrOops.Error(), "rank %d", r)
							}
							if r != faulty {
								require.ErrorContains(t, err, fmt.Sprintf("rank %d", faulty), "rank %d", r)
							}
						}
					})
				})
			}
		}
	}
}

// TestJoinCallsFailInAPass has each rank fail in the middle of each pass, its own or one that it
// replays, and has each of its collectives fail.
func TestJoinCallsFailInAPass(t *testing.T) {
	kit.Needs(t, kit.FakeTime)
	const passes, collectives = 7, 60
	run := func(t *testing.T, faulty int, trace func(cancel context.CancelCauseFunc, e fsdp.Event), decide func(commtest.Call) commtest.Fault) (fails bool) {
		synctest.Test(t, func(t *testing.T) {
			for r, err := range onDoomedRanks(t, func(ctx context.Context, cancel context.CancelCauseFunc, g comm.Group) (bool, error) {
				cfg := fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: kit.Float64s, Poison: true}
				if g.Rank() == faulty {
					cfg.Group = commtest.Faulty(g, decide)
					cfg.Observers = append(cfg.Observers, fsdp.TraceFunc(func(e fsdp.Event) { trace(cancel, e) }))
				}
				m := kit.Wrap(t, wholeTranslator{}, cfg)
				err := doomed(ctx, m, g.Rank(), func(int) error { return nil })
				require.NoError(t, m.Close())
				return false, err
			}) {
				fails = fails || err != nil
				if err != nil {
					require.ErrorContains(t, err, kit.ErrOops.Error())
					if r != faulty {
						require.ErrorContains(t, err, fmt.Sprintf("rank %d", faulty))
					}
				}
			}
		})
		return fails
	}
	no := func(commtest.Call) commtest.Fault { return commtest.Fault{} }
	for faulty := range rounds {
		for pass := 1; pass <= passes; pass++ {
			for _, cancels := range []bool{false, true} {
				require.True(t, run(t, faulty, func(cancel context.CancelCauseFunc, e fsdp.Event) {
					switch {
					case e.Pass != pass || e.Kind != "forward" && e.Kind != "drain":
					case cancels:
						cancel(kit.ErrOops)
					default:
						panic(kit.ErrOops)
					}
				}, no), "rank %d, pass %d", faulty, pass)
			}
		}
		failed := 0
		for seq := range collectives {
			left := 5 + seq // Wrap has four
			if run(t, faulty, func(context.CancelCauseFunc, fsdp.Event) {}, func(c commtest.Call) commtest.Fault {
				if left--; left == 0 {
					return commtest.Fault{Err: kit.ErrOops}
				}
				return commtest.Fault{}
			}) {
				failed++
			}
		}
		require.Greater(t, failed, collectives/2)
	}
}

// TestJoinCallsRefuse calls every method inside: those that all ranks must call alike are refused at
// once, without a word to the others, and change nothing.
func TestJoinCallsRefuse(t *testing.T) {
	const text = "inside JoinCalls each rank runs its own Forward, Backward and Eval, and replays the passes of the others"
	for _, method := range kit.LifeMethods {
		t.Run(method.Name, func(t *testing.T) {
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				l := &kit.Lived{Filler: kit.NewFiller(t, ctx, g), Group: g, Dir: t.TempDir()}
				var err error
				l.Values, err = l.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
				require.NoError(t, err)
				l.State, err = l.OptimStateDict(ctx, l.Opt, nil)
				require.NoError(t, err)
				before := kit.StateBits(t, ctx, l.Sharded)
				var got error
				require.NoError(t, l.JoinCalls(ctx, func() error {
					switch method.Name {
					case "Backward":
						_, err := l.Forward(ctx, kit.ShapeBatch(0)...)
						require.NoError(t, err)
					case "ZeroGrad", "ScaleGrads":
						return nil
					}
					if g.Rank() == 1 {
						got = method.Call(ctx, l)
					}
					return nil
				}))
				switch method.Name {
				case "Forward", "Backward", "Eval", "EvalProgram", "Plan", "NoSync", "Params", "FrozenParams", "ZeroGrad", "ScaleGrads", "String", "LogValue", "Targets", "Memory", "Group", "ResetPeak", "Hold, Discard":
					require.NoError(t, got)
				default:
					if g.Rank() == 1 {
						require.ErrorContains(t, got, text)
					}
				}
				kit.RequireSameBits(t, before, kit.StateBits(t, ctx, l.Sharded))
				kit.RequireIdle(t, ctx, l.Sharded, kit.ShapeBatch(0))
			})
		})
	}
}

// TestJoinCallsMistakes makes those that all ranks are told of.
func TestJoinCallsMistakes(t *testing.T) {
	for name, c := range map[string]struct {
		odd  func(ctx context.Context, m *fsdp.Sharded) error // on rank 1
		want []string                                         // by rank
	}{
		"does something else": {func(ctx context.Context, m *fsdp.Sharded) error { return m.SyncGrads(ctx) },
			[]string{
				"fsdp: rank 0: JoinCalls: ranks disagree: rank 0 runs JoinCalls as call 3, rank 1 runs SyncGrads as call 3",
				"fsdp: rank 1: SyncGrads: ranks disagree: rank 0 runs JoinCalls as call 3, rank 1 runs SyncGrads as call 3",
			}},
		"ends": {func(context.Context, *fsdp.Sharded) error { return nil },
			[]string{`fsdp: rank 0: JoinCalls: rank 1 of group "world" has ended, but this rank has not: call JoinCalls on every rank`}},
		"has no function": {func(ctx context.Context, m *fsdp.Sharded) error { return m.JoinCalls(ctx, nil) },
			[]string{"fsdp: rank 0: JoinCalls: rank 1: the function is nil", "fsdp: rank 1: JoinCalls: the function is nil"}},
		"drops gradients": {func(ctx context.Context, m *fsdp.Sharded) error {
			return m.JoinCalls(ctx, func() error {
				err := kit.TrainStep(ctx, m, kit.UnevenBatch(0, 1))
				m.ZeroGrad()
				return err
			})
		}, []string{
			"rank 0 has the gradients of 2 passes, rank 1 has no gradients: every rank must make the same calls of Backward, ZeroGrad",
			"rank 0 has the gradients of 2 passes, rank 1 has no gradients: every rank must make the same calls of Backward, ZeroGrad",
		}},
		"has made a step": {func(ctx context.Context, m *fsdp.Sharded) error {
			opt, err := optim.SGD{}.New(m.Params())
			if err != nil {
				return err
			}
			if err := opt.Step(0.1); err != nil {
				return err
			}
			return m.JoinCalls(ctx, func() error { return nil })
		}, []string{"rank 1 has made a step of SGD since the last pass, but rank 0 has made none", "rank 1 has made a step of SGD"}},
		"changes its mind": {func(ctx context.Context, m *fsdp.Sharded) error {
			return m.JoinCalls(ctx, func() error {
				_, err := m.Forward(ctx, kit.UnevenBatch(0, 1)...)
				return errors.Join(err, m.NoSync(func() error { return m.Backward(ctx) }))
			})
		}, []string{
			"rank 1: inside JoinCalls, run a Forward and its Backward both inside NoSync or both outside",
			"fsdp: rank 1: Backward: inside JoinCalls, run a Forward and its Backward both inside NoSync or both outside",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				m := kit.Chain64(t, g)
				err := kit.TrainStep(ctx, m, kit.UnevenBatch(0, g.Rank()))
				require.NoError(t, err)
				if g.Rank() == 1 {
					err = c.odd(ctx, m)
					if name == "ends" {
						require.NoError(t, err)
						return
					}
				} else {
					err = m.JoinCalls(ctx, func() error {
						for i := range 2 {
							if err := kit.TrainStep(ctx, m, kit.UnevenBatch(i, 0)); err != nil {
								return err
							}
						}
						return nil
					})
				}
				require.ErrorContains(t, err, c.want[g.Rank()])
				if name != "ends" {
					m.ZeroGrad()
					_, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
					if name == "has made a step" { // which no method undoes
						require.ErrorContains(t, err, c.want[g.Rank()])
						return
					}
					require.NoError(t, err)
				}
			})
		})
	}
}

// TestJoinCallsBesideJoin forgets JoinCalls on a rank of a loop over Join.
func TestJoinCallsBesideJoin(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Chain64(t, g)
		err := unevenly(ctx, m, g.Rank(), 2, func(_ int, batch []fsdp.Tensor) error {
			if g.Rank() == 1 {
				return nil
			}
			return m.JoinCalls(ctx, func() error { return kit.TrainStep(ctx, m, batch) })
		})
		require.ErrorContains(t, err, "rank 0 runs JoinCalls as call 2, and rank 1 has gone on to the next iteration of Join without it")
		require.ErrorContains(t, err, "call JoinCalls there, too")
		kit.RequireIdle(t, ctx, m, kit.ShapeBatch(0))
	})
}

// TestJoinCallsTwoModels has ranks wait for each other in two models of the same shape, which once
// replayed each other's passes and returned results of both models' parameters.
func TestJoinCallsTwoModels(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := []*fsdp.Sharded{kit.Chain64(t, g), kit.Chain64(t, g)}
		err := m[0].JoinCalls(ctx, func() error {
			return m[1].JoinCalls(ctx, func() error { return kit.ErrorOf(m[g.Rank()].Eval(ctx, kit.ShapeBatch(0)...)) })
		})
		require.ErrorContains(t, err, "rank 0 runs JoinCalls as call 1, rank 1 runs JoinCalls as call 1 of another model")
	})
}

// TestJoinCallsLeftBehind has f return on one rank while another goroutine is in a call: it is one
// more of this rank's, and nobody waits for it for ever.
func TestJoinCallsLeftBehind(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		began, returned, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		m := kit.Chain64(t, g, func(c *fsdp.Config) {
			c.Observers = append(c.Observers, fsdp.TraceFunc(func(e fsdp.Event) {
				if e.Kind == "forward" && g.Rank() == 1 && returned != nil {
					close(began)
					<-returned
					returned = nil
				}
			}))
		})
		require.NoError(t, m.JoinCalls(ctx, func() error {
			if g.Rank() == 0 {
				return kit.ErrorOf(m.Eval(ctx, kit.ShapeBatch(0)...))
			}
			go func() { done <- kit.ErrorOf(m.Eval(ctx, kit.ShapeBatch(0)...)) }()
			<-began
			defer close(returned)
			return nil
		}))
		if g.Rank() == 1 {
			require.NoError(t, <-done)
		}
		kit.RequireIdle(t, ctx, m, kit.ShapeBatch(0))
	})
}
