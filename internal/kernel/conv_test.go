package kernel

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawConv draws a geometry with an output, in which rows and columns differ.
func drawConv(t *rapid.T) Conv {
	size := func(name string, most int) int { return rapid.IntRange(1, most).Draw(t, name) }
	pair := func(name string, least, most int) (p [2]int) {
		for i := range p {
			p[i] = rapid.IntRange(least, most).Draw(t, name)
		}
		return p
	}
	groups := rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "groups")
	g := Conv{
		Batch: size("batch", 3), In: groups * size("in", 5), Out: groups * rapid.SampledFrom([]int{1, 2, 5, 33}).Draw(t, "out"),
		KernelHeight: size("kernel height", 4), KernelWidth: size("kernel width", 4), Stride: pair("stride", 1, 3),
		Pad: pair("pad", 0, 5), Dilation: pair("dilation", 1, 3), Groups: groups,
	}
	least := func(kernel, i int) int { return max(1, g.Dilation[i]*(kernel-1)+1-2*g.Pad[i]) }
	g.Height = least(g.KernelHeight, 0) + rapid.IntRange(0, 10).Draw(t, "height")
	g.Width = least(g.KernelWidth, 1) + rapid.IntRange(0, 10).Draw(t, "width")
	return g
}

func TestConv(t *testing.T) {
	lifted, panels, most := liftedElements, panelElements, mostTaps
	t.Cleanup(func() { liftedElements, panelElements, mostTaps = lifted, panels, most })
	for _, n := range []int{lifted, 100} { // the latter for blocks of a row or two
		liftedElements, panelElements, mostTaps = n, 10*n, n
		both(t, checkConvTwin[float32], checkConvTwin[float64])
	}
}

// TestConvByTaps requires the bits of lifted rows where taps are read, as far as the machine has them.
func TestConvByTaps(t *testing.T) {
	t.Cleanup(func() { noTaps = false })
	both(t, checkConvByTaps[float32], checkConvByTaps[float64])
}

func checkConvByTaps[T Float](t *rapid.T) {
	src, g := newSource[T](t), drawConv(t)
	for i, taps := range []*int{&g.KernelHeight, &g.KernelWidth} {
		*taps |= 1 // so that y can be as large as x
		g.Stride[i], g.Pad[i] = 1, *taps/2*g.Dilation[i]
	}
	x, w, dy := src.normal(g.Batch*g.In*g.Height*g.Width), src.normal(g.Out*g.filter()), src.normal(g.Batch*g.Out*g.Height*g.Width)
	var results [2][3][]T
	for i := range results {
		y, dx, dw := garbage[T](len(dy)), garbage[T](len(x)), garbage[T](len(w))
		noTaps = i == 1
		ConvForward(new(Context), g, y, x, w, nil, garbage[T](ConvScratch[T](g)))
		ConvGradX(new(Context), g, dx, dy, w, garbage[T](ConvGradXScratch[T](g)))
		ConvGradW(new(Context), g, dw, dy, x, garbage[T](ConvGradWScratch[T](g)), false)
		results[i] = [3][]T{y, dx, dw}
	}
	for i, name := range []string{"y", "dx", "dw"} {
		requireBits(t, name, results[1][i], results[0][i])
	}
}

func checkConvTwin[T Float](t *rapid.T) {
	src, g, acc := newSource[T](t), drawConv(t), rapid.Bool().Draw(t, "acc")
	area := g.OutHeight() * g.OutWidth()
	x, w, dy := src.normal(g.Batch*g.In*g.Height*g.Width), src.normal(g.Out*g.filter()), src.normal(g.Batch*g.Out*area)
	var bias []T
	if rapid.Bool().Draw(t, "bias") {
		bias = src.normal(g.Out)
	}
	y, dx, dw, db := garbage[T](len(dy)), garbage[T](len(x)), src.result(len(w), acc), src.result(g.Out, acc)
	wantY, wantX, wantW, wantB := wide(y), wide(x), wide(dw), wide(db)
	if bias == nil {
		NaiveConvForward(nil, g, wantY, wide(x), wide(w), nil, nil)
	} else {
		NaiveConvForward(nil, g, wantY, wide(x), wide(w), wide(bias), nil)
	}
	NaiveConvGradX(nil, g, wantX, wide(dy), wide(w), nil)
	NaiveConvGradW(nil, g, wantW, wide(dy), wide(x), nil, acc)
	NaiveConvGradB(nil, wantB, wide(dy), g.Batch, area, acc)
	parts := rapid.IntRange(1, 4).Draw(t, "parts")
	oldW, oldB := clone(dw), clone(db)
	run := func(parts int, y, dx, dw, db []T) {
		for i := range parts {
			c := Context{part: i, parts: parts}
			ConvForward(&c, g, y, x, w, bias, garbage[T](ConvScratch[T](g)))
			ConvGradX(&c, g, dx, dy, w, garbage[T](ConvGradXScratch[T](g)))
			ConvGradW(&c, g, dw, dy, x, garbage[T](ConvGradWScratch[T](g)), acc)
			ConvGradB(&c, db, dy, g.Batch, area, acc)
		}
	}
	run(parts, y, dx, dw, db)
	requireClose(t, "y", wantY, y)
	requireClose(t, "dx", wantX, dx)
	requireClose(t, "dw", wantW, dw)
	requireClose(t, "db", wantB, db)
	y2, dx2 := garbage[T](len(y)), garbage[T](len(dx))
	run(1, y2, dx2, oldW, oldB)
	requireBits(t, "y of one part", y2, y)
	requireBits(t, "dx of one part", dx2, dx)
	requireBits(t, "dw of one part", oldW, dw)
	requireBits(t, "db of one part", oldB, db)
}

