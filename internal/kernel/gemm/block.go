package gemm

import (
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/half"
)

// view is an operand seen with k as its second index: A as [m, k], B as [n, k]. Element (r, p) is
// data[r*line+p*step]; one of line and step is 1.
type view[T Element] struct {
	data       []T
	line, step int
}

// operand views a matrix whose rows, ld elements apart, run along k or, with crossed, across it.
func operand[T Element](crossed bool, data []T, ld int) view[T] {
	if crossed {
		return view[T]{data, 1, ld}
	}
	return view[T]{data, ld, 1}
}

// from returns the storage from element (r, p) on: nothing where that element does not exist
// because k is 0.
func (v view[T]) from(r, p int) []T { return v.data[min(r*v.line+p*v.step, len(v.data)):] }

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
// With taps, which only a kernel that knows them is given, row p of b is read as [Tap] says: the
// first from element bstep on, and bpanel is how many taps a panel has. What the next plane has there
// is prefetched.
//
// With rounded, which only a kernel that rounds knows, the sum goes there, rounded, and not to out.
//
// Strides are in elements. The last term is present, and in is read, only if read is set. A kernel
// may load all nr elements of a row of b however few columns remain. The assembly knows this
// layout; a test compares the offsets.
type tile[T Float] struct {
	rows, cols, k int
	a             []T
	aline, astep  int
	b             []T
	bstep, bpanel int
	in            []T
	ldin          int
	out           []T
	ldout         int
	rounded       []half.BFloat16
	ldrounded     int
	taps          []Tap
	plane         int // in bytes
	read          bool
	alpha, beta   T
}

// engine is a register kernel with the packing routines and the block sizes that suit it. It
// multiplies elements of type T in steps of type P: a float is a step of its own; of bfloat16 a step
// is a pair that follows each other along k, the first in the lower half, or one element, widened,
// the second of a pair before the first. Either way a last pair is filled up with a zero.
type engine[T Element, P Float] struct {
	mr, nr int // tile of C in registers
	kc, nc int // block of B: kc×nc elements stay in L2, a strip of A, mr×kc, in L1; nc is a multiple of nr
	lanes  int // rows that one call of transpose packs; divides nr
	across int // rows that one call of interleave packs, if more than lanes; divides nr
	quad   int // transpose takes k in multiples of this, and interleave of pair; 0: there are neither
	pair   int // elements that have to be packed together
	steps  int // that a pair takes

	// inPlace says that mul takes A at any stride, and B where pair is 1. Without it both are
	// always packed: aline is 1 and bstep nr.
	inPlace bool

	// mul computes one strip of tiles.
	mul func(t *tile[P])
	// transpose sets dst[p*width+r] = src[r*ld+p], interleave dst[p*width+r] = src[p*ld+r], for p <
	// k and r < rows <= lanes, or across. What they leave in dst[p*width+r] for rows <= r < lanes,
	// or across, is undefined. Instead of dst[p*width+r] the elements of a pair have its steps.
	transpose, interleave func(dst []P, src []T, ld, rows, k, width int)
	// gather does what both do, for any strides and any k.
	gather func(dst []P, src []T, line, step, rows, k, width int)
	// rounds says that mul can write bfloat16, taps that it reads B by taps.
	rounds, taps bool
}

// depth returns the number of steps of k elements.
func (e *engine[T, P]) depth(k int) int { return (k + e.pair - 1) / e.pair * e.steps }

// split cuts a length into the fewest parts of at most some limit, equal to within one unit,
// longest first.
type split struct{ length, unit, parts int }

