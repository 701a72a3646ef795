package kernel

import "github.com/gofsdp/gofsdp/internal/kernel/vec"

// SumAxis writes to y [outer, inner] the sums of x [outer, n, inner] over the middle axis, n > 0,
// added in order. y may be the beginning of x.
func SumAxis[T Float](y, x []T, outer, n, inner int) {
	checkAxis("SumAxis", len(y), len(x), outer, n, inner)
	if inner > 1 {
		foldRows(y, x, n, inner, vec.Accumulate)
		return
	}
	for o := range y {
		sum := x[o*n]
		for _, v := range x[o*n+1 : (o+1)*n] {
			sum += v
		}
		y[o] = sum
	}
}

// MaxAxis writes to y [outer, inner] the largest of x [outer, n, inner] over the middle axis, n >
// 0, or NaN if there is one. y may be the beginning of x.
func MaxAxis[T Float](y, x []T, outer, n, inner int) {
	checkAxis("MaxAxis", len(y), len(x), outer, n, inner)
	foldRows(y, x, n, inner, func(dst, row []T) {
		for i, v := range row {
			dst[i] = max(dst[i], v)
		}
	})
}

// foldRows copies the first of each n rows of x to y, and folds the others into it. Each row of y
// ends before the rows of x that are still to be read, even if y begins where x begins.
func foldRows[T Float](y, x []T, n, inner int, fold func(dst, row []T)) {
	for len(y) > 0 {
		dst := y[:inner]
		copy(dst, x)
		for k := 1; k < n; k++ {
			fold(dst, x[k*inner:(k+1)*inner])
		}
		y, x = y[inner:], x[n*inner:]
	}
}

func checkAxis(kernel string, small, large, outer, n, inner int) {
	check(kernel, "outer·inner", small, outer*inner)
	check(kernel, "outer·n·inner", large, outer*n*inner)
}
