package ops

import (
	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/bf16"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Linear is op.Linear.
func Linear(x, w, b *G.Node) (*G.Node, error) {
	if b == nil {
		return linear.Apply(nil, x, w)
	}
	return linear.Apply(nil, x, w, b)
}

var linear = &exec.Row{
	Kind: KindLinear, Doc: "x·weightᵀ + bias", Shapes: "x [... in], weight [out in], bias? [out] -> y [... out]",
	Kernels: kernels(runLinear(kernel.Linear[float32]), runLinear(kernel.Linear[float64]), runLinear(kernel.NaiveLinear)),
	BF16:    runLinear(kernel.Linear[half.BFloat16]),
	FLOPs:   product, Product: linearSizes, Split: exec.ByKernel, Diff: 3, Grad: linearGrads, Merged: map[exec.Kind]*exec.Row{exec.KindAdd: addLinear},
}

func runLinear[T kernel.Element](run func(c *kernel.Context, y, x, w, b []T, n, in, out int)) exec.Kernel {
	return func(f *exec.Frame) error {
		var b []T
		if len(f.In) > 2 {
			b = arg[T](f, 2)
		}
		n, in, out := linearDims(f.Op)
		run(f.Kernel, result[T](f), arg[T](f, 0), arg[T](f, 1), b, n, in, out)
		return nil
	}
}

func linearDims(o *exec.Op) (n, in, out int) { return o.Dim("..."), o.Dim("in"), o.Dim("out") }

// product returns the FLOPs of a product of n rows of in elements with out columns.
func product(o *exec.Op) int {
	n, in, out := linearDims(o)
	return 2 * n * in * out
}

// The sizes of three products of a linear map: of its result, of the gradient with respect to x,
// and of the gradient with respect to the weight.
func linearSizes(o *exec.Op) (rows, cols, depth int)  { n, in, out := linearDims(o); return n, out, in }
func linearXSizes(o *exec.Op) (rows, cols, depth int) { n, in, out := linearDims(o); return n, in, out }
func linearWSizes(o *exec.Op) (rows, cols, depth int) { n, in, out := linearDims(o); return out, in, n }

// linearGrads returns the gradients of the arguments in: x, weight and bias.
func linearGrads(o *exec.Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
	grads, err := o.Gradient(linearGradX, dy, in[1])
	if err != nil {
		return nil, err
	}
	dw, err := o.Gradient(linearGradW, dy, in[0])
	grads = append(grads, dw...)
	if err != nil || len(in) < 3 {
		return grads, err
	}
	db, err := o.Gradient(linearGradB, dy)
	return append(grads, db...), err
}

// AddLinear is op.AddLinear.
func AddLinear(y, x, w *G.Node) (*G.Node, error) { return addLinear.Apply(nil, y, x, w) }

var addLinear = &exec.Row{
	Kind: KindAddLinear, Doc: "y + x·weightᵀ + bias", Shapes: "y [... out], x [... in], weight [out in], bias? [out] -> sum [... out]",
	Kernels: kernels(runAddLinear(kernel.LinearAdd[float32, float32]), runAddLinear(kernel.LinearAdd[float64, float64]),
		runAddLinear(kernel.NaiveLinearAdd)),
	BF16: addLinearHalf, BF16Scratch: addLinearScratch,
	FLOPs: product, Product: linearSizes, InPlace: true, Diff: 4,
	Grad: func(o *exec.Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
		grads, err := linearGrads(o, in[1:], nil, dy)
		return append(G.Nodes{dy}, grads...), err
	},
}

// runAddLinear adds the bias, if there is one, and then the product.
func runAddLinear[T kernel.Float](run func(c *kernel.Context, y, x, w []T, n, in, out int)) exec.Kernel {
	return func(f *exec.Frame) error {
		n, in, out := linearDims(f.Op)
		y := result[T](f)
		copy(y, arg[T](f, 0))
		for i := 0; i < n && len(f.In) > 3; i++ {
			vec.Add(y[i*out:][:out], y[i*out:][:out], arg[T](f, 3))
		}
		run(f.Kernel, y, arg[T](f, 1), arg[T](f, 2), n, in, out)
		return nil
	}
}

// addLinearHalf computes sums with a bias row by row in float32, so that each is rounded once.
func addLinearHalf(f *exec.Frame) error {
	if len(f.In) < 4 {
		return runProduct(kernel.LinearAdd[half.BFloat16, half.BFloat16], 1)(f)
	}
	n, in, out := linearDims(f.Op)
	y, x, w := result[half.BFloat16](f), low(f, 1), low(f, 2)
	row, bias := wide(f)[:out], wide(f)[out:2*out]
	half.Widen(bias, low(f, 3))
	for i := range n {
		half.Widen(row, low(f, 0)[i*out:][:out])
		vec.Add(row, row, bias)
		kernel.LinearAdd(f.Kernel, row, x[i*in:][:in], w, 1, in, out)
		half.Narrow(y[i*out:][:out], row)
	}
	return nil
}

func addLinearScratch(o *exec.Op) int {
	if len(o.In) < 4 {
		return 0
	}
	return 2 * o.Dim("out")
}

// runProduct runs a kernel on the arguments from first on. If first > 0, the product is added to
// argument 0.
func runProduct[T kernel.Element](run func(c *kernel.Context, y, a, b []T, n, in, out int), first int) exec.Kernel {
	return func(f *exec.Frame) error {
		if first > 0 {
			copy(f.Out.Bytes, f.In[0].Bytes)
		}
		n, in, out := linearDims(f.Op)
		run(f.Kernel, result[T](f), arg[T](f, first), arg[T](f, first+1), n, in, out)
		return nil
	}
}

var linearGradX = &exec.Row{
	Kind: KindLinearGradX, Doc: "dy·weight", Shapes: "dy, weight -> dx [... in]", FLOPs: product, Product: linearXSizes,
	Split: exec.ByKernel, Merged: map[exec.Kind]*exec.Row{exec.KindAdd: addLinearGradX, KindGELUTanhGrad: geluLinearGradX},
	Kernels: kernels(runProduct(kernel.LinearGradX[float32], 0), runProduct(kernel.LinearGradX[float64], 0),
		runProduct(kernel.NaiveLinearGradX, 0)),
	BF16: runProduct(kernel.LinearGradX[half.BFloat16], 0),
}

var addLinearGradX = &exec.Row{
	Kind: KindAddLinearGradX, Doc: "y + dy·weight", Shapes: "y, dy, weight -> sum [... in]", FLOPs: product, Product: linearXSizes,
	InPlace: true,
	Kernels: kernels(runProduct(kernel.LinearGradXAdd[float32, float32], 1), runProduct(kernel.LinearGradXAdd[float64, float64], 1),
		runProduct(kernel.NaiveLinearGradXAdd, 1)),
	BF16: runProduct(kernel.LinearGradXAdd[half.BFloat16, half.BFloat16], 1),
}

var geluLinearGradX = &exec.Row{
	Kind: KindGELULinearGradX, Doc: "dy·weight times the slope of gelu tanh at x", Shapes: "x, dy, weight -> dx [... in]",
	FLOPs: product, Product: linearXSizes,
	Kernels: kernels(runGELULinearGradX(kernel.LinearGradX[float32], kernel.GELUTanhGrad[float32]),
		runGELULinearGradX(kernel.LinearGradX[float64], kernel.GELUTanhGrad[float64]),
		runGELULinearGradX(kernel.NaiveLinearGradX, kernel.NaiveGELUTanhGrad)),
	BF16: geluLinearGradXHalf, BF16Scratch: func(o *exec.Op) int { return 2 * o.Dim("in") },
}

func runGELULinearGradX[T kernel.Float](run func(c *kernel.Context, y, a, b []T, n, in, out int), slope func(dx, x, dy []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		n, in, out := linearDims(f.Op)
		y := result[T](f)
		run(f.Kernel, y, arg[T](f, 1), arg[T](f, 2), n, in, out)
		slope(y, arg[T](f, 0), y)
		return nil
	}
}

// geluLinearGradXHalf computes row by row in float32, so that each element is rounded once.
func geluLinearGradXHalf(f *exec.Frame) error {
	n, in, out := linearDims(f.Op)
	y, dy, w := result[half.BFloat16](f), low(f, 1), low(f, 2)
	row, x := wide(f)[:in], wide(f)[in:2*in]
	for i := range n {
		clear(row)
		kernel.LinearGradXAdd(f.Kernel, row, dy[i*out:][:out], w, 1, in, out)
		half.Widen(x, low(f, 0)[i*in:][:in])
		kernel.GELUTanhGrad(row, x, row)
		half.Narrow(y[i*in:][:in], row)
	}
	return nil
}

var linearGradW = &exec.Row{
	Kind: KindLinearGradW, Doc: "dyᵀ·x", Shapes: "dy, x -> dweight f32 [out in]", FLOPs: product, Product: linearWSizes,
	Accumulate: true, Rounds: true, Split: exec.ByKernel,
	Kernels: kernels(exec.Rounding(runLinearGradW(kernel.LinearGradW[float32, float32]), runLinearGradW(kernel.LinearGradW[float32, half.BFloat16])),
		runLinearGradW(kernel.LinearGradW[float64, float64]),
		runLinearGradW(kernel.NaiveLinearGradW)),
	BF16: exec.Rounding(runLinearGradW(kernel.LinearGradW[half.BFloat16, float32]), runLinearGradW(kernel.LinearGradW[half.BFloat16, half.BFloat16])),
}

func runLinearGradW[T, G kernel.Element](run func(c *kernel.Context, dw []G, dy, x []T, n, in, out int,
	acc bool)) exec.Kernel {
	return func(f *exec.Frame) error {
		n, in, out := linearDims(f.Op)
		run(f.Kernel, result[G](f), arg[T](f, 0), arg[T](f, 1), n, in, out, f.Acc)
		return nil
	}
}

var linearGradB = &exec.Row{
	Kind: KindLinearGradB, Doc: "the sum of the rows of dy", Shapes: "dy -> dbias f32 [out]", Accumulate: true,
	Kernels: kernels(runLinearGradB(kernel.LinearGradB[float32]), runLinearGradB(kernel.LinearGradB[float64]),
		runLinearGradB(kernel.NaiveLinearGradB)),
	BF16: linearGradBHalf, BF16Scratch: func(o *exec.Op) int { return bf16.ColumnScratch(o.Dim("out")) },
	FLOPs: exec.Each(1),
}

func linearGradBHalf(f *exec.Frame) error {
	bf16.LinearGradB(result[float32](f), low(f, 0), f.Op.Dim("..."), f.Op.Dim("out"), f.Acc, wide(f))
	return nil
}

func runLinearGradB[T kernel.Float](run func(db, dy []T, n, out int, acc bool)) exec.Kernel {
	return func(f *exec.Frame) error {
		run(result[T](f), arg[T](f, 0), f.Op.Dim("..."), f.Op.Dim("out"), f.Acc)
		return nil
	}
}
