package kernel

import "github.com/gofsdp/gofsdp/internal/kernel/gemm"

// MaxAxes is the largest number of axes of a tensor.
const MaxAxes = 32

// An Order is a permutation of axes, one byte for each: axis i as it is read is axis Order[i] of
// the tensor in memory. An empty Order is the identity.
type Order string

// At returns the axis in memory of axis i.
func (o Order) At(i int) int {
	if o == "" {
		return i
	}
	return int(o[i])
}

// A Layout is a row-major tensor in memory whose axes are read in some order.
type Layout struct {
	Shape []int
	Order Order
}

// Axis returns the length of axis i in reading order, and the distance between its elements in
// memory.
func (l Layout) Axis(i int) (n, stride int) {
	at := l.Order.At(i)
	stride = 1
	for _, d := range l.Shape[at+1:] {
		stride *= d
	}
	return l.Shape[at], stride
}

// Matrix returns the matrix in the last two axes that begins at element 0.
func (l Layout) Matrix() (m Matrix) {
	r := len(l.Shape)
	m.Rows, m.down = l.Axis(r - 2)
	m.Columns, m.right = l.Axis(r - 1)
	return m
}

// Matrix is the layout of a matrix in memory: the stride between rows or the stride between columns
// is 1.
type Matrix struct{ Rows, Columns, down, right int }

// Transposed returns the transposed matrix.
func (m Matrix) Transposed() Matrix { return Matrix{m.Columns, m.Rows, m.right, m.down} }

// Stored reports whether a matrix is stored transposed, and returns its leading dimension in
// memory.
func (m Matrix) Stored() (trans bool, ld int) {
	if m.right == 1 && (m.down >= m.Columns || m.Rows == 1) {
		return false, max(m.down, m.Columns)
	}
	return true, max(m.right, m.Rows)
}

// Product computes the products y = a·b of matrices, or adds them to y. The matrices are the last
// two axes of a [..., m, k], b [..., k, n] and y [..., m, n], as the layouts read them. The last
// axis in memory of each must be one of its last two. Threads share the matrices, or share each
// matrix if there are few.
func Product[T, Y Element](c *Context, y []Y, a, b []T, yl, al, bl Layout, acc bool) {
	check("Product", "y", len(y), numel(yl.Shape))
	check("Product", "a", len(a), numel(al.Shape))
	check("Product", "b", len(b), numel(bl.Shape))
	ym, am, bm := yl.Matrix(), al.Matrix(), bl.Matrix()
	part, parts, count := c.part, max(1, c.parts), len(y)/(ym.Rows*ym.Columns)
	lo, hi := 0, count
	if count >= parts {
		lo, hi = c.Share(count, 1)
		part, parts = 0, 1
	}
	var beta float64
	if acc {
		beta = 1
	}
	if trans, _ := ym.Stored(); trans { // yᵀ = bᵀ·aᵀ
		a, b, al, bl = b, a, bl, al
		ym, am, bm = ym.Transposed(), bm.Transposed(), am.Transposed()
	}
	i0, i1, j0, j1 := gemm.Split[T](ym.Rows, ym.Columns, part, parts)
	if i0 == i1 || j0 == j1 {
		return
	}
	transA, lda := am.Stored()
	transB, ldb := bm.Stored()
	_, ldy := ym.Stored()
	for i := lo; i < hi; i++ {
		gemm.Gemm(&c.gemm, transA, transB, i1-i0, j1-j0, am.Columns, 1, a[al.lead(i)+i0*am.down:], lda,
			b[bl.lead(i)+j0*bm.right:], ldb, beta, y[yl.lead(i)+i0*ym.down+j0*ym.right:], ldy)
	}
}

// lead returns the offset of the matrix with index i over the leading axes.
func (l Layout) lead(i int) (at int) {
	for axis := len(l.Shape) - 3; axis >= 0; axis-- {
		n, stride := l.Axis(axis)
		at += i % n * stride
		i /= n
	}
	return at
}

// NaiveProduct is the twin of [Product].
func NaiveProduct(_ *Context, y, a, b []float64, yl, al, bl Layout, acc bool) {
	ym, am, bm := yl.Matrix(), al.Matrix(), bl.Matrix()
	for i := range y {
		batch, row, column := i/ym.Columns/ym.Rows, i/ym.Columns%ym.Rows, i%ym.Columns
		at := yl.lead(batch) + row*ym.down + column*ym.right
		if !acc {
			y[at] = 0
		}
		for k := range am.Columns {
			y[at] += a[al.lead(batch)+row*am.down+k*am.right] * b[bl.lead(batch)+k*bm.down+column*bm.right]
		}
	}
}

func numel(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}
