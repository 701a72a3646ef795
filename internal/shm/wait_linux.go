package shm

import (
	"math"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWait = 0 // not private: the waker is another process
	futexWake = 1
)

// Wait sleeps while *word is val, until another thread calls Wake or d has passed. It may return
// early; the caller checks again.
func Wait(word *atomic.Uint32, val uint32, d time.Duration) {
	limit := unix.NsecToTimespec(int64(max(d, 0)))
	// This is a Syscall, as a RawSyscall would keep other goroutines and the collector from the
	// processor. All its errors mean: check again.
	_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(val), uintptr(unsafe.Pointer(&limit)), 0, 0)
}

// Wake wakes all threads that wait for a word of a segment to change, in any process. The caller
// has changed it before.
func Wake(word *atomic.Uint32) {
	_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32, 0, 0, 0)
}

// Nap sleeps for about d, a system call's time longer. Timers of Go sleep for at least a
// millisecond.
func Nap(d time.Duration) {
	ts := unix.NsecToTimespec(int64(max(d, 0)))
	_, _, _ = syscall.Syscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0) // a signal ends it earlier
}

// Yield gives this processor to another thread, if one is ready.
func Yield() { _, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
