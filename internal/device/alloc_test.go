//go:build linux && cgo && !asan

package device

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNoAllocations counts what the calls of a training step take of Go's memory. The address
// sanitizer would add to it.
func TestNoAllocations(t *testing.T) {
	cuda(t)
	d := open(t, 0)
	s, e := newStream(t, d), newEvent(t, d)
	m, other, h := alloc(t, d, 64), alloc(t, d, 64), allocHost(t, d, 64)
	scale := kernel(t, kernels(t, d), "scale_f32")
	grid, block, factor, n := [3]int{1, 1, 1}, [3]int{16, 1, 1}, float32(0.25), int32(16)
	for name, call := range map[string]func() error{
		"CopyToDevice": func() error { return s.CopyToDevice(m.Addr(), h, 0, 64) },
		"CopyToHost":   func() error { return s.CopyToHost(h, 0, m.Addr(), 64) },
		"CopyDevice":   func() error { return s.CopyDevice(other.Addr(), m.Addr(), 64) },
		"Set":          func() error { return s.Set(m.Addr(), 0, 64) },
		"Launch":       func() error { n ^= 1; return scale.Launch(s, grid, block, 0, m.Addr(), factor, n) },
		"Launch of":    func() error { return scale.Launch(s, grid, block, 0, m, factor, n) },
		"LaunchArgs":   func() error { return scale.LaunchArgs(s, grid, block, 0, []uint64{uint64(m.Addr()), 0, 16}) },
		"Record":       func() error { return e.Record(s) },
		"Wait":         func() error { return s.Wait(e) },
		"Query":        func() error { _, err := s.Query(); return err },
		"Event.Query":  func() error { _, err := e.Query(); return err },
		"Sync":         s.Sync,
		"Event.Sync":   e.Sync,
	} {
		got := testing.AllocsPerRun(100, func() {
			if err := call(); err != nil {
				t.Error(err)
			}
		})
		require.Zero(t, got, name)
	}
	require.NoError(t, s.Sync())
}

// TestFaults: a device that has failed reports it at a later call, which did not cause it.
func TestFaults(t *testing.T) {
	for code, fault := range map[int]bool{1: false, 2: false, 201: false, 214: true, 220: true, 700: true, 702: true, 710: true, 713: false, 714: true, 719: true, 720: false} {
		require.Equal(t, fault, (&Error{Code: code}).Fault(), "CUresult %d", code)
	}
}
