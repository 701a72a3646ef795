package mapped

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// reserve makes file n bytes long. All bytes are allocated on the disk and read as zero.
func reserve(file *os.File, n int) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	err = unix.EINTR
	for errors.Is(err, unix.EINTR) { // the runtime preempts with signals; bytes reserved so far stay reserved
		if ctl := raw.Control(func(fd uintptr) { err = unix.Fallocate(int(fd), 0, 0, int64(n)) }); ctl != nil {
			return ctl
		}
	}
	if errors.Is(err, unix.EOPNOTSUPP) { // NFS before 4.2, some overlays
		return fill(file, n)
	}
	return os.NewSyscallError("fallocate", err)
}

// fill is reserve by writing zeros.
func fill(file *os.File, n int) error {
	zeros := make([]byte, min(n, 1<<20))
	for at := 0; at < n; at += len(zeros) {
		if _, err := file.WriteAt(zeros[:min(len(zeros), n-at)], int64(at)); err != nil {
			return err
		}
	}
	return nil
}
