package checkpoint

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// nonBlocking is for systems whose FIFOs are files.
const nonBlocking = 0

// tryLock locks f unless another open file has the lock. No other process can read the locked
// bytes, so the lock is one byte far behind the text.
func tryLock(f *os.File) (held bool, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return false, err
	}
	if ctl := raw.Control(func(fd uintptr) {
		at := windows.Overlapped{OffsetHigh: 1 << 30}
		err = windows.LockFileEx(windows.Handle(fd), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at)
	}); ctl != nil {
		return false, ctl
	}
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return false, nil
	}
	return err == nil, os.NewSyscallError("LockFileEx", err)
}
