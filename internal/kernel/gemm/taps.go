package gemm

import (
	"fmt"
	"unsafe"
)

// Tap is where a row of B lies for one panel of columns: the panel's elements of the row are those
// of a slice from some place on, and zero in columns that are masked. The slice need not have those.
type Tap struct {
	step, turn int // in bytes: to the place of the next row, and to the next tap, the first after the last
	mask       uint64
}

// Taps is a factor B that is not packed, but read where its owner has it: planes of elements, each
// of which is read by N taps, one after the other. So row c·N+t is what tap t reads of plane c.
type Taps struct {
	Table []Tap // N of each panel
	N     int
	Plane int // the distance of planes, in elements
	First int // what tap 0 reads first of a plane, for column 0: an offset, in elements
}

// HasTaps tells whether [GemmTaps] can be used for elements of type T.
func HasTaps[T Float]() bool { return engineOf[T, T]().taps }

// NewTap returns tap t of n, all columns masked. The next one, be it of the next plane, reads step
// elements further on.
func NewTap[T Float](t, n, step int) Tap {
	turn := 1
	if t == n-1 {
		turn = 1 - n
	}
	return Tap{step: step * int(unsafe.Sizeof(*new(T))), turn: turn * int(unsafe.Sizeof(Tap{}))}
}

// TapElements returns how many elements of type T have room for n taps.
func TapElements[T Float](n int) int { return n * int(unsafe.Sizeof(Tap{})/unsafe.Sizeof(*new(T))) }

// TapsIn returns n taps in the memory of s. What they are is undefined.
func TapsIn[T Float](s []T, n int) []Tap {
	return unsafe.Slice((*Tap)(unsafe.Pointer(unsafe.SliceData(s[:TapElements[T](n)]))), n)
}

// Unmask has tap t read columns lo to hi, if there are any.
func Unmask[T Float](b Taps, t, lo, hi int) {
	for nr := PanelWidth[T](); lo < hi; lo = (lo/nr + 1) * nr {
		n := min(hi-lo, nr-lo%nr)
		b.Table[lo/nr*b.N+t].mask |= (1<<n - 1) << (lo % nr)
	}
}

// offset returns where tap t reads a plane for column 0, in elements of size bytes.
func (b Taps) offset(t, size int) int {
	at := 0
	for _, tap := range b.Table[:t] {
		at += tap.step
	}
	return b.First + at/size
}

// GemmTaps computes C = A*B + beta*C, for A m×k with rows lda elements apart, and B read by taps from
// data on. Other than that it is [Gemm]. The masks are the caller's responsibility: nobody checks
// that data has what taps read.
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