// newSplit cuts length into parts of at most limit, a multiple of unit. There is always one part,
// if an empty one.
func newSplit(length, limit, unit int) split {
	return split{length, unit, max(1, (length+limit-1)/limit)}
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

// packing is how many multiply-adds packing an element takes as long as, about.
const packing = 16

// Split divides the product of an m×k and a k×n matrix between callers that work at the same time,
// each with a Workspace of its own. It returns the rows and the columns of C that one of them
// computes. It cuts between register tiles, and in such a way that the slowest caller is soonest
// done: cutting columns has each of them pack A, cutting rows B.
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

// product is one call: its sizes and operands, and the decisions that hold for all blocks. While a
// range of k is computed, k and what is added are those of the range.
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
	panels         int  // elements of a panel of b, if that is in panels; else 0
	taps           Taps // by which b is read, if there are any
}

// rounded is the result in bfloat16, where it is wanted so: C has the sums over all ranges of k but
// the last then, and need not exist if there is only one.
type rounded struct {
	data []half.BFloat16
	ld   int
}

func newProduct[T Element, P Float](w *Workspace, m, n, k int, alpha P, a, b view[T]) product[T, P] {
	return product[T, P]{engine: engineOf[T, P](), buffers: buffersOf[P](w), m: m, n: n, k: k, alpha: alpha, a: a, b: b}
}

// run is the outer half of the loop nest around the register kernel: blocks of columns, ranges of
// k.
func (x *product[T, P]) run() {
	if x.m == 0 || x.n == 0 {
		return
	}
	x.packsA, x.packsB = x.mustPackA(), x.mustPackB()
	t, add, rounded := &x.tile, x.add, x.rounded
	t.alpha = x.alpha
	cols, depth := newSplit(x.n, x.nc, x.nr), newSplit(x.k, x.kc, x.pair)
	for jc := range cols.parts {
		j0, j1 := cols.bounds(jc)
		for pc := range depth.parts {
			p0, p1 := depth.bounds(pc)
			x.k, x.add, x.rounded = p1-p0, add, rounded
			if pc > 0 {
				x.add = addend[P]{x.c, x.ldc, 1} // add to what the earlier ranges of k wrote
			}
			if pc < depth.parts-1 {
				x.rounded.data = nil
			}
			x.columns(j0, j1, p0)
		}
	}
	*t = tile[P]{} // keep none of the caller's memory alive
}

// mustPackA decides whether A is packed. Rows along k are mr streams that prefetch well, and are
// read in place, unless their distance puts them all into the same set of L1. Rows across k touch a
// line, and often a page, per element of k: few columns do not repay a copy, many do.
func (x *product[T, P]) mustPackA() bool {
	const l1Way = 4096 // bytes after which addresses share a set: 64 sets of 64 bytes
	switch {
	case !x.inPlace:
		return true
	case x.a.line == 1:
		return x.pair > 1 || x.n > 4*x.nr
	default:
		return x.a.line*int(unsafe.Sizeof(*new(T)))%l1Way == 0 || x.a.line%x.pair != 0
	}
}

// mustPackB decides whether B is packed. Packing also makes the load of a whole row of nr safe.
func (x *product[T, P]) mustPackB() bool {
	return !x.inPlace || x.pair > 1 || x.b.line != 1 || x.m > 4*x.mr
}

// columns computes all rows of columns j0 to j1, for the range of k that starts at p0 and has x.k
// elements.
func (x *product[T, P]) columns(j0, j1, p0 int) {
	direct := j0
	if !x.packsB {
		direct += (j1 - j0) / x.nr * x.nr // the last few columns are packed, see tile
	}
	t := &x.tile
	t.k = x.depth(x.k)
	if n := x.taps.N; n > 0 {
		t.taps, t.b, t.bpanel = x.taps.Table[j0/x.nr*n+p0%n:], steps[P](x.b.data[j0:]), n
		size := int(unsafe.Sizeof(*new(P)))
		t.bstep, t.plane = p0/n*x.taps.Plane+x.taps.offset(p0%n, size), x.taps.Plane*size
		x.strips(j0, j1, p0)
		return
	}
	if x.panels > 0 {
		t.b, t.bstep, t.bpanel = steps[P](x.b.data[j0/x.nr*x.panels+p0*x.nr:]), x.nr, x.panels
		x.strips(j0, j1, p0)
		return
	}
	if direct > j0 {
		t.b, t.bstep, t.bpanel = steps[P](x.b.from(j0, p0)), x.b.step, x.nr
		x.strips(j0, direct, p0)
	}
	if direct < j1 {
		bp := grow(&x.bpack, (j1-direct+x.nr-1)/x.nr*x.nr*t.k)
		x.pack(bp, x.b, direct, j1, p0, x.nr)
		t.b, t.bstep, t.bpanel = bp, x.nr, x.nr*t.k
		x.strips(direct, j1, p0)
	}
}

