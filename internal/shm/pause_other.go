//go:build !(amd64 || arm64) || purego

package shm

import "time"

var began = time.Now()

// Ticks returns a clock, in its own unit.
func Ticks() uint64 { return uint64(time.Since(began)) }

// Pause keeps the processor busy for a few nanoseconds times n, without accessing shared memory.
func Pause(n int) {
	for range 8 * n { // the compiler does not remove empty loops
	}
}
