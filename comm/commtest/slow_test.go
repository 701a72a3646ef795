package commtest_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
)

const (
	kibPerSecond = 1024.0
	lag          = 10 * time.Millisecond
)

// slowRanks runs f as every rank of n at once, in a bubble of fake time, behind
// links of 1 KiB/s with a latency of 10 ms.
func slowRanks(t *testing.T, n int, f func(t *testing.T, g comm.Group)) {
	synctest.Test(t, func(t *testing.T) {
		var ranks sync.WaitGroup
		for _, g := range comm.Local(n) {
			ranks.Go(func() { f(t, commtest.Slow(g, kibPerSecond, lag)) })
		}
		ranks.Wait()
	})
}

func kib(n int) comm.Buffer { return comm.Of(make([]uint8, n<<10)) }

func TestSlowContract(t *testing.T) {
	commtest.Contract{Sizes: []int{1, 2, 3, 4}}.Test(t, func(_ testing.TB, n int) []comm.Group {
		gs := comm.Local(n)
		for r, g := range gs {
			gs[r] = commtest.Slow(g, 100e9, time.Microsecond)
		}
		return gs
	})
}

// Every collective takes latency plus what a ring sends, to the nanosecond.
func TestSlowDurations(t *testing.T) {
	const full = 8 // KiB
	calls := []struct {
		name    string
		call    func(g comm.Group) comm.Work
		seconds func(n float64) float64
	}{
		{"all-gather", func(g comm.Group) comm.Work { return g.AllGather(kib(full), kib(full/g.Size())) },
			func(n float64) float64 { return full * (n - 1) / n }},
		{"reduce-scatter", func(g comm.Group) comm.Work { return g.ReduceScatter(kib(full/g.Size()), kib(full), comm.Max) },
			func(n float64) float64 { return full * (n - 1) / n }},
		{"all-to-all", func(g comm.Group) comm.Work { return g.AllToAll(kib(full), kib(full)) },
			func(n float64) float64 { return full * (n - 1) / n }},
		{"all-reduce", func(g comm.Group) comm.Work { return g.AllReduce(kib(full), comm.Max) },
			func(n float64) float64 { return 2 * full * (n - 1) / n }},
		{"broadcast", func(g comm.Group) comm.Work { return g.Broadcast(kib(full), 0) },
			func(n float64) float64 { return full * min(n-1, 1) }},
		{"barrier", func(g comm.Group) comm.Work { return work(g.Barrier) },
			func(float64) float64 { return 0 }},
		{"split", func(g comm.Group) comm.Work {
			return work(func(ctx context.Context) error {
				_, err := g.Split(ctx, 0, 0)
				return err
			})
		}, func(n float64) float64 { return 16 * (n - 1) / 1024 }},
	}
	for _, n := range []int{1, 2, 4} {
		for _, c := range calls {
			t.Run(fmt.Sprintf("%s/n=%d", c.name, n), func(t *testing.T) {
				slowRanks(t, n, func(t *testing.T, g comm.Group) {
					start := time.Now()
					w := c.call(g)
					require.Zero(t, time.Since(start), "issuing does not block")
					require.NoError(t, w.Wait(t.Context()))
					want := lag + time.Duration(c.seconds(float64(n))*float64(time.Second))
					require.Equal(t, want, time.Since(start))
					require.NoError(t, w.Wait(t.Context()))
					if c.name != "barrier" && c.name != "split" { // these are issued by waiting
						require.Equal(t, want, time.Since(start), "the second wait is free")
					}
				})
			})
		}
	}
}

// A gather keeps the links of the others busy with what they have, and the root's with all of that.
func TestSlowGather(t *testing.T) {
	counts, busy := []int{1 << 10, 3 << 10, 2 << 10}, []time.Duration{time.Second, 3 * time.Second, 4 * time.Second}
	slowRanks(t, 3, func(t *testing.T, g comm.Group) {
		start := time.Now()
		require.NoError(t, g.Gather(kib(6), kib(counts[g.Rank()]>>10), counts, 2).Wait(t.Context()))
		require.Equal(t, lag+busy[g.Rank()], time.Since(start))
	})
}

