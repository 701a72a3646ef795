package checkpoint

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"time"
)

// FS is the interface of checkpoints to a file system. Paths are paths of package path/filepath,
// and errors name them. It is safe for concurrent use. [OS] is the real one; tests replace it by
// one that fails, or stops, at any operation.
type FS interface {
	Mkdir(dir string) error                    // fails if it exists
	ReadDir(dir string) ([]fs.DirEntry, error) // by name
	Create(path string) (Handle, error)        // for writing; fails if it exists
	Open(path string) (Handle, error)          // for reading; any non-file is an ErrDamaged, at once
	Rename(from, to string) error              // in one directory; replaces a file, but no directory that is not empty
	RemoveAll(path string) error               // of a directory with all its contents; a missing path is no error
	SyncDir(dir string) error                  // returns once the names in dir are on disk
	// Lock takes the lock of the file at path, and makes the file if need be. It does not wait: a
	// [LockedError] names the holder of the lock, in this process or another. The lock ends with
	// Close, or with the process. A link is refused, and so is a file with a text that no Lock has
	// written: neither is changed.
	Lock(path, owner string) (io.Closer, error)
}

// Handle is an open file of an FS.
type Handle interface {
	io.Writer
	io.ReaderAt
	io.Closer
	Size() (int64, error) // bytes
	Sync() error          // returns once written data is on disk
}

// within runs do, which uses a file system, and returns when it is done or ctx ends. A system call
// cannot be interrupted, and if a server is gone it may last for ever. It then goes on in a
// goroutine that is left behind, and drop gets its result. The error of do names path, too.
func within[T any](ctx context.Context, path string, do func() (T, error), drop func(T)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, fmt.Errorf("%s: %w", path, context.Cause(ctx))
	}
	type result struct {
		v   T
		err error
	}
	done, begin := make(chan result), time.Now()
	go func() {
		v, err := do()
		select {
		case done <- result{v, err}:
		case <-ctx.Done():
			if err == nil {
				drop(v)
			}
		}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		return none, fmt.Errorf("%s: the file system has not answered after %v: %w", path, time.Since(begin).Round(time.Millisecond), context.Cause(ctx))
	}
}

// openFile opens a file, and returns when it is open or ctx ends.
func openFile(ctx context.Context, fsys FS, path string) (Handle, error) {
	return within(ctx, path, func() (Handle, error) { return fsys.Open(path) }, func(f Handle) { _ = f.Close() })
}
