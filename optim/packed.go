package optim

import (
	"fmt"
	"reflect"

	kernel "github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/internal/rng"
	"github.com/gofsdp/gofsdp/optim/vec"
)

// Packed is a [Vec] of float32 that stores fewer than 32 bits per element: a [*Blockwise] or a
// [*BFloat16].
type Packed interface {
	Vec
	// Bits returns the number of bits per element: 8 or 16.
	Bits() int
	// Words returns the memory of the whole piece, in the format of [vec.Adam8Vec] or
	// [vec.BFloat16Vec].
	Words() Vec
	// Over returns the same elements in words, into which the result of Words was copied.
	Over(words Vec) Packed
}

// leastPacked is the number of elements from which a parameter follows the optimizer's Bits, as in
// bitsandbytes.
const leastPacked = 4096

// checkBits returns an error unless state of a kind of optimizer can have this number of bits per
// element; 0 means the type of the value.
func checkBits(kind string, bits int) error {
	switch {
	case bits == 0 || bits == 16 || bits == 8 && kind != kindSGD:
		return nil
	case kind == kindSGD:
		return fmt.Errorf("field Bits is %d: must be 16, or 0 for the type of the value", bits)
	}
	return fmt.Errorf("field Bits is %d: must be 8, 16, or 0 for the type of the value", bits)
}

// newEntry returns the zeroed state of a name, with this number of bits per element.
func (p Param) newEntry(name string, bits int) (Vec, error) {
	n := p.Value.Len()
	switch {
	case bits != 0 && p.Value.Float64(): // also on a rank that owns no elements of it
		return nil, fmt.Errorf("parameter %q: its value is float64, and Bits %d is for float32", p.Name, bits)
	case bits == 8 && vec.Is16(p.Value):
		return nil, fmt.Errorf("parameter %q: its value is bfloat16, and Bits 8 is for float32: use Bits 16, or values in float32", p.Name)
	case bits == 0 || n == 0:
		return p.newState(n)
	}
	_, ok := p.Value.(vec.BFloat16Vec)
	size, update := kernel.Words16(n), reflect.TypeFor[vec.BFloat16Vec]()
	if bits == 8 {
		_, ok = p.Value.(vec.Adam8Vec)
		size, update = kernel.Words8(p.Offset, n), reflect.TypeFor[vec.Adam8Vec]()
	}
	if !ok {
		return nil, fmt.Errorf("parameter %q: a value of type %T cannot be updated, because it does not implement %v",
			p.Name, p.Value, update)
	}
	words, err := p.newState(size)
	if err != nil {
		return nil, err
	}
	all := packed{words: words, offset: p.Offset, n: n, end: n}
	if bits == 8 {
		return &Blockwise{all, name == "exp_avg_sq"}, nil
	}
	return &BFloat16{all, rng.New(0, p.Name)}, nil
}

// packed is a slice of a piece whose elements are packed in words.
type packed struct {
	words      Vec // of the whole piece: n elements from offset on
	offset, n  int
	begin, end int // elements of the piece in this Vec
}

// Len implements [Vec].
func (p *packed) Len() int { return p.end - p.begin }

// Float64 implements [Vec].
func (p *packed) Float64() bool { return false }

// Words implements [Packed].
func (p *packed) Words() Vec { return p.words }

func (p packed) over(words Vec) packed {
	p.words = words
	return p
}

func (p packed) slice(from, to int) packed {
	if from < 0 || to < from || to > p.Len() {
		panic(fmt.Sprintf("optim: slice [%d:%d] is outside %d elements", from, to, p.Len()))
	}
	p.begin, p.end = p.begin+from, p.begin+to
	return p
}

// fits returns an error unless h has the length and type of p.
func (p *packed) fits(h Host, bits int) error {
	if len(h.F32) == p.Len() && h.F64 == nil {
		return nil
	}
	return fmt.Errorf("optim: cannot copy between %d elements of float32 in %d bits and %d elements of %s", p.Len(), bits, h.Len(), vec.TypeName(h))
}
