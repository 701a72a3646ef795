package ops

import (
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// Conv2D is op.Conv2D.
func Conv2D(x, w, b *G.Node, c exec.Conv) (*G.Node, error) { return exec.Convolution(x, w, b, c) }

// MaxPool2D is op.MaxPool2D.
func MaxPool2D(x *G.Node, p exec.Pool) (*G.Node, error) { return exec.MaxPool(x, p) }

// AvgPool2D is op.AvgPool2D.
func AvgPool2D(x *G.Node, p exec.Pool) (*G.Node, error) { return exec.AvgPool(x, p) }

// imageDims returns the batch size, the number of channels, and the number of elements of a
// channel.
func imageDims(o *exec.Op) (n, channels, area int) { return o.Dim("B"), o.Dim("C"), o.Dim("...") }

func channelScratch(o *exec.Op) int { return kernel.ChannelScratch(o.Dim("C"), o.Dim("...")) }

// scratch returns the scratch memory of a kernel for one type.
func scratch[T kernel.Float](f *exec.Frame) []T { return exec.Data[T](f.Scratch) }

// Groups is the attribute of KindGroupNorm and of its gradient.
type Groups struct {
	N   int
	Eps float64
}

// GroupNorm is op.GroupNorm.
func GroupNorm(x, gain, bias *G.Node, groups int, eps float64) (*G.Node, error) {
	return first(groupNorm.Apply(Groups{groups, eps}, x, gain, bias))
}

var groupNorm = &exec.Row{
	Kind: KindGroupNorm, Attr: Groups{}, Doc: "(x - mean)·rstd·gain + bias, and mean and rstd = 1/√(variance + eps) of each group of channels",
	Shapes: "x [B C ...], gain f32 [C], bias f32 [C] -> y [B C ...] | statistics f32 [B groups 2]",
	Fit: func(o *exec.Op) error {
		groups := o.Attrs.(Groups).N
		if groups < 1 || o.Dim("C")%groups != 0 {
			return fmt.Errorf("x is %v, want [B C ...] with C a multiple of %d groups", o.In[0], groups)
		}
		o.SetDim("groups", groups)
		return nil
	},
	Kernels: kernels(runGroupNorm(kernel.GroupNorm[float32]), runGroupNorm(kernel.GroupNorm[float64]), runGroupNorm(kernel.NaiveGroupNorm)),
	FLOPs:   exec.Each(8), Cheap: true, Split: exec.ByKernel, Diff: 3,
	Grad: func(o *exec.Op, in G.Nodes, packed, dy *G.Node) (G.Nodes, error) {
		return o.Gradient(groupNormGrad, in[0], in[1], packed, dy)
	},
}

func runGroupNorm[T kernel.Float](run func(c *kernel.Context, y, stats, x, gain, bias []T, n, channels, area, groups int,
	eps float64)) exec.Kernel {
	return func(f *exec.Frame) error {
		n, d, area := imageDims(f.Op)
		out, a := result[T](f), f.Op.Attrs.(Groups)
		run(f.Kernel, out[:n*d*area], out[n*d*area:], arg[T](f, 0), arg[T](f, 1), arg[T](f, 2), n, d, area, a.N, a.Eps)
		return nil
	}
}

var groupNormGrad = &exec.Row{
	Kind: KindGroupNormGrad, Attr: Groups{}, Doc: "the gradients of group norm",
	Shapes: "x, gain f32, packed, dy -> dx [B C ...] | dgain f32 [C] | dbias f32 [C]",
	Kernels: kernels(runGroupNormGrad(kernel.GroupNormGrad[float32]), runGroupNormGrad(kernel.GroupNormGrad[float64]),
		runGroupNormGrad(kernel.NaiveGroupNormGrad)),
	FLOPs: exec.Each(14),
}

func runGroupNormGrad[T kernel.Float](run func(dx, dgain, dbias, x, gain, stats, dy []T, n, channels, area, groups int)) exec.Kernel {
	return func(f *exec.Frame) error {
		n, d, area := imageDims(f.Op)
		out, nd := result[T](f), n*d*area
		run(out[:nd], out[nd:nd+d], out[nd+d:], arg[T](f, 0), arg[T](f, 1), arg[T](f, 2)[nd:], arg[T](f, 3), n, d, area,
			f.Op.Attrs.(Groups).N)
		return nil
	}
}
