package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"path"
	"path/filepath"
	"slices"
	"syscall"
)

// lockName is the file in a job's directory whose lock is the right to save there.
const lockName = "lock"

// errNotLocked reports a misuse: without the lock, a Store would remove the files that another job
// writes.
var errNotLocked = errors.New("the directory is not locked")

// A Store saves checkpoints in the directory of a job, for rank 0. It is not safe for concurrent
// use. Reading needs none: see [Latest] and [List].
type Store struct {
	fsys FS
	dir  string
	lock io.Closer // nil unless this Store may write

	// drafts are begun and neither committed nor discarded. Every other directory of a draft was
	// left by a dead save.
	drafts map[string]*Draft // by Draft.dir
}

// A Draft is a checkpoint that is being written. No reader takes its name for a whole checkpoint.
type Draft struct {
	dir, final string
	step       int
}

// Dir is the directory in which the ranks write their files. It is new and empty, and no draft
// before it had its name: a rank of a dead job that still writes to one does not write here.
func (d *Draft) Dir() string { return d.dir }

// A SaveError says that a checkpoint could not be written. Earlier checkpoints are unchanged.
type SaveError struct {
	Path string // of the checkpoint, had it been completed
	Step int
	// Visible is true if the checkpoint is whole and has, or may have, its name, and counts. But it
	// may not be on the disk: a power failure may undo the name.
	Visible bool
	Err     error
}

func (e *SaveError) Error() string {
	state := "earlier checkpoints are unchanged"
	if e.Visible {
		state = "it may be complete, but a power failure may undo this; " + state
	}
	return fmt.Sprintf("checkpoint: step %d is not saved as %s: %v; %s", e.Step, e.Path, e.Err, state)
}

func (e *SaveError) Unwrap() error { return e.Err }

// Open returns the Store of a directory, which it makes if need be, durably. The directory must not
// be a checkpoint: [Latest] would not find checkpoints saved in it.
func Open(fsys FS, dir string) (*Store, error) {
	if dir == "" {
		return nil, errors.New("checkpoint: the directory is empty: give the directory of the checkpoints")
	}
	if f, err := fsys.Open(filepath.Join(dir, ManifestName)); err == nil {
		return nil, errors.Join(fmt.Errorf("checkpoint: %s is a checkpoint: give its parent directory", dir), f.Close())
	}
	if err := MakeDir(fsys, filepath.Clean(dir)); err != nil {
		advice := ""
		if errors.Is(err, syscall.ENOTDIR) {
			advice = ": a file has this name, choose another"
		}
		return nil, fmt.Errorf("checkpoint: making the directory for checkpoints: %w%s", err, advice)
	}
	return &Store{fsys: fsys, dir: dir, drafts: make(map[string]*Draft)}, nil
}

// MakeDir makes dir and the directories above it, each on disk before the one in it. A process may
// have died between making one and syncing it, so the first existing directory is synced too, as
// far as permissions on its parent allow.
func MakeDir(fsys FS, dir string) error {
	parent := filepath.Dir(dir)
	_, err := fsys.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) && parent != dir {
		if err := MakeDir(fsys, parent); err != nil {
			return err
		}
		if err := fsys.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return fsys.SyncDir(parent)
	}
	if err == nil {
		err = fsys.SyncDir(parent)
	}
	if errors.Is(err, fs.ErrPermission) { // to read one of the two: another user made dir
		return nil
	}
	return err
}

// Lock reserves the directory for this Store until Close. If another job has it, Lock returns at
// once an [ErrLocked] that says where that job runs. A job that has died has no lock.
func (s *Store) Lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("checkpoint: locking %s: %w", s.dir, err)
	}
	if s.lock != nil {
		return nil
	}
	lock, err := s.fsys.Lock(filepath.Join(s.dir, lockName), lockOwner())
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return fmt.Errorf("checkpoint: this system or the mounted file system of %s has no file locks, so two jobs could write there: "+
			"use another file system: %w", s.dir, err)
	case errors.Is(err, ErrLocked):
		return err
	case err != nil:
		return fmt.Errorf("checkpoint: %w", err)
	}
	s.lock = lock
	return nil
}

// Close releases the lock. Drafts stay in place until the next save begins.
func (s *Store) Close() error {
	if s.lock == nil {
		return nil
	}
	err := s.lock.Close()
	s.lock = nil
	return err
}

// Begin makes the directory for a checkpoint after a number of steps. It removes the remains of
// dead saves. Failures to remove them do no harm, unless the new directory cannot be made either:
// then the error contains both.
func (s *Store) Begin(step int) (*Draft, error) {
	if s.lock == nil {
		return nil, fmt.Errorf("checkpoint: beginning to save in %s: %w", s.dir, errNotLocked)
	}
	sequence, err := s.next()
	final := filepath.Join(s.dir, name{sequence: sequence, step: step}.String())
	if err == nil && step < 0 {
		err = fmt.Errorf("the step is negative: steps count from 0")
	}
	if err != nil {
		return nil, &SaveError{Path: final, Step: step, Err: err}
	}
	sweepErr := s.sweep()
	d := &Draft{dir: draftOf(final), final: final, step: step}
	if err := s.fsys.Mkdir(d.dir); err != nil {
		return nil, &SaveError{Path: final, Step: step, Err: errors.Join(err, sweepErr)}
	}
	s.drafts[d.dir] = d
	return d, nil
}

