package vec

import (
	"fmt"

	"github.com/gofsdp/gofsdp/internal/half"
	kernel "github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Host16 is a [Vec] of float32 in ordinary memory that stores bfloat16: the values of a parameter
// and its gradient, in half the memory of a [Host]. Read widens the numbers. Write rounds to the
// nearest, ties to even. Numbers that were read become the same bits again.
//
// An update computes in float32 and rounds the new values at random, with the Round of its step:
// see [Rounding]. So the rounding errors of many steps cancel, where rounding to the nearest would
// lose every change of less than 0.2 to 0.4 % of a value. The state of the optimizer is in Hosts,
// in float32 or in the format of [BFloat16Vec].
type Host16 struct{ elements []half.BFloat16 }

// NewHost16 returns a Host16 in this memory. It is for this library.
func NewHost16(elements []half.BFloat16) Host16 { return Host16{elements} }

// Is16 reports whether v stores bfloat16, in any memory: a [Host16], or another Vec with the method
// Bits() int that returns 16.
func Is16(v Vec) bool {
	b, ok := v.(interface{ Bits() int })
	return ok && b.Bits() == 16
}

// Bits returns the number of bits of an element.
func (h Host16) Bits() int { return 16 }

// Stored returns the memory of the vector. It is for this library.
func (h Host16) Stored() []half.BFloat16 { return h.elements }

// Len implements [Vec].
func (h Host16) Len() int { return len(h.elements) }

// Float64 implements [Vec].
func (h Host16) Float64() bool { return false }

// Slice implements [Vec].
func (h Host16) Slice(from, to int) Vec { return Host16{h.elements[from:to:to]} }

// Zero implements [Vec].
func (h Host16) Zero() error {
	clear(h.elements)
	return nil
}

// Read implements [Vec].
func (h Host16) Read(to Host) error {
	if err := h.fits(to); err != nil {
		return err
	}
	half.Widen(to.F32, h.elements)
	return nil
}

// Write implements [Vec].
func (h Host16) Write(from Host) error {
	if err := h.fits(from); err != nil {
		return err
	}
	half.Narrow(h.elements, from.F32)
	return nil
}

// fits returns an error unless o has the length and type of h.
func (h Host16) fits(o Host) error {
	if len(o.F32) == len(h.elements) && o.F64 == nil {
		return nil
	}
	return fmt.Errorf("optim: cannot copy between %d elements of float32 in 16 bits and %d elements of %s", h.Len(), o.Len(), TypeName(o))
}

// numbers returns the elements, which an update rounds with r.
func (h Host16) numbers(r Rounding) kernel.Numbers {
	return kernel.Numbers{F16: h.elements, Seed: r.Key}
}

// Adam implements [AdamVec].
func (h Host16) Adam(g, m, v Vec, s AdamStep) error {
	kernel.Adam16(h.numbers(s.Round), g.(Host16).numbers(Rounding{}), m.(Host).numbers(), v.(Host).numbers(), uint64(s.Round.Offset), s.hyper(1))
	return nil
}

// SGD implements [SGDVec].
func (h Host16) SGD(g, b Vec, s SGDStep) error {
	momentum, _ := b.(Host) // empty without momentum
	kernel.SGD16(h.numbers(s.Round), g.(Host16).numbers(Rounding{}), momentum.numbers(), uint64(s.Round.Offset), s.hyper(1))
	return nil
}

// Adam16 implements [BFloat16Vec].
func (h Host16) Adam16(g, m, v Vec, r Rounding, s AdamStep) error {
	n := h.Len()
	kernel.Adam16(h.numbers(s.Round), g.(Host16).numbers(Rounding{}), r.halves(m, n, 0), r.halves(v, n, 1), uint64(r.Offset), s.hyper(1))
	return nil
}

// SGD16 implements [BFloat16Vec].
func (h Host16) SGD16(g, b Vec, r Rounding, s SGDStep) error {
	kernel.SGD16(h.numbers(s.Round), g.(Host16).numbers(Rounding{}), r.halves(b, h.Len(), 0), uint64(r.Offset), s.hyper(1))
	return nil
}
