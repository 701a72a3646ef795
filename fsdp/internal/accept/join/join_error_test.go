package join_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
)

// trouble is one rank's run of an uneven training with which something is wrong.
type trouble struct {
	g      comm.Group
	cancel context.CancelCauseFunc // of this rank alone
	faulty bool
}

// troubles are faults by what is said of them on every rank.
var troubles = map[string]struct {
	kind string // of event, in a pass
	data func(w *trouble)
	body func(w *trouble) error
}{
	"an error in the body":       {body: func(*trouble) error { return kit.ErrOops }},
	"a panic in the body":        {body: func(*trouble) error { panic(kit.ErrOops) }},
	"a cancelled body":           {body: func(w *trouble) error { w.cancel(kit.ErrOops); return nil }},
	"a panic in the data":        {data: func(*trouble) { panic(kit.ErrOops) }},
	"a cancelled context":        {data: func(w *trouble) { w.cancel(kit.ErrOops) }},
	"a panic in a gather":        {kind: "gather"},
	"a panic after a forward":    {kind: "forward"},
	"a panic after a backward":   {kind: "backward"},
	"a panic after a reduction":  {kind: "drain"},
	"a cancelled forward":        {kind: "cancel forward"},
	"a cancelled backward":       {kind: "cancel backward"},
	"a rank that leaves the job": {body: func(*trouble) error { return errLeft }},
}

// errLeft is why a rank returns no error.
var errLeft = errors.New("done early")

// run trains 4, 2, 0 batches in pairs of passes. The fault is in the second iteration.
func (w *trouble) run(ctx context.Context, name string) error {
	fault, i := troubles[name], 0
	cfg := fsdp.Config{Group: w.g, WrapPolicy: fsdp.WrapEach(), Precision: kit.Float64s, Poison: true}
	cfg.Observers = append(cfg.Observers, fsdp.TraceFunc(func(e fsdp.Event) {
		switch kind, cancels := strings.CutPrefix(fault.kind, "cancel "); {
		case !w.faulty || i != 1 || e.Kind != kind:
		case cancels:
			w.cancel(kit.ErrOops)
		default:
			panic(kit.ErrOops)
		}
	}))
	m, err := fsdp.WrapContext(ctx, kit.Shapes["chain"], cfg)
	if err != nil {
		return err
	}
	data := func(yield func([]fsdp.Tensor, error) bool) {
		for n := range 4 - 2*w.g.Rank() {
			if n == 1 && w.faulty && fault.data != nil {
				fault.data(w)
			}
			if !yield(kit.UnevenBatch(n, w.g.Rank()), nil) {
				return
			}
		}
	}
	for batch, err := range m.Join(ctx, data) {
		if err == nil && i == 1 && w.faulty && fault.body != nil {
			err = fault.body(w)
		}
		if err == nil {
			err = m.NoSync(func() error { return kit.TrainStep(ctx, m, batch) })
		}
		if err == nil {
			err = kit.TrainStep(ctx, m, batch)
		}
		if err != nil {
			if err == errLeft {
				err = nil
			}
			return err
		}
		i++
	}
	return nil
}

// TestJoinFailures lets one of three ranks fail, one that goes on or one that has a batch no more
// or never had, and checks that all of them return, with its reason, before any time has passed.
func TestJoinFailures(t *testing.T) {
	kit.Needs(t, kit.FakeTime)
	for name, fault := range troubles {
		for faulty := range 3 {
			if fault.data != nil && faulty == 2 {
				continue // which has none
			}
			t.Run(fmt.Sprintf("%s/rank %d", name, faulty), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var errs [3]error
					ctx, cancel := context.WithTimeout(t.Context(), kit.Patience)
					defer cancel()
					_ = comm.Run(ctx, 3, func(ctx context.Context, g comm.Group) (err error) {
						ctx, cancel := context.WithCancelCause(ctx)
						defer cancel(nil)
						defer func() {
							if r := recover(); r != nil {
								err = fmt.Errorf("panic: %v", r)
							}
							errs[g.Rank()] = err
						}()
						w := &trouble{g: g, cancel: cancel, faulty: g.Rank() == faulty}
						return w.run(ctx, name)
					})
					require.NoError(t, ctx.Err(), "time has passed")
					for r, err := range errs {
						if name == "a rank that leaves the job" {
							if r != faulty {
								require.ErrorContains(t, err, fmt.Sprintf("rank %d", faulty))
							}
							continue
						}
						require.ErrorContains(t, err, kit.ErrOops.Error(), "rank %d", r)
						if r != faulty {
							require.ErrorContains(t, err, fmt.Sprintf("rank %d", faulty), "rank %d", r)
						}
					}
				})
			})
		}
	}
}

