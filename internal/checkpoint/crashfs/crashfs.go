// Package crashfs is a file system in memory for tests: it fails on request, and can simulate the
// result of a power failure.
//
// Every operation is counted. A [Fault] makes one of them fail, or all from there on, as the death
// of a process looks from the inside:
//
//	f := crashfs.New()
//	f.Kill(17)              // the process does 17 operations more
//	save(f)                 // fails
//	g := f.Restart()        // the next process on the same machine finds all that was written
//	h := f.Crash(seed)      // the next process after a power failure does not
//
// What survives [FS.Crash] is what POSIX promises, and no more:
//
//   - Data that was written and not synced is there or not. The file may be shorter, and its
//     contents may be zeros or garbage, sector by sector.
//   - A name that was made, changed or removed since the directory was synced is so on disk or not,
//     independently. Only changes that make no sense without a lost change are lost too. A
//     rename is whole or not at all. Syncing a file does not sync its name.
//
// Real file systems keep more, each in its own way. The seed decides between the outcomes: after
// the same operations, equal seeds give the same outcome.
package crashfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// ErrKilled is the error of every operation of a dead process.
var ErrKilled = errors.New("the process is dead")

var (
	errNotDir   = errors.New("not a directory")
	errIsDir    = errors.New("is a directory")
	errNotEmpty = errors.New("directory not empty")
	errAcross   = errors.New("renaming from one directory to another is not simulated")
)

// Op is an operation on a file system: "mkdir", "readdir", "create", "open", "rename" (by its old
// name), "remove" (of one file or directory), "syncdir", "lock", and, of an open file, "write",
// "read", "size", "sync", "close".
type Op struct{ Name, Path string }

// String returns the operation as errors have it.
func (o Op) String() string { return o.Name + " " + o.Path }

// A Fault makes operations fail.
type Fault struct {
	At      int           // which, of those selected, counted from 0 when the fault is injected
	Only    func(Op) bool // selects; nil selects all
	Err     error         // the error of the operation, in an fs.PathError
	Done    bool          // it is done anyway: a write half, anything else wholly
	Forever bool          // all selected operations from there on fail, not only that one
}

// FS is a file system as one process sees it. The zero value is of no use, see [New].
type FS struct {
	mu    sync.Mutex
	root  *node
	locks map[*node]string // the holder, by the file of the lock
	ops   []Op
	fault Fault // a Fault without an Err is none
	seen  int   // operations that fault.Only has selected
	half  bool  // the current operation is a write that fails halfway
}

var _ checkpoint.FS = (*FS)(nil)

// A node is a file or a directory, whatever names it has.
type node struct {
	names   map[string]*node // of a directory, as processes see it; nil for a file
	synced  map[string]*node // on disk for certain
	changes []change         // from synced to names, the oldest first

	data []byte // of a file, as processes see it
	disk []byte // on disk for certain; a prefix of data, since files only grow
}

// A change takes one name from a node, or gives it one, or both.
type change struct {
	remove, add string // empty for none
	node        *node
}

func newDir() *node { return &node{names: map[string]*node{}, synced: map[string]*node{}} }

// New returns an empty file system. All paths lead to its one root: "a" and "/a" are the same.
func New() *FS { return &FS{root: newDir(), locks: make(map[*node]string)} }

// Inject makes a fault happen, in place of the one before.
func (f *FS) Inject(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault, f.seen = fault, 0
}

// Kill ends the process after n more operations.
func (f *FS) Kill(n int) { f.Inject(Fault{At: n, Err: ErrKilled, Forever: true}) }

// Ops returns all operations so far, those that failed included.
func (f *FS) Ops() []Op {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.ops)
}

// Restart ends the process, and returns the file system as the next one finds it.
func (f *FS) Restart() *FS {
	f.Kill(0)
	return &FS{root: f.root, locks: make(map[*node]string)}
}

// do counts an operation and applies its effect, unless it must fail.
func (f *FS) do(name, path string, effect func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.doLocked(name, path, effect)
}

