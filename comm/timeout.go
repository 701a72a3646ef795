package comm

import (
	"context"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/backoff"
)

// How long is too long
//
// An operation fails if nothing has arrived from the ranks that it waits for within the group's
// limit: [Config].Timeout, FSDP_TIMEOUT. Only time in which this process ran counts, see
// [backoff.Waiter.Idle]: a job that is stopped as a whole, or whose machine is suspended, goes on
// as if nothing had happened. A rank that computes cannot be distinguished from one that hangs, so
// the limit is minutes. It is the last resort: the section Failures in the documentation of the
// package lists what is known earlier. Goroutine ranks have the same limit, see team.look.

// defaultTimeout is the limit if the user sets none.
const defaultTimeout = 10 * time.Minute

// tick is the interval between checks of a wait that only the limit can end.
const tick = time.Second

// watch calls look with the time waited since it began, again and again until stop.
type watch struct {
	look  func(waited time.Duration) // must not come back to the watch
	often time.Duration

	mu     sync.Mutex
	waiter backoff.Waiter
	timer  *time.Timer
	over   bool
}

// startWatch begins a watch of a wait that ends after limit.
func startWatch(limit time.Duration, look func(waited time.Duration)) *watch {
	w := &watch{look: look, often: min(limit/4, tick)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiter.Idle()
	w.timer = time.AfterFunc(w.often, w.run)
	return w
}

func (w *watch) run() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.look(w.waiter.Idle())
		w.timer.Reset(w.often)
	}
}

// stop returns when look is not called any more.
func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
}

// withLimit returns a context that ends with ErrTimeout after limit. done releases it.
func withLimit(ctx context.Context, limit time.Duration) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := startWatch(limit, func(waited time.Duration) {
		if waited >= limit {
			cancel(transport.NoProgress(limit))
		}
	})
	return ctx, func() { w.stop(); cancel(nil) }
}

// eager is how long a rank polls and yields before it sleeps: longer than most waits in training.
// Waking up takes 50 µs, and once all goroutines of a process have slept, the scheduler's monitor
// checks every 20 µs for a millisecond, each time at the cost of two switches.
const eager = time.Millisecond