func TestPatches(t *testing.T) { both(t, checkPatchesTwin[float32], checkPatchesTwin[float64]) }

func checkPatchesTwin[T Float](t *rapid.T) {
	src, g, parts := newSource[T](t), drawConv(t), rapid.IntRange(1, 3).Draw(t, "parts")
	x := src.normal(g.Batch * g.In * g.Height * g.Width)
	dy := src.normal(g.Batch * g.OutHeight() * g.OutWidth() * g.In * g.KernelHeight * g.KernelWidth)
	y, dx := garbage[T](len(dy)), garbage[T](len(x))
	for i := range parts {
		Patches(&Context{part: i, parts: parts}, g, y, x)
		PatchesGrad(&Context{part: i, parts: parts}, g, dx, dy)
	}
	wantY, wantX := wide(y), wide(dx)
	NaivePatches(nil, g, wantY, wide(x))
	NaivePatchesGrad(nil, g, wantX, wide(dy))
	requireClose(t, "y", wantY, y)
	requireClose(t, "dx", wantX, dx)
}

// TestConvScratch keeps scratch within what a few rows take, whatever the image.
func TestConvScratch(t *testing.T) {
	g := Conv{Batch: 64, In: 64, Height: 224, Width: 224, Out: 64, KernelHeight: 3, KernelWidth: 3,
		Stride: [2]int{1, 1}, Pad: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1}
	row := 3 * 64 * 3 * 224 // a row of the output is above three, each of which is lifted three times
	require.LessOrEqual(t, ConvScratch[float32](g), row+panelElements)
	require.LessOrEqual(t, ConvGradXScratch[float32](g), row+panelElements+64*64*9)
	require.LessOrEqual(t, ConvGradWScratch[float32](g), row+64*224+64*64*9+fewChannels*9*224)
}

func TestConvMisuse(t *testing.T) {
	require.PanicsWithValue(t, "kernel: ConvForward: len(w) is 1, want 2", func() {
		g := Conv{Batch: 1, In: 2, Height: 1, Width: 1, Out: 1, KernelHeight: 1, KernelWidth: 1,
			Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1}
		ConvForward(new(Context), g, make([]float32, 1), make([]float32, 2), make([]float32, 1), nil, nil)
	})
}

// BenchmarkConv is the block of a residual net.
func BenchmarkConv(b *testing.B) {
	g := Conv{Batch: 4, In: 64, Height: 32, Width: 32, Out: 64, KernelHeight: 3, KernelWidth: 3,
		Stride: [2]int{1, 1}, Pad: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1}
	x, w, scratch := make([]float32, 4*64*32*32), make([]float32, 64*64*9), make([]float32, ConvScratch[float32](g)+ConvGradXScratch[float32](g)+ConvGradWScratch[float32](g))
	y, dw := make([]float32, len(x)), make([]float32, len(w))
	for i := range x {
		x[i] = float32(i%7) - 3
	}
	for i := range w {
		w[i] = float32(i%5) - 2
	}
	c := new(Context)
	for name, f := range map[string]func(){
		"forward": func() { ConvForward(c, g, y, x, w, nil, scratch) },
		"dx":      func() { ConvGradX(c, g, y, x, w, scratch) },
		"dw":      func() { ConvGradW(c, g, dw, x, x, scratch, false) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				f()
			}
			b.ReportMetric(float64(g.FLOPs())*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}
