package vec

import (
	"math"
	"math/bits"
	"sync"
	"unsafe"
)

// # Numbers sent in 8 bits
//
// A block of Block8 numbers is sent as a scale, a float32, and a signed byte for each number:
//
//	scale   the largest magnitude / 127, at most huge8; NaN if a number is not finite, which spoils the block
//	code    number · 127/magnitude, to nearest, ties to even: -127 … 127
//
// The scale is stored with its codes, so a list of blocks can be cut and joined between any two
// blocks like elements. Decoding from the end of the same memory never overwrites data that is
// still to be read. Magnitudes below tiny8 are sent as zeros, so that no inverse overflows. Each
// operation is rounded separately: the bits are the same on all machines.

// Bytes8 is the number of bytes in which a block of [Block8] numbers is sent.
const Bytes8 = 4 + Block8

const (
	most8 = 127
	tiny8 = 0x1p-100
	huge8 = 0x1.020406p121 // the largest scale for which 127 · scale is finite
	// Adding round8 to a small float32 rounds it to an integer, ties to even, and the lowest byte
	// of the sum is that integer. Subtracting round8 again gives the rounded float32.
	round8 = 0x1.8p23
)

// Encode8 writes blocks of src to dst: [Bytes8] bytes for each [Block8] elements. The length of src
// is a multiple of Block8. dst may begin where src begins.
func Encode8(dst []byte, src []float32) {
	each8("Encode8", table[float32]().encode8, dst, src)
}

// EncodeError8 is Encode8 of src plus the error in left, the rounding error of an earlier call. It
// replaces left by its own error: the value to encode minus the encoded value, in as many blocks as
// dst has. Zeroed memory means no error. A block that is not finite has no error either.
func EncodeError8(dst []byte, src []float32, left []byte) {
	same("EncodeError8", len(dst), len(left))
	k := table[float32]()
	each8("EncodeError8", func(dst []byte, src []float32) {
		k.encodeError8(dst, src, left[:len(dst)])
		left = left[len(dst):]
	}, dst, src)
}

// Decode8 sets dst to the numbers of the blocks in src. src may be the end of dst.
func Decode8(dst []float32, src []byte) {
	k := table[float32]()
	each8("Decode8", func(src []byte, dst []float32) { k.decode8(dst, src) }, src, dst)
}

// DecodeSum8 sets dst to the sum of the numbers of n lists of blocks, in the order of [TreeSum].
// The lists follow each other in src.
func DecodeSum8(dst []float32, src []byte, n int) {
	blocks := len(dst) / Block8
	same("DecodeSum8", len(dst), blocks*Block8)
	same("DecodeSum8", len(src), n*blocks*Bytes8)
	s := sums8.Get().(*sum8)
	defer sums8.Put(s)
	s.table, s.part = table[float32](), blocks*Bytes8
	if levels := bits.Len(uint(n)); len(s.room) < levels {
		s.room = make([][room8]float32, levels)
	}
	for len(dst) > 0 {
		m := min(len(dst), room8)
		s.tree(dst[:m], src, n, s.room)
		dst, src = dst[m:], src[m/Block8*Bytes8:]
	}
}

// each8 calls f on consecutive pieces of blocks and of their numbers.
func each8(op string, f func(wire []byte, x []float32), wire []byte, x []float32) {
	n := len(x) / Block8
	same(op, len(x), n*Block8)
	same(op, len(wire), n*Bytes8)
	const most = piece / Block8
	for ; n > 0; n -= most {
		m := min(n, most)
		f(wire[:m*Bytes8], x[:m*Block8])
		wire, x = wire[m*Bytes8:], x[m*Block8:]
	}
}

// room8 is the number of numbers that are summed at a time. They fit the innermost cache.
const room8 = 4 * Block8

// A sum8 is a sum of lists of blocks.
type sum8 struct {
	table *kernels[float32]
	part  int              // bytes of a list
	room  [][room8]float32 // for a branch on each level of the tree
}

var sums8 = sync.Pool{New: func() any { return new(sum8) }}

