package ranks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/caught"
)

// errStopped is why a rank stops working: another has failed, and will say so.
var errStopped = errors.New("another rank has failed")

// longestBeat is how often ranks at least tell each other that they are still busy.
const longestBeat = time.Second

// beat returns how often ranks of g tell each other that they are busy. A group takes a rank that
// says nothing for its timeout for one that hangs.
func beat(g comm.Group) time.Duration {
	if limit := comm.Timeout(g); limit > 0 {
		return min(longestBeat, limit/4)
	}
	return longestBeat
}

// Busy runs work, which may take any time on any rank, such as writing files, and returns when all
// ranks are done with theirs. Its context ends when the work of another rank has failed, which
// makes it useless. The error is this rank's, nil if it was only stopped, or a LostError if the
// group has failed. The ranks have to agree on it afterwards.
func (a *Agreement) Busy(ctx context.Context, work func(context.Context) error) (err error) {
	inner, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	done := make(chan error, 1)
	go func() { done <- Guarded("the work", func() error { return work(inner) }) }()
	if a.group.Size() == 1 {
		return <-done
	}
	tick := time.NewTicker(beat(a.group))
	defer tick.Stop()
	for busy := true; ; {
		if busy {
			select {
			case err = <-done:
				busy = false
			case <-tick.C:
			}
		}
		flags := []int64{word(busy), word(err != nil)}
		if werr := a.group.AllReduce(comm.Of(flags).Named("busy"), comm.Max).Wait(ctx); werr != nil {
			stop(werr)
			if busy {
				err = <-done
			}
			return &LostError{errors.Join(err, fmt.Errorf("waiting for the other ranks: %w", werr))}
		}
		if flags[1] != 0 {
			stop(errStopped)
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

// Guarded calls code of the user's and turns a panic into an error, which wraps what it panicked
// with if that is one.
func Guarded(what string, f func() error) (err error) {
	defer caught.Panic(&err, what)
	return f()
}
