package kernel

import (
	"fmt"
	"unsafe"
)

// Pool is the geometry of pooling: each of n planes x [Height, Width] becomes y [rows, columns], of
// which element (i, j) is made of the elements of x in a window of Kernel, the first of them (i·Stride
// - Pad, j·Stride - Pad). The pairs are of rows and columns. Windows reach into the plane: Pad is at
// most half of Kernel.
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

// OutHeight returns the rows of y. They may be none.
func (p Pool) OutHeight() int { return p.axis(0, p.Height).n }

// OutWidth returns the columns of y. They may be none.
func (p Pool) OutWidth() int { return p.axis(1, p.Width).n }

// window returns what of the source position i of the output reads: the range [lo, hi).
func (a axis) window(i int) (lo, hi int) {
	first := i*a.stride + a.first
	return max(0, first), min(a.size, first+a.taps)
}

// check panics unless the sizes are sane, and returns the number of planes.
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

// halves tells whether windows are two by two elements, side by side.
func (p Pool) halves() bool {
	return p.Kernel == [2]int{2, 2} && p.Stride == [2]int{2, 2} && p.Pad == [2]int{}
}

// share returns the planes of x and of y that the thread works on.
func share[T Float](c *Context, p Pool, planes int, x, y []T) (xs, ys []T) {
	lo, hi := c.Share(planes, 1)
	image, area := p.Height*p.Width, p.OutHeight()*p.OutWidth()
	return x[lo*image : hi*image], y[lo*area : hi*area]
}

// MaxPool sets y to the largest element of each window, NaN where there is one.
func MaxPool[T Float](c *Context, p Pool, y, x []T) {
	x, y = share(c, p, p.check("MaxPool", len(y), len(x)), x, y)
	rows, cols := p.axis(0, p.Height), p.axis(1, p.Width)
	for ; len(y) > 0; x = x[p.Height*p.Width:] {
		for i := range rows.n {
			to := y[:cols.n]
			if y = y[cols.n:]; p.halves() {
				pairs(to, x[2*i*p.Width:], x[(2*i+1)*p.Width:])
				continue
			}
			top, bottom := rows.window(i)
			for j := range to {
				left, right := cols.window(j)
				to[j] = x[largest(x, p.Width, top, bottom, left, right)]
			}
		}
	}
}

// pairs sets to to the largest of two elements of a and of two of b.
func pairs[T Float](to, a, b []T) {
	above, below := twos(a, len(to)), twos(b, len(to))
	for j := range to {
		to[j] = max(above[j][0], above[j][1], below[j][0], below[j][1])
	}
}

// twos returns the first n pairs of elements of x, whose bounds need one check.
func twos[T Float](x []T, n int) [][2]T {
	return unsafe.Slice((*[2]T)(unsafe.Pointer(unsafe.SliceData(x[:2*n]))), n)
}

// largest returns where the largest element of a window of a plane is, the first of those that are
// equal, or the first NaN.
func largest[T Float](x []T, width, top, bottom, left, right int) int {
	at := top*width + left
	for r := top; r < bottom; r++ {
		for i := r*width + left; i < r*width+right; i++ {
			if x[i] > x[at] || x[i] != x[i] && x[at] == x[at] {
				at = i
			}
		}
	}
	return at
}

// MaxPoolGrad sets dx, the gradient of [MaxPool], to the sum of the elements of dy at the place of
// the largest element of their windows, the first of those that are equal.
func MaxPoolGrad[T Float](c *Context, p Pool, dx, x, dy []T) {
	planes := p.check("MaxPoolGrad", len(dy), len(x))
	check("MaxPoolGrad", "dx", len(dx), len(x))
	dx, _ = share(c, p, planes, dx, dy)
	x, dy = share(c, p, planes, x, dy)
	rows, cols := p.axis(0, p.Height), p.axis(1, p.Width)
	clear(dx)
	for ; len(dy) > 0; x, dx = x[p.Height*p.Width:], dx[p.Height*p.Width:] {
		for i := range rows.n {
			from := dy[:cols.n]
			if dy = dy[cols.n:]; p.halves() {
				unpaired(dx[2*i*p.Width:], x[2*i*p.Width:], from, p.Width)
				continue
			}
			top, bottom := rows.window(i)
			for j, v := range from {
				left, right := cols.window(j)
				dx[largest(x, p.Width, top, bottom, left, right)] += v
			}
		}
	}
}

// unpaired sets the elements of dx at the largest of two elements of a row of x and of two of the next
// to those of dy. Branches would be mispredicted most of the time.
func unpaired[T Float](dx, x, dy []T, width int) {
	above, below := twos(x, len(dy)), twos(x[width:], len(dy))
	for j, v := range dy {
		a, b, c, d := above[j][0], above[j][1], below[j][0], below[j][1]
		top, bottom, i, k := max(a, b), max(c, d), 0, width
		if top != top || bottom != bottom {
			dx[2*j+largest(x[2*j:], width, 0, 2, 0, 2)] = v
			continue
		}
		if b > a {
			i = 1
		}
		if d > c {
			k = width + 1
		}
		if bottom > top {
			i = k
		}
		dx[2*j+i] = v
	}
}

// AvgPool sets y to the mean of each window, to which padding belongs, as zeros.
func AvgPool[T Float](c *Context, p Pool, y, x []T) {
	x, y = share(c, p, p.check("AvgPool", len(y), len(x)), x, y)
	rows, cols, size := p.axis(0, p.Height), p.axis(1, p.Width), T(p.Kernel[0]*p.Kernel[1])
	for ; len(y) > 0; x, y = x[p.Height*p.Width:], y[rows.n*cols.n:] {
		for i := range rows.n {
			top, bottom := rows.window(i)
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
	for ; len(dy) > 0; dx, dy = dx[p.Height*p.Width:], dy[rows.n*cols.n:] {
		for i := range rows.n {
			top, bottom := rows.window(i)
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
