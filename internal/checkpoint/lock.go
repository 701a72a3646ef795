package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// ErrLocked is what a [LockedError] wraps.
var ErrLocked = errors.New("in use by another job")

// A LockedError says who holds a lock.
type LockedError struct {
	Path  string // of the file that stands for the lock
	Owner string // what the holder says of itself; empty if it has not come to that yet
}

func (e *LockedError) Error() string {
	owner := e.Owner
	if owner == "" {
		owner = "someone who gives no name"
	}
	return fmt.Sprintf("checkpoint: %s: %v: %s", e.Path, ErrLocked, owner)
}

func (e *LockedError) Unwrap() error { return ErrLocked }

// maxOwner is how much of a lock file is read for a message.
const maxOwner = 1 << 10

// fileLock is a lock that this process holds, on an open file.
type fileLock struct{ file *os.File }

// Lock has the system lock an open file, so that it ends with the process, however that ends. The
// file itself stays for ever: were it removed, one process could hold the lock of the old file and
// another that of a new one.
func (osFS) Lock(path, owner string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	held, err := tryLock(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
	}
	if !held {
		text, _ := io.ReadAll(io.LimitReader(f, maxOwner)) // no text is no reason to hide the fact
		return nil, errors.Join(&LockedError{Path: path, Owner: strings.TrimSpace(string(text))}, f.Close())
	}
	// The text is for people. The lock is held without it, on a full disk too.
	if f.Truncate(0) == nil {
		_, _ = f.WriteString(owner + "\n")
	}
	return &fileLock{f}, nil
}

// Close gives the lock up. It removes the holder's name first, which would mislead the next reader.
func (l *fileLock) Close() error {
	_ = l.file.Truncate(0)
	return l.file.Close()
}