// tree sets dst to the sum of the beginnings of n lists.
func (s *sum8) tree(dst []float32, src []byte, n int, room [][room8]float32) {
	bytes := len(dst) / Block8 * Bytes8
	if n == 1 {
		s.table.decode8(dst, src[:bytes])
		return
	}
	mid := 1 << (bits.Len(uint(n-1)) - 1)
	s.tree(dst, src, mid, room)
	src = src[mid*s.part:]
	if n-mid == 1 {
		s.table.decodeAdd8(dst, src[:bytes])
		return
	}
	other := room[0][:len(dst)]
	s.tree(other, src, n-mid, room[1:])
	s.table.add(dst, dst, other)
}

// wire8 has memory for a block and its error, and for the codes as floats.
type wire8 struct{ x, e, sum [Block8]float32 }

var wires8 = sync.Pool{New: func() any { return new(wire8) }}

// The portable kernels call other kernels, which may be assembly.

func encode8Go(dst []byte, src []float32) {
	r := wires8.Get().(*wire8)
	defer wires8.Put(r)
	for ; len(src) > 0; src, dst = src[Block8:], dst[Bytes8:] {
		copy(r.x[:], src)
		r.encode((*[Bytes8]byte)(dst), &r.x)
	}
}

func encodeError8Go(dst []byte, src []float32, left []byte) {
	k, r := table[float32](), wires8.Get().(*wire8)
	defer wires8.Put(r)
	x, e := &r.x, &r.e
	for ; len(src) > 0; src, dst, left = src[Block8:], dst[Bytes8:], left[Bytes8:] {
		block, was := (*[Bytes8]byte)(dst), (*[Bytes8]byte)(left)
		decodeBlock8(e, was)
		k.add(x[:], src[:Block8], e[:])
		r.encode(block, x)
		if decodeBlock8(e, block); e[0] != e[0] {
			clear(was[:])
			continue
		}
		k.sub(e[:], x[:], e[:])
		r.encode(was, e)
	}
}

func decode8Go(dst []float32, src []byte) {
	var block [Bytes8]byte
	for ; len(dst) > 0; dst, src = dst[Block8:], src[Bytes8:] {
		copy(block[:], src)
		decodeBlock8((*[Block8]float32)(dst), &block)
	}
}

func decodeAdd8Go(dst []float32, src []byte) {
	k, r := table[float32](), wires8.Get().(*wire8)
	defer wires8.Put(r)
	for ; len(dst) > 0; dst, src = dst[Block8:], src[Bytes8:] {
		decodeBlock8(&r.x, (*[Bytes8]byte)(src))
		k.add(dst[:Block8], dst[:Block8], r.x[:])
	}
}

// encode writes one block.
func (r *wire8) encode(dst *[Bytes8]byte, x *[Block8]float32) {
	absmax, codes := MaxAbs(x[:]), dst[4:]
	scale, inverse := min(absmax/most8, huge8), most8/absmax
	if !(absmax >= tiny8 && absmax <= math.MaxFloat32) {
		scale, inverse = 0, 0
		if !(absmax < tiny8) {
			scale = float32(math.NaN())
		}
	}
	copy(dst[:4], (*[4]byte)(unsafe.Pointer(&scale))[:])
	if inverse == 0 {
		clear(codes)
		return
	}
	k := table[float32]()
	k.scaleTo(r.sum[:], x[:], inverse)
	k.add(r.sum[:], r.sum[:], rounds8[:])
	for i, v := range r.sum {
		codes[i] = byte(math.Float32bits(v))
	}
}

// decodeBlock8 reads one block.
func decodeBlock8(dst *[Block8]float32, src *[Bytes8]byte) {
	var scale float32
	copy((*[4]byte)(unsafe.Pointer(&scale))[:], src[:4])
	for i, c := range src[4:] {
		dst[i] = codes8[c]
	}
	table[float32]().scaleTo(dst[:], dst[:], scale)
}

// rounds8 is round8 for each number of a block, and codes8 is the number for each code.
var rounds8, codes8 = func() (rounds [Block8]float32, codes [256]float32) {
	for i := range rounds {
		rounds[i], codes[i] = round8, float32(int8(i))
	}
	return rounds, codes
}()