// work is a collective that is issued when it is waited for.
type work func(context.Context) error

func (w work) Wait(ctx context.Context) error { return w(ctx) }

// What a rank computes meanwhile costs nothing: Wait returns at the later of the two.
func TestSlowOverlaps(t *testing.T) {
	const transfer = lag + time.Second
	for _, compute := range []time.Duration{0, transfer / 2, transfer, 3 * transfer} {
		t.Run(compute.String(), func(t *testing.T) {
			slowRanks(t, 2, func(t *testing.T, g comm.Group) {
				start := time.Now()
				w := g.AllGather(kib(2), kib(1))
				time.Sleep(compute)
				require.NoError(t, w.Wait(t.Context()))
				require.Equal(t, max(compute, transfer), time.Since(start))
			})
		})
	}
}

// Collectives of both directions, and of split groups, follow each other on one link,
// which rests while there is nothing to carry. The order of the waits does not matter.
func TestSlowShares(t *testing.T) {
	const transfer = lag + time.Second
	slowRanks(t, 2, func(t *testing.T, g comm.Group) {
		child, err := g.Split(t.Context(), 0, 0)
		require.NoError(t, err)
		time.Sleep(time.Minute) // the link gets no credit for it
		start := time.Now()
		works := []comm.Work{
			g.AllGather(kib(2), kib(1)),
			g.ReduceScatter(kib(1), kib(2), comm.Max),
			child.AllGather(kib(2), kib(1)),
		}
		require.NoError(t, works[1].Wait(t.Context()))
		require.Equal(t, 2*transfer, time.Since(start))
		require.NoError(t, works[0].Wait(t.Context()))
		require.Equal(t, 2*transfer, time.Since(start))
		require.NoError(t, works[2].Wait(t.Context()))
		require.Equal(t, 3*transfer, time.Since(start))
	})
}

// A rank that comes late is waited for; its own link then takes its time.
func TestSlowWaitsForRanks(t *testing.T) {
	const transfer, delay = lag + time.Second, 5 * time.Second
	slowRanks(t, 2, func(t *testing.T, g comm.Group) {
		start := time.Now()
		time.Sleep(time.Duration(g.Rank()) * delay)
		w := g.AllGather(kib(2), kib(1))
		require.NoError(t, w.Wait(t.Context()))
		require.Equal(t, delay+time.Duration(g.Rank())*transfer, time.Since(start))
	})
}

// Who gives up on his link fails the group at that moment, and says so to whoever
// asks again; who has passed his own before keeps his answer.
func TestSlowGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("deadline of the step")
		gs := comm.Local(2)
		quick, slow := gs[0], commtest.Slow(gs[1], kibPerSecond, lag)
		ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, cause)
		defer cancel()
		other, given := quick.AllGather(kib(2), kib(1)), slow.AllGather(kib(2), kib(1))

		start := time.Now()
		for _, err := range []error{given.Wait(ctx), given.Wait(t.Context()), slow.Barrier(t.Context()), quick.Barrier(t.Context())} {
			var blame *comm.RankError
			require.ErrorAs(t, err, &blame)
			require.Equal(t, 1, blame.Rank)
			require.ErrorIs(t, err, cause)
		}
		require.Equal(t, 300*time.Millisecond, time.Since(start))
		require.NoError(t, other.Wait(t.Context()), "all ranks had issued it, and this one has no link")
	})
}

// All who wait for one collective hear the same, at the same time.
func TestSlowTellsAll(t *testing.T) {
	slowRanks(t, 1, func(t *testing.T, g comm.Group) {
		w, start := g.AllGather(kib(1), kib(1)), time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), lag/2)
		defer cancel()
		var waiters sync.WaitGroup
		for _, ctx := range []context.Context{ctx, t.Context()} {
			waiters.Go(func() {
				require.ErrorIs(t, w.Wait(ctx), context.DeadlineExceeded)
				require.Equal(t, lag/2, time.Since(start))
			})
		}
		waiters.Wait()
	})
}

