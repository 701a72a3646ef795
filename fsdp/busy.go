package fsdp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/comm"
)

// heartbeat is how often ranks tell each other that they are still busy. A group takes a rank that says nothing for long, 30 s by
// default, for one that hangs.
const heartbeat = time.Second

// errStopped is why a rank stops working: another has failed, and will say so.
var errStopped = errors.New("another rank has failed")

// busy runs work, which may take any time on any rank, such as writing files, and returns when all ranks are done with theirs.
// Its context ends when the work of another rank has failed: there is no use in it any more. The error is this rank's, none if
// it was only stopped, or an exchangeError if the group has failed. It has to be agreed on.
func (a *agreement) busy(ctx context.Context, work func(context.Context) error) (err error) {
	inner, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	done := make(chan error, 1)
	go func() { done <- guarded(func() error { return work(inner) }) }()
	if a.group.Size() == 1 {
		return <-done
	}
	tick := time.NewTicker(heartbeat)
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
			return &exchangeError{errors.Join(err, fmt.Errorf("waiting for the other ranks: %w", werr))}
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
