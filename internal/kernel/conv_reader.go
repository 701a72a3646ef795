package kernel

import "github.com/gofsdp/gofsdp/internal/kernel/gemm"

// reader multiplies matrices with the elements that a correlation reads, in blocks of rows. It
// reads by taps if y is as large as the source and the machine supports taps, else from panels of
// lifted rows.
type reader[T Float] struct {
	correlation
	byTaps  bool
	height  int // rows of a block
	scratch []T
	taps    gemm.Taps
	lo, hi  int // the rows that the taps are set for
}

func newReader[T Float](k correlation) reader[T] {
	if byTaps := gemm.HasTaps[T]() && !noTaps && k.depth() > 0 && k.same(); !byTaps {
		return reader[T]{correlation: k, height: k.block()}
	}
	fit := panelElements/(k.channels*k.x.n) - k.y.extent() + 1
	fit = min(fit, mostTaps/k.taps()*gemm.PanelWidth[T]()/k.x.n)
	return reader[T]{correlation: k, height: even(k.y.n, fit), byTaps: true}
}

// noTaps makes tests compare both paths.
var noTaps = false

// same reports whether the kernel moves over an image one pixel at a time, and y has the size of
// the image.
func (k correlation) same() bool {
	one := func(a axis) bool { return a.stride == 1 && a.n == a.size }
	return one(k.y) && one(k.x)
}

// blocks returns the number of blocks.
func (r *reader[T]) blocks() int { return (r.y.n + r.height - 1) / r.height }

// rows returns rows lo to hi of a block.
func (r *reader[T]) rows(block int) (lo, hi int) {
	return block * r.height, min(r.y.n, (block+1)*r.height)
}

// need returns the elements of scratch that apply needs.
func (r *reader[T]) need() int {
	if r.byTaps {
		return gemm.TapElements[T](r.tapsOf(r.height))
	}
	return r.lifted() + panelsOf[T](r.correlation)
}

// tapsOf is the number of taps in all panels for the given number of rows.
func (r *reader[T]) tapsOf(rows int) int {
	nr := gemm.PanelWidth[T]()
	return (rows*r.x.n + nr - 1) / nr * r.correlation.taps()
}

// apply sets out [m, rows·columns], whose rows are ld elements apart, to the product of a [m,
// depth] and the elements of src that output rows lo to hi read: the taps of each channel in turn.
// With add it adds the product to out. Without taps the product is zero. The call is cheaper if the
// rows are the same as in the call before.
func (r *reader[T]) apply(w *gemm.Workspace, m int, a, src []T, lo, hi int, out []T, ld int, add bool) {
	n := (hi - lo) * r.x.n
	if r.depth() == 0 {
		for i := range m {
			clear(out[i*ld:][:n])
		}
		return
	}
	if !r.byTaps {
		p := lift(r.correlation, r.scratch, src, r.channels, lo, hi)
		p.apply(w, m, a, r.scratch[r.lifted():], out, ld, add)
		return
	}
	if lo != r.lo || hi != r.hi {
		r.place(lo, hi)
	}
	beta := 0.0
	if add {
		beta = 1
	}
	gemm.GemmTaps(w, m, n, r.depth(), a, r.depth(), src[lo*r.x.n:], r.taps, beta, out, ld)
}

// place sets the taps for rows lo to hi.
func (r *reader[T]) place(lo, hi int) {
	n, plane := r.correlation.taps(), r.y.size*r.x.size
	table := gemm.TapsIn(r.scratch, r.tapsOf(hi-lo))
	offset := func(t int) int {
		return (r.y.first+t/r.x.taps*r.y.step)*r.x.n + r.x.first + t%r.x.taps*r.x.step
	}
	for i := range table {
		t := i % n
		next := (t + 1) % n
		table[i] = gemm.NewTap[T](t, n, offset(next)-offset(t)+(t+1)/n*plane)
	}
	r.taps, r.lo, r.hi = gemm.Taps{Table: table, N: n, Plane: plane, First: offset(0)}, lo, hi
	for row := lo; row < hi; row++ {
		for t := range n {
			y, shift := row+r.y.first+t/r.x.taps*r.y.step, r.x.first+t%r.x.taps*r.x.step
			if y >= 0 && y < r.y.size {
				at := (row - lo) * r.x.n
				gemm.Unmask[T](r.taps, t, at+max(0, -shift), at+min(r.x.n, r.x.n-shift))
			}
		}
	}
}

// panelsOf returns the number of elements that the panels of a block of columns have.
func panelsOf[T Float](k correlation) int {
	nr := gemm.PanelWidth[T]()
	most := (k.block()*k.x.n + nr - 1) / nr * nr
	return min(most, max(1, panelElements/max(1, k.depth())/nr)*nr) * k.depth()
}

// apply sets out [m, rows·columns], whose rows are ld elements apart, to the product of a [m,
// depth] and the elements that the taps of p read: the taps of each channel in turn. With add it
// adds the product to out.
func (p planes[T]) apply(w *gemm.Workspace, m int, a, panels, out []T, ld int, add bool) {
	nr, k, taps, n := gemm.PanelWidth[T](), p.depth(), p.taps(), p.rows*p.x.n
	if k == 0 || n == 0 {
		return
	}
	beta := 0.0
	if add {
		beta = 1
	}
	step := len(panels) / k / nr * nr
	for lo := 0; lo < n; lo += step {
		cols := min(step, n-lo)
		for tap := range taps {
			from := p.tap(tap/p.x.taps, tap%p.x.taps)[lo:]
			for q := 0; q < cols; q += nr {
				gemm.Interleave(panels[q*k+tap*nr:], from[q:], p.plane, min(nr, cols-q), p.channels, taps*nr)
			}
		}
		gemm.GemmPanels(w, m, cols, k, a, k, panels, beta, out[lo:], ld)
	}
}
