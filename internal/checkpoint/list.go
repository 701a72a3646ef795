package checkpoint

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// draftMark is in the name of a checkpoint that does not count: it is being written or removed.
const draftMark = ".tmp-"

// ErrUnfinished is why a draft does not count.
var ErrUnfinished = errors.New("incomplete: it is being written or removed, or this was interrupted")

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

// An Entry is a file or directory in a job's directory that has the name of a checkpoint.
type Entry struct {
	Path           string
	Sequence, Step int   // of the save in the directory, and of the training
	Err            error // why it does not count, or nil if it is whole

	Meta map[string]json.RawMessage // of the manifest, if it is whole
}

// List returns the checkpoints in a job's directory in the order of saving, including drafts. It
// checks the manifest of each and the presence and size of its files, but not the data. It ignores
// other names.
func List(ctx context.Context, fsys FS, dir string) ([]Entry, error) {
	names, err := readNames(ctx, fsys, dir)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: listing: %w", err)
	}
	entries := make([]Entry, 0, len(names))
	for _, n := range names {
		entries = append(entries, n.entry(ctx, fsys, dir))
		if ctx.Err() != nil {
			return nil, fmt.Errorf("checkpoint: listing %s: %w", dir, context.Cause(ctx))
		}
	}
	return entries, nil
}

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
			return Found{}, fmt.Errorf("checkpoint: %s does not count: %w", dir, err)
		}
		return Found{Path: dir, Meta: meta}, nil
	case errors.Is(err, syscall.ENOTDIR):
		return Found{}, fmt.Errorf("checkpoint: %s is a file, and a checkpoint is a directory: Import reads files: %w", dir, err)
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

// Before is Find among the checkpoints that were saved before the one at path, which is skipped
// because of err.
func Before(ctx context.Context, fsys FS, path string, err error) (Found, error) {
	dir, base := filepath.Split(path)
	n, ok := parseName(base)
	if !ok {
		return Found{}, fmt.Errorf("checkpoint: %w before %s, which is not a name of a checkpoint", ErrNone, path)
	}
	names, namesErr := readNames(ctx, fsys, dir)
	if namesErr != nil {
		return Found{}, fmt.Errorf("checkpoint: looking for an older one: %w", namesErr)
	}
	at, _ := slices.BinarySearchFunc(names, n, name.compare)
	found, noneErr := latest(ctx, fsys, dir, names[:at])
	found.Passed = append([]Entry{{Path: path, Sequence: n.sequence, Step: n.step, Err: err}}, found.Passed...)
	return found, noneErr
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

// checkWhole returns the metadata of the manifest, or why the directory is not a whole checkpoint.
// It does not read the data.
func checkWhole(ctx context.Context, fsys FS, dir string) (map[string]json.RawMessage, error) {
	r, err := OpenReader(ctx, fsys, dir)
	if err != nil {
		return nil, err
	}
	return r.Manifest().Meta, r.Close()
}

// isDamaged reports whether err is about the state of a checkpoint, and not about this program or
// this machine.
func isDamaged(err error) bool {
	return errors.Is(err, ErrUnfinished) || errors.Is(err, ErrDamaged) || errors.Is(err, fs.ErrNotExist)
}

// A name is the name of a checkpoint's directory: "000007-step-1200", or
// "000007-step-1200.tmp-1b3d5f79" while it does not count.
type name struct {
	sequence, step int
	draft          string // ".tmp-1b3d5f79", or empty
}

func (n name) String() string { return fmt.Sprintf("%06d-step-%d%s", n.sequence, n.step, n.draft) }

// compare orders names by number.
func (n name) compare(m name) int {
	return cmp.Or(cmp.Compare(n.sequence, m.sequence), cmp.Compare(n.step, m.step), cmp.Compare(n.draft, m.draft))
}

// entry checks the checkpoint of this name.
func (n name) entry(ctx context.Context, fsys FS, dir string) Entry {
	e := Entry{Path: filepath.Join(dir, n.String()), Sequence: n.sequence, Step: n.step, Err: ErrUnfinished}
	if n.draft == "" {
		e.Meta, e.Err = checkWhole(ctx, fsys, e.Path)
	}
	return e
}

var namePattern = regexp.MustCompile(`^(\d{6,})-step-(\d+)(` + regexp.QuoteMeta(draftMark) + `[0-9a-f]{8})?$`)

// parseName is the inverse of String.
func parseName(base string) (n name, ok bool) {
	part := namePattern.FindStringSubmatch(base)
	if part == nil {
		return name{}, false
	}
	sequence, sequenceErr := strconv.Atoi(part[1])
	step, stepErr := strconv.Atoi(part[2])
	n = name{sequence: sequence, step: step, draft: part[3]}
	return n, sequenceErr == nil && stepErr == nil && n.String() == base // no superfluous zeros
}

// readNames returns the names of ours in dir, by number. A checkpoint may have been moved elsewhere
// and left a symbolic link.
func readNames(ctx context.Context, fsys FS, dir string) ([]name, error) {
	read := func() ([]fs.DirEntry, error) { return fsys.ReadDir(dir) }
	entries, err := within(ctx, dir, read, func([]fs.DirEntry) {})
	if err != nil {
		return nil, err
	}
	var names []name
	for _, e := range entries {
		if n, ok := parseName(e.Name()); ok && (e.IsDir() || e.Type()&fs.ModeSymlink != 0) {
			names = append(names, n)
		}
	}
	slices.SortFunc(names, name.compare)
	return names, nil
}
