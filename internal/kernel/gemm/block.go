package gemm

import (
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/half"
)

// view is an operand with k as its second index: A as [m, k], B as [n, k]. Element (r, p) is
// data[r*line+p*step]; one of line and step is 1.
type view[T Element] struct {
	data       []T
	line, step int
}

// operand returns the view of a matrix whose rows are ld elements apart. The rows run along k or,
// with crossed, across it.
func operand[T Element](crossed bool, data []T, ld int) view[T] {
	if crossed {
		return view[T]{data, 1, ld}
	}
	return view[T]{data, ld, 1}
}

// tail returns the storage from element (r, p) on. It is empty if that element does not exist
// because k is 0.
func (v view[T]) tail(r, p int) []T { return v.data[min(r*v.line+p*v.step, len(v.data)):] }

// addend is the term beta*S of C = alpha*op(A)*op(B) + beta*S: C itself, or a bias as a matrix
// whose rows coincide.
type addend[T Float] struct {
	data []T
	ld   int
	beta T
}

// tile is the argument of a register kernel: at most mr rows of C, and any number of columns, nr at
// a time.
//
//	out[i*ldout+j] = alpha * sum_p a[i*aline+p*astep] * b[(j/nr)*bpanel+p*bstep+j%nr]
//	                 (+ beta * in[i*ldin+j])
//
// With taps, row p of b is read as described in [Tap]: the first row begins at element bstep, and
// bpanel is the number of taps of a panel. The kernel prefetches the elements of the next plane.
// Only a kernel that supports taps is called with them.
//
// With rounded, the sum is rounded and written there, and not to out. Only a kernel that rounds is
// called with it. A kernel of tiles uses a scratch of mr rows of nr columns. For every 32 elements
// of k it also requests three cache lines, aheadLine bytes apart. The first request is for ahead.
// Each step moves the address by aheadStep bytes, and each panel of nr columns begins aheadPanel
// bytes after the panel before.
//
// With stream, a kernel of tiles writes C past the caches, unless read is set. Then cols is a
// multiple of nr, and the rows of out begin at cache lines.
//
// Strides are in elements. If read is set, the last term is added, and in is read. A kernel may
// load all nr elements of a row of b even if fewer columns remain. The assembly depends on this
// layout; a test compares the offsets.
type tile[T Float] struct {
	rows, cols, k                    int
	a                                []T
	aline, astep                     int
	b                                []T
	bstep, bpanel                    int
	in                               []T
	ldin                             int
	out                              []T
	ldout                            int
	rounded                          []half.BFloat16
	ldrounded                        int
	scratch                          []T
	ahead                            []T
	aheadLine, aheadStep, aheadPanel int // in bytes
	taps                             []Tap
	plane                            int // in bytes
	read, stream                     bool
	alpha, beta                      T
}

// engine is a register kernel with matching packing routines and block sizes. It multiplies
// elements of type T in steps of type P. For floats a step is one element. For bfloat16 a step is a
// pair of neighbours along k, the first in the lower half, or it is one widened element, the second
// of a pair before the first. Either way an incomplete last pair is filled with a zero.
type engine[T Element, P Float] struct {
	mr, nr int // tile of C in registers
	kc, nc int // block of B: kc×nc elements stay in L2, a strip of A, mr×kc, in L1; nc is a multiple of nr
	lanes  int // rows that one call of transpose packs; divides nr
	across int // rows that one call of interleave packs, if more than lanes; divides nr
	quad   int // transpose takes k in multiples of quad, and interleave in multiples of pair; 0: there is neither
	pair   int // elements that have to be packed together
	steps  int // number of steps for a pair

	// inPlace reports that mul accepts A at any stride, and B where pair is 1. Otherwise both are
	// always packed: aline is 1 and bstep is nr.
	inPlace bool

	// tiles reports that mul reads rows of A of any even stride and ignores astep: packed A also
	// consists of rows.
	tiles bool

	// deep is the largest number of ranges of k for which a block of B is packed. Such a block has
	// fewer columns: nc is for one range. 0 means 1.
	deep int

	// mul computes one strip of tiles.
	mul func(t *tile[P])
	// transpose sets dst[p*width+r] = src[r*ld+p] for p < k and r < rows <= lanes. interleave sets
	// dst[p*width+r] = src[p*ld+r] for p < k and r < rows <= across. The other elements up to
	// lanes, or across, are undefined. In place of dst[p*width+r], the steps of a pair are written
	// together.
	transpose, interleave func(dst []P, src []T, ld, rows, k, width int)
	// gather does the same as both, for any strides and any k.
	gather func(dst []P, src []T, line, step, rows, k, width int)
	// uncross converts the output of the other three routines to rows of A for tiles: dst[r*ld+p] =
	// src[p*width+r] for p < steps, a whole number of tiles, and r < rows. It may write up to the
	// next multiple of 4 rows.
	uncross func(dst, src []P, width, steps, rows, ld int)
	// rounds reports that mul can write bfloat16, and taps that mul can read B by taps.
	rounds, taps bool
}

