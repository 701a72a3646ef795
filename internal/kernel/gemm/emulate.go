package gemm

import (
	"math"

	"github.com/gofsdp/gofsdp/internal/half"
)

// EmulateTiles makes products of bfloat16 run with tiles in Go until restore is called. The results
// have the bits of AMX and take a thousand times as long. Only tests call it, and no other product
// may run meanwhile.
func EmulateTiles() (restore func()) {
	best := active
	active = tilesInGo()
	return func() { active = best }
}

// tilesInGo returns an instruction set with the blocks and the bits of AMX for any machine.
func tilesInGo() isa {
	set := portable()
	set.name, set.bf16 = "tiles in Go", tileEngine(mulTilesGo)
	return set
}

// mulTilesGo is the register kernel of tiles in Go.
func mulTilesGo(t *tile[float32]) {
	for i := range t.rows {
		for j := range t.cols {
			var sum float32
			for p := 0; p < t.k; p += tilePairs {
				sum = fused(1, sum, tileSum(t.a[i*t.aline+p:][:tilePairs], t.b[j/32*t.bpanel+p*t.bstep+j%32:], t.bstep))
			}
			sum = fused(t.alpha, sum, negativeZero)
			if t.read {
				sum = fused(t.beta, t.in[i*t.ldin+j], sum)
			}
			if t.rounded != nil {
				t.rounded[i*t.ldrounded+j] = half.ToBFloat16(flush(sum))
			} else {
				t.out[i*t.ldout+j] = sum
			}
		}
	}
}

// tileSum returns the value that TDPBF16PS adds to an element for the pairs of a row of A and a
// column of B: the sum of the products of first elements plus the sum of the products of second
// elements.
func tileSum(a, b []float32, bstep int) float32 {
	var even, odd float32
	for p, x := range a {
		u, v := math.Float32bits(x), math.Float32bits(b[p*bstep])
		even = multiplyAdd(math.Float32frombits(u<<16), math.Float32frombits(v<<16), even)
		odd = multiplyAdd(math.Float32frombits(u&^0xffff), math.Float32frombits(v&^0xffff), odd)
	}
	return fused(1, even, odd)
}

// multiplyAdd is [fused] for widened bfloat16 x and y. If both are plain, ordinary arithmetic has
// the same result.
func multiplyAdd(x, y, sum float32) float32 {
	if plain(x) && plain(y) {
		return sum + float32(x*y)
	}
	return fused(x, y, sum)
}
