package fsdp

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/optim"
)

// SaveAsync is Save that writes while the training goes on: it copies what this rank writes and returns, and the optimizer may
// step at once. The copy takes memory, in files where Config.Spill would lie, which is kept for the next time until Close. ctx is
// that of the copy only.
//
// One checkpoint is written at a time: the next Save, SaveAsync or Load waits for it. If it has failed and nobody has learned
// that from Wait, the next Save returns the error in place of saving, and so does Close.
func (s *Sharded) SaveAsync(ctx context.Context, dir string, opt optim.Optimizer, opts ...StateOption) (*Saving, error) {
	begin := time.Now()
	w, err := s.startSave(ctx, dir, opt, opts, true)
	if err != nil {
		return nil, err
	}
	if err := s.async.join(ctx, s.cfg.Group, s.team); err != nil {
		return nil, s.broken(fmt.Errorf("SaveAsync: %w", err))
	}
	w.group, w.agreement = s.async.group, s.async.agreement
	s.async.take(w)
	v := &Saving{rank: s.cfg.Group.Rank(), total: int64(w.bytes()), done: make(chan struct{})}
	w.wrote = func(n int) { v.written.Add(int64(n)) }
	s.async.last = v
	go v.run(context.WithoutCancel(ctx), w)
	v.stalled = time.Since(begin)
	return v, nil
}

// async is what SaveAsync keeps from one time to the next.
type async struct {
	group     comm.Group       // apart from the training's, nil before the first time
	agreement *ranks.Agreement // of that group
	snapshot  *arena.Block
	last      *Saving // nil before the first time
}

// room has memory for a copy of what w writes.
func (a *async) room(from *arena.Arena, w *writer) (err error) {
	from.Free(a.snapshot) // which comes back, unless it is of another size
	a.snapshot, err = from.Alloc(w.bytes(), arena.Snapshot)
	return err
}

// take copies what w writes.
func (a *async) take(w *writer) {
	at := 0
	for i := range w.parts {
		p := &w.parts[i]
		n := copy(a.snapshot.Data[at:], p.Data)
		p.Data = a.snapshot.Data[at : at+n : at+n]
		at += n
	}
}

// join makes the group, the first time. It is a collective.
func (a *async) join(ctx context.Context, g comm.Group, t *ranks.Team) (err error) {
	if a.group != nil {
		return nil
	}
	if a.group, err = g.Split(ctx, 0, g.Rank()); err != nil {
		return fmt.Errorf("making a group for it: %w", err)
	}
	a.agreement = ranks.NewAgreement(a.group, newPeerError)
	t.Adopt(a.group) // closed, and failed, with the others
	return nil
}

// awaitSaving waits for the checkpoint that is being written, however that ends.
func (s *Sharded) awaitSaving(ctx context.Context) error {
	if s.async.last == nil {
		return nil
	}
	select {
	case <-s.async.last.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the checkpoint that is being written: %w", context.Cause(ctx))
	}
}

// settleSaving waits for it and returns its error if nobody has seen that.
func (s *Sharded) settleSaving(ctx context.Context) error {
	v := s.async.last
	if v == nil {
		return nil
	}
	if err := s.awaitSaving(ctx); err != nil {
		return err
	}
	if v.seen.Swap(true) {
		return nil
	}
	return v.err
}

// A Saving is a checkpoint that is being written while the training goes on. Its methods may be called from any goroutine.
type Saving struct {
	rank    int
	stalled time.Duration
	total   int64
	written atomic.Int64
	seen    atomic.Bool // somebody has the error

	done chan struct{} // closed when what follows is known
	path string
	err  error
}

// run writes the checkpoint.
func (v *Saving) run(ctx context.Context, w *writer) {
	defer close(v.done)
	path, err := w.run(ctx)
	if v.path = path; err != nil {
		v.err = fmt.Errorf("SaveAsync at step %d: %w", w.step, err)
	}
}

// Wait returns when the checkpoint is complete on disk, or the error that it ended with on every rank.
func (v *Saving) Wait(ctx context.Context) error {
	select {
	case <-v.done:
	case <-ctx.Done():
		return fmt.Errorf("fsdp: rank %d: waiting for a checkpoint to be written: %w", v.rank, context.Cause(ctx))
	}
	if v.seen.Store(true); v.err != nil {
		return fmt.Errorf("fsdp: rank %d: %w", v.rank, v.err)
	}
	return nil
}

// Done is closed when Wait does not have to wait.
func (v *Saving) Done() <-chan struct{} { return v.done }

// Progress returns how many bytes of this rank's are written, and of how many.
func (v *Saving) Progress() (done, total int64) { return v.written.Load(), v.total }

// Stalled returns how long SaveAsync has kept the training waiting.
func (v *Saving) Stalled() time.Duration { return v.stalled }

// Path returns the directory of the checkpoint, or "" until it is complete.
func (v *Saving) Path() string {
	select {
	case <-v.done:
		return v.path
	default:
		return ""
	}
}
