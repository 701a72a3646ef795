package vec

import (
	"fmt"
	"unsafe"
)

// MaxPairs sets y [rows, cols] to the largest elements of adjacent 2 × 2 windows of x, whose rows
// are ld elements apart. As in Go, the result is NaN if the window has one, and 0 is above -0. y
// must not overlap x.
func MaxPairs[T Float](y, x []T, cols, ld int) {
	eachPairs("MaxPairs", y, x, cols, ld, func(y []T, at, rows int) { table[T]().maxPairs(y, x[at:], cols, ld, rows) })
}

// MaxPairsGrad sets the windows of dx, which has the layout of x in [MaxPairs], to dy at their
// largest element, and to 0 elsewhere. The first of equal elements counts, row by row; a NaN is
// larger than any number. dx must not overlap x or dy.
func MaxPairsGrad[T Float](dx, x, dy []T, cols, ld int) {
	same("MaxPairsGrad", len(x), len(dx))
	eachPairs("MaxPairsGrad", dy, x, cols, ld, func(dy []T, at, rows int) {
		table[T]().maxPairsGrad(dx[at:], x[at:], dy, cols, ld, rows)
	})
}

// eachPairs calls f for some rows of y at a time, with the offset of the matching rows of x.
func eachPairs[T Float](op string, y, x []T, cols, ld int, f func(y []T, at, rows int)) {
	if len(y) == 0 {
		return
	}
	if cols < 1 || len(y)%cols != 0 || ld < 2*cols || len(x) < (2*len(y)/cols-1)*ld+2*cols {
		panic(fmt.Sprintf("vec: %s: %d elements with rows of %d do not hold the windows of %d with rows of %d", op, len(x), ld, len(y), cols))
	}
	step := max(1, piece/4/cols)
	for i := 0; i < len(y)/cols; i += step {
		rows := min(step, len(y)/cols-i)
		f(y[i*cols:(i+rows)*cols], 2*i*ld, rows)
	}
}

func maxPairsGo[T Float](y, x []T, cols, ld, rows int) {
	for i := range rows {
		above, below := twos(x[2*i*ld:], cols), twos(x[(2*i+1)*ld:], cols)
		for j := range cols {
			y[i*cols+j] = max(above[j][0], above[j][1], below[j][0], below[j][1])
		}
	}
}

// twos returns the first n pairs of elements of x. Their bounds are checked once.
func twos[T Float](x []T, n int) [][2]T {
	return unsafe.Slice((*[2]T)(unsafe.Pointer(unsafe.SliceData(x[:2*n]))), n)
}

// maxPairsGradGo branches only for NaN: other branches would be mispredicted most of the time.
func maxPairsGradGo[T Float](dx, x, dy []T, cols, ld, rows int) {
	for i := range rows {
		above, below, to := twos(x[2*i*ld:], cols), twos(x[(2*i+1)*ld:], cols), dx[2*i*ld:]
		clear(to[:2*cols])
		clear(to[ld:][:2*cols])
		for j, v := range dy[i*cols:][:cols] {
			a, b, c, d := above[j][0], above[j][1], below[j][0], below[j][1]
			top, bottom, left, right := max(a, b), max(c, d), 0, ld
			if b > a || a == a && b != b {
				left = 1
			}
			if d > c || c == c && d != d {
				right = ld + 1
			}
			if bottom > top || top == top && bottom != bottom {
				left = right
			}
			to[2*j+left] = v
		}
	}
}