// depth returns the number of steps of k elements.
func (e *engine[T, P]) depth(k int) int { return (k + e.pair - 1) / e.pair * e.steps }

// mostColumns is the largest number of columns of a block.
const mostColumns = 1024

// split divides a length into the fewest parts of at most a limit. The parts are equal to within
// one unit, the longest first.
type split struct{ length, unit, parts int }

// newSplit divides length into parts of at most limit, a multiple of unit. There is always at least
// one part, which may be empty.
func newSplit(length, limit, unit int) split {
	return split{length, unit, max(1, (length+limit-1)/limit)}
}

// longest returns the length of the longest part, at least one unit.
func (s split) longest() int {
	units := (s.length + s.unit - 1) / s.unit
	return max(1, (units+s.parts-1)/s.parts) * s.unit
}

// bounds returns the half-open range of part i.
func (s split) bounds(i int) (lo, hi int) {
	units := (s.length + s.unit - 1) / s.unit
	size, longer := units/s.parts, units%s.parts
	lo = i*size + min(i, longer)
	hi = lo + size
	if i < longer {
		hi++
	}
	return min(lo*s.unit, s.length), min(hi*s.unit, s.length)
}

// packing is about how many multiply-adds take as long as packing one element.
const packing = 16

// Split divides the product of an m×k and a k×n matrix between callers that work at the same time,
// each with its own Workspace. It returns the rows and columns of C that one caller computes. It
// cuts between register tiles, so that the slowest caller ends as early as possible: if columns are
// cut, every caller packs A, and if rows are cut, every caller packs B.
func Split[T Element](m, n, part, parts int) (i0, i1, j0, j1 int) {
	if parts == 1 {
		return 0, m, 0, n
	}
	mr, nr, nc := sizesOf[T]()
	best, rows := 0, split{}
	for r := 1; r <= parts; r++ {
		if parts%r > 0 {
			continue
		}
		cut, columns := split{m, mr, r}, split{n, nr, parts / r}
		_, a := cut.bounds(0)
		_, b := columns.bounds(0)
		if cost := a*b + packing*(a*((b+nc-1)/nc)+b); best == 0 || cost < best {
			best, rows = cost, cut
		}
	}
	i0, i1 = rows.bounds(part % rows.parts)
	j0, j1 = split{n, nr, parts / rows.parts}.bounds(part / rows.parts)
	return i0, i1, j0, j1
}

// product is one call: its sizes and operands, and the decisions for all blocks.
type product[T Element, P Float] struct {
	*engine[T, P]
	*buffers[P]
	m, n, k        int
	alpha          P
	a, b           view[T]
	add            addend[P]
	c              []P
	ldc            int
	rounded        rounded
	packsA, packsB bool
	panels         int  // elements of a panel of b if b is in panels; else 0
	taps           Taps // for reading b by taps, if any
}

