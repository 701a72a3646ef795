// Package blaslt computes matrix products on a GPU by cuBLASLt, NVIDIA's library.
//
// The library is loaded when it is first needed, by declarations of our own, as package device
// loads the driver: without it, or in a program without cgo or not for Linux, everything answers an
// error that matches [device.ErrUnavailable].
//
//	h, err := blaslt.New(dev)
//	p, err := h.Plan(blaslt.Product{In: blaslt.F32, Out: blaslt.F32, Rows: n, Cols: out, Depth: in, TransB: true})
//	err = p.Run(stream, blaslt.Operands{A: x, B: w, D: y}, false) // y = x·wᵀ
//	err = p.Close()
//	err = h.Close()
//
// Matrices are row-major. A plan looks up once what computes a product; a run only passes it on,
// and allocates nothing.
//
// Everything may be used by several goroutines, but for Close, which nothing else may run beside. Nothing has a finalizer: plans are closed before their handle, and that before its
// device.
package blaslt
