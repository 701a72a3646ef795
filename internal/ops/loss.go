package ops

import (
	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/bf16"
)

// Ignore is the attribute of KindCrossEntropy and KindCrossEntropyGrad: the target that does not
// count.
type Ignore struct{ Target int }

// CrossEntropy is op.CrossEntropy.
func CrossEntropy(logits, targets *G.Node, ignore int) (*G.Node, error) {
	return first(crossEntropy.Apply(Ignore{ignore}, logits, targets))
}

var crossEntropy = &exec.Row{
	Kind: KindCrossEntropy, Attr: Ignore{},
	Doc:    "the mean of lse - logits[target] where the target counts; lse = log Σ exp(logits)",
	Shapes: "logits [... n classes], targets int [... n] -> loss f32 [1] | lse f32 [... n]",
	Kernels: kernels(runCrossEntropy(kernel.CrossEntropy[float32]), runCrossEntropy(kernel.CrossEntropy[float64]),
		runCrossEntropy(kernel.NaiveCrossEntropy)),
	FLOPs: exec.Each(4), Diff: 1,
	Scratch: func(o *exec.Op) int { return kernel.CrossEntropyScratch(o.Dim("classes")) },
	BF16:    crossEntropyHalf, BF16Scratch: lossScratch,
	Check: func(o *exec.Op, _ int, v []int) error {
		return kernel.CheckTargets(v, o.Dim("classes"), o.Attrs.(Ignore).Target)
	},
	Grad: func(o *exec.Op, in G.Nodes, packed, dy *G.Node) (G.Nodes, error) {
		return o.Gradient(crossEntropyGrad, in[0], in[1], packed, dy)
	},
}

// lossDims returns the number of rows, the number of classes and the target that does not count.
func lossDims(o *exec.Op) (n, classes, ignore int) {
	return o.Dim("...") * o.Dim("n"), o.Dim("classes"), o.Attrs.(Ignore).Target
}

func lossScratch(o *exec.Op) int { return bf16.CrossEntropyScratch(o.Dim("classes")) }

func crossEntropyHalf(f *exec.Frame) error {
	n, classes, ignore := lossDims(f.Op)
	out := result[float32](f)
	loss, _, err := bf16.CrossEntropy(out[1:], low(f, 0), ints(f, 1), n, classes, ignore, wide(f))
	out[0] = float32(loss)
	return err
}

func runCrossEntropy[T kernel.Float](run func(lse, logits []T, targets []int, n, classes, ignore int,
	scratch []T) (float64, int, error)) exec.Kernel {
	return func(f *exec.Frame) error {
		n, classes, ignore := lossDims(f.Op)
		out := result[T](f)
		loss, _, err := run(out[1:], arg[T](f, 0), ints(f, 1), n, classes, ignore, exec.Data[T](f.Scratch))
		out[0] = T(loss)
		return err
	}
}

var crossEntropyGrad = &exec.Row{
	Kind: KindCrossEntropyGrad, Attr: Ignore{},
	Doc:    "(exp(logits - lse) - onehot(targets))·dloss/count, and 0 where a target does not count",
	Shapes: "logits, targets int, packed f32, dloss f32 -> dlogits [... n classes]", FLOPs: exec.Each(3), InPlace: true,
	Split: exec.ByKernel,
	Kernels: kernels(runCrossEntropyGrad(kernel.CrossEntropyGrad[float32]), runCrossEntropyGrad(kernel.CrossEntropyGrad[float64]),
		runCrossEntropyGrad(kernel.NaiveCrossEntropyGrad)),
	BF16: crossEntropyGradHalf, BF16Scratch: lossScratch,
}

func crossEntropyGradHalf(f *exec.Frame) error {
	n, classes, ignore := lossDims(f.Op)
	targets := ints(f, 1)
	lo, hi := f.Kernel.Share(n, 1)
	from, to := lo*classes, hi*classes
	bf16.CrossEntropyGrad(result[half.BFloat16](f)[from:to], low(f, 0)[from:to], arg[float32](f, 2)[1:][lo:hi], targets[lo:hi],
		hi-lo, classes, ignore, counted(targets, ignore), arg[float32](f, 3)[0], wide(f))
	return nil
}

// counted returns the number of targets that count.
func counted(targets []int, ignore int) (n int) {
	for _, t := range targets {
		if t != ignore {
			n++
		}
	}
	return n
}

func runCrossEntropyGrad[T kernel.Float](run func(d, logits, lse []T, targets []int, n, classes, ignore, counted int,
	dloss T)) exec.Kernel {
	return func(f *exec.Frame) error {
		n, classes, ignore := lossDims(f.Op)
		targets := ints(f, 1)
		lo, hi := f.Kernel.Share(n, 1)
		from, to := lo*classes, hi*classes
		run(result[T](f)[from:to], arg[T](f, 0)[from:to], arg[T](f, 2)[1:][lo:hi], targets[lo:hi], hi-lo, classes, ignore,
			counted(targets, ignore), arg[T](f, 3)[0])
		return nil
	}
}
