package vec

import (
	"math"
	"slices"
	"sync"
	"unsafe"
)

// # Numbers in 8 bits
//
// A block of float32 numbers is stored as its largest magnitude and, for each number, the code of
// its ratio to that magnitude: an index into 256 values between -1 or 0 and 1. The values come from
// dynamic tree quantization (https://arxiv.org/abs/2110.02861, section 1.3): zero, one, and the
// middles of equal intervals of every decade. Each decade has twice as many intervals as the next
// smaller one. In units of 10^(i-6), for decades i = 0 … 6 and j = 0 … n-1:
//
//	signed     n = 2^i       ±(0.1 + 0.9·(2j+1)/2n), 0, 1     as many on both sides, but for 1
//	unsigned   n = 2^(i+1)     0.1 + 0.9·(2j+1)/2n,  0, 1
//
// Codes are sorted by value.

// Block8 is the number of elements in a whole block. The paper uses 2,048. 256 costs 1.5 % more
// memory than one byte an element, and a large number in a block reduces the precision of fewer
// others. The optimizers of bitsandbytes use 256, too.
const Block8 = 256

// Blocks8 is a vector of float32 with 8 bits for each element. It is part of a larger vector:
// blocks begin where the index in that vector is a multiple of [Block8], so the first and the last
// block may be shorter. Zeroed memory is zeros.
type Blocks8 struct {
	absmax   []float32 // of each block; NaN if an element is not finite, which makes the whole block NaN
	codes    []uint8   // one for each element
	phase    int       // index of the first element in its block
	unsigned bool
}

// Words8 returns the number of float32 words in which [NewBlocks8] can store the n elements from
// offset on.
func Words8(offset, n int) int { return blocks8(offset, n) + (n+3)/4 }

func blocks8(offset, n int) int {
	if n == 0 {
		return 0
	}
	return (offset%Block8 + n + Block8 - 1) / Block8
}

// NewBlocks8 returns the n elements from offset on that are stored in words: the magnitudes
// followed by the codes.
func NewBlocks8(words []float32, offset, n int, unsigned bool) Blocks8 {
	same("NewBlocks8", len(words), Words8(offset, n))
	at := blocks8(offset, n)
	codes := unsafe.Slice((*uint8)(unsafe.Pointer(unsafe.SliceData(words[at:]))), 4*(len(words)-at))
	return Blocks8{absmax: words[:at], codes: codes[:n], phase: offset % Block8, unsigned: unsigned}
}

// block returns the range [from, to) of elements in block i.
func (q *Blocks8) block(i int) (from, to int) {
	return max(0, i*Block8-q.phase), min(len(q.codes), (i+1)*Block8-q.phase)
}

// Load sets dst to the elements from first on.
func (q *Blocks8) Load(dst []float32, first int) {
	t := q.tree()
	for at := first; at < first+len(dst); {
		i := (q.phase + at) / Block8
		_, to := q.block(i)
		to = min(to, first+len(dst))
		t.load(dst[at-first:to-first], q.codes[at:to], q.absmax[i])
		at = to
	}
}

// Store sets the elements to src, each rounded to the nearest value of its block. Values that Load
// has returned for the same blocks are stored without change, to the bit.
func (q *Blocks8) Store(src []float32) {
	same("Store", len(src), len(q.codes))
	t := q.tree()
	var room [Block8]float32
	for i := range q.absmax {
		from, to := q.block(i)
		q.absmax[i] = t.restore(q.codes[from:to], src[from:to], room[:to-from])
	}
}

// Adam8 is [Adam] with moments in 8 bits; v is unsigned. Each block is widened, updated and
// narrowed by itself.
func Adam8(p, g []float32, m, v Blocks8, h AdamHyper) {
	same("Adam8", len(p), len(g), len(m.codes), len(v.codes))
	k, c := table[float32](), newAdamStep[float32](h)
	first, second := m.tree(), v.tree()
	room := rooms8.Get().(*[2][Block8]float32)
	defer rooms8.Put(room)
	for i := range m.absmax {
		from, to := m.block(i)
		mw, vw := room[0][:to-from], room[1][:to-from]
		mc, vc := m.codes[from:to], v.codes[from:to]
		first.load(mw, mc, m.absmax[i])
		second.load(vw, vc, v.absmax[i])
		k.adam(p[from:to], g[from:to], mw, vw, c)
		m.absmax[i] = first.store(mc, mw)
		v.absmax[i] = second.store(vc, vw)
	}
}

// rooms8 is memory for the moments of a block.
var rooms8 = sync.Pool{New: func() any { return new([2][Block8]float32) }}

// A tree8 is a list of 256 values, and a table that finds the nearest of them in one step. All
// float32 numbers with the same upper 16 bits have at most two nearest values, since at most one
// middle between neighbours is among these numbers. So the upper bits select a code in a table, and
// the lower 16 bits carry into it beyond the middle:
//
//	find      code                          (65535 - lower bits of the middle)
//	x       +                                lower bits of x, inverted if it is negative
//	          code, or the next one
type tree8 struct {
	values [256]float32
	find   [1 << 16]uint32 // by the upper bits
	signed bool
}

func (q *Blocks8) tree() *tree8 {
	if q.unsigned {
		return unsigned8()
	}
	return signed8()
}

