package shm

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// create makes a file of limit bytes without memory behind it, and maps it.
func create(limit int) (*os.File, []byte, error) {
	fd, err := unix.MemfdCreate("gofsdp", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // an old kernel, or a sandbox
		err = fmt.Errorf("%w: memfd_create: %w", ErrUnsupported, err)
	}
	if err != nil {
		return nil, nil, err
	}
	file := os.NewFile(uintptr(fd), "memfd:gofsdp")
	if err := unix.Ftruncate(fd, int64(limit)); err != nil {
		return nil, nil, errors.Join(os.NewSyscallError("ftruncate", err), file.Close())
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, nil, errors.Join(os.NewSyscallError("sealing", err), file.Close())
	}
	mem, err := mmap(fd, limit)
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return file, mem, nil
}

// open maps another process's file, if that process cannot shrink it.
func open(file *os.File) (mem []byte, err error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	if ctl := raw.Control(func(fd uintptr) { mem, err = openFd(int(fd)) }); ctl != nil {
		return nil, ctl
	}
	return mem, err
}

func openFd(fd int) ([]byte, error) {
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || got&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("file is not sealed against shrinking (seals %#x, %v)", got, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if st.Size < headerBytes {
		return nil, fmt.Errorf("file of %d bytes is no segment", st.Size)
	}
	return mmap(fd, int(st.Size))
}

func mmap(fd, n int) ([]byte, error) {
	mem, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return mem, nil
}

func unmap(mem []byte) error { return os.NewSyscallError("munmap", unix.Munmap(mem)) }

// reserve allocates memory for the bytes [lo, hi), or returns an error if there is none. It maps
// the memory into this process: page faults would cost more than most transfers.
func reserve(file *os.File, mem []byte, lo, hi int) error {
	// The kernel would kill processes rather than refuse the memory. Other processes may allocate
	// at the same time, so this check is no guarantee.
	if spare := available(); int64(hi-lo) > spare {
		return fmt.Errorf("%w: the machine has %d bytes left", unix.ENOMEM, spare)
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var ferr error
		if err := raw.Control(func(fd uintptr) {
			ferr = unix.Fallocate(int(fd), 0, int64(lo), int64(hi-lo))
		}); err != nil {
			return err
		}
		if ferr == nil {
			break
		}
		if !errors.Is(ferr, unix.EINTR) { // the runtime preempts with signals
			return os.NewSyscallError("fallocate", ferr)
		}
	}
	touch(mem[lo&^(os.Getpagesize()-1) : hi])
	return nil
}

// available returns the bytes that the machine has without swapping.
func available() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return math.MaxInt64 // no /proc here: ask for it and see
	}
	_, line, _ := strings.Cut(string(text), "MemAvailable:")
	var kib int64
	if _, err := fmt.Sscan(line, &kib); err != nil {
		return math.MaxInt64
	}
	return kib << 10
}

// touch maps the pages of mem without changing their contents.
func touch(mem []byte) {
	for {
		err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			break // before Linux 5.14
		}
	}
	for i := 0; i < len(mem); i += pageBytes {
		atomic.AddUint32((*uint32)(unsafe.Pointer(&mem[i])), 0) // a write that does not disturb other writers
	}
}

// Installed returns the bytes of memory of this machine.
func Installed() int {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 1 << 30 // never, on Linux
	}
	return int(min(uint64(info.Totalram)*uint64(info.Unit), math.MaxInt))
}

// Spare returns the bytes of address space that this process may still map within ulimit -v
// (RLIMIT_AS).
func Spare() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &limit); err != nil || limit.Cur > math.MaxInt {
		return math.MaxInt
	}
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return int(limit.Cur)
	}
	var pages int
	if _, err := fmt.Sscan(string(text), &pages); err != nil {
		return int(limit.Cur)
	}
	return max(0, int(limit.Cur)-pages*os.Getpagesize())
}