// A context that ends when the link has carried everything ends nothing.
func TestSlowIsDone(t *testing.T) {
	slowRanks(t, 1, func(t *testing.T, g comm.Group) {
		ctx, cancel := context.WithCancel(t.Context())
		waited, idle := g.AllGather(kib(1), kib(1)), g.AllGather(kib(1), kib(1))
		require.NoError(t, waited.Wait(ctx))
		time.Sleep(lag)
		cancel()
		require.NoError(t, waited.Wait(ctx))
		require.NoError(t, idle.Wait(ctx))
		_, err := g.Split(ctx, 0, 0)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, g.Barrier(t.Context()), context.Canceled)
	})
}

// A failure of the group is not held up by the link.
func TestSlowFails(t *testing.T) {
	cause := errors.New("out of coffee")
	slowRanks(t, 2, func(t *testing.T, g comm.Group) {
		start := time.Now()
		if g.Rank() == 1 {
			time.Sleep(time.Millisecond)
			g.Abort(cause)
		}
		require.ErrorIs(t, g.AllReduce(kib(1), comm.Max).Wait(t.Context()), cause)
		require.Equal(t, time.Millisecond, time.Since(start))
	})
}

// Odd links: no limit at all, a latency below nothing, and one that carries
// nothing in a lifetime, but takes no longer than others where there is nothing to carry.
func TestSlowLimits(t *testing.T) {
	for _, unlimited := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		synctest.Test(t, func(t *testing.T) {
			require.Zero(t, reduceTime(t, unlimited, 0, time.Minute))
		})
	}
	synctest.Test(t, func(t *testing.T) {
		require.Equal(t, time.Second, reduceTime(t, kibPerSecond, -time.Minute, time.Minute))
	})
	synctest.Test(t, func(t *testing.T) {
		const year = 365 * 24 * time.Hour
		require.Equal(t, year, reduceTime(t, math.SmallestNonzeroFloat64, math.MaxInt64, year))
	})
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		require.NoError(t, commtest.Slow(comm.Local(1)[0], math.SmallestNonzeroFloat64, lag).Barrier(t.Context()))
		require.Equal(t, lag, time.Since(start))
	})
}

// reduceTime is how long one of two ranks, whose link is slow, waits for an
// all-reduce of a KiB before it is done or gives up.
func reduceTime(t *testing.T, bytesPerSecond float64, latency, patience time.Duration) time.Duration {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	gs, start := comm.Local(2), time.Now()
	gs[1].AllReduce(kib(1), comm.Max)
	err := commtest.Slow(gs[0], bytesPerSecond, latency).AllReduce(kib(1), comm.Max).Wait(ctx)
	require.ErrorIs(t, err, ctx.Err())
	return time.Since(start)
}

// allocating is a group with memory of its own, and so are those split from it.
type allocating struct {
	comm.Group
	comm.Allocator
}

func (a allocating) Split(ctx context.Context, color, key int) (comm.Group, error) {
	child, err := a.Group.Split(ctx, color, key)
	return allocating{child, a.Allocator}, err
}

type heap struct{ live int }

func (h *heap) Alloc(n int) ([]byte, error) { h.live++; return make([]byte, n), nil }
func (h *heap) Free([]byte) error           { h.live--; return nil }

// The result allocates what the group would; it does not claim to if that does not.
func TestSlowAllocates(t *testing.T) {
	plain := comm.Local(1)[0]
	_, ok := commtest.Slow(plain, 0, 0).(comm.Allocator)
	require.False(t, ok)

	h := &heap{}
	g := commtest.Slow(allocating{plain, h}, 0, 0)
	child, err := g.Split(t.Context(), 0, 0)
	require.NoError(t, err)
	for i, each := range []comm.Group{g, child} {
		b, err := each.(comm.Allocator).Alloc(64)
		require.NoError(t, err)
		require.Len(t, b, 64)
		require.Equal(t, i+1, h.live)
	}
	require.NoError(t, child.(comm.Allocator).Free(nil))
	require.Equal(t, 1, h.live)
	none, err := commtest.Slow(plain, 0, 0).Split(t.Context(), -1, 0)
	require.NoError(t, err)
	require.Nil(t, none)
}
