// Package limit ends waits that take too long.
//
// An operation fails if nothing has arrived from the ranks that it waits for within the group's
// limit: Timeout in the Config of package comm, FSDP_TIMEOUT. Only time in which this process ran
// counts, see [backoff.Waiter.Idle]: a job that is stopped as a whole, or whose machine is
// suspended, goes on as if nothing had happened. A rank that computes cannot be distinguished from
// one that hangs, so the limit is minutes. It is the last resort: the section Failures in the
// documentation of package comm lists the failures that are detected earlier. Goroutine ranks have
// the same limit.
package limit

import (
	"context"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/backoff"
)

// Default is the limit if the user sets none.
const Default = 10 * time.Minute

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

// Watch calls look with the time waited so far, several times within limit and then on, until stop.
// When stop returns, look is not called any more; look must not call stop.
func Watch(limit time.Duration, look func(waited time.Duration)) (stop func()) {
	w := &watch{look: look, often: min(limit/4, tick)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiter.Idle()
	w.timer = time.AfterFunc(w.often, w.run)
	return w.stop
}

func (w *watch) run() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.look(w.waiter.Idle())
		w.timer.Reset(w.often)
	}
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
}

// Context returns a context that ends with [transport.ErrTimeout] after limit. done releases it.
func Context(ctx context.Context, limit time.Duration) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := Watch(limit, func(waited time.Duration) {
		if waited >= limit {
			cancel(transport.NoProgress(limit))
		}
	})
	return ctx, func() { stop(); cancel(nil) }
}
