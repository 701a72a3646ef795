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

// Adam16 is [Adam] with moments in bfloat16. New moments are rounded by [StochasticBFloat16]: m with
// seed, and v with seed+1.
func Adam16(p, g []float32, m, v []half.BFloat16, seed, base uint64, h AdamHyper) {
	same("Adam16", len(p), len(g), len(m), len(v))
	k, c := table[float32](), newAdamStep[float32](h)
	room := rooms16.Get().(*[2][block16]float32)
	defer rooms16.Put(room)
	for i := 0; i < len(p); i += block16 {
		j := min(i+block16, len(p))
		mw, vw := room[0][:j-i], room[1][:j-i]
		half.Widen(mw, m[i:j])
		half.Widen(vw, v[i:j])
		k.adam(p[i:j], g[i:j], mw, vw, c)
		StochasticBFloat16(mw, seed, base+uint64(i))
		StochasticBFloat16(vw, seed+1, base+uint64(i))
		half.Narrow(m[i:j], mw)
		half.Narrow(v[i:j], vw)
	}
}

// SGD16 is [SGD] with momentum, whose buffer is in bfloat16. The new buffer is rounded by
// [StochasticBFloat16].
func SGD16(p, g []float32, buf []half.BFloat16, seed, base uint64, h SGDHyper) {
	same("SGD16", len(p), len(g), len(buf))
	room := rooms16.Get().(*[2][block16]float32)
	defer rooms16.Put(room)
	for i := 0; i < len(p); i += block16 {
		j := min(i+block16, len(p))
		w := room[0][:j-i]
		half.Widen(w, buf[i:j])
		SGD(p[i:j], g[i:j], w, h)
		StochasticBFloat16(w, seed, base+uint64(i))
		half.Narrow(buf[i:j], w)
	}
}

// block16 is the number of elements that an update widens at a time. They stay in the first cache.
const block16 = 1024

// rooms16 is memory for the state of a block.
var rooms16 = sync.Pool{New: func() any { return new([2][block16]float32) }}
