package gemm

import "unsafe"

// Workspace holds the packing buffers of one caller. The zero value is ready to use; the buffers
// grow as products need them, up to a fixed maximum (about 1 MiB for each element type used), and
// are kept. A Workspace must not be used by two calls at the same time, and not be copied once
// used.
type Workspace struct {
	f32 buffers[float32]
	f64 buffers[float64]
}

// buffers are the packed operands of one element type, and the kernel argument, here because
// passing it through a func value would otherwise allocate it anew in every call.
type buffers[T Float] struct {
	apack, bpack []T
	tile         tile[T]
}

// Bytes returns the memory the workspace holds, in bytes.
func (w *Workspace) Bytes() int { return w.f32.bytes() + w.f64.bytes() }

// MostBytes returns what the buffers of an element type come to take at most, in bytes.
func MostBytes[T Float]() int {
	var element T
	e := engineOf[T]()
	strip := (e.mr + e.lanes - 1) / e.lanes * e.lanes
	return (strip + e.nc) * e.kc * int(unsafe.Sizeof(element))
}

func (b *buffers[T]) bytes() int {
	var element T
	return (cap(b.apack) + cap(b.bpack)) * int(unsafe.Sizeof(element))
}

// buffersOf returns the buffers of w for the element type T.
func buffersOf[T Float](w *Workspace) *buffers[T] {
	if b, ok := any(&w.f32).(*buffers[T]); ok {
		return b
	}
	return any(&w.f64).(*buffers[T])
}

// grow returns n elements of *s, which it replaces if it is too short. What they hold is undefined.
func grow[T Float](s *[]T, n int) []T {
	if cap(*s) < n {
		*s = make([]T, n)
	}
	return (*s)[:n]
}
