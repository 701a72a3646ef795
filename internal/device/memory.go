//go:build linux && cgo

package device

/*
#include "driver.h"
#cgo nocallback driver_alloc
#cgo nocallback driver_free
#cgo nocallback driver_alloc_host
#cgo nocallback driver_free_host
#cgo noescape driver_alloc
#cgo noescape driver_alloc_host
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// Memory is memory of a device.
type Memory struct{ object }

// Alloc allocates n bytes, aligned to 256, with undefined contents. n may be 0: the address is then
// 0.
func (d *Device) Alloc(n int) (*Memory, error) {
	if n < 0 {
		return nil, fmt.Errorf("device %d: cannot allocate %d bytes", d.ordinal, n)
	}
	m := new(Memory)
	err := m.create(d, memory, n, "cuMemAlloc", func(context C.driver_handle) C.driver_result {
		if n == 0 {
			return 0
		}
		var address C.driver_address
		r := C.driver_alloc(context, &address, C.size_t(n))
		m.handle = C.driver_handle(address)
		return r
	})
	if err != nil {
		return nil, fmt.Errorf("allocating %d bytes: %w", n, err)
	}
	return m, nil
}

// Addr returns the address of the first byte, or 0 if the memory is freed.
func (m *Memory) Addr() uintptr { return m.number() }

// Len returns the number of bytes.
func (m *Memory) Len() int { return m.bytes }

// Free frees the memory. No stream may still use it.
func (m *Memory) Free() error {
	return m.destroy("cuMemFree", func(context, handle C.driver_handle) C.driver_result {
		if handle == 0 {
			return 0
		}
		return C.driver_free(context, C.driver_address(handle))
	})
}

// HostMemory is pinned memory of the host, the only host memory that streams copy: it does not
// move, and Go's garbage collector does not manage it.
type HostMemory struct{ object }

// AllocHost allocates n bytes of pinned host memory, with undefined contents.
func (d *Device) AllocHost(n int) (*HostMemory, error) {
	if n < 0 {
		return nil, fmt.Errorf("device %d: cannot allocate %d bytes of pinned host memory", d.ordinal, n)
	}
	h := new(HostMemory)
	err := h.create(d, hostMemory, n, "cuMemAllocHost", func(context C.driver_handle) C.driver_result {
		if n == 0 {
			return 0
		}
		var address C.uintptr_t
		r := C.driver_alloc_host(context, &address, C.size_t(n))
		h.handle = C.driver_handle(address)
		return r
	})
	if err != nil {
		return nil, fmt.Errorf("allocating %d bytes of pinned host memory: %w", n, err)
	}
	return h, nil
}

// Bytes returns the memory as a slice, or nil after Free. The slice must not be used after Free.
func (h *HostMemory) Bytes() []byte {
	if h.number() == 0 {
		return nil
	}
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&h.handle)), h.bytes) // C memory, a number to Go
}

// Addr returns the address of the first byte, or 0 if the memory is freed.
func (h *HostMemory) Addr() uintptr { return h.number() }

// Len returns the number of bytes.
func (h *HostMemory) Len() int { return h.bytes }

// Free frees the memory. No stream may still use it.
func (h *HostMemory) Free() error {
	return h.destroy("cuMemFreeHost", func(context, handle C.driver_handle) C.driver_result {
		if handle == 0 {
			return 0
		}
		return C.driver_free_host(context, C.uintptr_t(handle))
	})
}

// span returns the address of h[off:off+n] for a copy by a stream.
func (h *HostMemory) span(off, n int) (C.uintptr_t, error) {
	if err := h.use(); err != nil {
		return 0, err
	}
	if off < 0 || n < 0 || off > h.bytes-n {
		return 0, fmt.Errorf("device %d: bytes [%d, %d+%d) are outside the %d bytes of pinned host memory", h.device.ordinal, off, off, n, h.bytes)
	}
	return C.uintptr_t(h.handle) + C.uintptr_t(off), nil
}