var (
	signed8   = sync.OnceValue(func() *tree8 { return newTree8(true) })
	unsigned8 = sync.OnceValue(func() *tree8 { return newTree8(false) })
)

// newTree8 computes the list with the roundings of PyTorch's linspace, so its values have the bits
// of bitsandbytes.
func newTree8(signed bool) *tree8 {
	list := []float32{0, 1}
	for i := range 7 {
		n, unit := 1<<(i+1), float32(math.Pow10(i-6))
		if signed {
			n /= 2
		}
		step := (1 - float32(0.1)) / float32(n)
		edge := func(j int) float32 {
			if j < (n+1)/2 {
				return float32(float64(float32(0.1)) + float64(step)*float64(j))
			}
			return float32(1 - float64(step)*float64(n-j))
		}
		for j := range n {
			x := unit * ((edge(j) + edge(j+1)) / 2)
			list = append(list, x)
			if signed {
				list = append(list, -x)
			}
		}
	}
	slices.Sort(list)
	t := &tree8{signed: signed}
	copy(t.values[:], list)
	t.fill(slices.Index(list, 0), 1)
	if signed {
		t.fill(slices.Index(list, 0), -1)
	}
	return t
}

// fill computes the table for the numbers on one side of zero, which has a code. A number in the
// middle goes to the value closer to zero.
func (t *tree8) fill(code, step int) {
	for upper := range uint32(1 << 15) {
		middle := uint32(1<<16 - 1) // the lower bits; none are larger if the middle is further away
		last := code
		if next := code + step; next >= 0 && next < len(t.values) {
			exact := math.Abs(float64(t.values[code])+float64(t.values[next])) / 2
			bits := math.Float32bits(float32(exact))
			if float64(math.Float32frombits(bits)) > exact {
				bits-- // the last number that is not beyond the middle
			}
			if bits>>16 == upper {
				middle, code = bits&(1<<16-1), next
			}
		}
		if step > 0 {
			t.find[upper] = uint32(last)<<16 + (1<<16 - 1) - middle
		} else {
			t.find[1<<15|upper] = uint32(last)<<16 + middle - (1<<16 - 1)
		}
	}
}

// Codes8 returns the tables with which other packages convert numbers and codes: for signed and
// then for unsigned numbers, the values by code, and the smallest ratio for each code. The smallest
// ratio of the first code is minus infinity.
func Codes8() (lists [4][256]float32) {
	for i, t := range []*tree8{signed8(), unsigned8()} {
		lists[2*i] = t.values
		lists[2*i+1] = t.smallest()
	}
	return lists
}

// smallest returns the smallest number for each code.
func (t *tree8) smallest() (list [256]float32) {
	list[0] = float32(math.Inf(-1))
	for c := 1; c < len(list); c++ {
		exact := (float64(t.values[c-1]) + float64(t.values[c])) / 2
		x := float32(exact)
		switch { // a number in the middle goes to the value closer to zero
		case float64(x) < exact, exact > 0 && float64(x) == exact:
			x = math.Nextafter32(x, float32(math.Inf(1)))
		}
		list[c] = x
	}
	return list
}

// load sets dst to the values of codes, times absmax.
func (t *tree8) load(dst []float32, codes []uint8, absmax float32) {
	if absmax == 0 {
		clear(dst)
		return
	}
	codes = codes[:len(dst)]
	for i := range dst {
		dst[i] = t.values[codes[i]] * absmax
	}
}

// store sets codes to the codes of src, and returns the largest magnitude.
func (t *tree8) store(codes []uint8, src []float32) (absmax float32) {
	absmax = MaxAbs(src)
	t.encode(codes, src, absmax)
	if !(absmax <= math.MaxFloat32) {
		return float32(math.NaN())
	}
	return absmax
}

// encode sets codes to the codes of src for a magnitude.
func (t *tree8) encode(codes []uint8, src []float32, absmax float32) {
	if absmax == 0 || !(absmax <= math.MaxFloat32) {
		clear(codes)
		return
	}
	up := float32(1) // keeps the inverse in range
	if absmax < 0x1p-60 {
		up = 0x1p60
	}
	inverse := 1 / (absmax * up)
	codes = codes[:len(src)]
	for i, x := range src {
		b := math.Float32bits(x * up * inverse)
		lower := (b ^ uint32(int32(b)>>31)) & (1<<16 - 1)
		codes[i] = uint8((t.find[b>>16] + lower) >> 16)
	}
}

// restore is store for numbers that may have been loaded. If the largest magnitude belonged to a
// negative number, its code was for a smaller magnitude, as no code means -1. restore then searches
// for the magnitude that reproduces all numbers. room has the length of src.
func (t *tree8) restore(codes []uint8, src, room []float32) (absmax float32) {
	absmax = t.store(codes, src)
	if !t.signed || absmax == 0 || !(absmax <= math.MaxFloat32) {
		return absmax
	}
	near := absmax / -t.values[0]
	for _, a := range [...]float32{absmax, math.Nextafter32(near, 0), near, math.Nextafter32(near, math.MaxFloat32)} {
		t.encode(codes, src, a)
		t.load(room, codes, a)
		if slices.Equal(room, src) {
			return a
		}
	}
	t.encode(codes, src, absmax)
	return absmax
}
