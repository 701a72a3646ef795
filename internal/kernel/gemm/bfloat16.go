package gemm

import (
	"math"

	"github.com/gofsdp/gofsdp/internal/half"
)

// sumRows returns the rows of a block of float32 sums, for bfloat16 results that need such a block.
// columns is the width of the block.
func sumRows(columns int) int { return min(512, 512*384/columns) }

// groupsAtOnce is the largest number of groups of ranges of k for which tiles have B packed once
// for all blocks of rows.
const groupsAtOnce = 2

// runRounded computes op(A)*op(B), plus beta*C or the row bias, into C in bfloat16. Every element
// is rounded once. So a block of C is summed in float32 if there is more than one group of ranges
// of k, or if C is added.
func runRounded[T Element](whole product[T, float32], beta float32, bias, c []half.BFloat16, ldc int) {
	if whole.m == 0 || whole.n == 0 {
		return
	}
	whole.packWhole()
	_, groups := whole.ranges()
	inSums := groups.parts > 1 || beta != 0
	width := whole.width()
	rows, cols := newSplit(whole.m, whole.m, 1), newSplit(whole.n, width, whole.nr)
	if inSums {
		rows = newSplit(whole.m, sumRows(width), whole.mr)
	}
	once := whole.tiles && whole.panels == 0 && rows.parts > 1 && groups.parts <= groupsAtOnce
	for jc := range cols.parts {
		j0, j1 := cols.bounds(jc)
		var packed view[T]
		panel := TilePanel(whole.k)
		if once {
			bp := grow(&whole.bpack, (j1-j0+whole.nr-1)/whole.nr*panel/whole.pair*whole.steps)
			whole.pack(bp, whole.b, j0, j1, 0, whole.k, whole.nr)
			packed.data = elements[T](bp)
		}
		for ic := range rows.parts {
			i0, i1 := rows.bounds(ic)
			x := whole
			x.m, x.n, x.a.data = i1-i0, j1-j0, x.a.tail(i0, 0)
			switch {
			case once:
				x.b, x.panels = packed, panel
			case x.panels > 0:
				x.b.data = x.b.data[j0/x.nr*x.panels:]
			default:
				x.b.data = x.b.tail(j0, 0)
			}
			x.rounded = rounded{c[i0*ldc+j0:], ldc}
			if inSums {
				x.c, x.ldc = grow(&x.block, x.m*x.n), x.n
			}
			if beta != 0 {
				x.add = addend[float32]{x.c, x.ldc, beta}
				for i := range x.m {
					half.Widen(x.c[i*x.n:][:x.n], x.rounded.data[i*ldc:])
				}
			}
			if bias != nil {
				x.add = addend[float32]{grow(&x.bias, x.n), 0, 1}
				half.Widen(x.add.data, bias[j0:j1])
			}
			x.run()
		}
	}
}

// round sets dst[i*ld+j] = src[i*cols+j], rounded, for i < rows and j < cols.
func round[P Float](dst []half.BFloat16, src []P, ld, rows, cols int) {
	wide := any(src).([]float32)
	for i := range rows {
		half.Narrow(dst[i*ld:][:cols], wide[i*cols:])
	}
}

// gatherPairs packs pairs without changing them.
func gatherPairs(dst []float32, src []half.BFloat16, line, step, rows, k, width int) {
	for p := 0; p < k; p += 2 {
		for r := range rows {
			pair := uint32(src[r*line+p*step])
			if p+1 < k {
				pair |= uint32(src[r*line+(p+1)*step]) << 16
			}
			dst[p/2*width+r] = math.Float32frombits(pair)
		}
	}
}

// gatherWide packs widened elements, the second of a pair first. Subnormal elements become zero.
func gatherWide(dst []float32, src []half.BFloat16, line, step, rows, k, width int) {
	for p := range k + k%2 {
		for r := range rows {
			var v float32
			if p < k {
				v = flush(src[r*line+p*step].Float32())
			}
			dst[(p^1)*width+r] = v
		}
	}
}

