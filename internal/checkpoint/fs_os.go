package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"syscall"
)

// OS returns the file system of the operating system. Everyone whom the umask allows may read what
// it makes.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) Mkdir(dir string) error                    { return os.Mkdir(dir, 0o755) }
func (osFS) ReadDir(dir string) ([]fs.DirEntry, error) { return os.ReadDir(dir) }
func (osFS) Rename(from, to string) error              { return os.Rename(from, to) }
func (osFS) RemoveAll(path string) error               { return os.RemoveAll(path) }

func (osFS) Create(path string) (Handle, error) {
	return handle(os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644))
}

func (osFS) Open(path string) (Handle, error) { return handle(os.Open(path)) }

// SyncDir does nothing on Windows, which has no such call: NTFS keeps a log of changes to names, in
// their order, so that after a power failure the last few may be missing, but never an earlier one.
// File systems elsewhere that cannot do it either, such as some on networks, say so, and are taken
// as they are.
func (osFS) SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	return errors.Join(err, d.Close())
}

// osFile is an *os.File as a Handle.
type osFile struct{ *os.File }

func handle(f *os.File, err error) (Handle, error) {
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
