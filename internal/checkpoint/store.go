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
)

// lockName is the file in a job's directory that stands for the right to save there.
const lockName = "lock"

// errNotLocked is a misuse: without the lock, a Store would remove what another job is writing.
var errNotLocked = errors.New("the directory is not locked")

// A Store saves checkpoints in the directory of a job, for rank 0. It is not safe for concurrent
// use. Reading needs none: see [Latest] and [List].
type Store struct {
	fsys FS
	dir  string
	lock io.Closer // nil unless this Store may write

	// drafts are those that have been begun and neither committed nor discarded. Every other
	// directory of a draft was left by a save that is dead.
	drafts map[string]*Draft // by Draft.dir
}

// A Draft is a checkpoint that is being written. It has a name under which nobody takes it for a
// whole one.
type Draft struct {
	dir, final string
	step       int
}

// Dir is the directory in which the ranks write their files. It is new and empty, and no draft
// before it had its name: a rank of a dead job that still writes to one does not write here.
func (d *Draft) Dir() string { return d.dir }

// A SaveError says that a checkpoint could not be written. The ones before it are as they were.
type SaveError struct {
	Path string // of the checkpoint, had it been completed
	Step int
	// Visible tells that the checkpoint is whole and has its name, or may have it, and counts. But
	// it is not known to be on the disk: a power failure may take the name away.
	Visible bool
	Err     error
}

func (e *SaveError) Error() string {
	state := "the checkpoints before it are as they were"
	if e.Visible {
		state = "it may have been completed, but a power failure may undo that; " + state
	}
	return fmt.Sprintf("checkpoint: step %d is not saved as %s: %v; %s", e.Step, e.Path, e.Err, state)
}

func (e *SaveError) Unwrap() error { return e.Err }

// Open returns the Store of a directory, which it makes if need be, durably. A checkpoint is not
// one: [Latest] would not see what is saved in it.
func Open(fsys FS, dir string) (*Store, error) {
	if dir == "" {
		return nil, errors.New("checkpoint: no directory is named")
	}
	if f, err := fsys.Open(filepath.Join(dir, ManifestName)); err == nil {
		return nil, errors.Join(fmt.Errorf("checkpoint: %s is a checkpoint: name the directory that it is in", dir), f.Close())
	}
	if err := MakeDir(fsys, filepath.Clean(dir)); err != nil {
		return nil, fmt.Errorf("checkpoint: making the directory for checkpoints: %w", err)
	}
	return &Store{fsys: fsys, dir: dir, drafts: make(map[string]*Draft)}, nil
}

// MakeDir makes dir and the directories above it, each on disk before the one in it. A process may
// have died between making one and having it on disk, so the first that exists is synced too, as
// far as its parent lets us.
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
	if errors.Is(err, fs.ErrPermission) { // to read one of the two: whoever made dir had more rights
		return nil
	}
	return err
}

// Lock reserves the directory for this Store until Close. Another job that has it is an error at
// once, an [ErrLocked] that says where it runs. A job that has died has no lock.
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
		return fmt.Errorf("checkpoint: this system, or the file system of %s as it is mounted, has no locks, without which two jobs "+
			"could write there: %w", s.dir, err)
	case errors.Is(err, ErrLocked):
		return err
	case err != nil:
		return fmt.Errorf("checkpoint: %w", err)
	}
	s.lock = lock
	return nil
}

// Close gives up the lock. Drafts stay where they are, until the next save that somebody begins.
func (s *Store) Close() error {
	if s.lock == nil {
		return nil
	}
	err := s.lock.Close()
	s.lock = nil
	return err
}

