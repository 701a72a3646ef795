package nccl

import (
	"context"
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/backoff"
)

// # Giving up
//
// A collective is given up when its context ends, when the group fails (halt is closed), or after
// GroupConfig.Timeout. await notices that between two checks. look, on another thread, aborts a
// call of NCCL that does not return, which makes it return. Either way Run goes on to broken, which
// reports to the other ranks and waits, in abort, until the stream has executed all its work. Only
// then does Run return, so that no buffer is touched after an operation has returned its error. A
// stream that still does not end is stuck: release frees nothing that it may use, and reports that.

// launcher gives work to NCCL, waits until the stream has executed it, and aborts work that does
// not end. One goroutine at a time uses it, the goroutine of Run or of Leave, except for look.
type launcher struct {
	communicator *Communicator   // nil until the group is connected
	stream       *Stream         // of the collectives and of nothing else; nil until prepared
	timeout      time.Duration   // of a collective, from its start
	halt         <-chan struct{} // the group's: all waits end
	wait         backoff.Waiter
	watchdog     watchdog
	aborted      bool // abort was called: there was a failure, and nothing can be launched any more
	stuck        bool // even so the stream has not come to its end: what it may use is never freed
}

func newLauncher(communicator *Communicator, timeout time.Duration, halt <-chan struct{}) *launcher {
	l := &launcher{communicator: communicator, timeout: timeout, halt: halt, wait: backoff.Waiter{Policy: &waiting}}
	l.watchdog.timer = time.AfterFunc(moment, l.look)
	l.watchdog.timer.Stop() // if it runs before that, it finds no call
	return l
}

// launch enqueues operations of NCCL. The call is given up like any other wait.
func (l *launcher) launch(ctx context.Context, start time.Time, ops []Op) error {
	if len(ops) == 0 {
		return nil
	}
	l.watchdog.begin(ctx.Done(), start)
	err := l.communicator.Group(ops, l.stream.Handle())
	if l.watchdog.end() {
		return l.overdue(ctx, start)
	}
	return err
}

// overdue returns the reason to stop waiting for a collective that began at start, or nil.
func (l *launcher) overdue(ctx context.Context, start time.Time) error {
	select {
	case <-l.halt:
		return errHalted
	case <-ctx.Done():
		return context.Cause(ctx)
	default:
	}
	if time.Since(start) > l.timeout {
		return fmt.Errorf("%w of NCCL for %v", comm.ErrTimeout, l.timeout)
	}
	return nil
}

// await waits until the stream has reached e and NCCL has had no failure.
func (l *launcher) await(ctx context.Context, start time.Time, e *Event) error {
	for l.wait.Reset(); ; {
		reached, err := e.Query()
		if err != nil {
			return err
		}
		if !reached && l.wait.Rest() {
			continue
		}
		if err := l.communicator.AsyncError(); err != nil || reached { // a stream also passes failed work
			return err
		}
		if err := l.overdue(ctx, start); err != nil {
			return err
		}
		l.wait.Sleep(ctx.Done(), l.halt)
	}
}

// abort aborts the communicator, and returns when the stream has executed its work, so that buffers
// are the callers' again.
func (l *launcher) abort() {
	l.aborted = true
	_ = l.communicator.Abort() // ignore its error, there is one before
	if l.stream == nil {
		return // it was never used
	}
	end := time.Now().Add(settling)
	for l.wait.Reset(); ; l.wait.Pause(nil, nil) {
		idle, err := l.stream.Query()
		if idle || err != nil {
			return
		}
		if time.Now().After(end) {
			l.stuck = true
			return
		}
	}
}

// destroy ends the communicator together with the other ranks.
func (l *launcher) destroy() error {
	ctx, cancel := context.WithTimeout(context.Background(), settling)
	defer cancel()
	err := l.communicator.Finalize(ctx)
	if err == nil {
		err = l.communicator.Destroy()
	}
	if err != nil {
		l.abort()
	}
	return err
}
