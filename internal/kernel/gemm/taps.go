package gemm

import (
	"fmt"
	"unsafe"
)

// Tap describes a row of B for one panel of columns. The elements of the row are those of a slice
// from some index on, and zero in masked columns. The slice need not contain the elements of masked
// columns.
type Tap struct {
	step, turn int // in bytes: to the next row, and to the next tap (from the last tap to the first)
	mask       uint64
}

// Taps is a factor B that is not packed, but read from planes of elements. N taps read each plane
// in turn, so row c·N+t of B is plane c as tap t reads it.
type Taps struct {
	Table []Tap // N for each panel
	N     int
	Plane int // the distance of planes, in elements
	First int // offset in a plane, in elements, of the first element that tap 0 reads for column 0
}

// HasTaps reports whether [GemmTaps] supports elements of type T.
func HasTaps[T Float]() bool { return engineOf[T, T]().taps }

// NewTap returns tap t of n, with all columns masked. The next tap, which may be in the next plane,
// reads step elements further on.
func NewTap[T Float](t, n, step int) Tap {
	turn := 1
	if t == n-1 {
		turn = 1 - n
	}
	return Tap{step: step * int(unsafe.Sizeof(*new(T))), turn: turn * int(unsafe.Sizeof(Tap{}))}
}

// TapElements returns the number of elements of type T whose memory holds n taps.
func TapElements[T Float](n int) int { return n * int(unsafe.Sizeof(Tap{})/unsafe.Sizeof(*new(T))) }

// TapsIn returns n undefined taps in the memory of s.
func TapsIn[T Float](s []T, n int) []Tap {
	return unsafe.Slice((*Tap)(unsafe.Pointer(unsafe.SliceData(s[:TapElements[T](n)]))), n)
}

// Unmask makes tap t read columns lo to hi, if the range is not empty.
func Unmask[T Float](b Taps, t, lo, hi int) {
	for nr := PanelWidth[T](); lo < hi; lo = (lo/nr + 1) * nr {
		n := min(hi-lo, nr-lo%nr)
		b.Table[lo/nr*b.N+t].mask |= (1<<n - 1) << (lo % nr)
	}
}

// offset returns the offset in a plane that tap t reads for column 0. Elements have size bytes.
func (b Taps) offset(t, size int) int {
	at := 0
	for _, tap := range b.Table[:t] {
		at += tap.step
	}
	return b.First + at/size
}

// GemmTaps computes C = A*B + beta*C like [Gemm], for A m×k with rows lda elements apart, and B
// read by taps from data on. The caller is responsible for the masks: GemmTaps does not check that
// data contains the elements that taps read.
func GemmTaps[T Float](w *Workspace, m, n, k int, a []T, lda int, data []T, taps Taps, beta float64, c []T, ldc int) {
	checkMatrix("A", false, m, k, len(a), lda)
	checkMatrix("C", false, m, n, len(c), ldc)
	x := newProduct(w, m, n, k, T(1), operand(false, a, lda), view[T]{data: data, line: 1})
	if need := (n + x.nr - 1) / x.nr * taps.N; !x.engine.taps || taps.N < 1 || len(taps.Table) < need || len(data) < n {
		panic(fmt.Sprintf("gemm: %d taps and %d elements for %d columns, want %d", len(taps.Table), len(data), n, need))
	}
	x.c, x.ldc, x.add, x.taps = c, ldc, addend[T]{c, ldc, T(beta)}, taps
	x.run()
}
