package optim

import (
	"github.com/gofsdp/gofsdp/internal/half"
	kernel "github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/internal/rng"
	"github.com/gofsdp/gofsdp/optim/vec"
)

// BFloat16 is a [Vec] of float32 that stores bfloat16: 16 bits per element. It is the state of
// [Adam], [AdamW] and [SGD] with Bits 16.
//
// An update computes in float32 and rounds the new state at random: if a number is between two
// values of bfloat16, the probability of each is proportional to the distance from the other. So
// the rounding errors of many steps cancel, where rounding to the nearest would lose every change of
// less than 0.2 to 0.4 %. That matters for second moments: with Beta2 0.999, a step changes them by
// at most 0.1 % of their size if gradients do not grow.
//
// The random numbers are a function of the parameter's name, the state, the element's index
// in the whole parameter and the parameter's number of updates. So training repeats to the bit, on
// any number of ranks and after a restart.
//
// Read returns the stored numbers, and Write rounds to the nearest value. Numbers that were read
// become the same bits again.
//
// Unlike other [Vec]s outside of ordinary memory, only one goroutine at a time may write to slices of
// one piece, and no other goroutine may read the piece meanwhile: an element shares its word with
// another.
type BFloat16 struct {
	packed // words: two elements each, and half a word of padding if their number is odd
	draws  rng.Stream
}

// Bits implements [Packed].
func (b *BFloat16) Bits() int { return 16 }

// Over implements [Packed].
func (b *BFloat16) Over(words Vec) Packed { return &BFloat16{b.over(words), b.draws} }

// Slice implements [Vec].
func (b *BFloat16) Slice(from, to int) Vec { return &BFloat16{b.slice(from, to), b.draws} }

// rounding returns the draws of an update, which is the given one of the parameter.
func (b *BFloat16) rounding(update int) vec.Rounding {
	return vec.Rounding{Key: b.draws.Uint64(uint64(update)), Offset: b.offset}
}

// Zero implements [Vec].
func (b *BFloat16) Zero() error {
	if b.Len() == b.n {
		return b.words.Zero()
	}
	return b.Write(newHost(b.Len(), false))
}

// Read implements [Vec].
func (b *BFloat16) Read(to Host) error {
	if err := b.fits(to, b.Bits()); err != nil {
		return err
	}
	halves, _, _, err := b.halves(true)
	if err == nil {
		half.Widen(to.F32, halves)
	}
	return err
}

// Write implements [Vec].
func (b *BFloat16) Write(from Host) error {
	if err := b.fits(from, b.Bits()); err != nil {
		return err
	}
	shared := b.begin%2 != 0 || b.end%2 != 0 // a word with an element that stays
	halves, words, copied, err := b.halves(shared)
	if err != nil {
		return err
	}
	half.Narrow(halves, from.F32)
	if copied == nil {
		return nil
	}
	return words.Write(*copied)
}

// halves returns the elements in ordinary memory. If the words of b are elsewhere, it also returns
// the words of the elements, and the memory of the result, into which it has copied them if read is
// true.
func (b *BFloat16) halves(read bool) (halves []half.BFloat16, words Vec, copied *Host, err error) {
	if near, ok := b.words.(Host); ok {
		return kernel.Halves(near.F32, b.n)[b.begin:b.end], nil, nil, nil
	}
	first := b.begin / 2
	words = b.words.Slice(first, max(first, kernel.Words16(b.end)))
	h := newHost(words.Len(), false)
	if read {
		err = words.Read(h)
	}
	return kernel.Halves(h.F32, 2*h.Len())[b.begin-2*first:][:b.Len()], words, &h, err
}
