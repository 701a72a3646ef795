package optim

import (
	"fmt"
	"reflect"

	kernel "github.com/gofsdp/gofsdp/internal/kernel/vec"

	"github.com/gofsdp/gofsdp/optim/vec"
)

// least8 is the number of elements from which a parameter follows the optimizer's Bits, as in
// bitsandbytes.
const least8 = 4096

// Blockwise is a [Vec] of float32 that stores 8 bits per element. It is the state of [Adam] and
// [AdamW] with Bits 8 (https://arxiv.org/abs/2110.02861). For every block of 256 elements it stores
// the largest magnitude as a float32, and for each element the 8-bit code of its ratio to that
// magnitude. The 256 ratios are the ones of bitsandbytes, which are closer together where ratios
// are small. So the two moments of an element take 2.03 bytes together instead of 8. The error of a
// number is at most 0.7 % of the largest in its block, and smaller for smaller numbers.
//
// A second moment below 1.6e-7 of the largest in its block becomes zero, and Adam then makes large
// steps. So the gradients within a block should differ by less than a factor of 1,000. Embedding
// rows of frequent and rare tokens may differ by more: a [Rule] can keep them in 32 bits.
//
// Read returns the decoded numbers. Write rounds to the nearest of these. Numbers that were read
// become the same bits again if they are written to the same blocks. Writing a slice rounds
// again every block that the slice overlaps. A number that is not finite turns its block into NaN.
//
// Blocks begin at multiples of 256 of an element's index in the whole parameter. So rounding does
// not depend on how the parameter is cut, except in blocks that a cut goes through: there each side
// has its own block.
//
// Unlike other [Vec]s, only one goroutine at a time may write to slices of one piece, and no other
// goroutine may read the piece meanwhile.
type Blockwise struct {
	words      Vec // magnitudes and codes of the whole piece: n elements from offset on
	offset, n  int
	unsigned   bool
	begin, end int // elements of the piece in this Vec
}

// checkBits returns an error unless state can have this number of bits per element; 0 means the
// type of the value.
func checkBits(bits int) error {
	if bits == 0 || bits == 8 {
		return nil
	}
	return fmt.Errorf("field Bits is %d: must be 8, or 0 for the type of the value", bits)
}

// newEntry returns the zeroed state of a name, with this number of bits per element.
func (p Param) newEntry(name string, bits int) (Vec, error) {
	n := p.Value.Len()
	switch {
	case bits == 8 && p.Value.Float64(): // also on a rank that owns no elements of it
		return nil, fmt.Errorf("parameter %q: its value is float64, and Bits 8 is for float32", p.Name)
	case bits == 0 || n == 0:
		return p.newState(n)
	}
	if _, ok := p.Value.(vec.Adam8Vec); !ok {
		return nil, fmt.Errorf("parameter %q: a value of type %T cannot be updated, because it does not implement %v",
			p.Name, p.Value, reflect.TypeFor[vec.Adam8Vec]())
	}
	words, err := p.newState(kernel.Words8(p.Offset, n))
	if err != nil {
		return nil, err
	}
	return &Blockwise{words: words, offset: p.Offset, n: n, unsigned: name == "exp_avg_sq", end: n}, nil
}

// Len implements [Vec].
func (b *Blockwise) Len() int { return b.end - b.begin }

// Float64 implements [Vec].
func (b *Blockwise) Float64() bool { return false }

// Slice implements [Vec].
func (b *Blockwise) Slice(from, to int) Vec {
	if from < 0 || to < from || to > b.Len() {
		panic(fmt.Sprintf("optim: slice [%d:%d] is outside %d elements", from, to, b.Len()))
	}
	s := *b
	s.begin, s.end = b.begin+from, b.begin+to
	return &s
}

// Zero implements [Vec].
func (b *Blockwise) Zero() error {
	if b.Len() == b.n {
		return b.words.Zero()
	}
	return b.Write(newHost(b.Len(), false))
}

// Read implements [Vec].
func (b *Blockwise) Read(to Host) error {
	if err := b.fits(to); err != nil {
		return err
	}
	blocks, _, err := b.blocks()
	if err == nil {
		blocks.Load(to.F32, b.begin)
	}
	return err
}

// Write implements [Vec].
func (b *Blockwise) Write(from Host) error {
	if err := b.fits(from); err != nil {
		return err
	}
	blocks, words, err := b.blocks()
	if err != nil {
		return err
	}
	all := from.F32
	if len(all) < b.n {
		all = make([]float32, b.n)
		blocks.Load(all, 0)
		copy(all[b.begin:], from.F32)
	}
	blocks.Store(all)
	if _, near := b.words.(Host); near {
		return nil
	}
	return b.words.Write(words)
}

// Words returns the memory of the whole piece, in the format of [vec.Adam8Vec].
func (b *Blockwise) Words() Vec { return b.words }

// Over returns the same elements in words, into which the result of Words was copied.
func (b *Blockwise) Over(words Vec) *Blockwise {
	o := *b
	o.words = words
	return &o
}

// blocks returns the whole piece in host memory.
func (b *Blockwise) blocks() (kernel.Blocks8, Host, error) {
	words, near := b.words.(Host)
	if !near {
		words = newHost(b.words.Len(), false)
		if err := b.words.Read(words); err != nil {
			return kernel.Blocks8{}, words, err
		}
	}
	return kernel.NewBlocks8(words.F32, b.offset, b.n, b.unsigned), words, nil
}

// fits returns an error unless h has the length and type of b.
func (b *Blockwise) fits(h Host) error {
	if len(h.F32) == b.Len() && h.F64 == nil {
		return nil
	}
	return fmt.Errorf("optim: cannot copy between %d elements of float32 in 8 bits and %d elements of %s", b.Len(), h.Len(), vec.TypeName(h))
}
