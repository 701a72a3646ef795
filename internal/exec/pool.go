package exec

import (
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/kernel"
)

// Pool is the attribute of pooling and of its gradients: pairs of rows and columns.
type Pool struct{ Kernel, Stride, Pad [2]int }

// MaxPool returns the largest element of each window of the planes of x [B, C, H, W]: [B, C, P, Q]
// with P = (H + 2·pad - kernel)/stride + 1 rows, and columns likewise.
func MaxPool(x *G.Node, p Pool) (*G.Node, error) { return maxPoolRow.Apply(p, x) }

// AvgPool returns the means of the windows. Padding counts as zeros.
func AvgPool(x *G.Node, p Pool) (*G.Node, error) { return avgPoolRow.Apply(p, x) }

var maxPoolRow = &Row{
	Kind: KindMaxPool, Attr: Pool{}, Doc: "the largest element of each window, NaN where there is one", Shapes: "x [B C H W] -> y [B C P Q]", Fit: fitPool,
	Kernels: Kernels{pool(kernel.MaxPool[float32]), pool(kernel.MaxPool[float64]), pool(kernel.NaiveMaxPool)},
	FLOPs:   poolFLOPs, Split: ByKernel, Cheap: true, Diff: 1,
	Grad: func(o *Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) { return o.Gradient(maxPoolGradRow, in[0], dy) },
}

var maxPoolGradRow = &Row{
	Kind: KindMaxPoolGrad, Attr: Pool{}, Doc: "dy at the largest element of each window, the first of those that are equal", Shapes: "x, dy -> dx [B C H W]",
	Kernels: Kernels{maxPoolGrad(kernel.MaxPoolGrad[float32]), maxPoolGrad(kernel.MaxPoolGrad[float64]), maxPoolGrad(kernel.NaiveMaxPoolGrad)},
	FLOPs:   poolFLOPs, Split: ByKernel,
}

var avgPoolRow = &Row{
	Kind: KindAvgPool, Attr: Pool{}, Doc: "the mean of each window, padding included", Shapes: "x [B C H W] -> y [B C P Q]", Fit: fitPool,
	Kernels: Kernels{pool(kernel.AvgPool[float32]), pool(kernel.AvgPool[float64]), pool(kernel.NaiveAvgPool)},
	FLOPs:   poolFLOPs, Split: ByKernel, Cheap: true, Diff: 1,
	Grad: func(o *Op, _ G.Nodes, _, dy *G.Node) (G.Nodes, error) { return o.Gradient(avgPoolGradRow, dy) },
}

var avgPoolGradRow = &Row{
	Kind: KindAvgPoolGrad, Attr: Pool{}, Doc: "the sum of dy over the windows that an element is in, divided by their size", Shapes: "dy -> dx [B C H W]",
	Kernels: Kernels{pool(kernel.AvgPoolGrad[float32]), pool(kernel.AvgPoolGrad[float64]), pool(kernel.NaiveAvgPoolGrad)},
	FLOPs:   poolFLOPs, Split: ByKernel,
}

func poolOf(o *Op) kernel.Pool {
	a := o.Attrs.(Pool)
	return kernel.Pool{Height: o.Dim("H"), Width: o.Dim("W"), Kernel: a.Kernel, Stride: a.Stride, Pad: a.Pad}
}

// fitPool sets the size of the result.
func fitPool(o *Op) error {
	a := o.Attrs.(Pool)
	if min(a.Kernel[0], a.Kernel[1], a.Stride[0], a.Stride[1]) < 1 || min(a.Pad[0], a.Pad[1]) < 0 || 2*a.Pad[0] > a.Kernel[0] || 2*a.Pad[1] > a.Kernel[1] {
		return fmt.Errorf("kernel %v and stride %v must be positive, and pad %v at most half of the kernel", a.Kernel, a.Stride, a.Pad)
	}
	p := poolOf(o)
	o.SetDim("P", p.OutHeight())
	o.SetDim("Q", p.OutWidth())
	if min(p.OutHeight(), p.OutWidth()) < 1 {
		return fmt.Errorf("kernel %v is larger than x %v with pad %v", a.Kernel, o.In[0], a.Pad)
	}
	return nil
}

func poolFLOPs(o *Op) int {
	a := o.Attrs.(Pool)
	return o.Dim("B") * o.Dim("C") * o.Dim("P") * o.Dim("Q") * a.Kernel[0] * a.Kernel[1]
}

func pool[T kernel.Float](run func(c *kernel.Context, p kernel.Pool, y, x []T)) Kernel {
	return func(f *Frame) error {
		run(f.Kernel, poolOf(f.Op), Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes))
		return nil
	}
}

func maxPoolGrad[T kernel.Float](run func(c *kernel.Context, p kernel.Pool, dx, x, dy []T)) Kernel {
	return func(f *Frame) error {
		run(f.Kernel, poolOf(f.Op), Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes), Data[T](f.In[1].Bytes))
		return nil
	}
}
