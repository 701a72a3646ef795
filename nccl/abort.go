package nccl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/internal/backoff"
)

const (
	// patience is how long Abort waits for a call in flight to end by itself: the calls
	// of NCCL return within microseconds, unless they wait for other ranks.
	patience = 100 * time.Millisecond
	// release is how long a call may take to return after its communicator was aborted.
	release = 10 * time.Second
)

// polling is how often a call that does not block is asked whether it has ended.
var polling = backoff.Policy{Yields: 20, Fraction: 2, Shortest: 5 * time.Microsecond, Longest: time.Millisecond}

// Abort stops the work of the communicator, makes calls on it return, and frees it. All
// ranks of a communicator that has failed must call it. Streams go on with their later
// work. It does nothing to a communicator that is closed.
//
// A call that hangs in NCCL gets a moment to return. Then Abort aborts NCCL from the
// thread of the caller, which makes NCCL release such a call.
func (c *Communicator) Abort() error {
	if c.closed.Swap(true) {
		return nil
	}
	if lockWithin(&c.mu, patience) {
		defer c.mu.Unlock()
		err := c.abort()
		c.slot.free()
		return err
	}
	err := c.abort()
	if !lockWithin(&c.mu, release) {
		return errors.Join(err, fmt.Errorf("nccl: rank %d of %d: a call still hangs %v after the communicator was aborted", c.rank, c.size, release))
	}
	defer c.mu.Unlock()
	if !c.stuck {
		c.slot.free()
	}
	return err
}

// wait makes a call that may wait for other ranks. If ctx ends first, it aborts the
// communicator, so that the call returns. The lock is held.
func (c *Communicator) wait(ctx context.Context, name string, call func() Result) error {
	done, early := make(chan Result, 1), c.slot.live()
	var claimed atomic.Bool // by the call that is about to be made, or by an earlier end of ctx
	go func() {
		if claimed.Swap(true) {
			done <- Success
			return
		}
		done <- call()
	}()
	select {
	case r := <-done:
		return c.settle(ctx, name, r)
	case <-ctx.Done():
	}
	mine := !c.closed.Swap(true) // or else Abort is at work
	err := c.ended(ctx, name)
	claimed.Store(true)
	if early { // abort could come before the call, which would find no communicator any more
		select {
		case <-done:
			done <- Success // for below
		case <-time.After(patience):
		}
	}
	limit, look := time.After(release), time.NewTicker(time.Millisecond)
	defer look.Stop()
	// The communicator can be aborted once the call has returned, or has made it.
	for aborted, returned := !mine, false; !returned || !aborted; {
		if !aborted && (returned || c.slot.live()) {
			aborted, err = true, errors.Join(err, c.abort())
			continue
		}
		select {
		case <-done:
			returned = true
		case <-look.C:
		case <-limit:
			c.stuck = true
			return errors.Join(err, fmt.Errorf("nccl: the call hangs %v after its communicator was aborted", release))
		}
	}
	if mine {
		c.slot.free()
	}
	return err
}

// settle waits for the end of a call that has returned r. On a non-blocking communicator
// the call is in progress on a thread of NCCL. The lock is held.
func (c *Communicator) settle(ctx context.Context, name string, r Result) error {
	for w := (backoff.Waiter{Policy: &polling}); r == InProgress; {
		if w.Pause(ctx.Done(), nil); ctx.Err() != nil {
			err := c.ended(ctx, name)
			if !c.closed.Swap(true) {
				err = errors.Join(err, c.abort())
				c.slot.free()
			}
			return err
		}
		if c.closed.Load() {
			return c.usable() // Abort waits for the lock
		}
		r = c.slot.async()
	}
	if c.closed.Load() {
		return c.usable() // Abort has made the call return
	}
	return c.result(name, r)
}

// ended returns the error of a call that ctx has ended.
func (c *Communicator) ended(ctx context.Context, name string) error {
	return fmt.Errorf("nccl: rank %d of %d: %s: %w", c.rank, c.size, name, context.Cause(ctx))
}

// abort aborts NCCL. The caller has set closed, and need not hold the lock.
func (c *Communicator) abort() error {
	if !c.slot.live() {
		return nil
	}
	r, detail := c.slot.abort()
	if r == Success || r == InProgress {
		return nil
	}
	return c.failure("ncclCommAbort", r, detail)
}

// discard aborts and frees a communicator that no caller has.
func (c *Communicator) discard() {
	if !c.closed.Swap(true) {
		c.abort() // ignore its error: the one before counts
		c.slot.free()
	}
}

// lockWithin locks mu if it becomes free within d.
func lockWithin(mu *sync.Mutex, d time.Duration) bool {
	for w := (backoff.Waiter{Policy: &polling}); !mu.TryLock(); w.Pause(nil, nil) {
		if w.Idle() > d {
			return false
		}
	}
	return true
}
