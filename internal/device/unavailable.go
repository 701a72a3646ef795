//go:build !linux || !cgo

package device

import "time"

// builtIn is false in a program without cgo, or for a system other than Linux: no Library loads.
const builtIn = false

// unavailable returns the error of every call there.
func unavailable() error { return Load("") }

// Load returns an error: this program cannot load a driver.
func Load(path string) error { return (&Library{What: "the CUDA driver"}).Load(path) }

// Symbol returns 0: there is no driver.
func Symbol(name string) uintptr { return 0 }

// Version returns an error: there is no driver.
func Version() (int, error) { return 0, unavailable() }

// Count returns an error: there is no driver.
func Count() (int, error) { return 0, unavailable() }

// Device is a GPU. There is none: Open returns an error.
type Device struct{ _ int }

// Open returns an error: there is no driver.
func Open(ordinal int) (*Device, error) { return nil, unavailable() }

// Ordinal returns 0: there is no device.
func (d *Device) Ordinal() int { return 0 }

// Name returns nothing: there is no device.
func (d *Device) Name() string { return "" }

// Multiprocessors returns 0: there is no device.
func (d *Device) Multiprocessors() int { return 0 }

// Capability returns 0, 0: there is no device.
func (d *Device) Capability() (major, minor int) { return 0, 0 }

// SharedPerBlock returns 0: there is no device.
func (d *Device) SharedPerBlock() int { return 0 }

// Context returns 0: there is no device.
func (d *Device) Context() uintptr { return 0 }

// Memory returns an error: there is no device.
func (d *Device) Memory() (free, total int, err error) { return 0, 0, unavailable() }

// Close returns an error: there is no device.
func (d *Device) Close() error { return unavailable() }

// Alloc returns an error: there is no device.
func (d *Device) Alloc(n int) (*Memory, error) { return nil, unavailable() }

// AllocHost returns an error: there is no device.
func (d *Device) AllocHost(n int) (*HostMemory, error) { return nil, unavailable() }

// NewStream returns an error: there is no device.
func (d *Device) NewStream() (*Stream, error) { return nil, unavailable() }

// NewUrgentStream returns an error: there is no device.
func (d *Device) NewUrgentStream() (*Stream, error) { return nil, unavailable() }

// NewRaisedStream returns an error: there is no device.
func (d *Device) NewRaisedStream() (*Stream, error) { return nil, unavailable() }

// NewEvent returns an error: there is no device.
func (d *Device) NewEvent() (*Event, error) { return nil, unavailable() }

// NewTimer returns an error: there is no device.
func (d *Device) NewTimer() (*Event, error) { return nil, unavailable() }

// LoadModule returns an error: there is no device.
func (d *Device) LoadModule(image []byte) (*Module, error) { return nil, unavailable() }

// Memory is memory of a device. There is none.
type Memory struct{ _ int }

// Addr returns 0: there is no memory.
func (m *Memory) Addr() uintptr { return 0 }

// Len returns 0: there is no memory.
func (m *Memory) Len() int { return 0 }

// Free returns an error: there is no memory.
func (m *Memory) Free() error { return unavailable() }

// HostMemory is pinned memory of the host. There is none.
type HostMemory struct{ _ int }

// Bytes returns nil: there is no memory.
func (h *HostMemory) Bytes() []byte { return nil }

// Addr returns 0: there is no memory.
func (h *HostMemory) Addr() uintptr { return 0 }

// Len returns 0: there is no memory.
func (h *HostMemory) Len() int { return 0 }

// Free returns an error: there is no memory.
func (h *HostMemory) Free() error { return unavailable() }

// Stream is a stream of a device. There is none.
type Stream struct{ _ int }

// Handle returns 0: there is no stream.
func (s *Stream) Handle() uintptr { return 0 }

// Device returns nil: there is no device.
func (s *Stream) Device() *Device { return nil }

// Sync returns an error: there is no stream.
func (s *Stream) Sync() error { return unavailable() }

// Query returns an error: there is no stream.
func (s *Stream) Query() (done bool, err error) { return false, unavailable() }

// Wait returns an error: there is no stream.
func (s *Stream) Wait(e *Event) error { return unavailable() }

// Close returns an error: there is no stream.
func (s *Stream) Close() error { return unavailable() }

// CopyToDevice returns an error: there is no stream.
func (s *Stream) CopyToDevice(dst uintptr, src *HostMemory, off, n int) error { return unavailable() }

// CopyToHost returns an error: there is no stream.
func (s *Stream) CopyToHost(dst *HostMemory, off int, src uintptr, n int) error { return unavailable() }

// CopyDevice returns an error: there is no stream.
func (s *Stream) CopyDevice(dst, src uintptr, n int) error { return unavailable() }

// Set returns an error: there is no stream.
func (s *Stream) Set(dst uintptr, value byte, n int) error { return unavailable() }

// Event is a place in a stream. There is none.
type Event struct{ _ int }

// Handle returns 0: there is no event.
func (e *Event) Handle() uintptr { return 0 }

// Record returns an error: there is no event.
func (e *Event) Record(s *Stream) error { return unavailable() }

// Query returns an error: there is no event.
func (e *Event) Query() (done bool, err error) { return false, unavailable() }

// Sync returns an error: there is no event.
func (e *Event) Sync() error { return unavailable() }

// Elapsed returns an error: there is no event.
func (e *Event) Elapsed(since *Event) (time.Duration, error) { return 0, unavailable() }

// Close returns an error: there is no event.
func (e *Event) Close() error { return unavailable() }

// Module is a set of kernels. There is none.
type Module struct{ _ int }

// Function returns an error: there is no module.
func (m *Module) Function(name string) (*Function, error) { return nil, unavailable() }

// Unload returns an error: there is no module.
func (m *Module) Unload() error { return unavailable() }

// Function is a kernel. There is none.
type Function struct{ _ int }

// Params returns nil: there is no kernel.
func (f *Function) Params() []int { return nil }

// SetShared returns an error: there is no kernel.
func (f *Function) SetShared(n int) error { return unavailable() }

// LaunchArgs returns an error: there is no kernel.
func (f *Function) LaunchArgs(s *Stream, grid, block [3]int, shared int, values []uint64) error {
	return unavailable()
}

// Launch returns an error: there is no kernel.
func (f *Function) Launch(s *Stream, grid, block [3]int, shared int, args ...any) error {
	return unavailable()
}
