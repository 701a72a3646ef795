package fsdp

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
)

// Load continues from the last complete checkpoint in dir, or from dir if it is one itself: parameters and buffers, the state of
// opt unless it is nil, and the count that keys dropout. What the user has saved is in the Checkpoint. The number of ranks, the
// strategies, the units and the precision may be others than those of the ranks that saved: each rank reads what it owns now. A
// buffer belongs to a rank, so a rank beyond those that saved takes that of rank mod World. Without a checkpoint the error is
// ErrNoCheckpoint, on every rank.
//
// Names, shapes and options are checked first. What does not fit is a *StateError on every rank, and nothing has changed: among it
// state of an optimizer that was not saved, or that is of parameters which are frozen now, unless AllowMissing or AllowExtra
// accepts it. Of a tensor in which ranks differ, such as a buffer, their functions are asked for the name with the rank and without.
// An error after that, such as a file that is damaged, leaves parameters of which only a part is loaded: the model refuses
// passes, steps and Save until another Load or Import succeeds. If that is one without the optimizer, the optimizer goes on to
// refuse steps, and to be saved: it is loaded again, too, or made anew.
//
// Gradients are dropped, and a Forward that waits for its Backward; while Hold has put one aside Load fails.
//
// Options: Rename, AllowMissing, AllowExtra.
func (s *Sharded) Load(ctx context.Context, dir string, opt optim.Optimizer, opts ...StateOption) (*Checkpoint, error) {
	l := &loading{opt: opt}
	err := s.prepareLoad(ctx, l, dir, opts)
	if err := s.agree(ctx, ranks.Ask{Call: "Load"}, err); err != nil {
		return nil, err
	}
	defer l.close()
	if err := s.openCheckpoint(ctx, l, dir); err != nil {
		return nil, err
	}
	if err := s.matchCheckpoint(ctx, l); err != nil {
		return nil, err
	}
	if err := s.readCheckpoint(ctx, l); err != nil {
		return nil, err
	}
	s.forwards = l.about.Forwards
	m := l.reader.Manifest()
	return &Checkpoint{Path: l.path, Step: m.Step, World: m.World, about: l.about}, nil
}

// A loading is a checkpoint that is being loaded.
type loading struct {
	stateOptions
	opt    optim.Optimizer
	naming naming
	pieces []statePiece // of this rank, with the memory that is to be read into

	path   string
	none   string // why there is no checkpoint
	reader *checkpoint.Reader
	about  checkpointMeta
}

// close closes the files. They were only read, so there is nothing to lose by it.
func (l *loading) close() {
	if l.reader != nil {
		_ = l.reader.Close()
	}
}

// prepareLoad does what needs neither another rank nor the checkpoint.
func (s *Sharded) prepareLoad(ctx context.Context, l *loading, dir string, opts []StateOption) error {
	if s.err != nil {
		return s.err
	}
	if err := s.noneHeld(); err != nil {
		return err
	}
	if err := s.awaitSaving(ctx); err != nil { // it may be about to become the latest
		return err
	}
	var err error
	if l.stateOptions, err = s.stateOptions(opts, "Rename", "AllowMissing", "AllowExtra"); err != nil {
		return err
	}
	if l.naming, err = s.naming(&l.stateOptions); err != nil {
		return err
	}
	if l.pieces, err = s.pieces(l.opt); err != nil {
		return err
	}
	if dir == "" {
		return errors.New("no directory is named")
	}
	return nil
}

// findCheckpoint looks for the checkpoint, on rank 0.
func (s *Sharded) findCheckpoint(l *loading, dir string) (err error) {
	if s.cfg.Group.Rank() != 0 {
		return nil
	}
	if dir, err = filepath.Abs(dir); err != nil { // other ranks may have other working directories
		return err
	}
	l.path, err = checkpoint.Latest(l.fs, dir)
	if errors.Is(err, ErrNoCheckpoint) { // the other ranks are to know it as that
		l.none, err = err.Error(), nil
	}
	if s.cfg.Logger != nil {
		s.warnOfTorn(l, dir)
	}
	return err
}

