package gemm

import (
	"fmt"
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/half"
)

// Tiles multiply matrices in two-dimensional registers, as AMX does: a tile of A has rows along k,
// and a tile of B has pairs of elements along k, as in the other bfloat16 kernels.

// tileEngine returns an engine of tiles around a register kernel, for packing routines of pairs.
func tileEngine(mul func(t *tile[float32])) engine[half.BFloat16, float32] {
	return engine[half.BFloat16, float32]{
		mr: 32, nr: tileColumns, kc: 512, nc: 768, deep: 4, lanes: 16, across: 32, pair: 2 * tilePairs, steps: tilePairs,
		inPlace: true, tiles: true, rounds: true, mul: mul, gather: gatherTiles, uncross: uncross,
	}
}

// Tiles reports whether tiles compute products of bfloat16 on this machine. If not, [PackTiles] and
// [GemmTiles] panic.
func Tiles() bool { return active.bf16.tiles }

// TilePanel returns the number of elements in a panel of B for tiles: 32 columns of k elements,
// filled with zeros to a multiple of 32.
func TilePanel(k int) int {
	return (k + 2*tilePairs - 1) / (2 * tilePairs) * 2 * tilePairs * tileColumns
}

// tileColumns is the number of columns of a panel.
const tileColumns = 32

// PackTiles packs B, k×n, for [GemmTiles]: panels of 32 columns, with panel elements from one to
// the next. B is stored as for [Gemm]. A panel longer than TilePanel(k) has room for more elements
// along k. The columns of the last panel beyond n are undefined.
func PackTiles(w *Workspace, dst []half.BFloat16, panel int, transB bool, n, k int, b []half.BFloat16, ldb int) {
	checkMatrix("B", transB, k, n, len(b), ldb)
	checkPanels(len(dst), panel, n, k)
	x := newProduct(w, 0, n, k, float32(1), view[half.BFloat16]{step: 1}, operand(!transB, b, ldb))
	x.packPanels(steps[float32](dst), x.b, 0, n, 0, k, x.nr, panel*x.steps/x.pair)
}

// GemmTiles is [Gemm] with B in panels from [PackTiles]. Pass panels[j/32*panel+p*32:] to use
// columns from j on and elements of k from p on, both multiples of 32.
func GemmTiles[C Element](w *Workspace, transA bool, m, n, k int, alpha float64, a []half.BFloat16, lda int,
	panels []half.BFloat16, panel int, beta float64, c []C, ldc int) {
	checkMatrix("A", transA, m, k, len(a), lda)
	checkMatrix("C", false, m, n, len(c), ldc)
	checkPanels(len(panels), panel, n, k)
	x := newProduct(w, m, n, k, float32(alpha), operand(transA, a, lda), view[half.BFloat16]{data: panels})
	x.panels = panel
	switch c := any(c).(type) {
	case []float32:
		x.c, x.ldc, x.add = c, ldc, addend[float32]{c, ldc, float32(beta)}
		x.run()
	case []half.BFloat16:
		runRounded(x, float32(beta), nil, c, ldc)
	}
}

// checkPanels panics unless panels for n columns and k elements are inside a slice.
func checkPanels(length, panel, n, k int) {
	need := TilePanel(k)
	if !Tiles() || n < 0 || k < 0 || n > 0 && (panel < need || length < (n-1)/tileColumns*panel+need) {
		panic(fmt.Sprintf("gemm: panels for %d columns of %d elements, %d apart, do not fit %d elements", n, k, panel, length))
	}
}

// rowGap is the number of unused steps between rows of packed A: rows a power of two apart would
// share few sets of a cache.
const rowGap = 16

// mustPackRows decides whether A is packed for tiles. Rows along k are read in place, at any even
// stride, unless all of them share sets of L1, which then cannot hold the strip. If half of them
// share sets, reading them from L2 is 5 % faster than packing.
func (x *product[T, P]) mustPackRows() bool {
	const way = 4096 // bytes after which addresses share a set of L1
	a := x.a
	return a.step != 1 || a.line%2 != 0 || a.line*int(unsafe.Sizeof(*new(T)))%way == 0 && x.n > 4*x.nr
}

