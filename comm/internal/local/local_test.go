package local

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/stretchr/testify/require"
)

const defaultLimit = 10 * time.Minute

func groups(n int) []transport.Group { return New(n, defaultLimit) }

func TestLocalWithoutRanks(t *testing.T) {
	require.Empty(t, groups(0))
	require.Empty(t, groups(-1))
}

// TestLocalTimeout: goroutine ranks give up a rank that hangs after the same time as
// processes, and name it. Until then a rank may compute.
func TestLocalTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		errs := grouptest.PerRank(groups(3), func(g transport.Group) error {
			if g.Rank() == 1 {
				<-time.After(defaultLimit - time.Minute)
			}
			if err := g.AllReduce(grouptest.Floats(8), transport.Sum).Wait(context.Background()); err != nil {
				return err
			}
			if g.Rank() == 2 {
				<-time.After(time.Hour)
			}
			return g.AllGather(grouptest.Floats(6), grouptest.Floats(2)).Wait(context.Background())
		})
		for r, err := range errs {
			require.EqualErrorf(t, err, `comm: rank 2 of group "world": rank 0 waited for ranks [2] in all-gather #2 "h.3": `+
				`no progress for 10m0s (the limit is FSDP_TIMEOUT, or Config.Timeout); rank 2 has issued 1 collectives`, "rank %d", r)
			require.ErrorIs(t, err, transport.ErrTimeout)
		}
		require.Equal(t, time.Hour+defaultLimit-time.Minute, time.Since(start))
	})
}

// TestLocalArrivalIsProgress: ranks may arrive one after another, each just in time.
func TestLocalArrivalIsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, err := range grouptest.PerRank(groups(4), func(g transport.Group) error {
			for range 3 {
				<-time.After(time.Duration(g.Rank()) * (defaultLimit - time.Minute))
				if err := g.Barrier(context.Background()); err != nil {
					return err
				}
			}
			return nil
		}) {
			require.NoError(t, err)
		}
	})
}

// A rank that waits past its deadline says for whom, and takes the others along
// although they would have waited for longer.
func TestDeadlineNamesTheMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := groups(4)
		start := time.Now()
		errs := grouptest.PerRank(gs, func(g transport.Group) error {
			ctx := context.Background()
			switch g.Rank() {
			case 1, 3:
				<-time.After(2 * time.Hour) // hung
			case 0:
				deadline, cancel := context.WithTimeout(ctx, defaultLimit/2)
				defer cancel()
				ctx = deadline
			}
			for range 2 { // the second answer is the first
				if err := g.AllGather(grouptest.Floats(8), grouptest.Floats(2)).Wait(ctx); err != nil {
					return err
				}
			}
			return nil
		})
		for r, err := range errs {
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.EqualErrorf(t, err, `comm: rank 0 of group "world": waiting for ranks [1 3] in all-gather #1 "h.3": context deadline exceeded`, "rank %d", r)
		}
		require.Equal(t, 2*time.Hour, time.Since(start))
	})
}

// Waiters are parked when the operation, the abort or the close comes.
func TestParkedWaitersWake(t *testing.T) {
	cause := errors.New("no more")
	for name, c := range map[string]struct {
		last func(transport.Group) error // what rank 2 does when the others are parked
		want error                       // of the other ranks
	}{
		"operation": {func(g transport.Group) error { return g.Barrier(context.Background()) }, nil},
		"abort":     {func(g transport.Group) error { g.Abort(cause); return nil }, cause},
		"nil abort": {func(g transport.Group) error { g.Abort(nil); return nil }, &transport.RankError{Group: "world", Rank: 2, Err: errors.New("aborted")}},
		"close":     {func(g transport.Group) error { return g.Close() }, transport.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gs := groups(3)
				errs := grouptest.PerRank(gs, func(g transport.Group) error {
					if g.Rank() == 2 {
						synctest.Wait()
						return c.last(g)
					}
					return g.Barrier(context.Background())
				})
				require.NoError(t, errs[2])
				for _, err := range errs[:2] {
					if re := (*transport.RankError)(nil); errors.As(c.want, &re) {
						require.Equal(t, re, err)
					} else {
						require.ErrorIs(t, err, c.want)
					}
				}
			})
		})
	}
}

