//go:build linux && cgo

package device

// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// kind is the kind of an object.
type kind int

const (
	memory kind = iota
	hostMemory
	stream
	event
	module
	query // a query of the device itself, while it runs
	kinds
)

func (k kind) String() string {
	return [kinds]string{"memory", "pinned host memory", "stream", "event", "module", "query"}[k]
}

// object is the common part of everything that a device creates and closes: memory, streams, events
// and modules.
type object struct {
	device *Device
	kind   kind
	bytes  int
	handle C.driver_handle // or the address of memory
	open   atomic.Bool
}

// create creates the object by the driver's function op.
func (o *object) create(d *Device, k kind, bytes int, op string, call func(context C.driver_handle) C.driver_result) error {
	if err := d.enter(k, bytes); err != nil {
		return err
	}
	if err := d.result(op, call(d.context)); err != nil {
		d.leave(k, bytes)
		return d.withFree(k, err)
	}
	o.device, o.kind, o.bytes = d, k, bytes
	o.open.Store(true)
	return nil
}

// withFree adds how much memory is free to the error of an allocation of the device's memory that
// was too large.
func (d *Device) withFree(k kind, err error) error {
	var e *Error
	if k != memory || !errors.As(err, &e) || !e.OutOfMemory() {
		return err
	}
	free, total, failed := d.Memory()
	if failed != nil {
		return errors.Join(err, failed)
	}
	return fmt.Errorf("%w: %d of %d bytes of the device are free", err, free, total)
}

// destroy closes the object by the driver's function op. If the driver refuses, the object stays
// open.
func (o *object) destroy(op string, call func(context, handle C.driver_handle) C.driver_result) error {
	if !o.open.CompareAndSwap(true, false) {
		return o.closed()
	}
	if err := o.result(op, call(o.device.context, o.handle)); err != nil {
		o.open.Store(true)
		return err
	}
	o.device.leave(o.kind, o.bytes)
	return nil
}

// use returns an error if the object is closed.
func (o *object) use() error {
	if o.open.Load() {
		return nil
	}
	return o.closed()
}

func (o *object) closed() error {
	if o.device == nil {
		return fmt.Errorf("an object that no device made is %w", ErrClosed)
	}
	return fmt.Errorf("device %d: %v is %w", o.device.ordinal, o.kind, ErrClosed)
}

// number returns the handle, or 0 if the object is closed.
func (o *object) number() uintptr {
	if !o.open.Load() {
		return 0
	}
	return uintptr(o.handle)
}

func (o *object) result(op string, r C.driver_result) error { return o.device.result(op, r) }
