//go:build linux && cgo

package device

/*
#include "driver.h"
#cgo nocallback driver_event
#cgo nocallback driver_event_destroy
#cgo nocallback driver_event_record
#cgo nocallback driver_event_query
#cgo nocallback driver_event_sync
#cgo nocallback driver_event_elapsed
#cgo noescape driver_event
#cgo noescape driver_event_elapsed
*/
import "C"

import (
	"fmt"
	"time"
)

// Event marks a position in a stream: after all operations issued before it.
type Event struct {
	object
	timing bool
}

// NewEvent creates an event that orders streams and has no time.
func (d *Device) NewEvent() (*Event, error) { return d.newEvent(false) }

// NewTimer creates an event that also records the time at which its position was reached.
func (d *Device) NewTimer() (*Event, error) { return d.newEvent(true) }

func (d *Device) newEvent(timing bool) (*Event, error) {
	e := &Event{timing: timing}
	var flag C.int
	if timing {
		flag = 1
	}
	err := e.create(d, event, 0, "cuEventCreate", func(context C.driver_handle) C.driver_result {
		return C.driver_event(context, &e.handle, flag)
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Handle returns the CUevent, or 0 if the event is closed.
func (e *Event) Handle() uintptr { return e.number() }

// Record marks the present end of s. A stream that waits for an earlier position of the event is
// not affected.
func (e *Event) Record(s *Stream) error {
	if err := e.use(); err != nil {
		return err
	}
	if err := s.use(); err != nil {
		return err
	}
	if e.device.context != s.device.context {
		return fmt.Errorf("device %d: an event cannot be recorded in a stream of device %d", e.device.ordinal, s.device.ordinal)
	}
	return e.result("cuEventRecord", C.driver_event_record(e.device.context, e.handle, s.handle))
}

// Query reports whether the last recorded position is reached. It returns true if there is none.
func (e *Event) Query() (done bool, err error) {
	if err := e.use(); err != nil {
		return false, err
	}
	return e.done("cuEventQuery", C.driver_event_query(e.device.context, e.handle))
}

// Sync blocks a thread until the last recorded position is reached.
func (e *Event) Sync() error {
	if err := e.use(); err != nil {
		return err
	}
	return e.result("cuEventSynchronize", C.driver_event_sync(e.device.context, e.handle))
}

// Elapsed returns the time from since to e. Both must be timers of one device, and both must have
// been reached.
func (e *Event) Elapsed(since *Event) (time.Duration, error) {
	if err := e.use(); err != nil {
		return 0, err
	}
	if err := since.use(); err != nil {
		return 0, err
	}
	if !e.timing || !since.timing || e.device.context != since.device.context {
		return 0, fmt.Errorf("device %d: both events must be timers of this device, made by NewTimer", e.device.ordinal)
	}
	var ms C.float
	if err := e.result("cuEventElapsedTime", C.driver_event_elapsed(e.device.context, &ms, since.handle, e.handle)); err != nil {
		return 0, err
	}
	return time.Duration(float64(ms) * float64(time.Millisecond)), nil
}

// Close closes e at once. Streams that wait for it still do.
func (e *Event) Close() error {
	return e.destroy("cuEventDestroy", func(context, handle C.driver_handle) C.driver_result {
		return C.driver_event_destroy(context, handle)
	})
}
