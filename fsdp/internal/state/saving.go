package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
)

// A Saver is the state that saving keeps from one save to the next. The zero Saver has not saved
// yet.
type Saver struct {
	// Side makes a Team for saving while the training goes on. It is a collective.
	Side func(ctx context.Context) (Team, error)
	// Strange is called on rank 0 at the first save in a directory whose last whole checkpoint is of
	// another training, or cannot be found because of err.
	Strange func(dir, last string, err error)

	lineage lineage
	locks   locks
	side    Team    // nil before the first SaveAsync
	last    *Saving // likewise
}

// A lineage tells the checkpoints of one training from the checkpoints of another in the same
// directory. A training draws its name at random, saves it with each checkpoint, and takes over the
// name of a checkpoint that it loads. So a resumed training has the name of the first one. Only
// rank 0 writes and compares names.
type lineage struct {
	last string          // the name to save, or "" before it is known
	all  map[string]bool // names that this process has saved or loaded, "" for a checkpoint without a name
}

// Took notes that a checkpoint was loaded.
func (v *Saver) Took(m *Meta) {
	v.lineage.last = m.Run
	v.lineage.add(m.Run)
}

func (l *lineage) add(name string) {
	if l.all == nil {
		l.all = make(map[string]bool)
	}
	l.all[name] = true
}

// name returns the name to save.
func (l *lineage) name() string {
	if l.last == "" {
		l.last = fmt.Sprintf("%016x", rand.Uint64())
		l.add(l.last)
	}
	return l.last
}

// has reports whether a whole checkpoint with this metadata is of this training.
func (l *lineage) has(meta map[string]json.RawMessage) bool {
	var name string
	if text := meta["run"]; text != nil && json.Unmarshal(text, &name) != nil {
		return false
	}
	return l.all[name]
}

// meet calls Strange if the last whole checkpoint in dir is of another training.
func (v *Saver) meet(ctx context.Context, fsys checkpoint.FS, dir string) {
	found, err := checkpoint.Find(ctx, fsys, dir)
	if v.Strange == nil || errors.Is(err, checkpoint.ErrNone) || err == nil && v.lineage.has(found.Meta) {
		return
	}
	v.Strange(dir, found.Path, err)
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
