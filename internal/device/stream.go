//go:build linux && cgo

package device

/*
#include "driver.h"
#cgo nocallback driver_priorities
#cgo nocallback driver_stream
#cgo nocallback driver_stream_destroy
#cgo nocallback driver_stream_sync
#cgo nocallback driver_stream_query
#cgo nocallback driver_stream_wait
#cgo nocallback driver_copy_to_device
#cgo nocallback driver_copy_to_host
#cgo nocallback driver_copy_device
#cgo nocallback driver_set
#cgo noescape driver_priorities
#cgo noescape driver_stream
*/
import "C"

import "fmt"

// Stream runs copies, kernels and collectives one after the other, concurrently with the host and
// other streams. It is not ordered with CUDA's default stream.
//
// A later call returns the error of an operation that failed: Sync, Query, or any other.
type Stream struct{ object }

// NewStream makes a stream of the lowest priority.
func (d *Device) NewStream() (*Stream, error) { return d.newStream(0) }

// NewUrgentStream creates a stream of the highest priority: if blocks of several streams wait for a
// multiprocessor, its blocks run first.
func (d *Device) NewUrgentStream() (*Stream, error) {
	return d.newRaised(func(greatest C.int) C.int { return greatest })
}

// NewRaisedStream creates a stream of a priority between those of NewStream and NewUrgentStream, or
// of the highest if the device has only two.
func (d *Device) NewRaisedStream() (*Stream, error) {
	return d.newRaised(func(greatest C.int) C.int { return (greatest - 1) / 2 })
}

// newRaised creates a stream of the priority that f makes of the greatest, which is negative.
func (d *Device) newRaised(f func(greatest C.int) C.int) (*Stream, error) {
	if err := d.enter(query, 0); err != nil {
		return nil, err
	}
	defer d.leave(query, 0)
	var least, greatest C.int
	if err := d.result("cuCtxGetStreamPriorityRange", C.driver_priorities(d.context, &least, &greatest)); err != nil {
		return nil, err
	}
	return d.newStream(f(greatest))
}

func (d *Device) newStream(priority C.int) (*Stream, error) {
	s := new(Stream)
	err := s.create(d, stream, 0, "cuStreamCreateWithPriority", func(context C.driver_handle) C.driver_result {
		return C.driver_stream(context, &s.handle, priority)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Handle returns the CUstream, or 0 if the stream is closed.
func (s *Stream) Handle() uintptr { return s.number() }

// Device returns the device that made s.
func (s *Stream) Device() *Device { return s.device }

// Sync blocks a thread until all operations in s have ended. It cannot be cancelled; poll Query if
// you need that.
func (s *Stream) Sync() error {
	if err := s.use(); err != nil {
		return err
	}
	return s.result("cuStreamSynchronize", C.driver_stream_sync(s.device.context, s.handle))
}

// Query reports whether all operations in s have ended.
func (s *Stream) Query() (done bool, err error) {
	if err := s.use(); err != nil {
		return false, err
	}
	return s.done("cuStreamQuery", C.driver_stream_query(s.device.context, s.handle))
}

// done interprets the result of a query.
func (o *object) done(op string, r C.driver_result) (bool, error) {
	if r == C.DRIVER_NOT_READY {
		return false, nil
	}
	return r == 0, o.result(op, r)
}

// Wait makes later operations in s wait for the position that e marks now, in a stream of any
// device. An event that was never recorded causes no wait.
func (s *Stream) Wait(e *Event) error {
	if err := s.use(); err != nil {
		return err
	}
	if err := e.use(); err != nil {
		return err
	}
	return s.result("cuStreamWaitEvent", C.driver_stream_wait(s.device.context, s.handle, e.handle))
}

// Close closes s at once. Its operations still run, and need their memory.
func (s *Stream) Close() error {
	return s.destroy("cuStreamDestroy", func(context, handle C.driver_handle) C.driver_result {
		return C.driver_stream_destroy(context, handle)
	})
}

// CopyToDevice copies src[off:off+n] to n bytes of device memory at dst.
func (s *Stream) CopyToDevice(dst uintptr, src *HostMemory, off, n int) error {
	from, err := src.span(off, n)
	if err != nil {
		return err
	}
	if run, err := s.operation(n); !run {
		return err
	}
	return s.result("cuMemcpyHtoDAsync",
		C.driver_copy_to_device(s.device.context, C.driver_address(dst), from, C.size_t(n), s.handle))
}

// CopyToHost copies n bytes of device memory at src to dst[off:off+n].
func (s *Stream) CopyToHost(dst *HostMemory, off int, src uintptr, n int) error {
	to, err := dst.span(off, n)
	if err != nil {
		return err
	}
	if run, err := s.operation(n); !run {
		return err
	}
	return s.result("cuMemcpyDtoHAsync",
		C.driver_copy_to_host(s.device.context, to, C.driver_address(src), C.size_t(n), s.handle))
}

// CopyDevice copies n bytes of device memory from src to dst, which must not overlap.
func (s *Stream) CopyDevice(dst, src uintptr, n int) error {
	if run, err := s.operation(n); !run {
		return err
	}
	if dst < src+uintptr(n) && src < dst+uintptr(n) {
		return fmt.Errorf("device %d: copy of %d bytes from %#x to %#x overlaps", s.device.ordinal, n, src, dst)
	}
	return s.result("cuMemcpyDtoDAsync",
		C.driver_copy_device(s.device.context, C.driver_address(dst), C.driver_address(src), C.size_t(n), s.handle))
}

// Set sets n bytes of device memory at dst.
func (s *Stream) Set(dst uintptr, value byte, n int) error {
	if run, err := s.operation(n); !run {
		return err
	}
	return s.result("cuMemsetD8Async",
		C.driver_set(s.device.context, C.driver_address(dst), C.uchar(value), C.size_t(n), s.handle))
}

// operation reports whether s can run an operation on n bytes, and whether there is anything to do.
func (s *Stream) operation(n int) (run bool, err error) {
	if err := s.use(); err != nil {
		return false, err
	}
	if n < 0 {
		return false, fmt.Errorf("device %d: an operation on %d bytes", s.device.ordinal, n)
	}
	return n > 0, nil
}
