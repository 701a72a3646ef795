package vec

import "fmt"

// Add sets dst = a + b.
func Add[T Float](dst, a, b []T) { each3("Add", table[T]().add, dst, a, b) }

// Accumulate adds a to dst.
func Accumulate[T Float](dst, a []T) { each3("Accumulate", table[T]().add, dst, dst, a) }

// AddScaled adds c · x to dst. The product is rounded before the sum: AddScaled has the same bits
// as [ScaleTo] followed by [Accumulate], in one pass, and with c = 1 it is Accumulate.
func AddScaled[T Float](dst, x []T, c T) {
	k := table[T]()
	each2("AddScaled", func(dst, x []T) { k.addScaled(dst, x, c) }, dst, x)
}

// Scale multiplies dst by alpha.
func Scale[T Float](dst []T, alpha T) { ScaleTo(dst, alpha, dst) }

// ScaleTo sets dst = alpha · x.
func ScaleTo[T Float](dst []T, alpha T, x []T) {
	k := table[T]()
	each2("ScaleTo", func(dst, x []T) { k.scaleTo(dst, x, alpha) }, dst, x)
}

// Fill sets every element of dst to v.
func Fill[T Float](dst []T, v T) {
	k := table[T]()
	each1(func(dst []T) { k.fill(dst, v) }, dst)
}

// ColSum adds the sum of the rows of x [rows, cols] to dst [cols]; the caller clears dst if it
// needs only the sum. Rows are added in groups of eight, with a balanced tree in each group, so the
// order depends only on rows.
func ColSum[T Float](dst, x []T, rows, cols int) {
	if rows < 0 || cols < 0 || len(dst) != cols || len(x) != rows*cols {
		panic(fmt.Sprintf("vec: ColSum: matrix of %d elements and vector of %d for shape [%d, %d]", len(x), len(dst), rows, cols))
	}
	k := table[T]()
	for ; rows >= 8 && cols > 0; rows -= 8 {
		k.colSum8(dst, x[:8*cols])
		x = x[8*cols:]
	}
	for i := range rows {
		Accumulate(dst, x[i*cols:(i+1)*cols])
	}
}
