//go:build linux && cgo

package device

/*
#include "driver.h"
#cgo nocallback driver_device
#cgo nocallback driver_name
#cgo nocallback driver_attribute
#cgo nocallback driver_retain
#cgo nocallback driver_release
#cgo nocallback driver_memory
#cgo noescape driver_device
#cgo noescape driver_name
#cgo noescape driver_attribute
#cgo noescape driver_retain
#cgo noescape driver_memory
*/
import "C"

import (
	"fmt"
	"strings"
	"sync"
)

// Device is a GPU with its primary context, which NCCL and the CUDA runtime also use. Several
// Devices may be open for one GPU.
type Device struct {
	ordinal int
	name    string
	number  C.int
	context C.driver_handle

	multiprocessors, major, minor, shared int

	mu     sync.Mutex
	open   bool
	counts [kinds]count // objects of this Device that are not closed
}

// count is a number of objects and their bytes.
type count struct{ objects, bytes int }

// Open opens the GPU with an ordinal, counted from 0. Package nccl describes which GPU a rank
// opens.
func Open(ordinal int) (*Device, error) {
	n, err := Count()
	if err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= n {
		return nil, fmt.Errorf("device %d is %w: it has %d devices", ordinal, ErrUnavailable, n)
	}
	d := &Device{ordinal: ordinal, open: true}
	if err := d.result("cuDeviceGet", C.driver_device(C.int(ordinal), &d.number)); err != nil {
		return nil, err
	}
	var name [textBytes]C.char
	if err := d.result("cuDeviceGetName", C.driver_name(d.number, &name[0], textBytes)); err != nil {
		return nil, err
	}
	d.name = C.GoString(&name[0])
	if err := d.measure(); err != nil {
		return nil, err
	}
	if err := d.result("cuDevicePrimaryCtxRetain", C.driver_retain(d.number, &d.context)); err != nil {
		return nil, err
	}
	return d, nil
}

// measure queries the attributes of d.
func (d *Device) measure() error {
	for _, attribute := range []struct {
		number C.int
		value  *int
	}{
		{C.DRIVER_MULTIPROCESSORS, &d.multiprocessors},
		{C.DRIVER_CAPABILITY_MAJOR, &d.major},
		{C.DRIVER_CAPABILITY_MINOR, &d.minor},
		{C.DRIVER_SHARED_PER_BLOCK, &d.shared},
	} {
		var value C.int
		if err := d.result("cuDeviceGetAttribute", C.driver_attribute(d.number, attribute.number, &value)); err != nil {
			return err
		}
		*attribute.value = int(value)
	}
	return nil
}

// result converts the result of the driver's function op to an error.
func (d *Device) result(op string, r C.driver_result) error {
	if r == 0 {
		return nil
	}
	return fmt.Errorf("device %d: %w", d.ordinal, result(op, r))
}

// Ordinal returns the number of the GPU in this process.
func (d *Device) Ordinal() int { return d.ordinal }

// Name returns the name of the GPU, such as "NVIDIA H200".
func (d *Device) Name() string { return d.name }

// Multiprocessors returns the number of multiprocessors.
func (d *Device) Multiprocessors() int { return d.multiprocessors }

// Capability returns the compute capability, such as 9, 0 for an H200.
func (d *Device) Capability() (major, minor int) { return d.major, d.minor }

// SharedPerBlock returns the largest size in bytes of a block's shared memory, which its kernel
// requests by [Function.SetShared].
func (d *Device) SharedPerBlock() int { return d.shared }

// Context returns the CUcontext.
func (d *Device) Context() uintptr { return uintptr(d.context) }

// Memory returns the free bytes of the GPU's memory, over all its users, and the total.
func (d *Device) Memory() (free, total int, err error) {
	if err := d.enter(query, 0); err != nil {
		return 0, 0, err
	}
	defer d.leave(query, 0)
	var f, t C.size_t
	if err := d.result("cuMemGetInfo", C.driver_memory(d.context, &f, &t)); err != nil {
		return 0, 0, err
	}
	return int(f), int(t), nil
}

// Close releases the primary context. If objects of d are not closed, it does nothing but return an
// error that counts them.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.open {
		return fmt.Errorf("device %d is %w", d.ordinal, ErrClosed)
	}
	if left := d.left(); len(left) > 0 {
		return fmt.Errorf("device %d cannot be closed, still open: %s", d.ordinal, strings.Join(left, ", "))
	}
	if err := d.result("cuDevicePrimaryCtxRelease", C.driver_release(d.number)); err != nil {
		return err
	}
	d.open = false
	return nil
}

// left lists the objects of d that are not closed.
func (d *Device) left() (list []string) {
	for k, c := range d.counts {
		switch {
		case c.objects == 0:
		case c.bytes > 0:
			list = append(list, fmt.Sprintf("%d × %v (%d bytes)", c.objects, kind(k), c.bytes))
		default:
			list = append(list, fmt.Sprintf("%d × %v", c.objects, kind(k)))
		}
	}
	return list
}

// enter counts an object before it is created. It fails if d is closed. While objects are counted,
// d cannot be closed.
func (d *Device) enter(k kind, bytes int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.open {
		return fmt.Errorf("device %d: cannot create a %v: the device is %w", d.ordinal, k, ErrClosed)
	}
	d.counts[k].objects++
	d.counts[k].bytes += bytes
	return nil
}

// leave removes an object from the count, after it was closed or could not be created.
func (d *Device) leave(k kind, bytes int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts[k].objects--
	d.counts[k].bytes -= bytes
}
