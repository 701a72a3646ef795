package exec

import (
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/kernel"
)

// These are the kinds of operations on images, and dropout.
const (
	KindConv        Kind = "convolution"
	KindConvGradX   Kind = "convolution dx"
	KindConvGradW   Kind = "convolution dw"
	KindConvGradB   Kind = "convolution db"
	KindMaxPool     Kind = "max pool"
	KindMaxPoolGrad Kind = "max pool grad"
	KindAvgPool     Kind = "avg pool"
	KindAvgPoolGrad Kind = "avg pool grad"
	KindPatches     Kind = "patches"
	KindPatchesGrad Kind = "patches grad"
	KindDropout     Kind = "dropout"
)

func imageRows() []*Row {
	return []*Row{convRow, convGradXRow, convGradWRow, convGradBRow, patchesRow, patchesGradRow,
		maxPoolRow, maxPoolGradRow, avgPoolRow, avgPoolGradRow, dropoutRow}
}

// Conv is the attribute of KindConv and of its gradients: pairs of rows and columns, and the groups
// of channels.
type Conv struct {
	Stride, Pad, Dilation [2]int
	Groups                int
}

// Convolution returns the convolution of x [B, C, H, W] with w [O, C/groups, K, L] plus b [O], unless
// that is nil: [B, O, P, Q] with P = (H + 2·pad - dilation·(K-1) - 1)/stride + 1 rows, and columns
// likewise.
func Convolution(x, w, b *G.Node, c Conv) (*G.Node, error) {
	if b == nil {
		return convRow.Apply(c, x, w)
	}
	return convRow.Apply(c, x, w, b)
}

var convRow = &Row{
	Kind: KindConv, Attr: Conv{}, Doc: "the sum of w·x over the channels of a group and the places of the kernel, plus bias",
	Shapes: "x [B C H W], w [O I K L], bias? [O] -> y [B O P Q]", Fit: fitConv,
	Kernels: Kernels{conv(kernel.ConvForward[float32]), conv(kernel.ConvForward[float64]), conv(kernel.NaiveConvForward)},
	FLOPs:   convFLOPs, Product: convSizes, Split: ByKernel, Diff: 3, Grad: convGrads,
	Scratch: convScratch(kernel.ConvScratch[float32], kernel.ConvScratch[float64]),
}

// fitConv compares channels, and sets the size of the result.
func fitConv(o *Op) error {
	a := o.Attrs.(Conv)
	if min(a.Stride[0], a.Stride[1], a.Dilation[0], a.Dilation[1], a.Groups) < 1 || min(a.Pad[0], a.Pad[1]) < 0 {
		return fmt.Errorf("stride %v, dilation %v and groups %d must be positive, and pad %v not negative", a.Stride, a.Dilation, a.Groups, a.Pad)
	}
	g := geometry(o)
	if g.In != o.Dim("I")*a.Groups || g.Out%a.Groups != 0 {
		return fmt.Errorf("w is %v, want [O %v/%d K L] for x %v, with O a multiple of %d groups", o.In[1], g.In, a.Groups, o.In[0], a.Groups)
	}
	o.SetDim("P", g.OutHeight())
	o.SetDim("Q", g.OutWidth())
	if min(g.OutHeight(), g.OutWidth()) < 1 {
		return fmt.Errorf("w is %v: the kernel is larger than x %v with pad %v", o.In[1], o.In[0], a.Pad)
	}
	return nil
}

// geometry returns the geometry of a convolution.
func geometry(o *Op) kernel.Conv {
	a := o.Attrs.(Conv)
	return kernel.Conv{
		Batch: o.Dim("B"), In: o.Dim("C"), Height: o.Dim("H"), Width: o.Dim("W"), Out: o.Dim("O"), KernelHeight: o.Dim("K"),
		KernelWidth: o.Dim("L"), Stride: a.Stride, Pad: a.Pad, Dilation: a.Dilation, Groups: a.Groups,
	}
}

