//go:build !linux

package shm

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Wait returns at once: there are no segments, so nobody has a word to wait for.
func Wait(_ *atomic.Uint32, _ uint32, _ time.Duration) {}

// Wake does nothing: nobody waits.
func Wake(_ *atomic.Uint32) {}

// Yield lets another goroutine run.
func Yield() { runtime.Gosched() }
