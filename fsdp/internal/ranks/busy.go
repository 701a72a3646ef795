package ranks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/caught"
)

// errStopped is the reason why a rank stops working: another rank has failed, and all ranks return
// the error of that rank.
var errStopped = errors.New("another rank has failed")

// longestBeat is the longest interval at which ranks report that they are still busy.
const longestBeat = time.Second

// beat returns the interval at which ranks of g report that they are busy. A group assumes that a
// rank hangs if it sends nothing for its timeout.
func beat(g comm.Group) time.Duration {
	if limit := transport.Timeout(g); limit > 0 {
		return min(longestBeat, limit/4)
	}
	return longestBeat
}

// Files are the operations of work on a file system, which may stop responding. A system call
// cannot be cancelled: the work is then left behind in its goroutine.
type Files interface {
	// Oldest returns the operation that has been under way longest, and its begin, or "".
	Oldest() (what string, begin time.Time)
	// Slow is called once for an operation that has taken d.
	Slow(what string, d time.Duration)
	// Leave is called for an operation that is left behind. done is closed when its work has ended.
	Leave(what string, begin time.Time, done <-chan struct{})
}

const (
	slowOperation  = 30 * time.Second // when Slow is called at the latest
	longestWait    = 10 * time.Minute // for one operation, in a group that has no timeout
	graceAfterStop = time.Second      // for work to end when it has been stopped
)

// Limit returns how long one operation of files may take. It is the time for which a rank of g may
// be silent.
func Limit(g comm.Group) time.Duration {
	if limit := transport.Timeout(g); limit > 0 {
		return limit
	}
	return longestWait
}

// A worker is work in a separate goroutine.
type worker struct {
	files Files // nil if the work is waited for without end
	limit time.Duration
	stop  context.CancelCauseFunc
	done  chan struct{}
	err   error // once done is closed
	slow  bool  // Slow was called
}

func newWorker(ctx context.Context, f Files, limit time.Duration, work func(context.Context) error) *worker {
	w := &worker{files: f, limit: limit, done: make(chan struct{})}
	ctx, w.stop = context.WithCancelCause(ctx)
	go func() {
		defer close(w.done)
		w.err = Guarded("the work", func() error { return work(ctx) })
	}()
	return w
}

// look returns an error if an operation has taken too long.
func (w *worker) look() error {
	if w.files == nil {
		return nil
	}
	what, begin := w.files.Oldest()
	if what == "" {
		return nil
	}
	d := time.Since(begin)
	if d >= min(slowOperation, w.limit/2) && !w.slow {
		w.slow = true
		w.files.Slow(what, d)
	}
	if d < w.limit {
		return nil
	}
	return w.leave(nil)
}

// end stops the work because of cause and returns its error, or another error if the work does not
// stop.
func (w *worker) end(cause error) error {
	w.stop(cause)
	if w.files == nil {
		<-w.done
		return w.err
	}
	grace := time.NewTimer(graceAfterStop)
	defer grace.Stop()
	select {
	case <-w.done:
		return w.err
	case <-grace.C:
		return w.leave(cause)
	}
}

// leave leaves the work behind.
func (w *worker) leave(cause error) error {
	what, begin := w.files.Oldest()
	if what == "" {
		what, begin = "work with files", time.Now()
	}
	w.files.Leave(what, begin, w.done)
	err := &leftError{fmt.Sprintf("%s has not ended after %v: the file system does not answer", what, time.Since(begin).Round(time.Millisecond)), cause}
	w.stop(err)
	return err
}

// A leftError says that work was left behind, with the cause.
type leftError struct {
	text  string
	cause error // or nil: the limit
}

func (e *leftError) Error() string {
	if e.cause == nil {
		return e.text
	}
	return e.text + ": " + e.cause.Error()
}

func (e *leftError) Unwrap() error { return e.cause }

// Run runs work of this rank alone until ctx ends, or one operation of its files has taken longer
// than the limit.
func Run(ctx context.Context, f Files, limit time.Duration, work func(context.Context) error) error {
	w := newWorker(ctx, f, limit, work)
	defer w.stop(nil)
	if f == nil {
		<-w.done
		return w.err
	}
	tick := time.NewTicker(min(longestBeat, limit/4))
	defer tick.Stop()
	for {
		select {
		case <-w.done:
			return w.err
		case <-tick.C:
			if err := w.look(); err != nil {
				return err
			}
		case <-ctx.Done():
			return w.end(context.Cause(ctx))
		}
	}
}

// Busy runs work, which may take any time on any rank, such as writing files, and returns when all
// ranks are done. Its context ends when the work of another rank has failed, because the result is
// useless then. The error is this rank's, nil if it was only stopped, or a LostError if the group
// has failed. The ranks have to agree on it afterwards.
//
// If f is not nil, Busy leaves work behind and returns an error when one operation takes longer
// than the timeout of the group, or when the work does not end soon after ctx.
func (a *Agreement) Busy(ctx context.Context, f Files, work func(context.Context) error) (err error) {
	if a.group.Size() == 1 {
		return Run(ctx, f, Limit(a.group), work)
	}
	w := newWorker(ctx, f, Limit(a.group), work)
	defer w.stop(nil)
	tick := time.NewTicker(beat(a.group))
	defer tick.Stop()
	var ended <-chan struct{}
	if f != nil {
		ended = ctx.Done()
	}
	for busy := true; ; {
		if busy {
			select {
			case <-ended:
				busy, err = false, w.end(context.Cause(ctx))
			case <-w.done:
				busy, err = false, w.err
			case <-tick.C:
				err = w.look()
				busy = err == nil
			}
		}
		flags := []int64{word(busy), word(err != nil)}
		if werr := a.group.AllReduce(comm.Of(flags).Named("busy"), comm.Max).Wait(ctx); werr != nil {
			if busy {
				err = w.end(werr)
			}
			return &LostError{errors.Join(err, fmt.Errorf("waiting for the other ranks: %w", werr))}
		}
		if flags[1] != 0 {
			w.stop(errStopped)
		}
		if flags[0] == 0 {
			break
		}
	}
	if errors.Is(err, errStopped) {
		return nil
	}
	return err
}

// Guarded calls the user's code and turns a panic into an error. If the panic value is an error,
// the returned error wraps it.
func Guarded(what string, f func() error) (err error) {
	defer caught.Panic(&err, what)
	return f()
}