// TestJoinRefusals gives ranks in a Join what is refused before a pass, and checks that all of them
// are told, and that the loop goes on.
func TestJoinRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		rank int // that does it; 2 is the one without batches
		do   func(ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor) error
		want string
	}{
		"no batch, having one": {1, func(ctx context.Context, m *fsdp.Sharded, _ []fsdp.Tensor) error {
			_, err := m.Forward(ctx)
			return err
		}, "the batch has 0 tensors, the model takes 2"},
		"no batch to evaluate, having one": {0, func(ctx context.Context, m *fsdp.Sharded, _ []fsdp.Tensor) error {
			_, err := m.Eval(ctx)
			return err
		}, "the batch has 0 tensors, the model takes 2"},
		"half a batch, having none": {2, func(ctx context.Context, m *fsdp.Sharded, _ []fsdp.Tensor) error {
			return kit.TrainStep(ctx, m, kit.UnevenBatch(0, 0)[:1])
		}, "the batch has 1 tensors, the model takes 2"},
		"a loss that is infinite": {1, func(ctx context.Context, m *fsdp.Sharded, _ []fsdp.Tensor) error {
			return kit.TrainStep(ctx, m, []fsdp.Tensor{kit.Floats(1, 2, kit.ShapeDim), filled64(math.Inf(1))})
		}, "the loss of pass"},
		"a scale that is no number": {0, func(ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor) error {
			return kit.TrainStep(ctx, m, batch, fsdp.Scale(math.NaN()))
		}, "Scale is NaN"},
		"a program that there is not": {2, func(ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor) error {
			_, err := m.EvalProgram(ctx, "decode", batch...)
			return err
		}, `the model has no program "decode": its programs are []`},
		"Backward before Forward": {2, func(ctx context.Context, m *fsdp.Sharded, _ []fsdp.Tensor) error { return m.Backward(ctx) },
			"Backward has no pending Forward"},
	} {
		t.Run(name, func(t *testing.T) {
			kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
				m := kit.Chain64(t, g)
				passes := 0
				require.NoError(t, unevenly(ctx, m, g.Rank(), 2*(2-g.Rank()), func(_ int, batch []fsdp.Tensor) error {
					do := func(ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor) error {
						return kit.TrainStep(ctx, m, batch)
					}
					if g.Rank() == c.rank && passes < 2 { // once all have learned the schedule, and before
						do = c.do
					}
					if err := do(ctx, m, batch); passes < 2 {
						require.ErrorContains(t, err, c.want)
						require.ErrorContains(t, err, fmt.Sprintf("rank %d: ", c.rank))
					} else {
						require.NoError(t, err)
					}
					passes++
					return nil
				}))
				require.Equal(t, 4, passes)
				kit.RequireIdle(t, ctx, m, kit.ShapeBatch(0))
			})
		})
	}
}

// filled64 returns a float64 tensor [2, kit.ShapeDim] of one value.
func filled64(x float64) fsdp.Tensor {
	v := kit.Floats(1, 2, kit.ShapeDim)
	for i := range v.Float64s() {
		v.Float64s()[i] = x
	}
	return v
}

