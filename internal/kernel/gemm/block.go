package gemm

import "unsafe"

// view is an operand seen with k as its second index: A as [m, k], B as [n, k]. Element (r, p) is
// data[r*line+p*step]; one of line and step is 1.
type view[T Float] struct {
	data       []T
	line, step int
}

// operand views a matrix whose rows, ld elements apart, run along k or, with crossed, across it.
func operand[T Float](crossed bool, data []T, ld int) view[T] {
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
	read          bool
	alpha, beta   T
}

// engine is a register kernel with the packing routines and the block sizes that suit it.
type engine[T Float] struct {
	mr, nr int // tile of C in registers
	kc, nc int // block of B: kc×nc elements stay in L2, a strip of A, mr×kc, in L1; nc is a multiple of nr
	lanes  int // rows that one call of transpose or interleave packs; divides nr
	quad   int // transpose takes k in multiples of this

	// inPlace says that mul takes A and B at any stride. Without it both are always packed: aline
	// is 1 and bstep nr.
	inPlace bool

	// mul computes one strip of tiles.
	mul func(t *tile[T])
	// transpose sets dst[p*width+r] = src[r*ld+p], interleave dst[p*width+r] = src[p*ld+r], for p <
	// k and r < rows <= lanes. What they leave in dst[p*width+r] for rows <= r < lanes is
	// undefined.
	transpose, interleave func(dst, src []T, ld, rows, k, width int)
}

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
	return lo * s.unit, min(hi*s.unit, s.length)
}

// product is one call's loop nest: the operands, and the decisions that hold for all blocks.
type product[T Float] struct {
	*engine[T]
	*buffers[T]
	m              int
	a, b           view[T]
	add            addend[T]
	c              []T
	ldc            int
	packsA, packsB bool
}

// run is the outer half of the loop nest around the register kernel: blocks of columns, ranges of
// k.
func run[T Float](w *Workspace, m, n, k int, alpha T, a, b view[T], s addend[T], c []T, ldc int) {
	if m == 0 || n == 0 {
		return
	}
	e := engineOf[T]()
	x := product[T]{e, buffersOf[T](w), m, a, b, s, c, ldc, e.packsA(a, n), e.packsB(b, m)}
	t := &x.tile
	t.alpha, t.ldout = alpha, ldc
	cols, depth := newSplit(n, e.nc, e.nr), newSplit(k, e.kc, 1)
	for jc := range cols.parts {
		j0, j1 := cols.bounds(jc)
		for pc := range depth.parts {
			p0, p1 := depth.bounds(pc)
			t.k = p1 - p0
			x.add = s
			if pc > 0 {
				x.add = addend[T]{c, ldc, 1} // add to what the earlier ranges of k wrote
			}
			x.columns(j0, j1, p0)
		}
	}
	*t = tile[T]{} // keep none of the caller's memory alive
}

// packsA decides whether A is packed for a product of n columns. Rows along k are mr streams that
// prefetch well, and are read in place, unless their distance puts them all into the same set of
// L1. Rows across k touch a line, and often a page, per element of k: few columns do not repay a
// copy, many do.
func (e *engine[T]) packsA(a view[T], n int) bool {
	const l1Way = 4096 // bytes after which addresses share a set: 64 sets of 64 bytes
	switch {
	case !e.inPlace:
		return true
	case a.line == 1:
		return n > 4*e.nr
	default:
		return a.line*int(unsafe.Sizeof(*new(T)))%l1Way == 0
	}
}

// packsB decides whether B is packed for a product of m rows. Packing also makes the load of a
// whole row of nr safe.
func (e *engine[T]) packsB(b view[T], m int) bool {
	return !e.inPlace || b.line != 1 || m > 4*e.mr
}

// columns computes all rows of columns j0 to j1, for the range of k that starts at p0 and has
// tile.k elements.
func (x *product[T]) columns(j0, j1, p0 int) {
	direct := j0
	if !x.packsB {
		direct += (j1 - j0) / x.nr * x.nr // the last few columns are packed, see tile
	}
	if direct > j0 {
		x.tile.b, x.tile.bstep, x.tile.bpanel = x.b.from(j0, p0), x.b.step, x.nr
		x.strips(j0, direct, p0)
	}
	if direct < j1 {
		bp := grow(&x.bpack, (j1-direct+x.nr-1)/x.nr*x.nr*x.tile.k)
		x.pack(bp, x.b, direct, j1, p0, x.nr)
		x.tile.b, x.tile.bstep, x.tile.bpanel = bp, x.nr, x.nr*x.tile.k
		x.strips(direct, j1, p0)
	}
}

// strips multiplies every strip of rows of A with the columns j0 to j1, whose B is set in the tile.
func (x *product[T]) strips(j0, j1, p0 int) {
	t := &x.tile
	t.cols, t.beta, t.read, t.ldin = j1-j0, x.add.beta, x.add.beta != 0, x.add.ld
	t.aline, t.astep = x.a.line, x.a.step
	width := (x.mr + x.lanes - 1) / x.lanes * x.lanes
	var ap []T
	if x.packsA {
		ap = grow(&x.apack, width*t.k)
		t.aline, t.astep = 1, width
	}
	rows := newSplit(x.m, x.mr, 1)
	for ic := range rows.parts {
		i0, i1 := rows.bounds(ic)
		if x.packsA {
			x.pack(ap, x.a, i0, i1, p0, width)
			t.a = ap
		} else {
			t.a = x.a.from(i0, p0)
		}
		t.rows, t.in, t.out = i1-i0, x.add.data[i0*x.add.ld+j0:], x.c[i0*x.ldc+j0:]
		x.mul(t)
	}
}

// pack copies rows r0 to r1 of v, tile.k elements from p0 on, into panels of width rows, each
// k-major: dst[(r/width)*width*k + p*width + r%width]. A last panel that is not full has undefined
// gaps.
func (x *product[T]) pack(dst []T, v view[T], r0, r1, p0, width int) {
	k := x.tile.k
	if k == 0 {
		return
	}
	for r := r0; r < r1; r += x.lanes {
		n := min(x.lanes, r1-r)
		at := (r - r0) / width * width * k
		d, src := dst[at+(r-r0)%width:], v.from(r, p0)
		if v.line == 1 {
			x.interleave(d, src, v.step, n, k, width)
			continue
		}
		whole := k / x.quad * x.quad
		if whole > 0 {
			x.transpose(d, src, v.line, n, whole, width)
		}
		for p := whole; p < k; p++ {
			for i := range n {
				d[p*width+i] = src[i*v.line+p]
			}
		}
	}
}
