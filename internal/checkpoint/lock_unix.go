//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package checkpoint

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// nonBlocking keeps an open from waiting for the other end of a FIFO.
const nonBlocking = unix.O_NONBLOCK

// tryLock locks f unless another open file has the lock, in this process or, on file systems that
// hosts share, on another host.
func tryLock(f *os.File) (held bool, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return false, err
	}
	err = unix.EINTR
	for errors.Is(err, unix.EINTR) { // the runtime preempts with signals
		if ctl := raw.Control(func(fd uintptr) { err = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB) }); ctl != nil {
			return false, ctl
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, os.NewSyscallError("flock", err)
}
