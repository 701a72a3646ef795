package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"time"
)

// ErrLocked is wrapped by a [LockedError].
var ErrLocked = errors.New("in use by another job")

// A LockedError names the holder of a lock.
type LockedError struct {
	Path  string // of the file that stands for the lock
	Owner string // the holder's description of itself; empty if it has not written that yet
}

func (e *LockedError) Error() string {
	owner := e.Owner
	if strings.HasPrefix(owner, lockProcess()) {
		return fmt.Sprintf("checkpoint: %s: in use by another model of this process (%s): close that model, or give each model its own directory", e.Path, owner)
	}
	if owner == "" {
		owner = "one that has just begun"
	}
	return fmt.Sprintf("checkpoint: %s: %v: %s: end it, or give each job its own directory", e.Path, ErrLocked, owner)
}

func (e *LockedError) Unwrap() error { return ErrLocked }

// maxOwner is a size in bytes that no text in a lock reaches.
const maxOwner = 1 << 10

// fileLock is a lock that this process holds, on an open file.
type fileLock struct{ file *os.File }

// Lock makes the system lock an open file, so that the lock ends with the process, however that
// ends. The file itself stays for ever: if it were removed, one process could hold the lock of the
// old file and another the lock of a new one. A link, or a file with a text that no lock has
// written, belongs to others: it is refused and not changed.
func (osFS) Lock(path, owner string) (io.Closer, error) {
	f, err := openLock(path)
	if err != nil {
		return nil, err
	}
	held, err := tryLock(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxOwner+1))
	switch {
	case err == nil && (len(text) > maxOwner || !ownerPattern.Match(text)):
		err = &fs.PathError{Op: "lock", Path: path, Err: errors.New("it is not a lock file, so it is not changed")}
	case !held: // reading no text does not change that it is locked
		err = &LockedError{Path: path, Owner: strings.TrimSpace(string(text))}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	// The text is for people. The lock is held without it, on a full disk too.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(owner+"\n"), 0)
	}
	return &fileLock{f}, nil
}

// openLock opens the file at path, or makes it. O_EXCL follows no link. An existing file is opened
// without a change and compared with the file of that name.
func openLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if !errors.Is(err, fs.ErrExist) {
		return f, err
	}
	named, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !named.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "lock", Path: path, Err: fmt.Errorf("it is %s, not a lock file", kindOf(named.Mode()))}
	}
	if f, err = os.OpenFile(path, os.O_RDWR|nonBlocking, 0); err != nil {
		return nil, err
	}
	opened, err := f.Stat()
	if err == nil && !os.SameFile(named, opened) {
		err = fmt.Errorf("another file has replaced %s", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lockOwner describes this process in a lock, and ownerPattern matches the texts that a lock may
// have: that description, or its remains after a power failure.
func lockOwner() string {
	return lockProcess() + time.Now().UTC().Format(time.RFC3339)
}

// lockProcess is the beginning of the texts of this process.
func lockProcess() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("host %s, pid %d, since ", host, os.Getpid())
}

var ownerPattern = regexp.MustCompile(`^(host [^\n]*, pid \d+, since \S+\n?)?\x00*$`)

// Close releases the lock. It removes the holder's name first, which would mislead the next reader.
func (l *fileLock) Close() error {
	_ = l.file.Truncate(0)
	return l.file.Close()
}