// convScratch returns the scratch elements needed for either type.
func convScratch(f32, f64 func(kernel.Conv) int) func(*Op) int {
	return func(o *Op) int { return max(f32(geometry(o)), f64(geometry(o))) }
}

func convFLOPs(o *Op) int { return geometry(o).FLOPs() }

// convSizes returns the sizes of the product of patches and filters in one group.
func convSizes(o *Op) (rows, cols, depth int) {
	g := geometry(o)
	return g.Batch * g.OutHeight() * g.OutWidth(), g.Out / g.Groups, g.In / g.Groups * g.KernelHeight * g.KernelWidth
}

func conv[T kernel.Float](run func(c *kernel.Context, g kernel.Conv, y, x, w, bias, scratch []T)) Kernel {
	return func(f *Frame) error {
		var bias []T
		if len(f.In) > 2 {
			bias = Data[T](f.In[2].Bytes)
		}
		run(f.Kernel, geometry(f.Op), Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes), Data[T](f.In[1].Bytes), bias, Data[T](f.Scratch))
		return nil
	}
}

func convGrads(o *Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
	grads, err := o.Gradient(convGradXRow, dy, in[1])
	if err != nil {
		return nil, err
	}
	dw, err := o.Gradient(convGradWRow, dy, in[0])
	grads = append(grads, dw...)
	if err != nil || len(in) < 3 {
		return grads, err
	}
	db, err := o.Gradient(convGradBRow, dy)
	return append(grads, db...), err
}

var convGradXRow = &Row{
	Kind: KindConvGradX, Attr: Conv{}, Doc: "the gradient of a convolution with respect to x", Shapes: "dy, w -> dx [B C H W]",
	Kernels: Kernels{convGradX(kernel.ConvGradX[float32]), convGradX(kernel.ConvGradX[float64]), convGradX(kernel.NaiveConvGradX)},
	FLOPs:   convFLOPs, Product: convSizes, Split: ByKernel, Scratch: convScratch(kernel.ConvGradXScratch[float32], kernel.ConvGradXScratch[float64]),
}

func convGradX[T kernel.Float](run func(c *kernel.Context, g kernel.Conv, dx, dy, w, scratch []T)) Kernel {
	return func(f *Frame) error {
		run(f.Kernel, geometry(f.Op), Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes), Data[T](f.In[1].Bytes), Data[T](f.Scratch))
		return nil
	}
}

var convGradWRow = &Row{
	Kind: KindConvGradW, Attr: Conv{}, Doc: "the gradient of a convolution with respect to w", Shapes: "dy, x -> dw f32 [O I K L]",
	Kernels: Kernels{convGradW(kernel.ConvGradW[float32]), convGradW(kernel.ConvGradW[float64]), convGradW(kernel.NaiveConvGradW)},
	FLOPs:   convFLOPs, Product: convSizes, Split: ByKernel, Accumulate: true, Scratch: convScratch(kernel.ConvGradWScratch[float32], kernel.ConvGradWScratch[float64]),
}

func convGradW[T kernel.Float](run func(c *kernel.Context, g kernel.Conv, dw, dy, x, scratch []T, acc bool)) Kernel {
	return func(f *Frame) error {
		run(f.Kernel, geometry(f.Op), Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes), Data[T](f.In[1].Bytes), Data[T](f.Scratch), f.Acc)
		return nil
	}
}

var convGradBRow = &Row{
	Kind: KindConvGradB, Attr: Conv{}, Doc: "the sum of dy over all but the channels", Shapes: "dy -> dbias f32 [O]",
	Kernels: Kernels{convGradB(kernel.ConvGradB[float32]), convGradB(kernel.ConvGradB[float64]), convGradB(kernel.NaiveConvGradB)},
	FLOPs:   Each(1), Split: ByKernel, Accumulate: true,
}

func convGradB[T kernel.Float](run func(c *kernel.Context, db, dy []T, n, area int, acc bool)) Kernel {
	return func(f *Frame) error {
		run(f.Kernel, Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes), f.Op.Dim("B"), f.Op.Dim("P")*f.Op.Dim("Q"), f.Acc)
		return nil
	}
}
