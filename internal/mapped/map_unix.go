//go:build linux || darwin

package mapped

import (
	"math"
	"os"

	"golang.org/x/sys/unix"
)

const supported = true

// errFull is the system's error for a full disk.
var errFull error = unix.ENOSPC

// freeBytes returns the bytes that a process without privileges can still write in dir.
func freeBytes(dir string) int {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Blocks == 0 || st.Bsize <= 0 {
		return math.MaxInt // the file system does not report it: try the allocation
	}
	return int(min(uint64(st.Bavail), math.MaxInt/uint64(st.Bsize)) * uint64(st.Bsize))
}

// mmap maps n bytes of file, which this process mostly reads and writes from front to back.
func mmap(file *os.File, n int) ([]byte, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var mem []byte
	if ctl := raw.Control(func(fd uintptr) {
		mem, err = unix.Mmap(int(fd), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}); ctl != nil {
		return nil, ctl
	}
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	_ = unix.Madvise(mem, unix.MADV_SEQUENTIAL) // a hint: more is read at a time, and is dropped sooner
	return mem, nil
}

func unmap(mem []byte) error { return os.NewSyscallError("munmap", unix.Munmap(mem)) }

func willNeed(pages []byte) error {
	return os.NewSyscallError("madvise", unix.Madvise(pages, unix.MADV_WILLNEED))
}
