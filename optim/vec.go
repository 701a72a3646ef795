package optim

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// Vec is a vector of float32 or float64 that an optimizer works on. Its memory may be out of reach,
// such as a device's: callers access it through Read and Write only. [Host] is a Vec in ordinary
// memory. Package optimtest tests implementations.
//
// The updates of each optimizer are an interface of their own: [AdamVec], [SGDVec]. Only the values
// of parameters need it. New checks for it once and returns an error that names the parameter if it
// is missing. So a new kind of optimizer does not make Vec larger.
//
// Ownership: a Vec is a view. The allocator of the memory frees it when no Vec of it is in use any
// more. Slices share the memory. Read and Write keep nothing of their arguments.
//
// Order: the methods of Vecs that share memory take effect in the order of the calls. Zero, Write
// and the updates may return before they have taken effect. Read waits until everything before it
// has, so it is the only method that waits for a device. A Vec may even delay updates, to do many
// at once, until any other method of a Vec of its memory is called. If a Vec has the method Flush()
// error, Step calls it when all pieces are updated, and the delayed updates begin.
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

// HostVec is a [Vec] in ordinary memory, which [Muon] and [Elementwise] access directly.
type HostVec interface {
	Vec
	// Elements returns the memory of the vector.
	Elements() Host
}

// Host is a [HostVec] with the updates of all optimizers. At most one field is set;
// none is for an empty Host.
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

// Elements implements [HostVec].
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
		return fmt.Errorf("optim: copy of %d elements of %s to %d of %s", from.Len(), dtype(from), h.Len(), dtype(h))
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

// isZero reports whether all elements are zero.
func (h Host) isZero() bool {
	return !slices.ContainsFunc(h.F32, func(x float32) bool { return x != 0 }) &&
		!slices.ContainsFunc(h.F64, func(x float64) bool { return x != 0 })
}

// newHost returns n zeros.
func newHost(n int, float64s bool) Host {
	if float64s {
		return Host{F64: make([]float64, n)}
	}
	return Host{F32: make([]float32, n)}
}

// lenOf returns the number of elements of v, which may be nil.
func lenOf(v Vec) int {
	if v == nil {
		return 0
	}
	return v.Len()
}

// dtype names the element type of v.
func dtype(v Vec) string {
	if v.Float64() {
		return "float64"
	}
	return "float32"
}

// twoTypes reports whether v is a Host that is both float32 and float64.
func twoTypes(v Vec) bool {
	h, ok := v.(Host)
	return ok && h.F32 != nil && h.F64 != nil
}

// sameVec reports whether a and b are the same elements. It may return false for equal Vecs that
// are not Hosts.
func sameVec(a, b Vec) bool {
	x, isHost := a.(Host)
	y, both := b.(Host)
	switch {
	case isHost && both:
		return len(x.F32) > 0 && len(x.F32) == len(y.F32) && &x.F32[0] == &y.F32[0] ||
			len(x.F64) > 0 && len(x.F64) == len(y.F64) && &x.F64[0] == &y.F64[0]
	case isHost || both:
		return false
	}
	return reflect.ValueOf(a).Comparable() && a == b
}

// joinVecs copies srcs, one after the other, to dst, which has as many elements. It writes 8-bit
// blocks once, because their old contents would affect the rounding.
func joinVecs(dst Vec, srcs []Vec) error {
	to := dst
	blocks, narrow := dst.(*Blockwise)
	if narrow {
		to = newHost(dst.Len(), false)
	}
	at := 0
	for _, src := range srcs {
		if err := copyVec(to.Slice(at, at+src.Len()), src); err != nil {
			return err
		}
		at += src.Len()
	}
	if narrow {
		return blocks.Write(to.(Host))
	}
	return nil
}

// copyVec copies src to dst, which has the same length and type.
func copyVec(dst, src Vec) error {
	if to, ok := dst.(Host); ok {
		return src.Read(to)
	}
	return eachBlock(src, func(at int, b Host) error { return dst.Slice(at, at+b.Len()).Write(b) })
}

// isZero reports whether all elements of v are zero.
func isZero(v Vec) (bool, error) {
	err := eachBlock(v, func(_ int, b Host) error {
		if !b.isZero() {
			return errNotZero
		}
		return nil
	})
	if err == errNotZero {
		return false, nil
	}
	return err == nil, err
}

var errNotZero = errors.New("not zero")

// eachBlock calls f with the elements of v in host memory: a Host at once, anything else one block
// at a time. A block is valid until f returns.
func eachBlock(v Vec, f func(at int, b Host) error) error {
	if h, ok := v.(Host); ok {
		return f(0, h)
	}
	const block = 1 << 16
	room := newHost(min(v.Len(), block), v.Float64())
	for at := 0; at < v.Len(); at += block {
		b := room.slice(0, min(v.Len()-at, block))
		if err := v.Slice(at, at+b.Len()).Read(b); err != nil {
			return err
		}
		if err := f(at, b); err != nil {
			return err
		}
	}
	return nil
}
