package kernel

import "math"

// naiveConv calls f for every product of the convolution g, with the indices in y, x and w.
func naiveConv(g Conv, f func(y, x, w int)) {
	in, out, rows, cols := g.In/g.Groups, g.Out/g.Groups, g.OutHeight(), g.OutWidth()
	for i := range g.Batch * g.Out * rows * cols {
		b, o, row, col := i/(g.Out*rows*cols), i/(rows*cols)%g.Out, i/cols%rows, i%cols
		for j := range g.filter() {
			c, k, l := j/(g.KernelHeight*g.KernelWidth), j/g.KernelWidth%g.KernelHeight, j%g.KernelWidth
			r, q := row*g.Stride[0]+k*g.Dilation[0]-g.Pad[0], col*g.Stride[1]+l*g.Dilation[1]-g.Pad[1]
			if r >= 0 && r < g.Height && q >= 0 && q < g.Width {
				f(i, ((b*g.In+o/out*in+c)*g.Height+r)*g.Width+q, o*g.filter()+j)
			}
		}
	}
}

// NaiveConvForward is the reference of [ConvForward].
func NaiveConvForward(_ *Context, g Conv, y, x, w, bias, _ []float64) {
	for i := range y {
		y[i] = 0
		if bias != nil {
			y[i] = bias[i/(g.OutHeight()*g.OutWidth())%g.Out]
		}
	}
	naiveConv(g, func(i, j, k int) { y[i] += x[j] * w[k] })
}

// NaiveConvGradX is the reference of [ConvGradX].
func NaiveConvGradX(_ *Context, g Conv, dx, dy, w, _ []float64) {
	clear(dx)
	naiveConv(g, func(i, j, k int) { dx[j] += dy[i] * w[k] })
}

// NaiveConvGradW is the reference of [ConvGradW].
func NaiveConvGradW(_ *Context, g Conv, dw, dy, x, _ []float64, acc bool) {
	if !acc {
		clear(dw)
	}
	naiveConv(g, func(i, j, k int) { dw[k] += dy[i] * x[j] })
}

// NaiveConvGradB is the reference of [ConvGradB].
func NaiveConvGradB(_ *Context, db, dy []float64, _, area int, acc bool) {
	if !acc {
		clear(db)
	}
	for i, v := range dy {
		db[i/area%len(db)] += v
	}
}

// naivePatches calls f for every element of the patches of g that is inside x, with the indices in
// both.
func naivePatches(g Conv, f func(y, x int)) {
	rows, cols, kernel := g.OutHeight(), g.OutWidth(), g.KernelHeight*g.KernelWidth
	for i := range g.Batch * rows * cols * g.In * kernel {
		place, j := i/(g.In*kernel), i%kernel
		r := place/cols%rows*g.Stride[0] + j/g.KernelWidth*g.Dilation[0] - g.Pad[0]
		q := place%cols*g.Stride[1] + j%g.KernelWidth*g.Dilation[1] - g.Pad[1]
		if r >= 0 && r < g.Height && q >= 0 && q < g.Width {
			f(i, ((place/(rows*cols)*g.In+i/kernel%g.In)*g.Height+r)*g.Width+q)
		}
	}
}

// NaivePatches is the reference of [Patches].
func NaivePatches(_ *Context, g Conv, y, x []float64) {
	clear(y)
	naivePatches(g, func(i, j int) { y[i] = x[j] })
}

// NaivePatchesGrad is the reference of [PatchesGrad].
func NaivePatchesGrad(_ *Context, g Conv, dx, dy []float64) {
	clear(dx)
	naivePatches(g, func(i, j int) { dx[j] += dy[i] })
}

// naivePool calls f for every element of the windows of p over some planes, with the indices in y
// and x.
func naivePool(p Pool, planes int, f func(y, x int)) {
	rows, cols := p.OutHeight(), p.OutWidth()
	for i := range planes * rows * cols {
		plane, row, col := i/(rows*cols), i/cols%rows, i%cols
		for j := range p.Kernel[0] * p.Kernel[1] {
			r, q := row*p.Stride[0]+j/p.Kernel[1]-p.Pad[0], col*p.Stride[1]+j%p.Kernel[1]-p.Pad[1]
			if r >= 0 && r < p.Height && q >= 0 && q < p.Width {
				f(i, (plane*p.Height+r)*p.Width+q)
			}
		}
	}
}

// NaiveMaxPool is the reference of [MaxPool].
func NaiveMaxPool(_ *Context, p Pool, y, x []float64) {
	for i := range y {
		y[i] = math.Inf(-1)
	}
	naivePool(p, len(x)/(p.Height*p.Width), func(i, j int) { y[i] = max(y[i], x[j]) })
}

