package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
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
	side    Team         // nil before the first SaveAsync
	last    *Saving      // likewise
	base    []BaseTensor // of the last checkpoint with the option TrainedOnly, or nil
}

// A lineage tells the checkpoints of one training from the checkpoints of another in the same
// directory. A training draws its name at random and saves it with each checkpoint. A training that
// loads a checkpoint keeps the name of that checkpoint only if it then saves where the last
// checkpoint has the same name: it resumes. Otherwise it draws a name, because other trainings may
// begin with the same checkpoint. Only rank 0 writes and compares names.
type lineage struct {
	mu     sync.Mutex      // a save that the file system delays may still use it
	last   string          // the name to save, or "" before it is known
	loaded bool            // last is the name of a loaded checkpoint, and nothing was saved since
	all    map[string]bool // names that this process has saved or loaded, "" for a checkpoint without a name
}

// Took notes that a checkpoint was loaded.
func (v *Saver) Took(m *Meta) {
	l := &v.lineage
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last, l.loaded = m.Run, true
	l.add(m.Run)
}

// Name returns the name of this training on rank 0, or "" before a save or load has given it one.
func (v *Saver) Name() string {
	l := &v.lineage
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

func (l *lineage) add(name string) {
	if l.all == nil {
		l.all = make(map[string]bool)
	}
	l.all[name] = true
}

// begins reports whether the name to save depends on the last checkpoint in the directory.
func (l *lineage) begins() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.loaded
}

// name returns the name to save where last is the metadata of the last whole checkpoint, or nil.
func (l *lineage) name(last map[string]json.RawMessage) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if name, err := nameIn(last); l.loaded && (err != nil || name != l.last) {
		l.last = ""
	}
	if l.loaded = false; l.last == "" {
		l.last = fmt.Sprintf("%016x", rand.Uint64())
		l.add(l.last)
	}
	return l.last
}

// has reports whether a whole checkpoint with this metadata belongs to this training.
func (l *lineage) has(meta map[string]json.RawMessage) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	name, err := nameIn(meta)
	return err == nil && l.all[name]
}

// nameIn returns the name in the metadata of a checkpoint, or "" if it has none.
func nameIn(meta map[string]json.RawMessage) (name string, err error) {
	if text := meta["run"]; text != nil {
		err = json.Unmarshal(text, &name)
	}
	return name, err
}

// meet returns the name to save in dir. At the first save there it calls Strange if the last whole
// checkpoint in dir is of another training.
func (v *Saver) meet(ctx context.Context, fsys checkpoint.FS, dir string, first bool) string {
	if !first && !v.lineage.begins() {
		return v.lineage.name(nil)
	}
	found, err := checkpoint.Find(ctx, fsys, dir)
	if first && v.Strange != nil && !errors.Is(err, checkpoint.ErrNone) && (err != nil || !v.lineage.has(found.Meta)) {
		v.Strange(dir, found.Path, err)
	}
	return v.lineage.name(found.Meta)
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
			return nil, s.Team.Fail(fmt.Errorf("making a group for the background writer: %w", err))
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
