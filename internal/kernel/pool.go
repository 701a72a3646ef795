package kernel

import (
	"fmt"

	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Pool is the geometry of pooling: each of n planes x [Height, Width] becomes y [rows, columns].
// Element (i, j) is computed from a window of Kernel elements of x that begins at (i·Stride - Pad,
// j·Stride - Pad). Each pair is (rows, columns). Every window overlaps the plane: Pad is at most
// half of Kernel.
type Pool struct {
	Height, Width       int
	Kernel, Stride, Pad [2]int
}

func (p Pool) axis(i, size int) axis {
	room := size + 2*p.Pad[i] - p.Kernel[i]
	if room < 0 {
		room = -p.Stride[i]
	}
	return axis{size: size, n: room/p.Stride[i] + 1, stride: p.Stride[i], first: -p.Pad[i], step: 1, taps: p.Kernel[i]}
}

// OutHeight returns the number of rows of y. It may be 0.
func (p Pool) OutHeight() int { return p.axis(0, p.Height).n }

// OutWidth returns the number of columns of y. It may be 0.
func (p Pool) OutWidth() int { return p.axis(1, p.Width).n }

// window returns the range [lo, hi) of the source that position i of the output reads.
func (a axis) window(i int) (lo, hi int) {
	first := i*a.stride + a.first
	return max(0, first), min(a.size, first+a.taps)
}

// check panics unless the sizes are valid, and returns the number of planes.
func (p Pool) check(kernel string, y, x int) (planes int) {
	area, image := p.OutHeight()*p.OutWidth(), p.Height*p.Width
	if min(p.Height, p.Width, p.Kernel[0], p.Kernel[1], p.Stride[0], p.Stride[1]) < 1 || min(p.Pad[0], p.Pad[1]) < 0 ||
		2*p.Pad[0] > p.Kernel[0] || 2*p.Pad[1] > p.Kernel[1] {
		panic(fmt.Sprintf("kernel: %s: bad size in %+v", kernel, p))
	}
	planes = x / image
	check(kernel, "x", x, planes*image)
	check(kernel, "y", y, planes*area)
	return planes
}

// halves reports whether windows are adjacent squares of 2 × 2 elements.
func (p Pool) halves() bool {
	return p.Kernel == [2]int{2, 2} && p.Stride == [2]int{2, 2} && p.Pad == [2]int{}
}

// wholeRows reports whether windows are whole rows of the plane. They are if the plane is one
// window.
func (p Pool) wholeRows() bool { return p.Kernel[1] == p.Width && p.Pad[1] == 0 }

// share returns the planes of x and of y that the thread works on.
func share[T Float](c *Context, p Pool, planes int, x, y []T) (xs, ys []T) {
	lo, hi := c.Share(planes, 1)
	image, area := p.Height*p.Width, p.OutHeight()*p.OutWidth()
	return x[lo*image : hi*image], y[lo*area : hi*area]
}

// MaxPool sets y to the largest element of each window, and to NaN if the window has one.
func MaxPool[T Float](c *Context, p Pool, y, x []T) {
	x, y = share(c, p, p.check("MaxPool", len(y), len(x)), x, y)
	rows, cols := p.axis(0, p.Height), p.axis(1, p.Width)
	if p.halves() {
		p.eachHalves(len(y), func(i, j, at int) { vec.MaxPairs(y[i:j], x[at:], cols.n, p.Width) })
		return
	}
	for ; len(y) > 0; x, y = x[p.Height*p.Width:], y[rows.n*cols.n:] {
		for i := range rows.n {
			top, bottom := rows.window(i)
			for j := range cols.n {
				left, right := cols.window(j)
				y[i*cols.n+j] = largest(x, p.Width, top, bottom, left, right)
			}
		}
	}
}

// eachHalves calls f for ranges i to j of n elements of y, with the index of the first element of x
// in their windows. The windows are halves. It is called once for all elements if every row of x
// belongs to windows, else once for each plane.
func (p Pool) eachHalves(n int, f func(i, j, at int)) {
	area, image := p.OutHeight()*p.OutWidth(), p.Height*p.Width
	if p.Height%2 == 0 {
		area, image = n, 0
	}
	for i, at := 0, 0; i < n; i, at = i+area, at+image {
		f(i, i+area, at)
	}
}

// largest returns the largest element of a window of a plane, or NaN if the window has one.
func largest[T Float](x []T, width, top, bottom, left, right int) T {
	m := x[top*width+left]
	for r := top; r < bottom; r++ {
		for _, v := range x[r*width+left : r*width+right] {
			m = max(m, v)
		}
	}
	return m
}

// place returns the index of the largest element of a window of a plane: the first of equal ones,
// or the first NaN. The position is unpredictable, so the code has only one branch for it.
func place[T Float](x []T, width, top, bottom, left, right int) int {
	m := largest(x, width, top, bottom, left, right)
	for r := top; ; r++ {
		for i := r*width + left; i < r*width+right; i++ {
			if v := x[i]; v == m || v != v {
				return i
			}
		}
	}
}

// MaxPoolGrad sets dx, the gradient of [MaxPool]. Each element of dy is added at the largest
// element of its window, the first of equal ones.
func MaxPoolGrad[T Float](c *Context, p Pool, dx, x, dy []T) {
	planes := p.check("MaxPoolGrad", len(dy), len(x))
	check("MaxPoolGrad", "dx", len(dx), len(x))
	dx, _ = share(c, p, planes, dx, dy)
	x, dy = share(c, p, planes, x, dy)
	rows, cols := p.axis(0, p.Height), p.axis(1, p.Width)
	if !p.halves() || p.Height%2+p.Width%2 > 0 {
		clear(dx)
	}
	if p.halves() {
		p.eachHalves(len(dy), func(i, j, at int) { vec.MaxPairsGrad(dx[at:], x[at:], dy[i:j], cols.n, p.Width) })
		return
	}
	for ; len(dy) > 0; x, dx, dy = x[p.Height*p.Width:], dx[p.Height*p.Width:], dy[rows.n*cols.n:] {
		for i := range rows.n {
			top, bottom := rows.window(i)
			for j := range cols.n {
				left, right := cols.window(j)
				dx[place(x, p.Width, top, bottom, left, right)] += dy[i*cols.n+j]
			}
		}
	}
}

// AvgPool sets y to the mean of each window. Padding counts as zeros. Windows of whole rows are
// summed in float64.
func AvgPool[T Float](c *Context, p Pool, y, x []T) {
	x, y = share(c, p, p.check("AvgPool", len(y), len(x)), x, y)
	rows, cols, size := p.axis(0, p.Height), p.axis(1, p.Width), T(p.Kernel[0]*p.Kernel[1])
	for ; len(y) > 0; x, y = x[p.Height*p.Width:], y[rows.n*cols.n:] {
		for i := range rows.n {
			top, bottom := rows.window(i)
			if p.wholeRows() {
				y[i] = T(vec.Sum(x[top*p.Width:bottom*p.Width])) / size
				continue
			}
			if p.halves() {
				above, below := x[top*p.Width:], x[(top+1)*p.Width:]
				for j := range y[i*cols.n:][:cols.n] {
					a, b := above[2*j:2*j+2], below[2*j:2*j+2]
					y[i*cols.n+j] = (a[0] + a[1] + b[0] + b[1]) / size
				}
				continue
			}
			for j := range cols.n {
				left, right := cols.window(j)
				sum := T(0)
				for r := top; r < bottom; r++ {
					for _, v := range x[r*p.Width+left : r*p.Width+right] {
						sum += v
					}
				}
				y[i*cols.n+j] = sum / size
			}
		}
	}
}

// AvgPoolGrad sets dx, the gradient of [AvgPool].
func AvgPoolGrad[T Float](c *Context, p Pool, dx, dy []T) {
	dx, dy = share(c, p, p.check("AvgPoolGrad", len(dy), len(dx)), dx, dy)
	rows, cols, size := p.axis(0, p.Height), p.axis(1, p.Width), T(p.Kernel[0]*p.Kernel[1])
	clear(dx)
	apart := p.wholeRows() && p.Stride[0] >= p.Kernel[0]
	for ; len(dy) > 0; dx, dy = dx[p.Height*p.Width:], dy[rows.n*cols.n:] {
		for i := range rows.n {
			top, bottom := rows.window(i)
			if apart {
				vec.Fill(dx[top*p.Width:bottom*p.Width], dy[i]/size)
				continue
			}
			if p.halves() {
				above, below := dx[top*p.Width:], dx[(top+1)*p.Width:]
				for j, v := range dy[i*cols.n:][:cols.n] {
					v /= size
					a, b := above[2*j:2*j+2], below[2*j:2*j+2]
					a[0], a[1], b[0], b[1] = v, v, v, v
				}
				continue
			}
			for j := range cols.n {
				left, right := cols.window(j)
				v := dy[i*cols.n+j] / size
				for r := top; r < bottom; r++ {
					to := dx[r*p.Width+left : r*p.Width+right]
					for k := range to {
						to[k] += v
					}
				}
			}
		}
	}
}