// TestJoinOfNothing checks that there is no loop over data that is nil, nor over a model that is
// closed.
func TestJoinOfNothing(t *testing.T) {
	for world := 1; world <= 2; world++ {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m := kit.Chain64(t, g)
			loop := func(data iter.Seq2[[]fsdp.Tensor, error]) (last error) {
				for batch, err := range m.Join(ctx, data) {
					require.Nil(t, batch)
					require.Error(t, err)
					last = err
				}
				return last
			}
			require.ErrorContains(t, loop(nil), "Join: the data is nil")
			require.NoError(t, loop(kit.Batches(0, nil)))
			require.NoError(t, m.Close())
			require.ErrorContains(t, loop(kit.Batches(1, kit.ShapeBatch)), "Join: the model is closed")
		})
	}
}

// TestJoinDataFails lets the data of one rank panic or fail, or its context end while it reads: the
// loop is over on all ranks, and the model is as good as before.
func TestJoinDataFails(t *testing.T) {
	const panics, fails, ends = "panics", "fails", "ends"
	for _, what := range []string{panics, fails, ends} {
		kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
			m := kit.Chain64(t, g)
			reading, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			late := what == ends && g.Rank() != 1 && !kit.GroupsCarryPasses // its reason may meet the end of their pass
			over := false
			data := func(yield func([]fsdp.Tensor, error) bool) {
				defer func() { over = true }()
				switch {
				case !yield(kit.UnevenBatch(0, 0), nil) || g.Rank() != 1:
				case what == panics:
					panic(kit.ErrOops)
				case what == fails:
					require.False(t, yield(kit.UnevenBatch(1, 0), kit.ErrOops), "nobody wants what comes after an error")
				default:
					cancel(kit.ErrOops)
				}
			}
			var last error
			passes := 0
			for batch, err := range m.Join(reading, data) {
				require.NoError(t, last, "an error is the last thing")
				last = err
				if err == nil {
					passes++
					last = kit.TrainStep(ctx, m, batch)
					if late && last != nil {
						break
					}
					require.NoError(t, last)
				}
			}
			require.Equal(t, 1, passes)
			require.True(t, over)
			require.ErrorContains(t, last, kit.ErrOops.Error())
			if !late {
				require.ErrorContains(t, last, fmt.Sprintf("fsdp: rank %d: Join: ", g.Rank()))
			}
			if what == ends { // a context that ends before an exchange may fail the group
				require.ErrorContains(t, last, "rank 1")
				return
			}
			if g.Rank() != 1 {
				var peer *fsdp.PeerError
				require.ErrorAs(t, last, &peer)
				require.Equal(t, 1, peer.Rank)
			} else {
				require.ErrorIs(t, last, kit.ErrOops)
			}
			body := func(_ int, batch []fsdp.Tensor) error { passes++; return kit.TrainStep(ctx, m, batch) }
			require.NoError(t, unevenly(ctx, m, g.Rank(), g.Rank(), body))
			require.Equal(t, 3, passes)
		})
	}
}

// TestNobodyHasABatch lets ranks whose loops have nothing left, each another one, all come without
// a batch.
func TestNobodyHasABatch(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Chain64(t, g)
		require.NoError(t, unevenly(ctx, m, 0, g.Rank(), func(_ int, outer []fsdp.Tensor) error {
			return unevenly(ctx, m, 0, 1-g.Rank(), func(_ int, inner []fsdp.Tensor) error {
				for range 2 {
					_, err := m.Forward(ctx)
					require.EqualError(t, err, fmt.Sprintf("fsdp: rank %d: no rank has a batch", g.Rank()))
					require.NoError(t, kit.TrainStep(ctx, m, outer))
					require.NoError(t, kit.TrainStep(ctx, m, inner))
				}
				return nil
			})
		}))
		_, err := m.Forward(ctx)
		require.ErrorContains(t, err, "the batch has 0 tensors")
		kit.RequireIdle(t, ctx, m, kit.ShapeBatch(0))
	})
}

