//go:build !linux

package shm

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Wait returns at once: there are no segments on this system.
func Wait(_ *atomic.Uint32, _ uint32, _ time.Duration) {}

// Wake does nothing: there are no waiters.
func Wake(_ *atomic.Uint32) {}

// Nap sleeps for d.
func Nap(d time.Duration) { time.Sleep(d) }

// Yield lets another goroutine run.
func Yield() { runtime.Gosched() }
