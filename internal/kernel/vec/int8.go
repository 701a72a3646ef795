package vec

import (
	"math"
	"sync"
	"unsafe"
)

// # Numbers that travel in 8 bits
//
// A block of Block8 numbers travels as their scale, a float32, and a signed byte for each:
//
//	scale   the largest magnitude / 127, at most huge8; NaN if a number is not finite, which spoils the block
//	code    number · 127/magnitude, to nearest, ties to even: -127 … 127
//
// Scale and codes lie together, so blocks are to be cut anywhere and put side by side like elements, and
// what is decoded from the end of its own memory never overtakes what is still to be read. Magnitudes
// below tiny8 travel as zeros, so that no inverse overflows. Each operation is rounded by itself: the
// bits are the same on all machines.

// Bytes8 is the number of bytes in which a block of [Block8] numbers travels.
const Bytes8 = 4 + Block8

const (
	most8 = 127
	tiny8 = 0x1p-100
	huge8 = 0x1.020406p121 // the largest scale whose multiple by 127 is finite
	// Added to a small float32 and taken away again, it rounds to an integer, ties to even; the lowest
	// byte of the sum is that integer.
	round8 = 0x1.8p23
)

// Encode8 writes blocks of src to dst: [Bytes8] for each [Block8] elements, of which src has a multiple.
// dst may begin where src does.
func Encode8(dst []byte, src []float32) {
	same("Encode8", len(dst)*Block8, len(src)*Bytes8)
	r := wires8.Get().(*wire8)
	defer wires8.Put(r)
	for ; len(src) > 0; src, dst = src[Block8:], dst[Bytes8:] {
		copy(r.x[:], src)
		r.encode((*[Bytes8]byte)(dst), &r.x)
	}
}

// EncodeError8 is Encode8 of src plus the error that an earlier one has left, and leaves its own: what
// was to be encoded less what was, in as many blocks as dst has. Zeroed memory is no error; nor is there
// one of a block that is not finite.
func EncodeError8(dst []byte, src []float32, left []byte) {
	same("EncodeError8", len(dst)*Block8, len(src)*Bytes8, len(left)*Block8)
	k, r := table[float32](), wires8.Get().(*wire8)
	defer wires8.Put(r)
	x, e := &r.x, &r.e
	for ; len(src) > 0; src, dst, left = src[Block8:], dst[Bytes8:], left[Bytes8:] {
		block, was := (*[Bytes8]byte)(dst), (*[Bytes8]byte)(left)
		decode8(e, was)
		k.add(x[:], src[:Block8], e[:])
		r.encode(block, x)
		if decode8(e, block); e[0] != e[0] {
			clear(was[:])
			continue
		}
		k.sub(e[:], x[:], e[:])
		r.encode(was, e)
	}
}

// Decode8 sets dst to the numbers of the blocks in src. src may be the end of dst.
func Decode8(dst []float32, src []byte) {
	same("Decode8", len(src)*Block8, len(dst)*Bytes8)
	var block [Bytes8]byte
	for ; len(dst) > 0; dst, src = dst[Block8:], src[Bytes8:] {
		copy(block[:], src)
		decode8((*[Block8]float32)(dst), &block)
	}
}

// wire8 has memory for a block and its error, and for the codes as floats.
type wire8 struct{ x, e, sum [Block8]float32 }

var wires8 = sync.Pool{New: func() any { return new(wire8) }}

// encode writes one block.
func (r *wire8) encode(dst *[Bytes8]byte, x *[Block8]float32) {
	absmax, codes := MaxAbs(x[:]), dst[4:]
	scale, inverse := min(absmax/most8, huge8), most8/absmax
	if !(absmax >= tiny8 && absmax <= math.MaxFloat32) {
		if scale, inverse = 0, 0; !(absmax < tiny8) {
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

// decode8 reads one block.
func decode8(dst *[Block8]float32, src *[Bytes8]byte) {
	var scale float32
	copy((*[4]byte)(unsafe.Pointer(&scale))[:], src[:4])
	for i, c := range src[4:] {
		dst[i] = codes8[c]
	}
	table[float32]().scaleTo(dst[:], dst[:], scale)
}

// rounds8 is round8 for each number of a block, and codes8 the numbers of the codes.
var rounds8, codes8 = func() (rounds [Block8]float32, codes [256]float32) {
	for i := range rounds {
		rounds[i], codes[i] = round8, float32(int8(i))
	}
	return rounds, codes
}()
