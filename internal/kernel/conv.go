package kernel

import (
	"fmt"

	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Conv is the geometry of a convolution of images x [Batch, In, Height, Width] with filters w [Out,
// In/Groups, KernelHeight, KernelWidth] to y [Batch, Out, rows, columns]:
//
//	y[b,o,i,j] = bias[o] + Σ w[o,c,k,l]·x[b, c, i·Stride + k·Dilation - Pad, j·Stride + l·Dilation - Pad]
//
// with zeros around x, and o and c in one group. Each pair is (rows, columns).
//
// # How it works
//
// Package gemm computes the products. Their large factor, the pixels below each element of the
// kernel (im2col), is never stored as a whole. A few rows of the images are copied once for each
// column of the kernel, shifted and with their padding, so that all positions of these rows are
// contiguous for an element of the kernel. Panels of some columns are packed from the copy for the
// product, or read in place.
//
//	x [C, rows, W] ──lift──▶ [kernel columns, C, rows, columns] ──▶ panels [C·kernel, some columns]
//
// If y is as large as x, an element of the kernel reads x at one offset from y, under a mask.
// Machines with mask registers then copy nothing (see gemm.Taps, and reader).
//
// The gradient of x is a convolution of dy, one for each phase of the stride. The gradient of w is
// a product of the lifted rows with dy. Every element is summed in an order that depends only on
// the geometry.
type Conv struct {
	Batch, In, Height, Width       int
	Out, KernelHeight, KernelWidth int
	Stride, Pad, Dilation          [2]int
	Groups                         int
}

// These are the numbers of elements in a block of lifted rows and in a block of panels, unless a
// single row or panel is longer: both stay in the level-two cache. Rows that are read by taps use
// the size of panels, and a limit on the number of taps. Only tests change these.
var (
	liftedElements = 64 << 10
	panelElements  = 96 << 10
	mostTaps       = 2 << 10
)

// OutHeight returns the number of rows of y. It may be 0.
func (g Conv) OutHeight() int { return g.rows().n }

// OutWidth returns the number of columns of y. It may be 0.
func (g Conv) OutWidth() int { return g.columns().n }

func (g Conv) rows() axis    { return g.axis(0, g.Height, g.KernelHeight) }
func (g Conv) columns() axis { return g.axis(1, g.Width, g.KernelWidth) }

func (g Conv) axis(i, size, taps int) axis {
	room := size + 2*g.Pad[i] - g.Dilation[i]*(taps-1) - 1
	if room < 0 {
		room = -g.Stride[i]
	}
	return axis{size: size, n: room/g.Stride[i] + 1, stride: g.Stride[i], first: -g.Pad[i], step: g.Dilation[i], taps: taps}
}

// FLOPs counts two operations for each multiply-add of the products of one pass over y.
func (g Conv) FLOPs() int {
	return 2 * g.Batch * g.Out * g.OutHeight() * g.OutWidth() * g.In / g.Groups * g.KernelHeight * g.KernelWidth
}

// axis describes which elements of a source axis are read for positions 0 to n-1 of an output axis:
// tap t of position i reads element i·stride + first + t·step, which is zero outside of [0, size).
type axis struct{ size, n, stride, first, step, taps int }

// low is the least offset of a tap, and extent is the number of offsets from low to the greatest.
func (a axis) low() int    { return a.first + min(0, (a.taps-1)*a.step) }
func (a axis) extent() int { return max(0, a.taps-1)*max(a.step, -a.step) + 1 }

// phases is the number of source rows for one output row, within the reach of the taps.
func (a axis) phases() int { return min(a.stride, a.extent()) }

// correlation describes which elements of the planes of some channels are read for all positions of
// an output grid.
type correlation struct {
	y, x     axis
	channels int
}

func (k correlation) taps() int  { return k.y.taps * k.x.taps }
func (k correlation) depth() int { return k.channels * k.taps() }

// inPlace reports whether the planes equal their lifted form.
func (k correlation) inPlace() bool {
	one := func(a axis) bool { return a.taps == 1 && a.stride == 1 && a.first == 0 && a.n == a.size }
	return one(k.y) && one(k.x)
}

// lines is the number of lines of a lifted plane that the given output rows need, for each phase.
func (k correlation) lines(rows int) int { return rows + (k.y.extent()-1)/k.y.stride }

// plane is the length of a lifted plane.
func (k correlation) plane(rows int) int { return k.y.phases() * k.lines(rows) * k.x.n }

// block returns the number of output rows that are computed at once.
func (k correlation) block() int {
	if k.inPlace() || k.depth() == 0 || k.x.n == 0 {
		return max(1, k.y.n)
	}
	fit := liftedElements/(k.x.taps*k.channels*k.y.phases()*k.x.n) - (k.y.extent()-1)/k.y.stride
	return even(k.y.n, fit)
}

// even returns the height of the blocks when n rows are cut into the fewest blocks of at most fit
// rows (at least 1). All blocks but the last are equal.
func even(n, fit int) int {
	blocks := (n + max(1, fit) - 1) / max(1, fit)
	return max(1, (n+blocks-1)/max(1, blocks))
}

// blocks returns the number of blocks.
func (k correlation) blocks() int { return (k.y.n + k.block() - 1) / k.block() }

// rows returns rows lo to hi of a block.
func (k correlation) rows(block int) (lo, hi int) {
	return block * k.block(), min(k.y.n, (block+1)*k.block())
}

// lifted returns the number of elements that the lifted rows of a block have.
func (k correlation) lifted() int {
	if k.inPlace() || k.depth() == 0 {
		return 0
	}
	return k.x.taps * k.channels * k.plane(k.block())
}

// planes are the lifted rows of a block, of some channels.
type planes[T Float] struct {
	correlation
	data        []T
	rows, plane int // rows of the output, and the distance of planes
}

// tap returns the elements that tap (i, j) reads, from the first position of the block on, in the
// plane of channel 0.
func (p planes[T]) tap(i, j int) []T {
	if p.plane == 0 {
		return nil
	}
	if p.correlation.inPlace() {
		return p.data
	}
	off := p.y.first + i*p.y.step - p.y.low()
	line := off%p.y.stride*p.lines(p.rows) + off/p.y.stride
	return p.data[j*p.channels*p.plane+line*p.x.n:]
}

// lift returns the planes for output rows lo to hi of the first n channels of src. They are in dst.
func lift[T Float](k correlation, dst, src []T, n, lo, hi int) planes[T] {
	k.channels = n
	p := planes[T]{k, dst, hi - lo, k.plane(hi - lo)}
	if k.inPlace() {
		p.data, p.plane = src[lo*k.x.size:], k.y.size*k.x.size
		return p
	}
	if k.y.taps == 0 {
		return p
	}
	lines, first := k.lines(p.rows), lo*k.y.stride+k.y.low()
	for c := range n {
		for j := range k.x.taps {
			shift := k.x.first + j*k.x.step
			from, to := src[c*k.y.size*k.x.size:][:k.y.size*k.x.size], dst[(j*n+c)*p.plane:][:p.plane]
			if k.y.stride == 1 && k.x.stride == 1 && k.x.n == k.x.size {
				shifted(to, from, k.x.n, lines, first, shift)
				continue
			}
			for i := range k.y.phases() * lines {
				row := first + i%lines*k.y.stride + i/lines
				if row < 0 || row >= k.y.size {
					clear(to[i*k.x.n:][:k.x.n])
				} else {
					pick(to[i*k.x.n:][:k.x.n], from[row*k.x.size:][:k.x.size], shift, k.x.stride)
				}
			}
		}
	}
	return p
}

// shifted copies lines rows of from, of n columns, beginning at row first and column shift.
func shifted[T Float](to, from []T, n, lines, first, shift int) {
	top, bottom := min(lines, max(0, -first)), max(0, min(lines, len(from)/n-first))
	if bottom <= top {
		clear(to)
		return
	}
	clear(to[:top*n])
	clear(to[bottom*n:])
	to, from = to[top*n:bottom*n], from[(first+top)*n:(first+bottom)*n]
	gap := min(n, max(shift, -shift))
	if shift >= 0 {
		copy(to, from[gap:])
		for i := n - gap; i < len(to); i += n {
			clear(to[i : i+gap])
		}
	} else {
		copy(to[gap:], from)
		for i := 0; i < len(to); i += n {
			clear(to[i : i+gap])
		}
	}
}

// pick sets to[i] = from[i·stride + shift], and zero outside of from.
func pick[T Float](to, from []T, shift, stride int) {
	lo := min(len(to), max(0, (-shift+stride-1)/stride))
	hi := lo
	if last := len(from) - 1 - shift; last >= 0 {
		hi = max(lo, min(len(to), last/stride+1))
	}
	clear(to[:lo])
	clear(to[hi:])
	if lo == hi {
		return
	}
	to, from = to[lo:hi], from[lo*stride+shift:]
	if stride == 1 {
		copy(to, from)
		return
	}
	for i := range to {
		to[i] = from[i*stride]
	}
}

// check panics unless the sizes are valid.
func (g Conv) check(kernel string, y, x, w int) {
	if g.Batch < 0 || min(g.In, g.Out, g.Height, g.Width, g.KernelHeight, g.KernelWidth, g.Groups, g.Stride[0], g.Stride[1], g.Dilation[0],
		g.Dilation[1]) < 1 || min(g.Pad[0], g.Pad[1]) < 0 || g.In%g.Groups != 0 || g.Out%g.Groups != 0 {
		panic(fmt.Sprintf("kernel: %s: bad size in %+v", kernel, g))
	}
	check(kernel, "x", x, g.Batch*g.In*g.Height*g.Width)
	check(kernel, "w", w, g.Out*g.filter())
	check(kernel, "y", y, g.Batch*g.Out*g.OutHeight()*g.OutWidth())
}

// filter is the number of elements of a filter.
func (g Conv) filter() int { return g.In / g.Groups * g.KernelHeight * g.KernelWidth }

func (g Conv) forward() correlation { return correlation{g.rows(), g.columns(), g.In / g.Groups} }

// ConvScratch returns the elements of scratch that [ConvForward] needs.
func ConvScratch[T Float](g Conv) int {
	r := newReader[T](g.forward())
	return r.need()
}

// ConvForward computes y. bias is [Out] or nil.
func ConvForward[T Float](c *Context, g Conv, y, x, w, bias, scratch []T) {
	g.check("ConvForward", len(y), len(x), len(w))
	r := newReader[T](g.forward())
	r.scratch = scratch[:r.need()]
	area, image, out, units := r.y.n*r.x.n, g.Height*g.Width, g.Out/g.Groups, g.Batch*g.Groups
	lo, hi := c.Share(units*r.blocks(), 1)
	for i := lo; i < hi; i++ {
		unit, block := i%units, i/units // an image's group
		r0, r1 := r.rows(block)
		to := y[unit*out*area+r0*r.x.n:]
		first := unit % g.Groups * out
		if bias != nil {
			for o := range out {
				vec.Fill(to[o*area:][:(r1-r0)*r.x.n], bias[first+o])
			}
		}
		r.apply(&c.gemm, out, w[first*g.filter():], x[unit*r.channels*image:], r0, r1, to, area, bias != nil)
	}
}
