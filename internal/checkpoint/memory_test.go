package checkpoint

import (
	"bytes"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"testing"
)

// memory is an FS of files in memory, by path. Only Create and Open are there.
type memory struct {
	FS
	mu    sync.Mutex
	files map[string][]byte
	read  atomic.Int64 // bytes

	write           func(written int, p []byte) (int, error) // in place of writing p, behind so many bytes, if not nil
	syncErr, endErr error                                    // of Sync and Close
}

func newMemory() *memory { return &memory{files: make(map[string][]byte)} }

func (m *memory) Create(path string) (Handle, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.files[path]; ok {
		return nil, &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	m.files[path] = nil
	return &memoryFile{m: m, path: path}, nil
}

func (m *memory) Open(path string) (Handle, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.files[path]; !ok {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return &memoryFile{m: m, path: path}, nil
}

type memoryFile struct {
	m    *memory
	path string
}

func (f *memoryFile) content() []byte {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return f.m.files[f.path]
}

func (f *memoryFile) Write(p []byte) (int, error) {
	if f.m.write != nil {
		return f.m.write(len(f.content()), p)
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.m.files[f.path] = append(f.m.files[f.path], p...)
	return len(p), nil
}

func (f *memoryFile) ReadAt(p []byte, at int64) (int, error) {
	n, err := bytes.NewReader(f.content()).ReadAt(p, at)
	f.m.read.Add(int64(n))
	return n, err
}

func (f *memoryFile) Size() (int64, error) { return int64(len(f.content())), nil }
func (f *memoryFile) Sync() error          { return f.m.syncErr }
func (f *memoryFile) Close() error         { return f.m.endErr }

// SetFilesPerDir has a test put n files in a directory at most.
func SetFilesPerDir(t *testing.T, n int) {
	before := filesPerDir
	filesPerDir = n
	t.Cleanup(func() { filesPerDir = before })
}

// must returns v of a call that cannot fail, outside of a test's own goroutine too.
func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprint("checkpoint test: ", err))
	}
	return v
}