func (f *FS) doLocked(name, path string, effect func() error) error {
	op := Op{name, path}
	f.ops = append(f.ops, op)
	err := f.due(op)
	if err == nil || f.fault.Done {
		f.half = err != nil
		if effectErr := effect(); err == nil {
			err = effectErr
		}
	}
	if err == nil || err == io.EOF { // which is no failure of the file system, and stands alone in package os, too
		return err
	}
	return &fs.PathError{Op: name, Path: path, Err: err}
}

// due returns the error of a fault that applies to op.
func (f *FS) due(op Op) error {
	if f.fault.Err == nil || f.fault.Only != nil && !f.fault.Only(op) {
		return nil
	}
	at := f.seen
	f.seen++
	if at == f.fault.At || f.fault.Forever && at > f.fault.At {
		return f.fault.Err
	}
	return nil
}

// find returns the node at path.
func (f *FS) find(path string) (*node, error) {
	n := f.root
	for part := range strings.SplitSeq(slashed(path), "/") {
		if part == "" {
			continue
		}
		if n.names == nil {
			return nil, errNotDir
		}
		next, ok := n.names[part]
		if !ok {
			return nil, fs.ErrNotExist
		}
		n = next
	}
	return n, nil
}

func slashed(path string) string {
	path = filepath.Clean(path)
	path = filepath.ToSlash(path[len(filepath.VolumeName(path)):])
	return strings.TrimPrefix(path, ".")
}

// parent returns the directory of path, and the name of path in it.
func (f *FS) parent(path string) (dir *node, base string, err error) {
	dir, err = f.find(filepath.Dir(path))
	if err == nil && dir.names == nil {
		err = errNotDir
	}
	return dir, filepath.Base(path), err
}

// apply makes a change that processes see at once, and the disk some time.
func (n *node) apply(c change) {
	n.changes = append(n.changes, c)
	c.to(n.names)
}

// to makes the change to names, unless it makes no sense there.
func (c change) to(names map[string]*node) {
	if c.remove != "" {
		if names[c.remove] != c.node {
			return
		}
		delete(names, c.remove)
	}
	if c.add != "" {
		names[c.add] = c.node
	}
}

// make gives a new node its name.
func (f *FS) make(path string, n *node) error {
	dir, base, err := f.parent(path)
	if err != nil {
		return err
	}
	if _, ok := dir.names[base]; ok || dir == n {
		return fs.ErrExist
	}
	dir.apply(change{add: base, node: n})
	return nil
}

// Mkdir implements [checkpoint.FS].
func (f *FS) Mkdir(dir string) error {
	return f.do("mkdir", dir, func() error {
		if n, err := f.find(dir); err == nil && n == f.root {
			return fs.ErrExist
		}
		return f.make(dir, newDir())
	})
}

