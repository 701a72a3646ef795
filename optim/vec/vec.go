// Package vec holds the vectors that optimizers update: the contract for authors of devices.
// Package optimtest tests implementations. Users of optimizers need [Host] only.
package vec

import "fmt"

// Vec is a vector of float32 or float64 that an optimizer works on. A Vec of float32 may store
// bfloat16, see [Is16]. Its memory may be out of reach, such as a device's: callers access it
// through Read and Write only. [Host] is a Vec in ordinary memory. Package optimtest tests
// implementations.
//
// The updates of each optimizer are an interface of their own: [AdamVec], [SGDVec]. Only the values
// of parameters need it. New of the optimizer checks for it once and returns an error that names
// the parameter if it is missing. So a new kind of optimizer does not make Vec larger.
//
// Ownership: a Vec is a view. The allocator of the memory frees it when no Vec of it is in use any
// more. Slices share the memory. Read and Write keep nothing of their arguments.
//
// Order: the methods of Vecs that share memory take effect in the order of the calls. Zero, Write
// and the updates may return before they have taken effect. Read waits until everything before it
// has, so it is the only method that waits for a device. A Vec may even delay updates, to do many
// at once, until any other method of a Vec of its memory is called. If a Vec has the method Flush()
// error, Step calls it when all pieces are updated, and the delayed updates begin. If a Vec has the
// method Swap(Vec) error, which exchanges its elements with the elements of a Vec of the same
// length, type and implementation, optim.Swap calls it in place of Read and Write. If a gradient in
// ordinary memory has the method Scaled() (Host, float64), the updates of a Host call it: the
// gradient is the Host times the number.
//
// Errors: a method may also return the failure of an earlier call, for example if a device is lost.
// Afterwards the contents are undefined.
//
// Concurrency: calls for elements that do not overlap may be made at the same time, also in a Host.
// Otherwise a Vec is for one goroutine at a time.
type Vec interface {
	// Len returns the number of elements.
	Len() int

	// Float64 reports whether the elements are float64. Otherwise they are float32.
	Float64() bool

	// Slice returns elements [from, to), in v's own memory. It panics unless 0 <= from <= to <=
	// Len.
	Slice(from, to int) Vec

	// Zero sets all elements to zero.
	Zero() error

	// Read copies the elements to memory of the same length and type. Any other is an error.
	Read(to Host) error

	// Write replaces the elements by others of the same length and type. Any other is an error.
	// The caller may change from as soon as Write returns.
	Write(from Host) error
}

// Addressable is a [Vec] in ordinary memory, which optim.Muon and optim.Elementwise access
// directly. In other memory Muon needs a [MuonVec].
type Addressable interface {
	Vec
	// Elements returns the memory of the vector. It may be elsewhere after another method of the
	// vector or of the model that it belongs to.
	Elements() Host
}

// Host is an [Addressable] with the updates of all optimizers. At most one field is set; none is
// for an empty Host.
type Host struct {
	F32 []float32
	F64 []float64
}

// Len implements [Vec].
func (h Host) Len() int { return len(h.F32) + len(h.F64) }

// Float64 implements [Vec]. An empty Host without memory counts as float32.
func (h Host) Float64() bool { return h.F64 != nil }

// Slice implements [Vec]. The caller cannot append to the result.
func (h Host) Slice(from, to int) Vec { return h.slice(from, to) }

// Elements implements [Addressable].
func (h Host) Elements() Host { return h }

// Zero implements [Vec].
func (h Host) Zero() error {
	clear(h.F32)
	clear(h.F64)
	return nil
}

// Read implements [Vec].
func (h Host) Read(to Host) error { return to.Write(h) }

// Write implements [Vec]. The two may overlap.
func (h Host) Write(from Host) error {
	if len(h.F32) != len(from.F32) || len(h.F64) != len(from.F64) {
		return fmt.Errorf("optim: cannot copy %d elements of %s to %d elements of %s", from.Len(), TypeName(from), h.Len(), TypeName(h))
	}
	copy(h.F32, from.F32)
	copy(h.F64, from.F64)
	return nil
}

func (h Host) slice(from, to int) Host {
	if h.F64 != nil {
		return Host{F64: h.F64[from:to:to]}
	}
	return Host{F32: h.F32[from:to:to]}
}

// TypeName returns the name of the element type of v.
func TypeName(v Vec) string {
	if v.Float64() {
		return "float64"
	}
	return "float32"
}
