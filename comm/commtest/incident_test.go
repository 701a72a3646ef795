package commtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
)

// program runs three all-reduces in flight, then a barrier, and returns the
// first error of every rank.
func program(n int, incidents ...commtest.Incident) (errs []error, happened []commtest.Incident) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	note := func(i commtest.Incident) {
		mu.Lock()
		defer mu.Unlock()
		happened = append(happened, i)
	}
	errs = make([]error, n)
	var ranks sync.WaitGroup
	for r, g := range comm.Local(n) {
		g = commtest.Inject(g, note, incidents...)
		ranks.Go(func() { errs[r] = threeSums(ctx, g) })
	}
	ranks.Wait()
	return errs, happened
}

func threeSums(ctx context.Context, g comm.Group) error {
	var works [3]comm.Work
	var sums [3][]float32
	for i := range works {
		sums[i] = []float32{1, float32(g.Rank())}
		works[i] = g.AllReduce(comm.Of(sums[i]).Named(fmt.Sprint("layer ", i)), comm.Sum)
	}
	for i, w := range works {
		if err := w.Wait(ctx); err != nil {
			return err
		}
		if sums[i][0] != float32(g.Size()) {
			return fmt.Errorf("sum %d is %v", i, sums[i])
		}
	}
	return g.Barrier(ctx)
}

// Every incident that needs no process of its own has the consequence that it
// stands for, at every moment that it can happen, to plain and to blocking calls.
func TestIncidents(t *testing.T) {
	for _, what := range []commtest.What{
		commtest.Delay, commtest.Invalid, commtest.Abort, commtest.Close, commtest.WrongKind, commtest.WrongType,
		commtest.WrongLength, commtest.WrongOp, commtest.WrongLabel, commtest.WrongRoot, commtest.WrongOrder,
	} {
		for _, when := range what.Moments() {
			for _, at := range []uint64{1, 2, 4} {
				if what == commtest.WrongOrder && at == 4 {
					continue // nothing comes after the barrier
				}
				if when != commtest.Before && at == 4 {
					continue // whether the barrier is complete before is chance
				}
				i := commtest.Incident{What: what, When: when, Rank: 1, At: commtest.Call{Seq: at}}
				t.Run(i.String(), func(t *testing.T) {
					// Rank 2 lags behind where rank 1 is to be caught waiting.
					lag := commtest.Incident{What: commtest.Delay, When: commtest.Before, Rank: 2, At: i.At}
					if when == commtest.Waiting {
						lag.After = 200 * time.Millisecond
					}
					synctest.Test(t, func(t *testing.T) {
						errs, happened := program(3, i, lag)
						require.Contains(t, happened, i)
						for r, err := range errs {
							requireConsequence(t, i, r, err)
						}
					})
				})
			}
		}
	}
}

func requireConsequence(t *testing.T, i commtest.Incident, rank int, err error) {
	t.Helper()
	var blame *comm.RankError
	var mismatch *comm.MismatchError
	switch {
	case i.What == commtest.Delay:
		require.NoError(t, err, "rank %d", rank)
	case i.What.Mismatch():
		require.ErrorAs(t, err, &mismatch, "rank %d", rank)
		require.Contains(t, mismatch.Ranks, i.Rank)
	default:
		want := map[commtest.What]error{commtest.Invalid: comm.ErrInvalid, commtest.Abort: commtest.ErrInjected, commtest.Close: comm.ErrClosed}
		require.ErrorIs(t, err, want[i.What], "rank %d", rank)
		require.ErrorAs(t, err, &blame, "rank %d", rank)
		require.Equal(t, i.Rank, blame.Rank)
	}
}

func TestIncidentCancels(t *testing.T) {
	for _, at := range []uint64{1, 4} { // an all-reduce, and a barrier
		synctest.Test(t, func(t *testing.T) {
			errs, _ := program(3,
				commtest.Incident{What: commtest.Cancel, When: commtest.Waiting, Rank: 1, At: commtest.Call{Seq: at}},
				// Nobody waits for so long: rank 2 comes when rank 1 has given up.
				commtest.Incident{What: commtest.Delay, When: commtest.Before, Rank: 2, At: commtest.Call{Seq: at}, After: 200 * time.Millisecond})
			for r, err := range errs {
				var blame *comm.RankError
				require.ErrorAs(t, err, &blame, "rank %d", r)
				require.Equal(t, 1, blame.Rank)
				require.ErrorIs(t, err, context.Canceled, "rank %d", r)
			}
		})
	}
}