// NaiveMaxPoolGrad is the reference of [MaxPoolGrad].
func NaiveMaxPoolGrad(c *Context, p Pool, dx, x, dy []float64) {
	y, done := make([]float64, len(dy)), make([]bool, len(dy))
	NaiveMaxPool(c, p, y, x)
	clear(dx)
	naivePool(p, len(x)/(p.Height*p.Width), func(i, j int) {
		if !done[i] && (x[j] == y[i] || math.IsNaN(x[j])) {
			dx[j] += dy[i]
			done[i] = true
		}
	})
}

// NaiveAvgPool is the reference of [AvgPool].
func NaiveAvgPool(_ *Context, p Pool, y, x []float64) {
	clear(y)
	naivePool(p, len(x)/(p.Height*p.Width), func(i, j int) { y[i] += x[j] / float64(p.Kernel[0]*p.Kernel[1]) })
}

// NaiveAvgPoolGrad is the reference of [AvgPoolGrad].
func NaiveAvgPoolGrad(_ *Context, p Pool, dx, dy []float64) {
	clear(dx)
	naivePool(p, len(dx)/(p.Height*p.Width), func(i, j int) { dx[j] += dy[i] / float64(p.Kernel[0]*p.Kernel[1]) })
}

// planesLast returns x [n, channels, area] as [n, area, channels].
func planesLast(x []float64, n, channels, area int) []float64 {
	to := make([]float64, len(x))
	for i := range x {
		to[(i/(channels*area)*area+i%area)*channels+i/area%channels] = x[i]
	}
	return to
}

// NaiveChannelStats is the reference of [ChannelStats].
func NaiveChannelStats(mean, variance, x, _ []float64, n, channels, area int) {
	NaiveBatchStats(mean, variance, planesLast(x, n, channels, area), n*area, channels)
}

// NaiveChannelNorm is the reference of [ChannelNorm].
func NaiveChannelNorm(y, x, gain, bias, mean, variance, _ []float64, n, channels, area int, eps float64) {
	to := make([]float64, len(x))
	NaiveBatchNorm(to, planesLast(x, n, channels, area), gain, bias, mean, variance, n*area, channels, eps)
	copy(y, planesLast(to, n, area, channels))
}

// NaiveChannelNormGrad is the reference of [ChannelNormGrad].
func NaiveChannelNormGrad(dx, dgain, dbias, x, gain, mean, variance, dy, _ []float64, n, channels, area int, eps float64) {
	to := make([]float64, len(x))
	NaiveBatchNormGrad(to, dgain, dbias, planesLast(x, n, channels, area), gain, mean, variance, planesLast(dy, n, channels, area),
		n*area, channels, eps)
	copy(dx, planesLast(to, n, area, channels))
}

// eachGroup calls f for each row of a group norm, with the gains of its elements, and their biases
// if bias is not nil.
func eachGroup(gain, bias []float64, n, area, groups int, f func(row, lo, hi int, gain, bias []float64)) {
	width := len(gain) / groups * area
	gains, biases := make([]float64, width), make([]float64, width)
	for r := range n * groups {
		for i := range width {
			gains[i] = gain[r%groups*width/area+i/area]
			if bias != nil {
				biases[i] = bias[r%groups*width/area+i/area]
			}
		}
		f(r, r*width, (r+1)*width, gains, biases)
	}
}

// NaiveGroupNorm is the reference of [GroupNorm].
func NaiveGroupNorm(_ *Context, y, stats, x, gain, bias []float64, n, _, area, groups int, eps float64) {
	eachGroup(gain, bias, n, area, groups, func(r, lo, hi int, gains, biases []float64) {
		NaiveLayerNorm(y[lo:hi], stats[2*r:2*r+2], x[lo:hi], gains, biases, 1, hi-lo, eps)
	})
}

// NaiveGroupNormGrad is the reference of [GroupNormGrad].
func NaiveGroupNormGrad(dx, dgain, dbias, x, gain, stats, dy []float64, n, channels, area, groups int) {
	clear(dgain)
	clear(dbias)
	eachGroup(gain, nil, n, area, groups, func(r, lo, hi int, gains, biases []float64) {
		rowGain := make([]float64, hi-lo)
		NaiveLayerNormGrad(dx[lo:hi], rowGain, biases, x[lo:hi], gains, stats[2*r:2*r+2], dy[lo:hi], 1, hi-lo)
		for i := range rowGain {
			c := r % groups * (channels / groups)
			dgain[c+i/area] += rowGain[i]
			dbias[c+i/area] += biases[i]
		}
	})
}
