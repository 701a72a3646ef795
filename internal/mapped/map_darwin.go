package mapped

import (
	"os"

	"golang.org/x/sys/unix"
)

// reserve makes file n bytes long. All bytes are allocated on the disk and read as zero.
func reserve(file *os.File, n int) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	if ctl := raw.Control(func(fd uintptr) {
		err = unix.FcntlFstore(fd, unix.F_PREALLOCATE,
			&unix.Fstore_t{Flags: unix.F_ALLOCATEALL, Posmode: unix.F_PEOFPOSMODE, Length: int64(n)})
	}); ctl != nil {
		return ctl
	}
	if err != nil {
		return os.NewSyscallError("F_PREALLOCATE", err)
	}
	return file.Truncate(int64(n))
}