// warnOfTorn tells the logger of checkpoints that were complete once and do not count any more.
func (s *Sharded) warnOfTorn(l *loading, dir string) {
	list, _ := checkpoint.List(l.fs, dir) // what is wrong with dir, Latest says
	for _, e := range list {
		if e.Err != nil && !errors.Is(e.Err, checkpoint.ErrUnfinished) {
			s.cfg.Logger.Warn("fsdp: a checkpoint is not whole and does not count", "path", e.Path, "error", e.Err)
		}
	}
}

// openCheckpoint opens what rank 0 finds on every rank, and checks that it is the same. There may be many files, and a disk that is
// slow to say so.
func (s *Sharded) openCheckpoint(ctx context.Context, l *loading, dir string) error {
	text := fmt.Sprintf("directory %s\n%s\n%s", dir, oneOrNone(l.opt), l.naming.text)
	if err := s.team.Same(ctx, "arguments of Load", text); err != nil {
		return s.refused("Load", err)
	}
	err := s.team.Busy(ctx, func(context.Context) error { return s.findCheckpoint(l, dir) })
	if err := s.agree(ctx, ranks.Ask{Call: "Load"}, err); err != nil {
		return err
	}
	for _, found := range []*string{&l.none, &l.path} {
		if *found, err = textOfFirst(ctx, s.cfg.Group, *found); err != nil {
			return s.broken(fmt.Errorf("Load: %w", err))
		}
	}
	if l.none != "" {
		return s.refused("Load", &noCheckpointError{l.none})
	}
	err = s.team.Busy(ctx, func(context.Context) error { return s.openFiles(l) })
	if err := s.agree(ctx, ranks.Ask{Call: "Load"}, err); err != nil {
		return err
	}
	if err := s.team.Same(ctx, "manifest in "+l.path, fmt.Sprintf("CRC-32C %08x", l.reader.Sum())); err != nil {
		return s.refused("Load", err)
	}
	return nil
}

// openFiles opens the checkpoint on this rank, with the files that it is going to read: from here on another job may remove them.
func (s *Sharded) openFiles(l *loading) (err error) {
	if l.reader, err = checkpoint.OpenReader(l.fs, l.path); err != nil {
		return err
	}
	m := l.reader.Manifest()
	if l.about, err = parseMeta(m.Meta, m.World); err != nil {
		return err
	}
	for i := range l.pieces {
		p := &l.pieces[i]
		n := len(p.data) / s.groups[p.group].Compute.Size()
		if err := l.reader.Hold(s.saved(l, s.param(p), p.Key), p.offset, n); err != nil {
			return err
		}
	}
	return nil
}

// readCheckpoint replaces the state by that of the checkpoint, as far as that has it.
func (s *Sharded) readCheckpoint(ctx context.Context, l *loading) error {
	if err := s.discardLast(ctx); err != nil { // gathers for its backward may be reading what is about to change
		return err
	}
	s.ZeroGrad()
	state := l.opt != nil && l.about.OptimizerSteps != nil
	s.tear("a Load of "+l.path, state)
	err := s.team.Busy(ctx, func(ctx context.Context) error { return s.readPieces(ctx, l) })
	if err := s.agree(ctx, ranks.Ask{Call: "Load"}, err); err != nil {
		s.torn = fmt.Errorf("%w: %w", s.torn, err)
		return err
	}
	s.mend(state)
	return nil
}

// readPieces reads this rank's pieces, each straight to where it belongs.
func (s *Sharded) readPieces(ctx context.Context, l *loading) error {
	var entries []optim.Entry
	for i := range l.pieces {
		p := &l.pieces[i]
		key := s.saved(l, s.param(p), p.Key)
		t, ok := l.reader.Lookup(key)
		if !ok {
			continue // matchCheckpoint has let it pass
		}
		if err := l.reader.Read(ctx, key, p.offset, p.data, s.cfg.Precision.Compute.inFile()); err != nil {
			return fmt.Errorf("checkpoint %s: %w", l.path, err)
		}
		if p.Entry != "" {
			entries = append(entries, optim.Entry{
				Param: p.Param, Name: p.Entry, Shape: p.shape, Offset: p.offset, Steps: t.Steps,
				Data: p.vec,
			})
		}
	}
	if l.opt == nil || l.about.OptimizerSteps == nil {
		return nil
	}
	// The optimizer has the values already, as its own memory was read into. It adopts the counts.
	return l.opt.Adopt(*l.about.OptimizerSteps, entries)
}
