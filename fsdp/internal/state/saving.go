package state

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/optim"
)

// A Saver is the state that saving keeps from one save to the next. The zero Saver has not saved
// yet.
type Saver struct {
	// Side makes a Team for saving while the training goes on. It is a collective.
	Side func(ctx context.Context) (Team, error)

	locks locks
	side  Team    // nil before the first SaveAsync
	last  *Saving // likewise
}

// Save writes a checkpoint.
func (v *Saver) Save(ctx context.Context, s *Store, dir string, opt optim.Optimizer, o *Options, about Meta) error {
	w, err := v.plan(ctx, s, "Save", dir, opt, o, about, nil)
	if err != nil {
		return err
	}
	_, err = w.run(ctx, s.Team)
	return err
}

// SaveAsync copies this rank's parts and writes the copy while the training goes on.
func (v *Saver) SaveAsync(ctx context.Context, s *Store, dir string, opt optim.Optimizer, o *Options, about Meta) (*Saving, error) {
	begin := time.Now()
	var snapshot []byte
	w, err := v.plan(ctx, s, "SaveAsync", dir, opt, o, about, func(n int) (err error) {
		snapshot, err = s.Memory.Snapshot(n)
		return err
	})
	if err != nil {
		return nil, err
	}
	if v.side == nil {
		if v.side, err = v.Side(ctx); err != nil {
			return nil, s.Team.Fail(fmt.Errorf("making a group for it: %w", err))
		}
	}
	w.fault = w.copy(snapshot)
	saving := &Saving{Total: int64(w.bytes()), Done: make(chan struct{})}
	w.wrote = func(n int) { saving.Written.Add(int64(n)) }
	v.last = saving
	go saving.run(context.WithoutCancel(ctx), w, v.side)
	saving.Stalled = time.Since(begin)
	return saving, nil
}

// Await waits for the checkpoint that is being written, with or without an error.
func (v *Saver) Await(ctx context.Context) error {
	if v.last == nil {
		return nil
	}
	select {
	case <-v.last.Done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the checkpoint that is being written: %w", context.Cause(ctx))
	}
}

// Settle waits for it and returns its error unless the error has been returned before.
func (v *Saver) Settle(ctx context.Context) error {
	if err := v.Await(ctx); err != nil || v.last == nil || v.last.Seen.Swap(true) {
		return err
	}
	return v.last.Err
}

// Close unlocks the directories.
func (v *Saver) Close() error { return v.locks.close() }

// A Saving is a checkpoint that is being written while the training goes on.
type Saving struct {
	Stalled time.Duration // that the training was kept waiting
	Total   int64         // bytes of this rank's
	Written atomic.Int64  // of them
	Seen    atomic.Bool   // the error has been returned

	Done chan struct{} // closed when the following fields are set
	Path string        // of the checkpoint, if it is complete
	Err  error
}

// run writes the checkpoint.
func (v *Saving) run(ctx context.Context, w *writing, t Team) {
	defer close(v.Done)
	var err error
	if v.Path, err = w.run(ctx, t); err != nil {
		v.Err = fmt.Errorf("SaveAsync at step %d: %w", w.step, err)
	}
}
