// Package blaslt computes matrix products on a GPU by cuBLASLt, NVIDIA's library.
//
// The library is loaded on first use, with our own declarations, like the driver in package device.
// Without it, or in a program without cgo or not for Linux, every call returns an error that
// matches [device.ErrUnavailable].
//
//	h, err := blaslt.New(dev)
//	p, err := h.Plan(blaslt.Product{In: blaslt.F32, Out: blaslt.F32, Rows: n, Cols: out, Depth: in, TransB: true})
//	err = p.Run(stream, blaslt.Operands{A: x, B: w, D: y}, false) // y = x·wᵀ
//	err = p.Close()
//	err = h.Close()
//
// Matrices are row-major. A plan selects the algorithm once; a run only issues it, and allocates
// nothing.
//
// Everything may be used by several goroutines, except Close, which must not run at the same time
// as anything else. Nothing has a finalizer: plans must be closed before their handle, and a handle
// before its device.
package blaslt
