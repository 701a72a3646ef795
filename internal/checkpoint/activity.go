package checkpoint

import (
	"io"
	"io/fs"
	"sync"
	"time"
)

// An Activity is the operations in progress of a file system. A server that is gone does not
// respond, and a system call cannot be interrupted. The Activity then names the operation, and
// since when it is in progress. The zero Activity is ready, and safe for concurrent use.
type Activity struct {
	mu  sync.Mutex
	ops map[*operation]bool
}

type operation struct {
	name, path string
	begin      time.Time
}

// On returns fsys, with its operations as part of the activity.
func (a *Activity) On(fsys FS) FS { return &watchedFS{fsys, a} }

// Forget makes Oldest ignore the operations in progress.
func (a *Activity) Forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ops = nil
}

// Oldest returns the operation that began first, such as "write
// /ckpt/rank-00000-of-00002.safetensors", and when. It returns "" if there is none.
func (a *Activity) Oldest() (what string, begin time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for op := range a.ops {
		if what == "" || op.begin.Before(begin) {
			what, begin = op.name+" "+op.path, op.begin
		}
	}
	return what, begin
}

// begin records an operation, and returns a function that ends it.
func (a *Activity) begin(name, path string) (end func()) {
	op := &operation{name, path, time.Now()}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ops == nil {
		a.ops = make(map[*operation]bool)
	}
	a.ops[op] = true
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.ops, op)
	}
}

// watchedFS implements FS.
type watchedFS struct {
	fs FS
	a  *Activity
}

func (w *watchedFS) Mkdir(dir string) error {
	defer w.a.begin("mkdir", dir)()
	return w.fs.Mkdir(dir)
}

func (w *watchedFS) ReadDir(dir string) ([]fs.DirEntry, error) {
	defer w.a.begin("read directory", dir)()
	return w.fs.ReadDir(dir)
}

func (w *watchedFS) Create(path string) (Handle, error) {
	defer w.a.begin("create", path)()
	return w.handle(path, w.fs.Create)
}

func (w *watchedFS) Open(path string) (Handle, error) {
	defer w.a.begin("open", path)()
	return w.handle(path, w.fs.Open)
}

func (w *watchedFS) handle(path string, open func(string) (Handle, error)) (Handle, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	return &watchedHandle{f, w.a, path}, nil
}

func (w *watchedFS) Rename(from, to string) error {
	defer w.a.begin("rename", from)()
	return w.fs.Rename(from, to)
}

func (w *watchedFS) RemoveAll(path string) error {
	defer w.a.begin("remove", path)()
	return w.fs.RemoveAll(path)
}

func (w *watchedFS) SyncDir(dir string) error {
	defer w.a.begin("sync directory", dir)()
	return w.fs.SyncDir(dir)
}

func (w *watchedFS) Lock(path, owner string) (io.Closer, error) {
	defer w.a.begin("lock", path)()
	return w.fs.Lock(path, owner)
}

// watchedHandle implements Handle.
type watchedHandle struct {
	f    Handle
	a    *Activity
	path string
}

func (w *watchedHandle) Write(p []byte) (int, error) {
	defer w.a.begin("write", w.path)()
	return w.f.Write(p)
}

func (w *watchedHandle) ReadAt(p []byte, at int64) (int, error) {
	defer w.a.begin("read", w.path)()
	return w.f.ReadAt(p, at)
}

func (w *watchedHandle) Close() error {
	defer w.a.begin("close", w.path)()
	return w.f.Close()
}

func (w *watchedHandle) Size() (int64, error) {
	defer w.a.begin("size of", w.path)()
	return w.f.Size()
}

func (w *watchedHandle) Sync() error {
	defer w.a.begin("sync", w.path)()
	return w.f.Sync()
}
