package kernel

import (
	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// phase is the positions start, start + stride, … of an axis of x. In the forward, only the taps
// tap, tap + every, … read these positions.
type phase struct {
	axis              // which elements of dy the positions read
	start, tap, every int
}

// phase returns phase r of axis a of the forward.
func (a axis) phase(r int) phase {
	p := phase{start: r, every: a.stride / gcd(a.stride, a.step)}
	at := r - a.first // tap t reads position (at - t·step)/stride of dy, if that is an integer
	for p.tap < a.taps && (at-p.tap*a.step)%a.stride != 0 {
		p.tap++
	}
	p.axis = axis{size: a.n, n: (a.size - r + a.stride - 1) / a.stride, stride: 1, step: -p.every * a.step / a.stride,
		first: (at - p.tap*a.step) / a.stride, taps: (a.taps - p.tap + p.every - 1) / p.every}
	return p
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// eachPhase calls f for the non-empty phases of x.
func (g Conv) eachPhase(f func(y, x phase, k correlation)) {
	rows, cols := g.rows(), g.columns()
	for i := range min(rows.stride, rows.size) {
		for j := range min(cols.stride, cols.size) {
			y, x := rows.phase(i), cols.phase(j)
			f(y, x, correlation{y.axis, x.axis, g.Out / g.Groups})
		}
	}
}

// strided reports whether the positions of a phase are not contiguous.
func (g Conv) strided() bool { return g.Stride != [2]int{1, 1} }

// ConvGradXScratch returns the elements of scratch that [ConvGradX] needs.
func ConvGradXScratch[T Float](g Conv) (n int) {
	in := g.In / g.Groups
	g.eachPhase(func(y, x phase, k correlation) {
		r := newReader[T](k)
		need := r.need() + in*k.depth()
		if g.strided() {
			need += in * r.height * x.n
		}
		n = max(n, need)
	})
	return n
}

// ConvGradX writes dx, the gradient of [ConvForward] with respect to x, for dy of the shape of y.
func ConvGradX[T Float](c *Context, g Conv, dx, dy, w, scratch []T) {
	g.check("ConvGradX", len(dy), len(dx), len(w))
	in, out, image, area := g.In/g.Groups, g.Out/g.Groups, g.Height*g.Width, g.OutHeight()*g.OutWidth()
	rows, cols := g.rows(), g.columns()
	for i := range min(rows.stride, rows.size) * min(cols.stride, cols.size) {
		y, x := rows.phase(i/min(cols.stride, cols.size)), cols.phase(i%min(cols.stride, cols.size))
		r := newReader[T](correlation{y.axis, x.axis, out})
		r.scratch = scratch[:r.need()]
		a, rest := scratch[r.need():][:in*r.depth()], scratch[r.need()+in*r.depth():]
		lo, hi := c.Share(g.Groups*r.blocks()*g.Batch, 1)
		packed := -1
		for u := lo; u < hi; u++ {
			group, block, b := u/g.Batch/r.blocks(), u/g.Batch%r.blocks(), u%g.Batch
			if group != packed {
				swapped(g, a, w[group*out*g.filter():], y, x)
				packed = group
			}
			r0, r1 := r.rows(block)
			unit := b*g.Groups + group
			to, from := dx[unit*in*image:], dy[unit*out*area:]
			if !g.strided() {
				r.apply(&c.gemm, in, a, from, r0, r1, to[r0*x.n:], image, false)
				continue
			}
			n := (r1 - r0) * x.n
			r.apply(&c.gemm, in, a, from, r0, r1, rest[:in*n], n, false)
			spread(g, to, rest[:in*n], y, x, r0, r1)
		}
	}
}

// swapped sets a [In/Groups, Out/Groups·taps] to the elements of a group's filters w that belong to
// two phases.
func swapped[T Float](g Conv, a, w []T, y, x phase) {
	i, filter, out := 0, g.filter(), g.Out/g.Groups
	for c := range g.In / g.Groups {
		for o := range out {
			from := w[o*filter+c*g.KernelHeight*g.KernelWidth:]
			if !g.strided() {
				i += copy(a[i:], from[:g.KernelHeight*g.KernelWidth])
				continue
			}
			for k := y.tap; k < g.KernelHeight; k += y.every {
				for l := x.tap; l < g.KernelWidth; l += x.every {
					a[i] = from[k*g.KernelWidth+l]
					i++
				}
			}
		}
	}
}

// spread writes rows r0 to r1 of two phases, which are in from, to their places in the planes dx.
func spread[T Float](g Conv, dx, from []T, y, x phase, r0, r1 int) {
	for c := range g.In / g.Groups {
		for r := r0; r < r1; r++ {
			to := dx[(c*g.Height+y.start+r*g.Stride[0])*g.Width+x.start:]
			row := from[(c*(r1-r0)+r-r0)*x.n:][:x.n]
			for i, v := range row {
				to[i*g.Stride[1]] = v
			}
		}
	}
}

// gradW returns the lengths of three parts of the scratch of [ConvGradW]: the lifted rows, dy in
// panels, and the gradient as [In, taps, Out/Groups]. A fourth part comes after them: the rows of a
// convolution with few channels.
func gradW[T Float](g Conv) (lifted, panels, sums int) {
	k, nr := g.forward(), gemm.PanelWidth[T]()
	out := g.Out / g.Groups
	return k.lifted(), (out + nr - 1) / nr * nr * k.block() * k.x.n, g.In * k.taps() * out
}

// ConvGradWScratch returns the elements of scratch that [ConvGradW] needs.
func ConvGradWScratch[T Float](g Conv) int {
	lifted, panels, sums := gradW[T](g)
	k := g.forward()
	return lifted + panels + sums + min(k.channels, fewChannels)*k.taps()*k.block()*k.x.n
}

// ConvGradW computes dw, the gradient of [ConvForward] with respect to w.
func ConvGradW[T Float](c *Context, g Conv, dw, dy, x, scratch []T, acc bool) {
	g.check("ConvGradW", len(dy), len(x), len(dw))
	k, nr := g.forward(), gemm.PanelWidth[T]()
	lifted, packed, _ := gradW[T](g)
	buffer, panels, sums := scratch[:lifted], scratch[lifted:][:packed], scratch[lifted+packed:]
	rows := sums[g.In*k.taps()*g.Out/g.Groups:]
	in, out, taps, area := g.In/g.Groups, g.Out/g.Groups, k.taps(), k.y.n*k.x.n
	lo, hi := c.Share(g.In, 1) // channels
	clear(sums[:(hi-lo)*taps*out])
	for group := lo / in; group*in < hi; group++ {
		c0, c1 := max(lo, group*in), min(hi, (group+1)*in)
		to := sums[(c0-lo)*taps*out:]
		for i := range g.Batch * k.blocks() {
			b := i / k.blocks()
			r0, r1 := k.rows(i % k.blocks())
			n := (r1 - r0) * k.x.n
			p := lift(k, buffer, x[(b*g.In+c0)*g.Height*g.Width:], c1-c0, r0, r1)
			from := dy[(b*g.Groups+group)*out*area+r0*k.x.n:]
			if out == 1 {
				p.dots(to, from[:n])
				continue
			}
			for o := 0; o < out; o += nr {
				gemm.Transpose(panels[o*n:], from[o*area:], area, min(nr, out-o), n, nr)
			}
			if c1-c0 < fewChannels {
				gemm.GemmPanels(&c.gemm, (c1-c0)*taps, out, n, p.gathered(rows), n, panels, 1, to, out)
				continue
			}
			for tap := range taps {
				gemm.GemmPanels(&c.gemm, c1-c0, out, n, p.tap(tap/k.x.taps, tap%k.x.taps), p.plane, panels, 1, to[tap*out:], taps*out)
			}
		}
		transposed(g, dw[group*out*g.filter():], to, c0-group*in, c1-group*in, acc)
	}
}

// dots adds the products of the elements that the taps read with the only dy of a group, each
// summed in float64.
func (p planes[T]) dots(to, dy []T) {
	for i := range p.channels * p.taps() {
		tap := i % p.taps()
		to[i] += T(vec.Dot(p.tap(tap/p.x.taps, tap%p.x.taps)[i/p.taps()*p.plane:][:len(dy)], dy))
	}
}

// fewChannels is the least number of channels for which a product of one tap's rows is fast enough.
// For fewer channels the rows of all taps are copied into one matrix.
const fewChannels = 8

// gathered copies the elements that the taps read to dst, as [channels·taps, rows·columns].
func (p planes[T]) gathered(dst []T) []T {
	n := p.rows * p.x.n
	for c := range p.channels {
		for tap := range p.taps() {
			copy(dst[(c*p.taps()+tap)*n:][:n], p.tap(tap/p.x.taps, tap%p.x.taps)[c*p.plane:])
		}
	}
	return dst
}

// transposed writes the gradient of channels c0 to c1 of a group's filters to dw, or adds it. from
// has it as [channels, taps, Out/Groups].
func transposed[T Float](g Conv, dw, from []T, c0, c1 int, acc bool) {
	out, taps, filter := g.Out/g.Groups, g.KernelHeight*g.KernelWidth, g.filter()
	for o := range out {
		to := dw[o*filter+c0*taps : o*filter+c1*taps]
		if acc {
			for i := range to {
				to[i] += from[i*out+o]
			}
			continue
		}
		for i := range to {
			to[i] = from[i*out+o]
		}
	}
}

// ConvGradB computes db [Out], the gradient of [ConvForward] with respect to its bias: the sums of
// dy [n, Out, area] over the first and the last axis, each in float64.
func ConvGradB[T Float](c *Context, db, dy []T, n, area int, acc bool) {
	check("ConvGradB", "dy", len(dy), n*len(db)*area)
	lo, hi := c.Share(len(db), 1)
	for o := lo; o < hi; o++ {
		sum := 0.0
		for b := range n {
			sum += vec.Sum(dy[(b*len(db)+o)*area:][:area])
		}
		if acc {
			sum += float64(db[o])
		}
		db[o] = T(sum)
	}
}
