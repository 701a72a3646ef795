package nccl

import (
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/internal/backoff"
)

// waiting is the timing of checks of a stream: at first for about ten microseconds in all, then the
// rarer the longer it has taken.
var waiting = backoff.Policy{
	Yields: 20, Fraction: 2, Shortest: 5 * time.Microsecond, Longest: 100 * time.Microsecond,
}

// moment is how long a call of NCCL may take before look checks it, and settling how long a stream
// may go on after NCCL was aborted.
const (
	moment   = 50 * time.Millisecond
	settling = 10 * time.Second
)

// watchdog watches a call of NCCL. If the call does not return and there is a reason to give it up,
// look aborts the communicator, which makes it return. A call that ends within moment costs only
// setting a timer.
type watchdog struct {
	mu    sync.Mutex // held by look while it aborts, for which end waits
	timer *time.Timer
	busy  bool            // a call is being made
	quit  <-chan struct{} // of that call: closed when it is to be given up
	start time.Time       // of the collective
	ended bool            // look has aborted it
}

func (w *watchdog) begin(quit <-chan struct{}, start time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy, w.quit, w.start, w.ended = true, quit, start, false
	w.timer.Reset(moment)
}

// end reports whether the call was aborted.
func (w *watchdog) end() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy, w.quit = false, nil
	w.timer.Stop()
	return w.ended
}

// look checks the current call.
func (l *launcher) look() {
	w := &l.watchdog
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.busy {
		return
	}
	if time.Since(w.start) <= l.timeout && !closed(w.quit) && !closed(l.halt) {
		w.timer.Reset(moment)
		return
	}
	w.ended = true
	_ = l.communicator.Abort() // it matters only that the call returns
}