// next returns the number of the next checkpoint. It is greater than the numbers of all names in
// names, including names of drafts.
func (s *Store) next() (int, error) {
	entries, err := s.fsys.ReadDir(s.dir)
	if err != nil {
		return 0, err
	}
	last := 0
	for _, e := range entries { // of any type: the name is taken
		if n, ok := parseName(e.Name()); ok {
			last = max(last, n.sequence)
		}
	}
	if last == math.MaxInt {
		return 0, fmt.Errorf("a checkpoint has the greatest possible number, %d: save in another directory", last)
	}
	return last + 1, nil
}

// draftOf returns a new name for the directory of a checkpoint that does not count yet, or no
// longer.
func draftOf(final string) string { return fmt.Sprintf("%s%s%08x", final, draftMark, rand.Uint32()) }

// sweep removes the remains of dead saves and removals. A checkpoint's loss of its name may not be
// on disk yet. It must be before the first of its files is removed, or a power failure could bring
// back the name of half a checkpoint.
func (s *Store) sweep() error {
	names, err := readNames(context.Background(), s.fsys, s.dir)
	if err != nil {
		return err
	}
	var dead []string
	for _, n := range names {
		if path := filepath.Join(s.dir, n.String()); n.draft != "" && s.drafts[path] == nil {
			dead = append(dead, path)
		}
	}
	if len(dead) == 0 {
		return nil
	}
	if err := s.fsys.SyncDir(s.dir); err != nil {
		return fmt.Errorf("removing leftovers of interrupted saves: %w", err)
	}
	var errs []error
	for _, path := range dead {
		if err := s.fsys.RemoveAll(path); err != nil {
			errs = append(errs, fmt.Errorf("removing leftovers of an interrupted save: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Commit makes a draft a checkpoint and returns its path. The files that m lists must be in its
// directory and on disk. Up to the rename no reader uses the draft, so the order in which names
// appear in it does not matter, and the manifest needs no temporary name: one sync of each
// directory covers them all. The rename is the commit.
//
// If it fails, with a [SaveError], the draft remains to be discarded.
func (s *Store) Commit(d *Draft, m *Manifest) (path string, err error) {
	if s.lock == nil || s.drafts[d.dir] != d {
		return "", &SaveError{Path: d.final, Step: d.step, Err: errors.New("it is not being written")}
	}
	if err := s.complete(d, m); err != nil {
		return "", &SaveError{Path: d.final, Step: d.step, Err: err}
	}
	if err := s.fsys.Rename(d.dir, d.final); err != nil {
		// On a network the reply may have been lost and not the request. If the draft is still
		// there, nothing has happened.
		_, gone := s.fsys.ReadDir(d.dir)
		return "", &SaveError{Path: d.final, Step: d.step, Visible: gone != nil, Err: err}
	}
	delete(s.drafts, d.dir)
	if err := s.fsys.SyncDir(s.dir); err != nil {
		return "", &SaveError{Path: d.final, Step: d.step, Visible: true, Err: err}
	}
	return d.final, nil
}

// complete puts all of a draft on disk, and checks that a reader would accept it.
func (s *Store) complete(d *Draft, m *Manifest) error {
	if m.Step != d.step {
		return fmt.Errorf("its manifest says step %d", m.Step)
	}
	text, err := m.Encode()
	if err != nil {
		return err
	}
	if err := WriteFile(s.fsys, filepath.Join(d.dir, ManifestName), text); err != nil {
		return err
	}
	dirs := map[string]bool{".": true}
	for _, f := range m.Files {
		dirs[path.Dir(f.Name)] = true
	}
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		if err := s.fsys.SyncDir(filepath.Join(d.dir, dir)); err != nil {
			return err
		}
	}
	_, err = checkWhole(context.Background(), s.fsys, d.dir)
	return err
}

// WriteFile makes a file. It is on disk when WriteFile returns, and its name is after [FS.SyncDir].
func WriteFile(fsys FS, path string, data []byte) error {
	f, err := fsys.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Discard removes a draft. A draft that has been committed or discarded is not changed. A later
// Begin tries again to remove the files that cannot be removed now.
func (s *Store) Discard(d *Draft) error {
	if s.drafts[d.dir] != d {
		return nil
	}
	delete(s.drafts, d.dir)
	if err := s.fsys.RemoveAll(d.dir); err != nil {
		return fmt.Errorf("checkpoint: discarding step %d: %w", d.step, err)
	}
	return nil
}

// Retain removes all whole checkpoints that ours accepts, but the last k of them and, unless it is
// "", the one at the path spare. It does not remove other checkpoints: they may be of another
// training, of a later format, unreadable only today, or needed to find out their cause. A
// checkpoint loses its name first, so that half of one never counts as a whole one.
func (s *Store) Retain(k int, spare string, ours func(Entry) bool) error {
	err := s.retain(k, spare, ours)
	if err != nil {
		return fmt.Errorf("checkpoint: removing all but the last %d in %s: %w", k, s.dir, err)
	}
	return nil
}

func (s *Store) retain(k int, spare string, ours func(Entry) bool) error {
	if s.lock == nil {
		return errNotLocked
	}
	if k < 1 {
		return errors.New("this would leave no checkpoint")
	}
	entries, err := List(context.Background(), s.fsys, s.dir)
	if err != nil {
		return err
	}
	var whole []string
	for _, e := range entries {
		if e.Err == nil && ours(e) {
			whole = append(whole, e.Path)
		}
	}
	var errs []error
	for _, path := range whole[:max(0, len(whole)-k)] {
		if path == spare {
			continue
		}
		if err := s.fsys.Rename(path, draftOf(path)); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, s.sweep())...)
}
