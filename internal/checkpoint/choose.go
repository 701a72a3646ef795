package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// A Policy says which damaged checkpoints Choose skips.
type Policy int

const (
	SkipIncomplete Policy = iota // with a damaged manifest, or with files that are missing or have another size
	SkipDamaged                  // these, and rejected ones
	SkipNone                     // any damage is an error
)

// Choose returns the checkpoint to load. At first, rejected is nil, and it is the checkpoint that
// Find finds. If the caller then finds damage in the data of this checkpoint, it calls Choose again
// with the damage in rejected, until it accepts the result or gets an error. Policy p decides
// whether it gets an older checkpoint or a [RefusedError]. dir is never replaced if it is a
// checkpoint itself.
func Choose(ctx context.Context, fsys FS, dir string, p Policy, rejected *Entry) (Found, error) {
	if rejected == nil {
		found, err := Find(ctx, fsys, dir)
		switch {
		case err == nil && p == SkipNone && len(found.Passed) > 0:
			e := found.Passed[0]
			return Found{}, &RefusedError{fmt.Errorf("checkpoint %s: %w", e.Path, e.Err), found.Path}
		case err == nil, errors.Is(err, ErrNone), !isDamaged(err):
			return found, err
		}
		rejected = &Entry{Path: dir, Err: err}
	}
	found, err := before(ctx, fsys, *rejected)
	switch {
	case err == nil && rejected.Path == dir:
		err = fmt.Errorf("%w; %s is older: load it by its path", rejected.Err, found.Path)
	case err == nil && p == SkipDamaged:
		return found, nil
	case err == nil:
		return Found{}, &RefusedError{rejected.Err, found.Path}
	case ctx.Err() != nil: // the caller has been stopped, because something else has failed
		return Found{}, rejected.Err
	case err == ErrNone:
		err = fmt.Errorf("%w; no older checkpoint is whole", rejected.Err)
	default:
		err = fmt.Errorf("%w; no older checkpoint can be loaded: %v", rejected.Err, err)
	}
	return Found{}, &RefusedError{Err: err}
}

// A RefusedError is the error of Choose for damage that its policy does not skip.
type RefusedError struct {
	Err   error
	Older string // an older checkpoint that [SkipDamaged] skips to, or ""
}

func (e *RefusedError) Error() string {
	if e.Older == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("%v; %s is older and complete, but its data is not checked", e.Err, e.Older)
}

func (e *RefusedError) Unwrap() error { return e.Err }

// ErrNone is wrapped by the error of [Latest] if there is no whole checkpoint. It is an
// [fs.ErrNotExist].
var ErrNone error = none{}

type none struct{}

func (none) Error() string { return "no whole checkpoint" }
func (none) Unwrap() error { return fs.ErrNotExist }

// errAllDamaged is the error of Find if checkpoints were completed, and all of them are damaged
// now. It is an ErrDamaged.
var errAllDamaged error = allDamaged{}

type allDamaged struct{}

func (allDamaged) Error() string { return "no whole checkpoint is left" }
func (allDamaged) Unwrap() error { return ErrDamaged }

// Latest returns the path of the checkpoint that Find finds.
func Latest(ctx context.Context, fsys FS, dir string) (path string, err error) {
	f, err := Find(ctx, fsys, dir)
	return f.Path, err
}

// A Found is a checkpoint that is whole except possibly for its data, which was not read.
type Found struct {
	Path string
	Meta map[string]json.RawMessage // of the manifest
	// Passed are damaged checkpoints that were saved later, the last first. Drafts are not among
	// them, because they were never complete.
	Passed []Entry
}

// Find finds the last whole checkpoint in a job's directory, or dir if that is a whole checkpoint
// itself. It skips damaged ones. The error is an [ErrNone] if no save has been completed yet. If
// some were, and all of them are damaged, it is an [ErrDamaged] that says why, because starting
// again silently would lose the training. A checkpoint of another format, or one that cannot be
// read, is an error, too: using an older one would lose part of the training.
func Find(ctx context.Context, fsys FS, dir string) (Found, error) {
	switch f, err := openFile(ctx, fsys, filepath.Join(dir, ManifestName)); {
	case err == nil:
		if err := f.Close(); err != nil {
			return Found{}, fmt.Errorf("checkpoint: %w", err)
		}
		meta, err := checkWhole(ctx, fsys, dir)
		if err != nil {
			return Found{}, fmt.Errorf("checkpoint: %s cannot be loaded: %w", dir, err)
		}
		return Found{Path: dir, Meta: meta}, nil
	case errors.Is(err, syscall.ENOTDIR):
		return Found{}, fmt.Errorf("checkpoint: %s is a file, but a checkpoint is a directory: to read a file, use Import: %w", dir, err)
	case !errors.Is(err, fs.ErrNotExist):
		return Found{}, fmt.Errorf("checkpoint: %w", err)
	}
	names, err := readNames(ctx, fsys, dir)
	for {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Found{}, fmt.Errorf("checkpoint: looking for the latest: %w", err)
		}
		found, noneErr := latest(ctx, fsys, dir, names)
		if !errors.Is(noneErr, ErrNone) && !errors.Is(noneErr, errAllDamaged) {
			return found, noneErr
		}
		// A job that saves here may have removed the ones we saw, and completed others before that.
		seen := names
		if names, err = readNames(ctx, fsys, dir); slices.Equal(names, seen) {
			if errors.Is(err, fs.ErrNotExist) { // its name may be mistyped
				noneErr = fmt.Errorf("%w: no such directory", noneErr)
			}
			return Found{}, noneErr
		}
	}
}

// before finds the last whole checkpoint that was saved before a rejected one. It returns ErrNone
// if the rejected one is not in a job's directory.
func before(ctx context.Context, fsys FS, rejected Entry) (Found, error) {
	dir := filepath.Dir(rejected.Path)
	n, ok := parseName(filepath.Base(rejected.Path))
	if !ok {
		return Found{}, ErrNone
	}
	names, err := readNames(ctx, fsys, dir)
	if err != nil {
		return Found{}, fmt.Errorf("checkpoint: looking for an older one: %w", err)
	}
	at, _ := slices.BinarySearchFunc(names, n, name.compare)
	found, err := latest(ctx, fsys, dir, names[:at])
	rejected.Sequence, rejected.Step = n.sequence, n.step
	found.Passed = append([]Entry{rejected}, found.Passed...)
	return found, err
}

// latest is Find among some names.
func latest(ctx context.Context, fsys FS, dir string, names []name) (found Found, err error) {
	const shown = 4
	var reasons []string
	for _, n := range slices.Backward(names) {
		switch e := n.entry(ctx, fsys, dir); {
		case e.Err == nil:
			found.Path, found.Meta = e.Path, e.Meta
			return found, nil
		case !isDamaged(e.Err):
			return Found{}, fmt.Errorf("checkpoint: %s is the latest, but it could not be checked for damage: %w", e.Path, e.Err)
		case n.draft == "":
			found.Passed = append(found.Passed, e)
			fallthrough
		default:
			reasons = append(reasons, fmt.Sprintf("%s: %v", n, e.Err))
		}
	}
	err = ErrNone
	if len(found.Passed) > 0 {
		err = errAllDamaged
	}
	if more := len(reasons) - shown; more > 0 {
		reasons = append(reasons[:shown], fmt.Sprintf("and %d more", more))
	}
	if len(reasons) > 0 {
		return Found{}, fmt.Errorf("checkpoint: %w in %s (%s)", err, dir, strings.Join(reasons, "; "))
	}
	return Found{}, fmt.Errorf("checkpoint: %w in %s", err, dir)
}