// A parked waiter does the work when the rank it waited for only issues.
func TestParkedWaiterWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs, x, y := groups(2), []float32{1}, []float32{2}
		parked := make(chan error)
		go func() { parked <- gs[0].AllReduce(transport.Of(x), transport.Sum).Wait(t.Context()) }()
		synctest.Wait()
		gs[1].AllReduce(transport.Of(y), transport.Sum)
		require.NoError(t, <-parked)
		require.Equal(t, [2]float32{3, 3}, [2]float32{x[0], y[0]})
	})
}

// A waiter whose context ends, but who is woken before it can give up, has its
// result, and leaves its channel as the next one needs it.
func TestCancelMeetsWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := groups(2)
		team, last := gs[0].(*local).team, gs[1].(*local)
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			parked := make(chan error)
			go func() { parked <- gs[0].Barrier(ctx) }()
			synctest.Wait()
			team.mu.Lock()
			cancel() // now the waiter is on its way, but not past the lock
			_, err := last.enter(transport.Call{Kind: transport.KindBarrier}, nil)
			team.mu.Unlock()
			require.NoError(t, err)
			require.NoError(t, <-parked)
		}
	})
}

// An operation that all have issued cannot be cancelled, aborted or closed away.
func TestReadyCompletes(t *testing.T) {
	gs := groups(2)
	x, y := []float32{1}, []float32{2}
	w0, w1 := gs[0].AllReduce(transport.Of(x), transport.Sum), gs[1].AllReduce(transport.Of(y), transport.Sum)
	gs[1].Abort(errors.New("late"))
	require.NoError(t, gs[1].Close()) // does rank 0's part as well: it may use its memory now
	require.Equal(t, []float32{3}, x)
	require.Equal(t, []float32{3}, y)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, w0.Wait(ctx))
	require.NoError(t, w1.Wait(ctx))
	require.ErrorContains(t, gs[0].Barrier(ctx), "rank 1 of group \"world\": late")
	require.ErrorIs(t, gs[1].Barrier(ctx), transport.ErrClosed)
}

// A rank that waits early does the work of a rank that computes.
func TestEarlyWaiterDoesTheWork(t *testing.T) {
	gs := groups(2)
	dst := [2]transport.Buffer{grouptest.Floats(1 << 20), grouptest.Floats(1 << 20)}
	var works [2]transport.Work
	for r, g := range gs {
		half := grouptest.Floats(1 << 19)
		half.Bytes()[3] = byte(r + 1)
		works[r] = g.AllGather(dst[r], half)
	}
	require.NoError(t, works[0].Wait(context.Background()))
	require.Equal(t, byte(2), dst[1].Bytes()[3+1<<21]) // rank 1 has not waited yet
	require.NoError(t, works[1].Wait(context.Background()))
}

// Both messages are part of the interface: people read them.
func TestErrorTexts(t *testing.T) {
	gs := groups(3)
	w0 := gs[0].AllGather(grouptest.Floats(6), grouptest.Floats(2))
	w2 := gs[2].ReduceScatter(grouptest.Floats(1), grouptest.Floats(3), transport.Max)
	const mismatch = `comm: collective #1 of group "world": rank 0 calls all-gather float32[6] "h.3", rank 2 calls reduce-scatter float32[3] max "h.3": all ranks must make the same calls in the same order`
	require.EqualError(t, w0.Wait(context.Background()), mismatch)
	require.EqualError(t, w2.Wait(context.Background()), mismatch)
	require.EqualError(t, gs[1].Barrier(context.Background()), mismatch)

	gs = groups(2)
	err := gs[1].Broadcast(grouptest.Floats(4), 2).Wait(context.Background())
	require.EqualError(t, err, `comm: rank 1 of group "world": invalid call: broadcast float32[4] from 2 "h.3": root 2 is not in [0, 2)`)
	err = groups(2)[0].AllGather(grouptest.Floats(5), grouptest.Floats(2)).Wait(context.Background())
	require.EqualError(t, err, `comm: rank 0 of group "world": invalid call: all-gather float32[5] "h.3": dst has 5 elements, want 2 ranks * 2 of src`)
}

