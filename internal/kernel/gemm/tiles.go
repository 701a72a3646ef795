package gemm

import (
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/half"
)

// Tiles multiply matrices in registers of two dimensions, as AMX does: a tile of A has rows along k,
// and a tile of B has pairs of elements along k as the other kernels for bfloat16 have them.

// tileEngine returns an engine of tiles around a register kernel, for packing routines of pairs.
func tileEngine(mul func(t *tile[float32])) engine[half.BFloat16, float32] {
	return engine[half.BFloat16, float32]{
		mr: 32, nr: 32, kc: 512, nc: 768, deep: 4, lanes: 16, across: 32, pair: 2 * tilePairs, steps: tilePairs,
		inPlace: true, tiles: true, rounds: true, mul: mul, gather: gatherTiles, uncross: uncross,
	}
}

// rowGap is how many steps further than needed rows of packed A are apart: rows that are a power of
// two apart share few sets of a cache.
const rowGap = 16

// mustPackRows decides whether A is packed for tiles. Rows along k are read in place, at any even
// stride, unless so many of them share a set of L1 that the strip does not stay there.
func (x *product[T, P]) mustPackRows() bool {
	const mostInSet = 2048 // bytes after which 16 of 32 rows share the sets of a way, of 64 lines
	a := x.a
	return a.step != 1 || a.line%2 != 0 || a.line*int(unsafe.Sizeof(*new(T)))%mostInSet == 0 && x.n > 4*x.nr
}

// pairsAtOnce is how many pairs of all rows packRows packs at once.
const pairsAtOnce = 64

// packRows copies rows r0 to r1 of A, elements p0 to p1 of each: dst[(r-r0)*ld + p] are steps, of which
// the last ones are filled up with zeros, and ld is rowGap more than the steps.
func (x *product[T, P]) packRows(dst []P, r0, r1, p0, p1 int) {
	ld, each := x.depth(p1-p0)+rowGap, x.pair/x.steps // elements in a step
	if x.a.step == 1 {
		for r := range r1 - r0 {
			row := elements[T](dst[r*ld:][:ld-rowGap])
			clear(row[copy(row, x.a.data[(r0+r)*x.a.line+p0:][:p1-p0]):])
		}
		return
	}
	pairs := grow(&x.crossed, pairsAtOnce*x.strip())
	for p := p0; p < p1; p += pairsAtOnce * each {
		end := min(p+pairsAtOnce*each, p1)
		x.pack(pairs, x.a, r0, r1, p, end, x.strip())
		x.uncross(dst[x.depth(p-p0):], pairs, x.strip(), x.depth(end-p), r1-r0, ld)
	}
}

// elements returns the elements in the memory of steps.
func elements[T Element, P Float](s []P) []T {
	n := len(s) * int(unsafe.Sizeof(*new(P))) / int(unsafe.Sizeof(*new(T)))
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(s))), n)
}

// gatherTiles packs pairs as they are, and zeros up to the end of a tile.
func gatherTiles(dst []float32, src []half.BFloat16, line, step, rows, k, width int) {
	for p := (k + 1) / 2; p%tilePairs != 0; p++ {
		clear(dst[p*width:][:rows])
	}
	gatherPairs(dst, src, line, step, rows, k, width)
}

// uncross sets dst[r*ld+p] = src[p*width+r] for p < pairs and r < rows.
func uncross(dst, src []float32, width, pairs, rows, ld int) {
	for p := range pairs {
		for r, pair := range src[p*width:][:rows] {
			dst[r*ld+p] = pair
		}
	}
}

// tilePairs is how many pairs along k a tile has.
const tilePairs = 16