// mulWideGo is the register kernel in Go for widened elements, packed as for [mulGo]. Its results
// have the bits of the assembly, see [fused].
func mulWideGo(t *tile[float32]) {
	for j := 0; j < t.cols; j += 4 {
		var acc [16]float32
		wide4x4(&acc, t.a[:4*t.k], t.b[j/4*t.bpanel:][:4*t.k])
		cols := min(4, t.cols-j)
		for i := range t.rows {
			sums := acc[4*i : 4*i+cols]
			for q, sum := range sums {
				sums[q] = fused(t.alpha, sum, negativeZero)
			}
			if t.read {
				for q, s := range t.in[i*t.ldin+j:][:cols] {
					sums[q] = fused(t.beta, s, sums[q])
				}
			}
			copy(t.out[i*t.ldout+j:][:cols], sums)
		}
	}
}

// wide4x4 sets acc[4*i+j] = sum_p a[4*p+i]*b[4*p+j] like [mul4x4], but for widened elements. If all
// factors are plain, ordinary arithmetic gives the result of [fused].
func wide4x4(acc *[16]float32, a, b []float32) {
	for h := 0; h < 4; h += 2 {
		var c00, c01, c02, c03, c10, c11, c12, c13 float32
		for p := 0; p+4 <= len(a) && p+4 <= len(b); p += 4 {
			x, y := a[p:p+4:p+4], b[p:p+4:p+4]
			x0, x1 := x[h&2], x[h&2+1]
			y0, y1, y2, y3 := y[0], y[1], y[2], y[3]
			if plain(x0) && plain(x1) && plain(y0) && plain(y1) && plain(y2) && plain(y3) {
				c00 += float32(x0 * y0)
				c01 += float32(x0 * y1)
				c02 += float32(x0 * y2)
				c03 += float32(x0 * y3)
				c10 += float32(x1 * y0)
				c11 += float32(x1 * y1)
				c12 += float32(x1 * y2)
				c13 += float32(x1 * y3)
				continue
			}
			c00, c01, c02, c03 = fused(x0, y0, c00), fused(x0, y1, c01), fused(x0, y2, c02), fused(x0, y3, c03)
			c10, c11, c12, c13 = fused(x1, y0, c10), fused(x1, y1, c11), fused(x1, y2, c12), fused(x1, y3, c13)
		}
		acc[4*h], acc[4*h+1], acc[4*h+2], acc[4*h+3] = c00, c01, c02, c03
		acc[4*h+4], acc[4*h+5], acc[4*h+6], acc[4*h+7] = c10, c11, c12, c13
	}
}

// plain reports whether f, a widened bfloat16, is zero or has a magnitude between 2^-50 and 2^63.
// The product of two such numbers is exact, with 16 bits. If it is not zero, it is between 2^-100
// and 2^126. Its sum with any z of 24 bits that is not subnormal is not subnormal either: the sum
// can be that small only if z is about as large as the product, and then both are multiples of
// 2^-126.
func plain(f float32) bool {
	b := math.Float32bits(f) << 1
	return b-(127-50)<<24 < 113<<24 || b == 0
}

const smallestNormal = 0x1p-126

var negativeZero = float32(math.Copysign(0, -1))

// fused returns x*y + z, rounded once. Subnormal operands and results count as zeros of their sign.
// A result is subnormal if it would be subnormal after rounding to 24 bits at any exponent.
func fused(x, y, z float32) float32 {
	product, addend := float64(flush(x))*float64(flush(y)), float64(flush(z)) // exact
	sum := product + addend
	if math.IsInf(sum, 0) || math.IsNaN(sum) {
		return float32(sum)
	}
	// Rounding to odd keeps the second rounding from seeing a false tie: see Boldo and Melquiond,
	// "Emulation of FMA and correctly rounded sums" (IEEE Transactions on Computers 57(4), 2008,
	// https://doi.org/10.1109/TC.2007.70819). Knuth's two-sum computes the error of the sum.
	other := sum - product
	lost := (product - (sum - other)) + (addend - other)
	if bits := math.Float64bits(sum); lost != 0 && bits&1 == 0 {
		if (lost > 0) == (sum > 0) {
			sum = math.Float64frombits(bits + 1)
		} else {
			sum = math.Float64frombits(bits - 1)
		}
	}
	if math.Abs(sum) < smallestNormal-0x1p-151 {
		return float32(math.Copysign(0, sum))
	}
	return float32(sum)
}

// flush returns f, or a zero of its sign if it is subnormal.
func flush(f float32) float32 {
	if bits := math.Float32bits(f); bits>>23&0xff == 0 {
		return math.Float32frombits(bits & (1 << 31))
	}
	return f
}