// rounded is the result in bfloat16, if it is wanted. C then holds the sums over all ranges of k
// but the last, and need not exist if there is only one group of ranges.
type rounded struct {
	data []half.BFloat16
	ld   int
}

// ranges divides k into ranges, and the ranges into groups. B is packed once for each group.
func (x *product[T, P]) ranges() (ranges, groups split) {
	ranges = newSplit(x.k, x.kc, x.pair)
	deep := max(1, x.deep)
	if x.tiles && x.a.step != 1 {
		deep = min(deep, deepCrossed)
	}
	return ranges, newSplit(ranges.parts, deep, 1)
}

// width returns the largest number of columns of a block of B.
func (x *product[T, P]) width() int {
	if x.deep == 0 {
		return x.nc
	}
	ranges, groups := x.ranges()
	_, n := groups.bounds(0)
	return max(1, min(x.nc*x.kc/(n*ranges.longest()), mostColumns)/x.nr) * x.nr
}

func newProduct[T Element, P Float](w *Workspace, m, n, k int, alpha P, a, b view[T]) product[T, P] {
	return product[T, P]{engine: engineOf[T, P](), buffers: buffersOf[P](w), m: m, n: n, k: k, alpha: alpha, a: a, b: b}
}

// run is the outer half of the loop nest around the register kernel: blocks of columns, groups of
// ranges of k.
func (x *product[T, P]) run() {
	if x.m == 0 || x.n == 0 {
		return
	}
	x.tile.stream = x.mayStream() // before packWhole replaces A
	x.packWhole()
	x.packsA, x.packsB = x.mustPackA(), x.mustPackB()
	x.tile.alpha = x.alpha
	cols := newSplit(x.n, x.width(), x.nr)
	ranges, groups := x.ranges()
	for jc := range cols.parts {
		j0, j1 := cols.bounds(jc)
		for g := range groups.parts {
			first, end := groups.bounds(g)
			x.columns(j0, j1, group{ranges, first, end})
		}
	}
	x.tile = tile[P]{} // keep none of the caller's memory alive
}

// mustPackA decides whether A is packed. Rows along k are mr streams that prefetch well. They are
// read in place, unless their distance puts all of them into the same set of L1. Rows across k
// touch a cache line, and often a page, for each element of k: a copy pays only for many columns.
func (x *product[T, P]) mustPackA() bool {
	const l1Way = 4096 // bytes after which addresses share a set: 64 sets of 64 bytes
	switch {
	case !x.inPlace:
		return true
	case x.tiles:
		return x.mustPackRows()
	case x.a.line == 1:
		return x.pair > 1 || x.n > 4*x.nr
	default:
		return x.a.line*int(unsafe.Sizeof(*new(T)))%l1Way == 0 || x.a.line%x.pair != 0
	}
}

// mostWhole is the largest number of bytes that packWhole packs: 512 rows of 4,096 bfloat16, or
// 4,096 of 512, and their gaps.
const mostWhole = 9 << 19

// packWhole packs all of A if otherwise every block of columns would pack it again. Its rows are
// then read in place. Floats whose rows run across k are packed by each block: only tiles have a
// routine that turns them.
func (x *product[T, P]) packWhole() {
	ld := x.depth(x.k) + rowGap
	if !x.inPlace || x.k%x.pair != 0 || x.n <= x.width() || x.m*ld*int(unsafe.Sizeof(*new(P))) > mostWhole ||
		!x.tiles && x.a.step != 1 || !x.mustPackA() {
		return
	}
	whole := grow(&x.apack, x.m*ld)
	for r := 0; r < x.m; r += x.atOnce() {
		x.packRows(whole[r*ld:], r, min(r+x.atOnce(), x.m), 0, x.k)
	}
	x.a = view[T]{elements[T](whole), ld * x.pair / x.steps, 1}
}

// mustPackB decides whether B is packed. Packing also makes it safe to load a whole row of nr.
func (x *product[T, P]) mustPackB() bool {
	return !x.inPlace || x.pair > 1 || x.b.line != 1 || x.m > 4*x.mr
}