// ReadDir implements [checkpoint.FS].
func (f *FS) ReadDir(dir string) (entries []fs.DirEntry, err error) {
	err = f.do("readdir", dir, func() error {
		n, err := f.find(dir)
		if err != nil {
			return err
		}
		if n.names == nil {
			return errNotDir
		}
		for _, name := range slices.Sorted(maps.Keys(n.names)) {
			child := n.names[name]
			entries = append(entries, fs.FileInfoToDirEntry(info{name: name, dir: child.names != nil, size: int64(len(child.data))}))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return entries, nil
}

// Create implements [checkpoint.FS].
func (f *FS) Create(path string) (checkpoint.Handle, error) {
	n := new(node)
	if err := f.do("create", path, func() error { return f.make(path, n) }); err != nil {
		return nil, err
	}
	return &handle{fs: f, node: n, path: path, writes: true}, nil
}

// Open implements [checkpoint.FS].
func (f *FS) Open(path string) (checkpoint.Handle, error) {
	var n *node
	err := f.do("open", path, func() (err error) {
		if n, err = f.find(path); err == nil && n.names != nil {
			err = fmt.Errorf("%w: the path %w", checkpoint.ErrDamaged, errIsDir)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &handle{fs: f, node: n, path: path}, nil
}

// Rename implements [checkpoint.FS].
func (f *FS) Rename(from, to string) error {
	return f.do("rename", from, func() error {
		if filepath.Dir(from) != filepath.Dir(to) {
			return errAcross
		}
		dir, base, err := f.parent(from)
		if err != nil {
			return err
		}
		n, ok := dir.names[base]
		if !ok {
			return fs.ErrNotExist
		}
		if old, ok := dir.names[filepath.Base(to)]; ok && old != n {
			switch {
			case old.names == nil && n.names != nil:
				return errNotDir
			case old.names != nil && n.names == nil:
				return errIsDir
			case len(old.names) > 0:
				return errNotEmpty
			}
		}
		dir.apply(change{remove: base, add: filepath.Base(to), node: n})
		return nil
	})
}

// RemoveAll implements [checkpoint.FS]. It is one operation for every file and directory, the
// deepest first.
func (f *FS) RemoveAll(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.removeAll(path)
}

func (f *FS) removeAll(path string) error {
	n, err := f.find(path)
	if err == nil {
		for _, name := range slices.Sorted(maps.Keys(n.names)) {
			if err := f.removeAll(filepath.Join(path, name)); err != nil {
				return err
			}
		}
	}
	return f.doLocked("remove", path, func() error {
		dir, base, err := f.parent(path)
		if n == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			dir.apply(change{remove: base, node: n})
		}
		return err
	})
}

// SyncDir implements [checkpoint.FS].
func (f *FS) SyncDir(dir string) error {
	return f.do("syncdir", dir, func() error {
		n, err := f.find(dir)
		if err != nil {
			return err
		}
		if n.names == nil {
			return errNotDir
		}
		n.synced, n.changes = maps.Clone(n.names), nil
		return nil
	})
}

// Lock implements [checkpoint.FS].
func (f *FS) Lock(path, owner string) (io.Closer, error) {
	var n *node
	err := f.do("lock", path, func() (err error) {
		if n, err = f.find(path); errors.Is(err, fs.ErrNotExist) {
			n = new(node)
			err = f.make(path, n)
		}
		if err != nil {
			return err
		}
		if holder, ok := f.locks[n]; ok {
			return &checkpoint.LockedError{Path: path, Owner: holder}
		}
		f.locks[n] = owner
		return nil
	})
	var locked *checkpoint.LockedError
	switch {
	case err == nil:
		return &lock{fs: f, node: n}, nil
	case errors.As(err, &locked):
		return nil, locked
	default:
		_ = (&lock{fs: f, node: n}).Close() // it may have been done, but no caller has it
		return nil, err
	}
}

// A lock is held until it is closed. The locks of a process that is dead went with its FS.
type lock struct {
	fs   *FS
	node *node
}

func (l *lock) Close() error {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	if l.node == nil {
		return fs.ErrClosed
	}
	delete(l.fs.locks, l.node)
	l.node = nil
	return nil
}

// A handle is an open file.
type handle struct {
	fs             *FS
	node           *node
	path           string
	writes, closed bool
}

// do is FS.do for an operation on the open file.
func (h *handle) do(name string, effect func() error) error {
	return h.fs.do(name, h.path, func() error {
		if h.closed {
			return fs.ErrClosed
		}
		return effect()
	})
}

func (h *handle) Write(p []byte) (n int, err error) {
	err = h.do("write", func() error {
		if !h.writes {
			return fs.ErrPermission
		}
		if h.fs.half {
			p = p[:len(p)/2]
		}
		h.node.data = append(h.node.data, p...)
		n = len(p)
		return nil
	})
	return n, err
}

func (h *handle) ReadAt(p []byte, at int64) (n int, err error) {
	err = h.do("read", func() (err error) {
		if h.node.names != nil {
			return errIsDir
		}
		if len(p) == 0 {
			return nil
		}
		n, err = bytes.NewReader(h.node.data).ReadAt(p, at)
		return err
	})
	return n, err
}

func (h *handle) Size() (size int64, err error) {
	err = h.do("size", func() error {
		size = int64(len(h.node.data))
		return nil
	})
	return size, err
}

func (h *handle) Sync() error {
	return h.do("sync", func() error {
		h.node.disk = slices.Clone(h.node.data)
		return nil
	})
}

// Close implements [io.Closer]. The file is closed even if it fails.
func (h *handle) Close() error {
	err := h.do("close", func() error { return nil })
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	h.closed = true
	return err
}
