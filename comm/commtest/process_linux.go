package commtest

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// stopSelf stops this process. It returns when the process is continued. The signal is for this
// very thread, which would otherwise run on until another one has taken it.
func stopSelf() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
}

// eachConnection calls f with every connected stream socket of this process.
func eachConnection(f func(fd int) error) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
			continue // the directory itself, a file, …
		}
		if _, err := unix.Getpeername(fd); err != nil {
			continue // a listener
		}
		errs = append(errs, f(fd))
	}
	return errors.Join(errs...)
}

// cut shuts a connection down in both directions.
func cut(fd int) error { return ignoreEnd(unix.Shutdown(fd, unix.SHUT_RDWR)) }

// garble sends bytes with which no protocol begins a message.
func garble(fd int) error {
	return ignoreEnd(unix.Sendto(fd, bytes.Repeat([]byte{0xa5}, 256), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil))
}

// ignoreEnd drops the errors of connections that the other side has ended first.
func ignoreEnd(err error) error {
	for _, end := range []error{unix.ENOTCONN, unix.EPIPE, unix.ECONNRESET} {
		if errors.Is(err, end) {
			return nil
		}
	}
	return err
}
