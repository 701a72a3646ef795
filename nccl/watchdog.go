package nccl

import (
	"sync"
	"time"
)

// pause sleeps between looks, the longer the more there have been.
type pause struct {
	timer *time.Timer
	next  time.Duration
}

const (
	shortest = 5 * time.Microsecond
	longest  = 100 * time.Microsecond
)

func newPause() pause {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return pause{t, shortest}
}

func (p *pause) reset() { p.next = shortest }

// sleep ends early if quit or halt is closed.
func (p *pause) sleep(quit, halt <-chan struct{}) {
	p.timer.Reset(p.next)
	p.next = min(2*p.next, longest)
	select {
	case <-p.timer.C:
	case <-quit:
		p.timer.Stop()
	case <-halt:
		p.timer.Stop()
	}
}

// moment is how long a call of NCCL may take before somebody looks after it, and
// settling how long a stream may go on when NCCL was told to abort.
const (
	moment   = 50 * time.Millisecond
	settling = 10 * time.Second
)

// hang is about a call of NCCL that is being made. If it does not return, look aborts
// the communicator, which makes it return, when there is a reason to. A call that is
// over in a moment costs nothing but setting a timer.
type hang struct {
	mu    sync.Mutex // held by look while it aborts
	timer *time.Timer
	busy  bool            // a call is being made
	quit  <-chan struct{} // closed when it is to be given up
	start time.Time       // of the collective
	ended bool            // look has aborted it
}

func (h *hang) begin(quit <-chan struct{}, start time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.busy, h.quit, h.start, h.ended = true, quit, start, false
	h.timer.Reset(moment)
}

// end reports whether the call was aborted.
func (h *hang) end() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.busy, h.quit = false, nil
	h.timer.Stop()
	return h.ended
}

// look looks after the call that is being made.
func (b *backend) look() {
	h := &b.hang
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.busy {
		return
	}
	over := time.Since(h.start) > b.cfg.Timeout
	select {
	case <-h.quit:
		over = true
	case <-b.halt:
		over = true
	default:
	}
	if !over {
		h.timer.Reset(moment)
		return
	}
	h.ended = true
	_ = b.communicator.Abort() // it matters only that the call returns
}

// giveUp aborts the communicator, and returns when the stream has come past what it was
// given, so that buffers are the caller's again.
func (b *backend) giveUp() {
	b.torn = true
	_ = b.communicator.Abort() // whatever it says, there is an error before
	if b.stream == nil {
		return // it was never used
	}
	end := time.Now().Add(settling)
	for b.pause.reset(); ; b.pause.sleep(nil, nil) {
		idle, err := b.stream.Query()
		if idle || err != nil {
			return
		}
		if time.Now().After(end) {
			b.stuck = true
			return
		}
	}
}
