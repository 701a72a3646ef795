package kernel

// naiveConv calls f for every product of the convolution g: the indices in y, x and w.
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
