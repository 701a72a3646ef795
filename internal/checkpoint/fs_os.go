package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"
)

// OS returns the file system of the operating system. All users that the umask allows may read its
// files.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) Mkdir(dir string) error                    { return os.Mkdir(dir, 0o755) }
func (osFS) ReadDir(dir string) ([]fs.DirEntry, error) { return os.ReadDir(dir) }
func (osFS) Rename(from, to string) error              { return os.Rename(from, to) }
func (osFS) RemoveAll(path string) error               { return os.RemoveAll(path) }

// Create follows no link: O_EXCL refuses one, wherever it leads.
func (osFS) Create(path string) (Handle, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Open does not wait for anything but a regular file, such as a FIFO without a writer.
func (osFS) Open(path string) (Handle, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|nonBlocking, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("%w: the path is %s, not a file", ErrDamaged, kindOf(info.Mode()))}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return osFile{f}, nil
}

// kindOf names the kind of a path that is not a regular file.
func kindOf(mode fs.FileMode) string {
	switch mode.Type() {
	case fs.ModeDir:
		return "a directory"
	case fs.ModeSymlink:
		return "a symbolic link"
	case fs.ModeNamedPipe:
		return "a FIFO"
	default:
		return "a device"
	}
}

// SyncDir does nothing on Windows, which has no such call: NTFS keeps a log of changes to names, in
// their order, so that after a power failure the last few may be missing, but never an earlier one.
// File systems elsewhere that do not support it either, such as some on networks, return an error,
// which is ignored.
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

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