// TestJoinBodiesDiffer lets one rank of three do something else than the others in the second
// iteration: all are told who does what, and may go on.
func TestJoinBodiesDiffer(t *testing.T) {
	var leaves = errors.New("leaves")
	forward := func(ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor) error {
		_, err := m.Forward(ctx, batch...)
		return err
	}
	const left = "rank %d has left the loop of Join and runs "
	for name, c := range map[string]struct {
		usual, odd func(ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor) error
		after      func(ctx context.Context, m *fsdp.Sharded) error // on the rank that has left
		who, what  string
	}{
		"leaves": {forward, func(context.Context, *fsdp.Sharded, []fsdp.Tensor) error { return leaves }, func(ctx context.Context, m *fsdp.Sharded) error {
			return kit.ErrorOf(m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true}))
		}, left, "of Join and runs StateDict as call"},
		"leaves for a Forward": {forward, func(context.Context, *fsdp.Sharded, []fsdp.Tensor) error { return leaves }, func(ctx context.Context, m *fsdp.Sharded) error {
			return forward(ctx, m, kit.ShapeBatch(0))
		}, left, "in iteration 2: leave the loop in the same iteration on every rank"},
		"leaves for another loop": {forward, func(context.Context, *fsdp.Sharded, []fsdp.Tensor) error { return leaves }, func(ctx context.Context, m *fsdp.Sharded) error {
			return unevenly(ctx, m, 0, 1, nil)
		}, left, "of Join and runs Join as call"},
		"evaluates": {forward, func(ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor) error {
			_, err := m.Eval(ctx, batch...)
			return err
		}, nil, "rank %d runs Eval as call", "Forward as call"},
		"does not sync": {forward, func(ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor) error {
			return m.NoSync(func() error { return forward(ctx, m, batch) })
		}, nil, "rank %d runs Forward as call", "inside NoSync"},
		"does nothing": {forward, func(ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor) error { return nil }, nil,
			"and rank %d has gone on to the next iteration of Join without it", "call Forward with the empty batch, too"},
		"decides": {forward, func(ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor) error {
			return kit.ErrorOf(m.Any(ctx, true))
		}, nil, "rank %d runs Any as call", "Forward as call"},
		"does not decide": {func(ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor) error {
			return kit.ErrorOf(m.Any(ctx, true))
		}, func(ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor) error { return nil }, nil,
			"and rank %d has gone on to the next iteration of Join without it", "call Any there, too"},
		"averages": {func(ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor) error {
			return kit.ErrorOf(m.Any(ctx, true))
		}, func(ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor) error {
			return kit.ErrorOf(m.Mean(ctx, 1))
		}, nil, "rank %d runs Mean as call", "Any as call"},
		"begins a loop": {forward, func(ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor) error {
			return unevenly(ctx, m, 0, 1, nil)
		}, nil, "rank %d runs Join as call", "Forward as call"},
		"has another policy": {func(ctx context.Context, m *fsdp.Sharded, _ []fsdp.Tensor) error {
			return unevenly(ctx, m, 0, 1, nil, fsdp.RefuseUneven())
		}, func(ctx context.Context, m *fsdp.Sharded, _ []fsdp.Tensor) error {
			return unevenly(ctx, m, 0, 1, nil, fsdp.StopAtShortest())
		}, nil, "rank %d runs Join with StopAtShortest as call", "Join with RefuseUneven as call"},
	} {
		for odd := range 3 {
			t.Run(fmt.Sprintf("%s/rank %d", name, odd), func(t *testing.T) {
				kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
					m := kit.Chain64(t, g)
					err := unevenly(ctx, m, g.Rank(), 4-2*g.Rank(), func(i int, batch []fsdp.Tensor) error {
						switch {
						case i == 0:
							return kit.TrainStep(ctx, m, batch)
						case g.Rank() == odd:
							return c.odd(ctx, m, batch)
						}
						return c.usual(ctx, m, batch)
					})
					if err == leaves {
						err = c.after(ctx, m)
					}
					require.ErrorContains(t, err, "ranks disagree: ")
					require.ErrorContains(t, err, fmt.Sprintf(c.who, odd))
					require.ErrorContains(t, err, c.what)
					require.NoError(t, kit.TrainStep(ctx, m, kit.ShapeBatch(g.Rank())))
					kit.RequireIdle(t, ctx, m, kit.ShapeBatch(0))
				})
			})
		}
	}
}