// Any number of operations may be pending, and records are used again.
func TestRunAhead(t *testing.T) {
	const ahead = 1000
	gs := groups(2)
	for range 3 {
		var works [2][]transport.Work
		x := [2][]int32{make([]int32, ahead), make([]int32, ahead)}
		for r, g := range gs { // rank 0 issues all before rank 1 issues one
			for i := range ahead {
				works[r] = append(works[r], g.AllReduce(transport.Of(x[r][i:i+1]), transport.Sum))
				x[r][i] = int32(i)
			}
		}
		for i := range works[0] {
			require.NoError(t, works[1][ahead-1-i].Wait(context.Background()))
			require.NoError(t, works[0][i].Wait(context.Background()))
		}
		for i := range ahead {
			require.Equal(t, [2]int32{int32(2 * i), int32(2 * i)}, [2]int32{x[0][i], x[1][i]})
		}
	}
	team := gs[0].(*local).team
	require.Len(t, team.free, ahead)
	require.Empty(t, team.live)
}

// Records drop the buffers of finished and failed operations; a split leaves
// nothing behind once its groups are closed.
func TestNothingIsKept(t *testing.T) {
	gs := groups(2)
	for _, err := range grouptest.PerRank(gs, func(g transport.Group) error {
		for range 3 {
			sub, err := g.Split(context.Background(), 0, 0)
			if err != nil {
				return err
			}
			if err := sub.Close(); err != nil {
				return err
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
	team := gs[0].(*local).team
	require.Empty(t, team.splits)
	require.Empty(t, team.children)
	noBuffers := func() {
		t.Helper()
		for _, o := range append(team.live, team.free...) {
			require.Equal(t, make([]transport.Call, 2), o.Calls)
		}
	}
	noBuffers()
	gs[0].AllReduce(grouptest.Floats(1), transport.Sum)
	gs[1].Abort(nil)
	noBuffers()
}

// In steady state a collective allocates nothing.
func TestAllocations(t *testing.T) {
	ctx := context.Background()
	const runs = 200
	for _, n := range []int{1, 2, 5} {
		gs := groups(n)
		program := func(g transport.Group) func() {
			whole, shard, counts := grouptest.Floats(n*3000), grouptest.Floats(3000), slices.Repeat([]int{3000}, n)
			return func() {
				ws := [...]transport.Work{
					g.AllGather(whole, shard), g.ReduceScatter(shard, whole, transport.Avg),
					g.AllReduce(whole, transport.Sum), g.Broadcast(shard, n-1), g.Gather(whole, shard, counts, n/2),
				}
				for _, w := range ws {
					if err := w.Wait(ctx); err != nil {
						panic(err)
					}
				}
				if err := g.Barrier(ctx); err != nil {
					panic(err)
				}
			}
		}
		var others sync.WaitGroup
		for _, g := range gs[1:] {
			others.Go(func() {
				f := program(g)
				for range runs + 1 { // one to warm up, as AllocsPerRun does
					f()
				}
			})
		}
		allocs := testing.AllocsPerRun(runs, program(gs[0]))
		others.Wait()
		require.Zerof(t, allocs, "%d ranks", n)
	}
}

// TestLocalOtherNeverWaits: the last rank issues its part between another's look and the moment
// that one goes to sleep, and never waits, as one does not whose pass has failed. Whoever wanted
// to sleep executes the collective.
func TestLocalOtherNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := groups(2)
		issue := func(rank int) handle {
			h, err := gs[rank].(*local).issue(transport.Call{Kind: transport.KindAllGather, Dst: grouptest.Floats(2), Src: grouptest.Floats(1)})
			require.NoError(t, err)
			return h
		}
		waits := issue(1)
		require.Equal(t, pending, waits.o.phase(waits.seq))
		issue(0)
		require.NoError(t, waits.park(t.Context()))
		require.NoError(t, waits.Wait(t.Context()))
		grouptest.CloseRanks(t, gs)
	})
}
