package kernel

// Patches sets y [Batch, rows, columns, In·KernelHeight·KernelWidth] to the pixels of x [Batch, In,
// Height, Width] under each position of the kernel of g, with zeros outside of x (im2col). Out and
// Groups are not used.
func Patches[T Float](c *Context, g Conv, y, x []T) {
	rows, cols, depth := g.rows(), g.columns(), g.In*g.KernelHeight*g.KernelWidth
	check("Patches", "y", len(y), g.Batch*rows.n*cols.n*depth)
	check("Patches", "x", len(x), g.Batch*g.In*g.Height*g.Width)
	lo, hi := c.Share(g.Batch*rows.n, 1)
	for i := lo; i < hi; i++ {
		image := x[i/rows.n*g.In*g.Height*g.Width:]
		for col := range cols.n {
			to := y[(i*cols.n+col)*depth:][:depth]
			for j := range g.In * g.KernelHeight {
				line := to[j*g.KernelWidth:][:g.KernelWidth]
				row := i%rows.n*rows.stride + rows.first + j%g.KernelHeight*rows.step
				if row < 0 || row >= g.Height {
					clear(line)
				} else {
					pick(line, image[(j/g.KernelHeight*g.Height+row)*g.Width:][:g.Width], col*cols.stride+cols.first, cols.step)
				}
			}
		}
	}
}

// PatchesGrad sets dx, the gradient of [Patches], to the sums of the elements of dy for each pixel
// (col2im).
func PatchesGrad[T Float](c *Context, g Conv, dx, dy []T) {
	rows, cols, depth := g.rows(), g.columns(), g.In*g.KernelHeight*g.KernelWidth
	check("PatchesGrad", "dy", len(dy), g.Batch*rows.n*cols.n*depth)
	check("PatchesGrad", "dx", len(dx), g.Batch*g.In*g.Height*g.Width)
	lo, hi := c.Share(g.Batch, 1)
	clear(dx[lo*g.In*g.Height*g.Width : hi*g.In*g.Height*g.Width])
	for i := lo * rows.n * cols.n; i < hi*rows.n*cols.n; i++ {
		image := dx[i/(rows.n*cols.n)*g.In*g.Height*g.Width:]
		top, left := i/cols.n%rows.n*rows.stride+rows.first, i%cols.n*cols.stride+cols.first
		for j, v := range dy[i*depth:][:depth] {
			row, col := top+j/g.KernelWidth%g.KernelHeight*rows.step, left+j%g.KernelWidth*cols.step
			if row >= 0 && row < g.Height && col >= 0 && col < g.Width {
				image[(j/(g.KernelHeight*g.KernelWidth)*g.Height+row)*g.Width+col] += v
			}
		}
	}
}