// Begin makes the directory for a checkpoint after a number of steps. It removes what dead saves
// have left. What cannot be removed is in nobody's way, unless the new directory cannot be made
// either: then the error says both.
func (s *Store) Begin(step int) (*Draft, error) {
	if s.lock == nil {
		return nil, fmt.Errorf("checkpoint: beginning to save in %s: %w", s.dir, errNotLocked)
	}
	sequence, err := s.next()
	final := filepath.Join(s.dir, name{sequence: sequence, step: step}.String())
	if err == nil && step < 0 {
		err = fmt.Errorf("the step is negative")
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

// next returns the number of the next checkpoint: greater than that of anything here with a name of
// ours, whole or not.
func (s *Store) next() (int, error) {
	entries, err := s.fsys.ReadDir(s.dir)
	if err != nil {
		return 0, err
	}
	last := 0
	for _, e := range entries { // of whatever type: the name is taken
		if n, ok := parseName(e.Name()); ok {
			last = max(last, n.sequence)
		}
	}
	if last == math.MaxInt {
		return 0, fmt.Errorf("there is no number after %d, which one has", last)
	}
	return last + 1, nil
}

// draftOf returns a new name for the directory of a checkpoint that does not count yet, or no
// longer.
func draftOf(final string) string { return fmt.Sprintf("%s%s%08x", final, draftMark, rand.Uint32()) }

// sweep removes what dead saves and removals have left. That a checkpoint lost its name may not be
// on disk yet: it must be before the first of its files goes, or a power failure could bring back
// the name of half a checkpoint.
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
		return fmt.Errorf("removing what is left of dead saves: %w", err)
	}
	var errs []error
	for _, path := range dead {
		if err := s.fsys.RemoveAll(path); err != nil {
			errs = append(errs, fmt.Errorf("removing what is left of a dead save: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Commit makes a draft a checkpoint and returns its path. The files that m lists are in its
// directory and on disk. Up to the rename nobody looks at the draft, so the order in which names
// appear in it does not matter, and the manifest needs no name of its own before it is complete:
// one sync of each directory covers them all. The rename is the commit.
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
		// On a network the reply may have been lost and not the request. Where the draft still is,
		// nothing has happened.
		_, gone := s.fsys.ReadDir(d.dir)
		return "", &SaveError{Path: d.final, Step: d.step, Visible: gone != nil, Err: err}
	}
	delete(s.drafts, d.dir)
	if err := s.fsys.SyncDir(s.dir); err != nil {
		return "", &SaveError{Path: d.final, Step: d.step, Visible: true, Err: err}
	}
	return d.final, nil
}

// complete has all of a draft on disk, and looks whether it is what a reader will want to see.
func (s *Store) complete(d *Draft, m *Manifest) error {
	if m.Step != d.step {
		return fmt.Errorf("its manifest is of step %d", m.Step)
	}
	text, err := m.Encode()
	if err != nil {
		return err
	}
	if err := s.put(filepath.Join(d.dir, ManifestName), text); err != nil {
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
	return checkWhole(context.Background(), s.fsys, d.dir)
}

// put makes a file that is on disk when it returns.
func (s *Store) put(path string, data []byte) error {
	f, err := s.fsys.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Discard removes a draft. A draft that has been committed, or discarded, is left as it is. What
// cannot be removed now, a later Begin will try again.
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

// Retain removes all whole checkpoints but the last k and, unless it is "", the one at the path
// spare. What is not whole is not removed: it may be
// of a later format, or unreadable only today, or wanted by someone who asks how it came about. A
// checkpoint loses its name first, so that half of one is never taken for a whole one.
func (s *Store) Retain(k int, spare string) error {
	err := s.retain(k, spare)
	if err != nil {
		return fmt.Errorf("checkpoint: removing all but the last %d in %s: %w", k, s.dir, err)
	}
	return nil
}

func (s *Store) retain(k int, spare string) error {
	if s.lock == nil {
		return errNotLocked
	}
	if k < 1 {
		return errors.New("none would be left")
	}
	entries, err := List(context.Background(), s.fsys, s.dir)
	if err != nil {
		return err
	}
	var whole []string
	for _, e := range entries {
		if e.Err == nil {
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
