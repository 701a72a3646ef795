package gpu

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/backoff"
	"github.com/gofsdp/gofsdp/nccl"
)

const (
	// hearsay is how long a rank waits for the report of another rank, if that rank caused the
	// failure of its communicator.
	hearsay = 5 * time.Second
	// settling is how long streams may run after the communicators were aborted.
	settling = 10 * time.Second
)

// spareCores is how many cores a rank has at least if the host may poll the device without
// sleeping: one for that, and enough for the rank's other goroutines.
const spareCores = 4

// These policies say how often the device is polled. The host waits for await: constantly if it has
// cores to spare, as CUDA's own default is. It does not wait for the watch.
var (
	waiting = backoff.Policy{
		Spins: 2000, Eager: 200 * time.Microsecond, Fraction: 16, Shortest: 5 * time.Microsecond, Longest: time.Millisecond,
	}
	waitingAwake = backoff.Policy{
		Spins: 2000, Eager: 2 * time.Second, Fraction: 16, Shortest: 5 * time.Microsecond, Longest: time.Millisecond,
	}
	watching = backoff.Policy{Fraction: 16, Shortest: time.Millisecond, Longest: 20 * time.Millisecond}
)

// waiters are the waiters of await.
var waiters = sync.Pool{New: func() any { return new(backoff.Waiter) }}

// policy returns how await polls.
func (d *Device) policy() *backoff.Policy {
	if d.o.Cores >= spareCores {
		return &waitingAwake
	}
	return &waiting
}

// A place is an event, or the present end of a stream.
type place interface{ Query() (done bool, err error) }

// wait is await without cancellation.
func (d *Device) wait(p place) error { return d.await(context.Background(), p) }

// await waits until p is reached, the device has ended, or ctx has. Only a failure ends the device.
func (d *Device) await(ctx context.Context, p place) error {
	w := waiters.Get().(*backoff.Waiter)
	defer waiters.Put(w)
	w.Policy = d.policy()
	for w.Reset(); ; {
		if err := d.err(); err != nil {
			return err
		}
		done, err := p.Query()
		if done && err == nil { // a stream also passes failed collectives
			err = d.links.check()
		}
		if done || err != nil {
			return d.fail(err)
		}
		if w.Rest() {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		w.Sleep(ctx.Done(), d.down)
	}
}

// settle waits until all streams have ended all their operations. Streams that New did not create
// are skipped. After a failure the streams end because the communicators are aborted.
func (d *Device) settle() error {
	for _, s := range []*nccl.Stream{d.wire, d.replicas, d.work} {
		w := backoff.Waiter{Policy: &watching}
		for s != nil {
			done, err := s.Query()
			if err != nil {
				_ = d.fail(err) // later calls return it
			}
			if done || err != nil { // a failed device runs nothing any more
				break
			}
			if d.err() == nil {
				w.Reset()
			} else if w.Idle() > settling {
				return fmt.Errorf("a stream still runs %v after its communicators were aborted: its memory is not freed", settling)
			}
			w.Pause(nil, nil)
		}
	}
	return nil
}

// look watches the links until close, or until the device ends. Then it aborts the links, even if
// close is called at once: closing a failed communicator could wait for other ranks.
func (l *links) look() {
	for l.d.err() == nil && !closed(l.quit) {
		select {
		case <-l.wake:
		case <-l.quit:
		case <-l.d.down:
		}
		w := backoff.Waiter{Policy: l.policy()}
		for w.Idle(); l.d.err() == nil && !closed(l.quit) && l.more(&w); {
			w.Sleep(l.quit, l.d.down)
		}
	}
	if err := l.d.err(); err != nil {
		l.abort(err)
	}
}

// more drops the ended flights, and reports whether any is in flight. It ends the device if
// something has failed, or if nothing has ended for too long.
func (l *links) more(w *backoff.Waiter) bool {
	over, err := l.over()
	if err == nil {
		err = l.check() // streams also pass failed collectives
	}
	some := over != [lanes]int{}
	if err == nil && !some && w.Idle() > l.d.o.Timeout {
		err = l.overdue()
	}
	if err == nil {
		err = l.report(over)
	}
	if err != nil {
		_ = l.d.fail(err)
		return false
	}
	if some {
		w.Reset()
	}
	return l.drop(over) > 0
}

// over returns how many flights of each queue have ended.
func (l *links) over() (n [lanes]int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for on := range l.queues {
		for i, f := range l.queues[on].flights {
			if f.end == nil {
				continue
			}
			done, err := f.end.Query()
			if err != nil {
				return n, err
			}
			if !done {
				break
			}
			n[on] = i + 1
		}
	}
	return n, nil
}

// drop removes the first n flights of each queue, and returns how many are left.
func (l *links) drop(n [lanes]int) (left int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for on := range l.queues {
		q := &l.queues[on]
		for _, f := range q.flights[:n[on]] {
			for _, e := range []*nccl.Event{f.begin, f.end} {
				if e != nil {
					l.events = append(l.events, e)
				}
			}
		}
		q.flights = append(q.flights[:0], q.flights[n[on]:]...)
		left += len(q.flights)
	}
	return left
}

// check returns why a link has failed, or nil.
func (l *links) check() error {
	l.checks.Lock()
	defer l.checks.Unlock()
	l.mu.Lock()
	list := l.list
	l.mu.Unlock()
	for _, k := range list {
		if k.failed() {
			return l.failure(k, k.reason())
		}
		if err := k.comm.AsyncError(); err != nil {
			return l.blame(k, err)
		}
	}
	return nil
}

// overdue returns the error for streams that make no progress.
func (l *links) overdue() error {
	l.mu.Lock()
	var k *link
	for on := range l.queues {
		if flights := l.queues[on].flights; len(flights) > 0 {
			k = flights[0].link
		}
	}
	l.mu.Unlock()
	err := fmt.Errorf("%w of NCCL for %v", comm.ErrTimeout, l.d.o.Timeout)
	return l.failure(k, &comm.RankError{Group: k.role, Rank: k.comm.Rank(), Err: err})
}

// abort reports the reason to the other ranks, and aborts the communicators.
func (l *links) abort(why error) {
	l.mu.Lock()
	list := l.list
	l.mu.Unlock()
	for _, k := range list {
		k.over.Abort(why)
	}
	errs := make([]error, len(list))
	var all sync.WaitGroup
	for i, k := range list {
		all.Go(func() { errs[i] = k.comm.Abort() })
	}
	all.Wait()
	l.aborted = errors.Join(errs...)
}

// closed reports whether ch is closed. A nil channel is not.
func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