// group is successive ranges of k for which B is packed together.
type group struct {
	split          // k, cut into all ranges
	first, end int // those in the group
}

// all returns the elements of k in the group.
func (g group) all() (lo, hi int) {
	lo, _ = g.bounds(g.first)
	_, hi = g.bounds(g.end - 1)
	return lo, hi
}

// columns computes all rows of columns j0 to j1, for a group of ranges of k.
func (x *product[T, P]) columns(j0, j1 int, g group) {
	direct := j0
	if !x.packsB {
		direct += (j1 - j0) / x.nr * x.nr // the last few columns are packed, see tile
	}
	t := &x.tile
	p0, p1 := g.all()
	if n := x.taps.N; n > 0 {
		t.taps, t.b, t.bpanel = x.taps.Table[j0/x.nr*n+p0%n:], steps[P](x.b.data[j0:]), n
		size := int(unsafe.Sizeof(*new(P)))
		t.bstep, t.plane = p0/n*x.taps.Plane+x.taps.offset(p0%n, size), x.taps.Plane*size
		x.strips(j0, j1, g)
		return
	}
	if x.panels > 0 {
		t.b, t.bstep, t.bpanel = steps[P](x.b.data[j0/x.nr*x.panels+p0*x.nr:]), x.nr, x.panels*x.steps/x.pair
		x.strips(j0, j1, g)
		return
	}
	if direct > j0 {
		t.b, t.bstep, t.bpanel = steps[P](x.b.tail(j0, p0)), x.b.step, x.nr
		x.strips(j0, direct, g)
	}
	if direct < j1 {
		k := x.depth(p1 - p0)
		bp := grow(&x.bpack, (j1-direct+x.nr-1)/x.nr*x.nr*k)
		x.pack(bp, x.b, direct, j1, p0, p1, x.nr)
		t.b, t.bstep, t.bpanel = bp, x.nr, x.nr*k
		x.strips(direct, j1, g)
	}
}

// steps returns the steps in the memory of s, whose elements need no packing. It returns nil if s
// is shorter than a step.
func steps[P Float, T Element](s []T) []P {
	n := len(s) * int(unsafe.Sizeof(*new(T))) / int(unsafe.Sizeof(*new(P)))
	if n == 0 {
		return nil // a pointer to a step would reach beyond s
	}
	return unsafe.Slice((*P)(unsafe.Pointer(unsafe.SliceData(s))), n)
}

// strips multiplies every strip of rows of A with the columns j0 to j1. The tile has B for these
// columns and for the whole group.
func (x *product[T, P]) strips(j0, j1 int, g group) {
	t := &x.tile
	p0, p1 := g.all()
	t.cols, t.aline, t.astep = j1-j0, x.a.line/x.pair, x.a.step
	if x.tiles {
		t.aline, t.scratch = x.a.line*x.steps/x.pair, grow(&x.scratch, x.mr*x.nr)
	}
	var ap, packed, sums []P
	packs, depth, width := x.packsA || (p1-p0)%x.pair != 0, x.depth(p1-p0), x.strip()
	if packs {
		t.aline, t.astep = 1, width
		rows := width
		if x.tiles {
			t.aline = depth + rowGap
			depth, width, rows = t.aline, 1, x.atOnce()
		}
		ap = grow(&x.apack, rows*depth)
	}
	if x.rounded.data != nil && (!x.rounds || x.c == nil && g.end-g.first > 1) {
		sums = grow(&x.sums, x.mr*t.cols)
	}
	b, rows := t.b, newSplit(x.m, x.mr, 1)
	from, end := 0, 0 // rows of A that are already packed for tiles
	for ic := range rows.parts {
		i0, i1 := rows.bounds(ic)
		switch {
		case packs && x.tiles:
			if i0 == end {
				_, end = rows.bounds(min(ic+x.atOnce()/x.mr, rows.parts) - 1)
				from = i0
				x.packRows(ap, from, end, p0, p1)
			}
			packed = ap[(i0-from)*t.aline:]
		case packs:
			x.pack(ap, x.a, i0, i1, p0, p1, width)
			packed = ap
		}
		t.rows = i1 - i0
		for r := g.first; r < g.end; r++ {
			lo, hi := g.bounds(r)
			at := x.depth(lo - p0)
			t.k, t.b = x.depth(hi-lo), b[at*t.bstep*min(1, at):]
			if packs {
				t.a = packed[at*width:]
			} else {
				t.a = steps[P](x.a.tail(i0, lo))
			}
			if x.tiles {
				x.fetch(i1, end, lo)
			}
			x.operands(i0, j0, r, r == g.parts-1, sums)
			x.mul(t)
			if r == g.parts-1 && x.rounded.data != nil && !x.rounds {
				round(x.rounded.data[i0*x.rounded.ld+j0:], sums, x.rounded.ld, t.rows, t.cols)
			}
		}
	}
}

