package gemm

import "fmt"

// Panels are a factor B that the caller packs in the layout of the register kernel, for products
// that gather B from several places: element (p, j) of B, k×n, is panels[(j/w)*w*k + p*w + j%w],
// with w the width of a panel.

// PanelWidth returns the columns of a panel.
func PanelWidth[T Float]() int { return engineOf[T, T]().nr }

// Interleave sets dst[p*width+r] = src[p*ld+r] for p < k and r < n, with n at most PanelWidth.
// Elements dst[p*width+r] for n <= r < PanelWidth are undefined.
func Interleave[T Float](dst, src []T, ld, n, k, width int) {
	if k <= 0 || n <= 0 {
		return
	}
	e := engineOf[T, T]()
	_, _ = src[:(k-1)*ld+n], dst[:(k-1)*width+(n+e.lanes-1)/e.lanes*e.lanes]
	for r := 0; r < n; r += e.lanes {
		rows := min(e.lanes, n-r)
		if e.interleave != nil {
			e.interleave(dst[r:], src[r:], ld, rows, k, width)
		} else {
			e.gather(dst[r:], src[r:], 1, ld, rows, k, width)
		}
	}
}

// Transpose sets dst[p*width+r] = src[r*ld+p] for p < k and r < n, with n at most PanelWidth, and
// width the PanelWidth. Elements dst[p*width+r] for n <= r < PanelWidth are undefined.
func Transpose[T Float](dst, src []T, ld, n, k, width int) {
	if k <= 0 || n <= 0 {
		return
	}
	e := engineOf[T, T]()
	_, _ = src[:(n-1)*ld+k], dst[:(k-1)*width+(n+e.lanes-1)/e.lanes*e.lanes]
	whole := 0
	if e.quad > 0 {
		whole = k / e.quad * e.quad
	}
	for r := 0; r < n; r += e.lanes {
		rows := min(e.lanes, n-r)
		if whole > 0 {
			e.transpose(dst[r:], src[r*ld:], ld, rows, whole, width)
		}
		if whole < k {
			e.gather(dst[r+whole*width:], src[r*ld+whole:], ld, 1, rows, k-whole, width)
		}
	}
}

// GemmPanels computes C = A*B + beta*C like [Gemm], for A m×k with rows lda elements apart, and B
// in panels. The last panel must be whole too.
func GemmPanels[T Float](w *Workspace, m, n, k int, a []T, lda int, panels []T, beta float64, c []T, ldc int) {
	checkMatrix("A", false, m, k, len(a), lda)
	checkMatrix("C", false, m, n, len(c), ldc)
	x := newProduct(w, m, n, k, T(1), operand(false, a, lda), view[T]{data: panels})
	if need := (n + x.nr - 1) / x.nr * x.nr * k; len(panels) < need {
		panic(fmt.Sprintf("gemm: panels of %d elements, want %d", len(panels), need))
	}
	x.c, x.ldc, x.add, x.panels = c, ldc, addend[T]{c, ldc, T(beta)}, x.nr*k
	x.run()
}