// If A has columns along k (crossed), stripsAtOnce strips are packed at once, pairsAtOnce pairs of
// all their rows at a time, because neighbouring columns share cache lines and pages. L2 holds a
// block of B, the packed strips for deepCrossed ranges of k, and the columns fetched for the next
// strips.
const (
	stripsAtOnce = 3
	pairsAtOnce  = 32
	deepCrossed  = 2
)

// acrossAtOnce is the number of elements of k, of all panels, that are packed together if B has
// rows across k.
const acrossAtOnce = 64

// atOnce returns the number of rows of A that are packed together for tiles.
func (x *product[T, P]) atOnce() int {
	if x.a.step == 1 {
		return x.mr
	}
	return stripsAtOnce * x.mr
}

// fetch sets the addresses that the kernel requests while it multiplies a range of k that starts at
// lo: the rows of A from row next on or, if A is crossed, a share of its columns from column end
// on.
func (x *product[T, P]) fetch(next, end, lo int) {
	t := &x.tile
	size := int(unsafe.Sizeof(*new(T)))
	if x.a.step == 1 {
		stride := x.a.line * size
		t.ahead, t.aheadLine, t.aheadStep, t.aheadPanel = steps[P](x.a.tail(next, lo)), stride, cacheLine, 3*stride
		return
	}
	rows := t.k * x.pair / x.steps / stripsAtOnce // of k
	first := lo + (stripsAtOnce-1-(end-next+x.mr-1)/x.mr)*rows
	stride := x.a.step * size
	t.ahead, t.aheadLine, t.aheadStep = steps[P](x.a.tail(end, first)), cacheLine, stride
	t.aheadPanel = stride * t.k / tilePairs
}

// leastStream is the smallest number of elements of C that are written past the caches.
const leastStream = 1 << 16

// mayStream decides whether tiles write C past the caches. A store through the caches would read
// the line first. If A has columns along k, C is the gradient of a weight: it is large, and it is
// read much later. All of its sums must be final, so k has one range.
func (x *product[T, P]) mayStream() bool {
	const line = cacheLine / 4 // elements
	return x.tiles && x.a.step != 1 && x.k <= x.kc && x.add.beta == 0 && x.rounded.data == nil && x.m*x.n >= leastStream &&
		x.n%x.nr == 0 && x.ldc%line == 0 && uintptr(unsafe.Pointer(unsafe.SliceData(x.c)))%cacheLine == 0
}

// cacheLine is the number of bytes in a cache line.
const cacheLine = 64

// packRows copies rows r0 to r1 of A, elements p0 to p1 of each: dst[(r-r0)*ld + p] are steps, the
// last ones filled with zeros, and ld is rowGap more than the number of steps.
func (x *product[T, P]) packRows(dst []P, r0, r1, p0, p1 int) {
	ld, each := x.depth(p1-p0)+rowGap, x.pair/x.steps // elements in a step
	if x.a.step == 1 {
		for r := range r1 - r0 {
			row := elements[T](dst[r*ld:][:ld-rowGap])
			clear(row[copy(row, x.a.data[(r0+r)*x.a.line+p0:][:p1-p0]):])
		}
		return
	}
	width := x.strip()
	pairs := grow(&x.crossed, pairsAtOnce*stripsAtOnce*x.mr)
	for p := p0; p < p1; p += pairsAtOnce * each {
		end := min(p+pairsAtOnce*each, p1)
		x.pack(pairs, x.a, r0, r1, p, end, width)
		for r, steps := r0, x.depth(end-p); r < r1; r += width {
			x.uncross(dst[(r-r0)*ld+x.depth(p-p0):], pairs[(r-r0)*steps:], width, steps, min(width, r1-r), ld)
		}
	}
}

// elements returns the elements in the memory of steps.
func elements[T Element, P Float](s []P) []T {
	n := len(s) * int(unsafe.Sizeof(*new(P))) / int(unsafe.Sizeof(*new(T)))
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(s))), n)
}

// gatherTiles packs pairs without changing them, and zeros up to the end of a tile.
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

// tilePairs is the number of pairs along k in a tile.
const tilePairs = 16
