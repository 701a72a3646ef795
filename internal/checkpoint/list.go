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
)

// draftMark is in the name of a checkpoint that does not count: it is being written or removed.
const draftMark = ".tmp-"

// ErrUnfinished is the reason why a draft is not a checkpoint.
var ErrUnfinished = errors.New("incomplete: it is being written or removed, or was interrupted")

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

// checkWhole returns the metadata of the manifest, or why the directory is not a whole checkpoint.
// It does not read the data.
func checkWhole(ctx context.Context, fsys FS, dir string) (map[string]json.RawMessage, error) {
	r, err := OpenReader(ctx, fsys, dir)
	if err != nil {
		return nil, err
	}
	return r.Manifest().Meta, r.Close()
}

// isDamaged reports whether err is a fault of the checkpoint, not of this program or this machine.
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
