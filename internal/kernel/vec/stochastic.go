package vec

import (
	"math"
	"sync"
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/half"
)

// StochasticBFloat16 rounds every element of x to a value of bfloat16. If x is between two such
// values, the probability of each is proportional to the distance from the other, so the expected
// result is x. Values of bfloat16, infinities and NaN do not change. A number beyond the largest
// finite value may become infinite.
//
// The result of x[i] depends only on x[i], seed and base+i: a vector may be rounded in parts. All
// instruction sets give the same bits.
func StochasticBFloat16(x []float32, seed, base uint64) {
	k := table[float32]()
	for i := 0; i < len(x); {
		n, from, key := run(len(x)-i, seed, base+uint64(i))
		k.stochastic(x[i:i+n], from, key)
		i += n
	}
}

// stochasticGo adds 16 random bits to the lower half of each number, and clears that half: a carry
// rounds away from zero.
func stochasticGo(x []float32, from, key uint32) {
	for i, v := range x {
		if v == v {
			x[i] = math.Float32frombits((math.Float32bits(v) + hash32(from+uint32(i), key)>>16) &^ (1<<16 - 1))
		}
	}
}

// Words16 returns the number of float32 words that hold n numbers of bfloat16.
func Words16(n int) int { return (n + 1) / 2 }

// Halves returns the n numbers of bfloat16 in words.
func Halves(words []float32, n int) []half.BFloat16 {
	same("Halves", len(words), Words16(n))
	return unsafe.Slice((*half.BFloat16)(unsafe.Pointer(unsafe.SliceData(words))), n)
}

// Numbers are float32, or bfloat16 that an update widens, and rounds by [StochasticBFloat16] with
// Seed. At most one of the slices is set.
type Numbers struct {
	F32  []float32
	F16  []half.BFloat16
	Seed uint64
}

func (x *Numbers) len() int { return len(x.F32) + len(x.F16) }

// open returns elements [i, j) as float32, in room unless they are.
func (x *Numbers) open(room *[block16]float32, i, j int) []float32 {
	if x.F16 == nil {
		return x.F32[i:j]
	}
	half.Widen(room[:j-i], x.F16[i:j])
	return room[:j-i]
}

// close stores what open has returned for the elements from i on.
func (x *Numbers) close(w []float32, i int, base uint64) {
	if x.F16 != nil {
		StochasticBFloat16(w, x.Seed, base+uint64(i))
		half.Narrow(x.F16[i:], w)
	}
}

// Adam16 is [Adam] of numbers that may be bfloat16. base is the index of the first for
// [StochasticBFloat16].
func Adam16(p, g, m, v Numbers, base uint64, h AdamHyper) {
	same("Adam16", p.len(), g.len(), m.len(), v.len())
	k, c := table[float32](), newAdamStep[float32](h)
	room := rooms16.Get().(*[4][block16]float32)
	defer rooms16.Put(room)
	for i := 0; i < p.len(); i += block16 {
		j := min(i+block16, p.len())
		pw, mw, vw := p.open(&room[0], i, j), m.open(&room[1], i, j), v.open(&room[2], i, j)
		k.adam(pw, g.open(&room[3], i, j), mw, vw, c)
		m.close(mw, i, base)
		v.close(vw, i, base)
		p.close(pw, i, base)
	}
}

// SGD16 is [SGD] of numbers that may be bfloat16. Without momentum buf has none.
func SGD16(p, g, buf Numbers, base uint64, h SGDHyper) {
	same("SGD16", p.len(), g.len())
	if h.Momentum != 0 {
		same("SGD16", p.len(), buf.len())
	}
	room := rooms16.Get().(*[4][block16]float32)
	defer rooms16.Put(room)
	for i := 0; i < p.len(); i += block16 {
		j := min(i+block16, p.len())
		pw, bw := p.open(&room[0], i, j), []float32(nil)
		if h.Momentum != 0 {
			bw = buf.open(&room[1], i, j)
		}
		SGD(pw, g.open(&room[3], i, j), bw, h)
		buf.close(bw, i, base)
		p.close(pw, i, base)
	}
}

// block16 is the number of elements that an update widens at a time. They stay in the first cache.
const block16 = 1024

// rooms16 is memory for a block of all numbers of an update.
var rooms16 = sync.Pool{New: func() any { return new([4][block16]float32) }}
