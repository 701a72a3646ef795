package optim

import kernel "github.com/gofsdp/gofsdp/internal/kernel/vec"

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
	packed   // words: magnitudes and codes
	unsigned bool
}

// Bits implements [Packed].
func (b *Blockwise) Bits() int { return 8 }

// Slice implements [Vec].
func (b *Blockwise) Slice(from, to int) Vec { return &Blockwise{b.slice(from, to), b.unsigned} }

// Zero implements [Vec].
func (b *Blockwise) Zero() error {
	if b.Len() == b.n {
		return b.words.Zero()
	}
	return b.Write(newHost(b.Len(), false))
}

// Read implements [Vec].
func (b *Blockwise) Read(to Host) error {
	if err := b.fits(to, b.Bits()); err != nil {
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
	if err := b.fits(from, b.Bits()); err != nil {
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

// Over implements [Packed].
func (b *Blockwise) Over(words Vec) Packed { return &Blockwise{b.over(words), b.unsigned} }

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