// steps returns the steps in the memory of s, whose elements need no packing.
func steps[P Float, T Element](s []T) []P {
	n := len(s) * int(unsafe.Sizeof(*new(T))) / int(unsafe.Sizeof(*new(P)))
	return unsafe.Slice((*P)(unsafe.Pointer(unsafe.SliceData(s))), n)
}

// strips multiplies every strip of rows of A with the columns j0 to j1, whose B is set in the tile.
func (x *product[T, P]) strips(j0, j1, p0 int) {
	t := &x.tile
	t.cols, t.beta, t.read, t.ldin = j1-j0, x.add.beta, x.add.beta != 0, x.add.ld
	t.aline, t.astep = x.a.line/x.pair, x.a.step
	width := (x.mr + x.lanes - 1) / x.lanes * x.lanes
	packs := x.packsA || x.k%x.pair != 0
	var ap, sums []P
	if packs {
		ap = grow(&x.apack, width*t.k)
		t.aline, t.astep = 1, width
	}
	t.rounded, t.ldrounded = nil, x.rounded.ld
	if x.rounded.data != nil && !x.rounds {
		sums = grow(&x.sums, x.mr*t.cols)
	}
	rows := newSplit(x.m, x.mr, 1)
	for ic := range rows.parts {
		i0, i1 := rows.bounds(ic)
		if packs {
			x.pack(ap, x.a, i0, i1, p0, width)
			t.a = ap
		} else {
			t.a = steps[P](x.a.from(i0, p0))
		}
		t.rows = i1 - i0
		if t.read {
			t.in = x.add.data[i0*x.add.ld+j0:]
		}
		switch {
		case x.rounded.data == nil:
			t.out, t.ldout = x.c[i0*x.ldc+j0:], x.ldc
			x.mul(t)
		case x.rounds:
			t.rounded = x.rounded.data[i0*x.rounded.ld+j0:]
			x.mul(t)
		default:
			t.out, t.ldout = sums, t.cols
			x.mul(t)
			round(x.rounded.data[i0*x.rounded.ld+j0:], sums, x.rounded.ld, t.rows, t.cols)
		}
	}
}

// pack copies rows r0 to r1 of v, x.k elements from p0 on, into panels of width rows, each k-major:
// dst[(r/width)*width*k + p*width + r%width]. A last panel that is not full has undefined gaps.
func (x *product[T, P]) pack(dst []P, v view[T], r0, r1, p0, width int) {
	if x.k == 0 {
		return
	}
	copy, ld, unit, rows := x.transpose, v.line, x.quad, x.lanes
	if v.line == 1 {
		copy, ld, unit, rows = x.interleave, v.step, x.pair, min(max(x.across, x.lanes), width)
	}
	whole := 0
	if x.quad > 0 {
		whole = x.k / unit * unit
	}
	for r := r0; r < r1; r += rows {
		n := min(rows, r1-r)
		at := (r-r0)/width*width*x.tile.k + (r-r0)%width
		if whole > 0 {
			copy(dst[at:], v.from(r, p0), ld, n, whole, width)
		}
		if whole < x.k {
			x.gather(dst[at+x.depth(whole)*width:], v.from(r, p0+whole), v.line, v.step, n, x.k-whole, width)
		}
	}
}
