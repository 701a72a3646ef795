package ops

import (
	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/bf16"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Norm is the attribute of the layer, rms and batch norm and of their gradients.
type Norm struct{ Eps float64 }

// LayerNorm is op.LayerNorm.
func LayerNorm(x, gain, bias *G.Node, eps float64) (*G.Node, error) {
	return first(layerNorm.Apply(Norm{eps}, x, gain, bias))
}

var layerNorm = &exec.Row{
	Kind: KindLayerNorm, Attr: Norm{}, Doc: "(x - mean)·rstd·gain + bias, and mean and rstd = 1/√(variance + eps) of each row",
	Shapes: "x [... d], gain f32 [d], bias f32 [d] -> y [... d] | statistics f32 [... 2]",
	Kernels: kernels(runLayerNorm(kernel.LayerNorm[float32]), runLayerNorm(kernel.LayerNorm[float64]),
		runLayerNorm(kernel.NaiveLayerNorm)),
	BF16: layerNormHalf, BF16Scratch: normScratch,
	FLOPs: exec.Each(8), Cheap: true, Split: exec.ByKernel, Diff: 3,
	Grad: func(o *exec.Op, in G.Nodes, packed, dy *G.Node) (G.Nodes, error) {
		return o.Gradient(layerNormGrad, in[0], in[1], packed, dy)
	},
}

// normDims returns the number of rows and their length.
func normDims(o *exec.Op) (n, d int) { return o.Dim("..."), o.Dim("d") }

func normScratch(o *exec.Op) int { return bf16.NormScratch(o.Dim("d")) }

func layerNormHalf(f *exec.Frame) error {
	n, d := normDims(f.Op)
	y, stats := f.Out.Parts()
	lo, hi := f.Kernel.Share(n, 1)
	bf16.LayerNorm(y[lo*d:hi*d], stats[2*lo:2*hi], low(f, 0)[lo*d:hi*d], arg[float32](f, 1), arg[float32](f, 2), hi-lo, d,
		f.Op.Attrs.(Norm).Eps, wide(f))
	return nil
}

func runLayerNorm[T kernel.Float](run func(y, stats, x, gain, bias []T, n, d int, eps float64)) exec.Kernel {
	return func(f *exec.Frame) error {
		n, d := normDims(f.Op)
		out := result[T](f)
		lo, hi := f.Kernel.Share(n, 1)
		run(out[lo*d:hi*d], out[n*d:][2*lo:2*hi], arg[T](f, 0)[lo*d:hi*d], arg[T](f, 1), arg[T](f, 2), hi-lo, d, f.Op.Attrs.(Norm).Eps)
		return nil
	}
}

var layerNormGrad = &exec.Row{
	Kind: KindLayerNormGrad, Attr: Norm{}, Doc: "the gradients of layer norm",
	Shapes: "x, gain f32, packed, dy -> dx [... d] | dgain f32 [d] | dbias f32 [d]",
	Kernels: kernels(runLayerNormGrad(kernel.LayerNormGrad[float32]), runLayerNormGrad(kernel.LayerNormGrad[float64]),
		runLayerNormGrad(kernel.NaiveLayerNormGrad)),
	BF16: layerNormGradHalf, BF16Scratch: normScratch,
	FLOPs: exec.Each(14), Merged: map[exec.Kind]*exec.Row{exec.KindAdd: addLayerNormGrad},
}

var addLayerNormGrad = &exec.Row{
	Kind: KindAddLayerNormGrad, Attr: Norm{}, Doc: "the gradients of layer norm, with y added to dx",
	Shapes: "y, x, gain f32, packed, dy -> dx [... d] | dgain f32 [d] | dbias f32 [d]",
	Kernels: kernels(addingY[float32](runLayerNormGrad(kernel.LayerNormGrad[float32])), addingY[float64](runLayerNormGrad(kernel.LayerNormGrad[float64])),
		addingY[float64](runLayerNormGrad(kernel.NaiveLayerNormGrad))),
	BF16: addingYHalf(layerNormGradHalf), BF16Scratch: addingScratch,
	FLOPs: exec.Each(15),
}

// addingY returns a kernel of gradients that adds its first argument, y, to dx.
func addingY[T kernel.Float](run exec.Kernel) exec.Kernel {
	return func(f *exec.Frame) error {
		rest := *f
		rest.In = f.In[1:]
		if err := run(&rest); err != nil {
			return err
		}
		y := arg[T](f, 0)
		vec.Add(result[T](f)[:len(y)], result[T](f)[:len(y)], y)
		return nil
	}
}

// addingYHalf is addingY for bfloat16. dx is rounded before y is added.
func addingYHalf(run exec.Kernel) exec.Kernel {
	return func(f *exec.Frame) error {
		rest := *f
		rest.In, rest.Scratch = f.In[1:], f.Scratch[:4*normScratch(f.Op)]
		if err := run(&rest); err != nil {
			return err
		}
		dx, _ := f.Out.Parts()
		bf16.Add(dx, dx, low(f, 0), wide(f))
		return nil
	}
}

func addingScratch(o *exec.Op) int { return max(normScratch(o), exec.ElementScratch(o)) }

func layerNormGradHalf(f *exec.Frame) error {
	n, d := normDims(f.Op)
	dx, rest := f.Out.Parts()
	_, stats := f.In[2].Parts()
	bf16.LayerNormGrad(dx, rest[:d], rest[d:], low(f, 0), arg[float32](f, 1), stats, low(f, 3), n, d, wide(f))
	return nil
}

func runLayerNormGrad[T kernel.Float](run func(dx, dgain, dbias, x, gain, stats, dy []T, n, d int)) exec.Kernel {
	return func(f *exec.Frame) error {
		n, d := normDims(f.Op)
		out, stats, nd := result[T](f), arg[T](f, 2)[n*d:], n*d
		run(out[:nd], out[nd:nd+d], out[nd+d:], arg[T](f, 0), arg[T](f, 1), stats, arg[T](f, 3), n, d)
		return nil
	}
}

// RMSNorm is op.RMSNorm.
func RMSNorm(x, gain *G.Node, eps float64) (*G.Node, error) {
	return first(rmsNorm.Apply(Norm{eps}, x, gain))
}

var rmsNorm = &exec.Row{
	Kind: KindRMSNorm, Attr: Norm{}, Doc: "x·rstd·gain, and rstd = 1/√(mean(x²) + eps) of each row",
	Shapes: "x [... d], gain f32 [d] -> y [... d] | rstd f32 [...]",
	Kernels: kernels(runRMSNorm(kernel.RMSNorm[float32]), runRMSNorm(kernel.RMSNorm[float64]),
		runRMSNorm(kernel.NaiveRMSNorm)),
	BF16: rmsNormHalf, BF16Scratch: normScratch,
	FLOPs: exec.Each(4), Cheap: true, Split: exec.ByKernel, Diff: 2,
	Grad: func(o *exec.Op, in G.Nodes, packed, dy *G.Node) (G.Nodes, error) {
		return o.Gradient(rmsNormGrad, in[0], in[1], packed, dy)
	},
}

func rmsNormHalf(f *exec.Frame) error {
	n, d := normDims(f.Op)
	y, rstd := f.Out.Parts()
	lo, hi := f.Kernel.Share(n, 1)
	bf16.RMSNorm(y[lo*d:hi*d], rstd[lo:hi], low(f, 0)[lo*d:hi*d], arg[float32](f, 1), hi-lo, d, f.Op.Attrs.(Norm).Eps, wide(f))
	return nil
}

func runRMSNorm[T kernel.Float](run func(y, rstd, x, gain []T, n, d int, eps float64)) exec.Kernel {
	return func(f *exec.Frame) error {
		n, d := normDims(f.Op)
		out := result[T](f)
		lo, hi := f.Kernel.Share(n, 1)
		run(out[lo*d:hi*d], out[n*d:][lo:hi], arg[T](f, 0)[lo*d:hi*d], arg[T](f, 1), hi-lo, d, f.Op.Attrs.(Norm).Eps)
		return nil
	}
}

var rmsNormGrad = &exec.Row{
	Kind: KindRMSNormGrad, Attr: Norm{}, Doc: "the gradients of rms norm", Shapes: "x, gain f32, packed, dy -> dx [... d] | dgain f32 [d]",
	Kernels: kernels(runRMSNormGrad(kernel.RMSNormGrad[float32]), runRMSNormGrad(kernel.RMSNormGrad[float64]),
		runRMSNormGrad(kernel.NaiveRMSNormGrad)),
	BF16: rmsNormGradHalf, BF16Scratch: normScratch,
	FLOPs: exec.Each(10), Merged: map[exec.Kind]*exec.Row{exec.KindAdd: addRMSNormGrad},
}

var addRMSNormGrad = &exec.Row{
	Kind: KindAddRMSNormGrad, Attr: Norm{}, Doc: "the gradients of rms norm, with y added to dx", Shapes: "y, x, gain f32, packed, dy -> dx [... d] | dgain f32 [d]",
	Kernels: kernels(addingY[float32](runRMSNormGrad(kernel.RMSNormGrad[float32])), addingY[float64](runRMSNormGrad(kernel.RMSNormGrad[float64])),
		addingY[float64](runRMSNormGrad(kernel.NaiveRMSNormGrad))),
	BF16: addingYHalf(rmsNormGradHalf), BF16Scratch: addingScratch,
	FLOPs: exec.Each(11),
}

func rmsNormGradHalf(f *exec.Frame) error {
	n, d := normDims(f.Op)
	dx, dgain := f.Out.Parts()
	_, rstd := f.In[2].Parts()
	bf16.RMSNormGrad(dx, dgain, low(f, 0), arg[float32](f, 1), rstd, low(f, 3), n, d, wide(f))
	return nil
}

func runRMSNormGrad[T kernel.Float](run func(dx, dgain, x, gain, rstd, dy []T, n, d int)) exec.Kernel {
	return func(f *exec.Frame) error {
		n, d := normDims(f.Op)
		out := result[T](f)
		run(out[:n*d], out[n*d:], arg[T](f, 0), arg[T](f, 1), arg[T](f, 2)[n*d:], arg[T](f, 3), n, d)
		return nil
	}
}