// A bit that flips in memory reaches all ranks alike: no group can notice.
func TestIncidentCorrupts(t *testing.T) {
	gs := comm.Local(2)
	gs[1] = commtest.Inject(gs[1], nil, commtest.Incident{What: commtest.Corrupt, Rank: 1, At: commtest.Call{Kind: commtest.AllReduce}})
	sums := [2][]int32{{8}, {16}}
	works := [2]comm.Work{}
	for r, g := range gs {
		works[r] = g.AllReduce(comm.Of(sums[r]), comm.Sum)
	}
	for r, w := range works {
		require.NoError(t, w.Wait(context.Background()))
		require.Equal(t, []int32{24 + 1<<16}, sums[r])
	}
}

// A rank that has gone silent does nothing any more, and waits in vain.
func TestIncidentSilences(t *testing.T) {
	gs := comm.Local(2)
	g := commtest.Inject(gs[1], nil, commtest.Incident{What: commtest.Drop, Rank: 1, At: commtest.Call{Seq: 1}})
	over := errors.New("over")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(over)
	x := comm.Of([]float32{1})
	require.ErrorIs(t, g.AllReduce(x, comm.Sum).Wait(ctx), over)
	require.ErrorIs(t, g.Barrier(ctx), over)
	_, err := g.Split(ctx, 0, 0)
	require.ErrorIs(t, err, over)
	require.ErrorIs(t, gs[0].AllReduce(x, comm.Sum).Wait(ctx), over, "rank 0 waits for rank 1")
}

func TestPlanIsRepeatable(t *testing.T) {
	seen := map[commtest.What]bool{}
	for seed := range uint64(500) {
		i := commtest.Plan(seed, 4, 9, commtest.Everything()...)
		require.Equal(t, i, commtest.Plan(seed, 4, 9, commtest.Everything()...))
		require.Less(t, i.Rank, 4)
		require.GreaterOrEqual(t, i.At.Seq, uint64(1))
		require.LessOrEqual(t, i.At.Seq, uint64(9))
		require.Contains(t, i.What.Moments(), i.When)
		seen[i.What] = true
		var back commtest.Incident
		b, err := json.Marshal(i)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(b, &back))
		require.Equal(t, i, back)
	}
	require.Len(t, seen, len(commtest.Everything()))
}

func TestTrials(t *testing.T) {
	const n = 3
	rng := rand.New(rand.NewPCG(1, 2))
	var trials []commtest.Trial
	for range 100 {
		trials = append(trials, commtest.RandomTrial(rng, n, 1000))
	}
	errs := make([]error, n)
	var ranks sync.WaitGroup
	for r, g := range comm.Local(n) {
		ranks.Go(func() {
			for _, trial := range trials {
				w, check := trial.Issue(g)
				if err := w.Wait(context.Background()); err != nil {
					errs[r] = err
					return
				}
				errs[r] = errors.Join(errs[r], check())
			}
		})
	}
	ranks.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

// What the other ranks see of one that gives up: an error that names it.
func ExampleInject() {
	gs := comm.Local(2)
	odd := commtest.Incident{What: commtest.Abort, When: commtest.Before, Rank: 1, At: commtest.Call{Label: "h.3"}}
	gs[1] = commtest.Inject(gs[1], func(i commtest.Incident) { fmt.Println(i) }, odd)

	x, y := []float32{1}, []float32{2}
	gs[1].AllReduce(comm.Of(y).Named("h.3"), comm.Sum)
	fmt.Println(gs[0].AllReduce(comm.Of(x).Named("h.3"), comm.Sum).Wait(context.Background()))
	// Output:
	// rank 1: abort before call "h.3"
	// comm: rank 1 of group "world": injected fault
}