// operands sets the addend and the destination of range r of k, for a tile whose first element is
// (i0, j0). Between ranges, sums are in C or, if C is nil, in sums, which holds one strip.
func (x *product[T, P]) operands(i0, j0, r int, last bool, sums []P) {
	t := &x.tile
	between, ld := sums, t.cols
	if x.c != nil {
		between, ld = x.c[i0*x.ldc+j0:], x.ldc
	}
	t.in, t.ldin, t.beta = between, ld, 1
	if r == 0 {
		t.in, t.ldin, t.beta = nil, x.add.ld, x.add.beta
		if t.beta != 0 {
			t.in = x.add.data[i0*x.add.ld+j0:]
		}
	}
	t.read = t.beta != 0
	t.out, t.ldout, t.rounded = between, ld, nil
	switch {
	case !last || x.rounded.data == nil:
	case x.rounds:
		t.rounded, t.ldrounded = x.rounded.data[i0*x.rounded.ld+j0:], x.rounded.ld
	default:
		t.out, t.ldout = sums, t.cols
	}
}

// strip returns the number of rows of A that are packed together.
func (e *engine[T, P]) strip() int { return (e.mr + e.lanes - 1) / e.lanes * e.lanes }

// pack copies rows r0 to r1 of v, elements p0 to p1 of each, into panels of width rows, each
// k-major: dst[(r/width)*width*k + p*width + r%width]. The gaps of an incomplete last panel are
// undefined.
func (x *product[T, P]) pack(dst []P, v view[T], r0, r1, p0, p1, width int) {
	x.packPanels(dst, v, r0, r1, p0, p1, width, width*x.depth(p1-p0))
}

// packPanels is pack with panel elements from one panel to the next.
func (x *product[T, P]) packPanels(dst []P, v view[T], r0, r1, p0, p1, width, panel int) {
	most := max(1, p1-p0)
	if v.line == 1 && x.tiles {
		most = acrossAtOnce
	}
	for p := p0; p < p1; p += most {
		x.packPart(dst[x.depth(p-p0)*width:], v, r0, r1, p, min(p+most, p1), width, panel)
	}
}

// packPart is packPanels for a part of k.
func (x *product[T, P]) packPart(dst []P, v view[T], r0, r1, p0, p1, width, panel int) {
	k := p1 - p0
	copy, ld, unit, rows := x.transpose, v.line, x.quad, x.lanes
	if v.line == 1 {
		copy, ld, unit, rows = x.interleave, v.step, x.pair, min(max(x.across, x.lanes), width)
	}
	whole := 0
	if x.quad > 0 {
		whole = k / unit * unit
	}
	for r := r0; r < r1; r += rows {
		n := min(rows, r1-r)
		at := (r-r0)/width*panel + (r-r0)%width
		if whole > 0 {
			copy(dst[at:], v.tail(r, p0), ld, n, whole, width)
		}
		if whole < k {
			x.gather(dst[at+x.depth(whole)*width:], v.tail(r, p0+whole), v.line, v.step, n, k-whole, width)
		}
	}
}
