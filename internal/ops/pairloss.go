package ops

import (
	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// MSE is op.MSE, or op.WeightedMSE.
func MSE(y, target, weight *G.Node) (*G.Node, error) { return squares.apply(y, target, weight) }

var squares = pairLoss(KindMSE, KindMSEGrad, "the mean of (y - target)²", 3,
	kernel.MeanSquares, kernel.MeanSquares, kernel.NaiveMeanSquares,
	kernel.MeanSquaresGrad, kernel.MeanSquaresGrad, kernel.NaiveMeanSquaresGrad)

// BCE is op.BCE, or op.WeightedBCE.
func BCE(logits, target, weight *G.Node) (*G.Node, error) {
	return binary.apply(logits, target, weight)
}

var binary = pairLoss(KindBCE, KindBCEGrad, "the mean of log(1 + eˣ) - target·x", 6,
	kernel.MeanBinary, kernel.MeanBinary, kernel.NaiveMeanBinary,
	kernel.MeanBinaryGrad, kernel.MeanBinaryGrad, kernel.NaiveMeanBinaryGrad)

// A lossOfPairs is a loss and its gradient.
type lossOfPairs struct{ loss, grad *exec.Row }

func (l lossOfPairs) apply(x, target, weight *G.Node) (*G.Node, error) {
	if weight == nil {
		return l.loss.Apply(nil, x, target)
	}
	return l.loss.Apply(nil, x, target, weight)
}

// pairLoss returns the rows of a mean over pairs of elements, of n FLOPs each, and of its gradient.
func pairLoss(kind, gradKind exec.Kind, doc string, n int, f32 func(x, t, w, scratch []float32) float32, f64, naive func(x, t, w, scratch []float64) float64,
	grad32 func(dx, x, t, w []float32, dloss float32), grad64, gradNaive func(dx, x, t, w []float64, dloss float64)) lossOfPairs {
	grad := &exec.Row{
		Kind: gradKind, Doc: "the gradient of " + string(kind), Shapes: "x, target, dloss f32, weight? -> dx [...]",
		Kernels: kernels(runPairLossGrad(grad32), runPairLossGrad(grad64), runPairLossGrad(gradNaive)), FLOPs: exec.Each(n + 1), InPlace: true,
	}
	return lossOfPairs{&exec.Row{
		Kind: kind, Doc: doc + ", weighted", Shapes: "x [...], target [...], weight? [...] -> loss f32 [1]",
		Kernels: kernels(runPairLoss(f32), runPairLoss(f64), runPairLoss(naive)), FLOPs: exec.Each(n), Diff: 1,
		Scratch: func(o *exec.Op) int { return kernel.PairLossScratch(exec.Numel(o.In[0])) },
		Grad: func(o *exec.Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
			return o.Gradient(grad, append(G.Nodes{in[0], in[1], dy}, in[2:]...)...)
		},
	}, grad}
}

func runPairLoss[T kernel.Float](run func(x, t, w, scratch []T) T) exec.Kernel {
	return func(f *exec.Frame) error {
		result[T](f)[0] = run(arg[T](f, 0), arg[T](f, 1), optional[T](f, 2), exec.Data[T](f.Scratch))
		return nil
	}
}

func runPairLossGrad[T kernel.Float](run func(dx, x, t, w []T, dloss T)) exec.Kernel {
	return func(f *exec.Frame) error {
		run(result[T](f), arg[T](f, 0), arg[T](f, 1), optional[T](f, 3), arg[T](f, 2)[0])
		return nil
	}
}
