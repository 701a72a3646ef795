// Package device is the part of the CUDA driver API that sharded training needs: memory, streams,
// events and kernels of a GPU.
//
// The driver is loaded on first use, with our own declarations: the package builds on machines
// without CUDA headers, libraries or devices, and the same program runs with and without a GPU. If
// the driver or the device is missing, or the program was built without cgo or not for Linux, every
// call returns an error that matches [ErrUnavailable].
//
//	d, err := device.Open(0)             // retains the primary context
//	x, err := d.Alloc(4 * n)             // device memory: an address, never dereferenced by Go
//	h, err := d.AllocHost(4 * n)         // pinned host memory: bytes that a copy may read late
//	s, err := d.NewStream()
//	err = s.CopyToDevice(x.Addr(), h, 0, 4*n)
//	err = scale.Launch(s, grid, block, 0, x, float32(2), int32(n))
//	err = s.CopyToHost(h, 0, x.Addr(), 4*n)
//	err = s.Sync()                       // h.Bytes() holds the result
//
// # Order
//
// A stream runs its operations one after the other, in the order of the calls. Only events order
// operations of different streams: an event marks a position in one stream, and another stream
// waits for it.
//
//	compute   kernel ── Record(e) ── kernel …
//	                        │
//	copy      copy ─────── Wait(e) ── copy of what the first kernel wrote
//
// Wait waits for the position of the latest Record before it. So an event may be recorded again
// while a stream still waits for it.
//
// # Threads and ownership
//
// The driver keeps its current context per thread, and goroutines move between threads. So every
// call sets the context of its device in the same C call that does its work, and callers do not
// need [runtime.LockOSThread].
//
// Everything may be used by several goroutines. Nothing has a finalizer: an object of a Device is
// freed or closed by its own method, once, after its last use, and [Device.Close] refuses while
// objects remain. Copies, launches, records and waits allocate no Go memory.
package device
