package comm

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/stretchr/testify/require"
)

var errDisk = errors.New("disk full")

// ended waits until the run is over for this rank and returns why.
func ended(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestRunRefuses(t *testing.T) {
	never := func(context.Context, Group) error { panic("called") }
	require.EqualError(t, Run(context.Background(), 0, never), "comm: cannot run 0 ranks, want at least 1")
	for _, size := range []string{"2", "nonsense"} { // without a rank, or anything else
		t.Setenv("WORLD_SIZE", size)
		require.ErrorContains(t, Run(context.Background(), 2, never), "WORLD_SIZE")
	}
}

// TestRunTimeout: goroutine ranks have the limit of processes.
func TestRunTimeout(t *testing.T) {
	bare(t)
	limits := func() (limits [2]time.Duration) {
		require.NoError(t, Run(context.Background(), 2, func(ctx context.Context, g Group) error {
			child, err := g.Split(ctx, 0, 0)
			limits[g.Rank()] = transport.Timeout(child)
			return err
		}))
		return limits
	}
	require.Equal(t, [2]time.Duration{10 * time.Minute, 10 * time.Minute}, limits())
	t.Setenv("FSDP_TIMEOUT", "90s")
	require.Equal(t, [2]time.Duration{90 * time.Second, 90 * time.Second}, limits())
}

// TestRunSaysForWhomItWaits: of a failure that Run cannot return yet, as a rank goes on, it tells.
func TestRunSaysForWhomItWaits(t *testing.T) {
	log := captureDefault(t)
	synctest.Test(t, func(t *testing.T) {
		err := run(t.Context(), Local(3), func(_ context.Context, g Group) error {
			switch g.Rank() {
			case 0:
				return errDisk
			case 1:
				time.Sleep(lateAfter + lateAgain + time.Second)
			}
			return nil
		})
		require.ErrorIs(t, err, errDisk)
	})
	require.Equal(t, 2, strings.Count(log(), `failure="rank 0: disk full" "waits for ranks"=[1]`), log())
}

// The failure that started it is reported, whatever the others make of it.
func TestRunReportsTheFirstFailure(t *testing.T) {
	for name, f := range map[string]func(context.Context, Group) error{
		"others wait for the context": func(ctx context.Context, g Group) error {
			if g.Rank() == 2 {
				return errDisk
			}
			return ended(ctx)
		},
		"others wait without a context": func(_ context.Context, g Group) error {
			if g.Rank() == 2 {
				return errDisk
			}
			return g.Barrier(context.Background())
		},
		"others wait in a split group": func(ctx context.Context, g Group) error {
			sub, err := g.Split(ctx, 0, 0)
			if g.Rank() == 2 {
				return errors.Join(err, errDisk)
			}
			return errors.Join(err, sub.Barrier(context.Background()))
		},
		"closed on the way out": func(ctx context.Context, g Group) error {
			if g.Rank() == 2 {
				err := g.Close()
				synctest.Wait() // the others have failed by now
				return errors.Join(err, errDisk)
			}
			return fmt.Errorf("step 3: %w", g.Barrier(ctx))
		},
		"aborted, then told": func(ctx context.Context, g Group) error {
			if g.Rank() == 2 {
				g.Abort(errDisk)
				synctest.Wait()
				return errDisk
			}
			return g.Barrier(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := Run(t.Context(), 4, f)
				require.ErrorIs(t, err, errDisk)
				require.Regexp(t, `^rank 2: .*`, err.Error())
			})
		})
	}
}

// Peers learn the cause from the operation they were waiting for.
func TestRunTellsPeers(t *testing.T) {
	var told error
	err := Run(context.Background(), 2, func(_ context.Context, g Group) error {
		if g.Rank() == 1 {
			return errDisk
		}
		told = g.Barrier(context.Background())
		return nil
	})
	require.EqualError(t, err, "rank 1: disk full")
	require.Equal(t, &RankError{Group: "world", Rank: 1, Err: errDisk}, told)
}

// An error that names its rank is left as it is.
func TestRunNamesOnce(t *testing.T) {
	for _, text := range []string{"model: rank 1: disk full", "rank 1: disk full"} {
		err := Run(context.Background(), 2, func(_ context.Context, g Group) error {
			if g.Rank() == 1 {
				return errors.New(text)
			}
			return nil
		})
		require.EqualError(t, err, text)
	}
	err := Run(context.Background(), 1, func(context.Context, Group) error { return errors.New("rank 1: disk full") })
	require.EqualError(t, err, "rank 0: rank 1: disk full")
}

// A rank that leaves without being missed, and ends because the others fail, did
// not cause more than it is blamed for.
func TestRunBlamedButCancelled(t *testing.T) {
	err := Run(context.Background(), 2, func(ctx context.Context, g Group) error {
		if g.Rank() == 1 {
			g.Close()
			<-ctx.Done()
			return ctx.Err()
		}
		return g.Barrier(ctx)
	})
	require.EqualError(t, err, `rank 0: comm: rank 1 of group "world": group closed`)
}

// A rank that returns early without error strands the others: they report it.
func TestRunEarlyReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := Run(t.Context(), 2, func(ctx context.Context, g Group) error {
			if g.Rank() == 1 {
				return nil
			}
			return g.Barrier(ctx)
		})
		require.EqualError(t, err, `rank 0: comm: rank 1 of group "world": group closed`)
	})
}

func TestRunPanics(t *testing.T) {
	for name, c := range map[string]struct {
		f    func()
		want string
	}{
		"value": {func() { panic("lost") }, `^rank 1: panic: lost\n(?s).*goroutine`},
		"error": {func() { panic(errDisk) }, `^rank 1: panic: disk full\n(?s).*goroutine`},
		"exit":  {func() { runtime.Goexit() }, `^rank 1: goroutine ended without returning$`},
	} {
		t.Run(name, func(t *testing.T) {
			var returned atomic.Int32
			err := Run(context.Background(), 3, func(ctx context.Context, g Group) error {
				defer returned.Add(1)
				if g.Rank() == 1 {
					c.f()
				}
				return g.Barrier(context.Background())
			})
			require.Regexp(t, c.want, err.Error())
			require.EqualValues(t, 3, returned.Load(), "ranks that have returned")
			if name == "error" {
				require.ErrorIs(t, err, errDisk)
			}
		})
	}
}

// The caller's context reaches the ranks, and its end is the failure.
func TestRunCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	err := Run(ctx, 3, func(ctx context.Context, g Group) error {
		if g.Rank() == 0 {
			cancel(errDisk)
			return ended(ctx)
		}
		return g.Barrier(ctx)
	})
	require.ErrorIs(t, err, errDisk)
}
