package ops

import (
	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/bf16"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// GELU is op.GELU.
func GELU(x *G.Node) (*G.Node, error) { return gelu.Apply(nil, x) }

var gelu, geluGrad = activation(KindGELU, KindGELUGrad, "x·Φ(x)", 5,
	kernel.GELU, kernel.GELU, kernel.NaiveGELU, vec.GELUErfBFloat16,
	kernel.GELUGrad, kernel.GELUGrad, kernel.NaiveGELUGrad, vec.GELUErfGradBFloat16)

// GELUTanh is op.GELUTanh.
func GELUTanh(x *G.Node) (*G.Node, error) { return geluTanh.Apply(nil, x) }

var geluTanh, geluTanhGrad = activation(KindGELUTanh, KindGELUTanhGrad, "x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))", 9,
	kernel.GELUTanh, kernel.GELUTanh, kernel.NaiveGELUTanh, vec.GELUTanhBFloat16,
	kernel.GELUTanhGrad, kernel.GELUTanhGrad, kernel.NaiveGELUTanhGrad, vec.GELUTanhGradBFloat16)

// SiLU is op.SiLU.
func SiLU(x *G.Node) (*G.Node, error) { return silu.Apply(nil, x) }

var silu, siluGrad = activation(KindSiLU, KindSiLUGrad, "x/(1 + e⁻ˣ)", 4,
	kernel.SiLU, kernel.SiLU, kernel.NaiveSiLU, vec.SiLUBFloat16,
	kernel.SiLUGrad, kernel.SiLUGrad, kernel.NaiveSiLUGrad, vec.SiLUGradBFloat16)

// Tanh is op.Tanh.
func Tanh(x *G.Node) (*G.Node, error) { return tanh.Apply(nil, x) }

var tanh, tanhGrad = activation(KindTanh, KindTanhGrad, "tanh(x)", 2,
	vec.Tanh, vec.Tanh, kernel.NaiveTanh, nil, vec.TanhGrad, vec.TanhGrad, kernel.NaiveTanhGrad, nil)

// Sigmoid is op.Sigmoid.
func Sigmoid(x *G.Node) (*G.Node, error) { return sigmoid.Apply(nil, x) }

var sigmoid, sigmoidGrad = activation(KindSigmoid, KindSigmoidGrad, "1/(1 + e⁻ˣ)", 3,
	vec.Sigmoid, vec.Sigmoid, kernel.NaiveSigmoid, vec.SigmoidBFloat16,
	vec.SigmoidGrad, vec.SigmoidGrad, kernel.NaiveSigmoidGrad, vec.SigmoidGradBFloat16)

// ReLU is op.ReLU.
func ReLU(x *G.Node) (*G.Node, error) { return relu.Apply(nil, x) }

var relu, reluGrad = activation(KindReLU, KindReLUGrad, "max(x, 0)", 1,
	kernel.ReLU, kernel.ReLU, kernel.NaiveReLU, vec.ReLUBFloat16,
	kernel.ReLUGrad, kernel.ReLUGrad, kernel.NaiveReLUGrad, vec.ReLUGradBFloat16)

// activation returns the rows of an element-wise operation with n FLOPs and of its gradient, a
// function of x and dy. The bfloat16 functions may be nil, see [bf16.Unary].
func activation(kind, gradKind exec.Kind, doc string, n int,
	f32 func(y, x []float32), f64, naive func(y, x []float64), f16 func(y, x []half.BFloat16) bool,
	grad32 func(dx, x, dy []float32), grad64, gradNaive func(dx, x, dy []float64), grad16 func(dx, x, dy []half.BFloat16) bool,
) (row, grad *exec.Row) {
	grad = &exec.Row{
		Kind: gradKind, Doc: "dy times the slope of " + string(kind) + " at x", Shapes: "x, dy -> dx [...]",
		Kernels: kernels(runBinary(grad32), runBinary(grad64), runBinary(gradNaive)), FLOPs: exec.Each(2*n + 1), InPlace: true, Split: exec.ByElement,
		BF16: func(f *exec.Frame) error {
			bf16.Binary(grad16, grad32, result[half.BFloat16](f), low(f, 0), low(f, 1), wide(f))
			return nil
		},
		BF16Scratch: exec.ElementScratch,
	}
	return &exec.Row{
		Kind: kind, Doc: doc, Shapes: "x [...] -> y [...]",
		Kernels: kernels(runUnary(f32), runUnary(f64), runUnary(naive)), FLOPs: exec.Each(n), Cheap: true, InPlace: true, Split: exec.ByElement, Diff: 1,
		BF16: func(f *exec.Frame) error {
			bf16.Unary(f16, f32, result[half.BFloat16](f), low(f, 0), wide(f))
			return nil
		},
		BF16Scratch: exec.ElementScratch,
		Grad:        func(o *exec.Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) { return o.Gradient(grad, in[0], dy) },
	}, grad
}

func runUnary[T kernel.Float](run func(y, x []T)) exec.Kernel {
	return func(f *exec.Frame) error { run(result[T](f), arg[T](f, 0)); return nil }
}

func runBinary[T kernel.Float](run func(dx, x, dy []T)) exec.Kernel {
	return func(f *exec.Frame) error { run(result[T](f), arg[T](f, 0), arg[T](f, 1)); return nil }
}

// Softmax is op.Softmax, or op.LogSoftmax.
func Softmax(x *G.Node, log bool) (*G.Node, error) {
	axis := -1
	if x != nil {
		axis = x.Dims() - 1
	}
	return exec.NewSoftmax(x, exec.Softmax{Axis: axis, Log: log})
}

// Factor is the attribute of KindScale.
type Factor struct{ C float64 }

// Scale is op.Scale.
func Scale(x *G.Node, c float64) (*G.Node, error) { return scale.Apply(Factor{c}, x) }

var scale = &exec.Row{
	Kind: KindScale, Attr: Factor{}, Doc: "c·x", Shapes: "x [...] -> y [...]",
	Kernels: exec.Kernels{
		F32: runScale(vec.ScaleTo[float32]), F64: runScale(vec.ScaleTo[float64]),
		Naive: runScale(naiveScale),
	},
	BF16: scaleHalf, BF16Scratch: exec.ElementScratch,
	FLOPs: exec.Each(1), Cheap: true, InPlace: true, Split: exec.ByElement, Diff: 1, Grad: again,
}

func naiveScale(y []float64, c float64, x []float64) {
	for i, v := range x {
		y[i] = c * v
	}
}

func scaleHalf(f *exec.Frame) error {
	c := float32(f.Op.Attrs.(Factor).C)
	bf16.Unary(nil, func(y, x []float32) { vec.ScaleTo(y, c, x) }, result[half.BFloat16](f), low(f, 0), wide(f))
	return nil
}

func runScale[T kernel.Float](run func(y []T, c T, x []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		run(result[T](f), T(f.Op.Attrs.(Factor).C), arg[T](f, 0))
		return nil
	}
}

// again is the gradient of a linear operation that is its own transpose: the same operation on dy.
func again(o *exec.Op, _ G.Nodes, _, dy *G.Node) (G.Nodes, error) { return o.Gradient(o.Row, dy) }

// Dropout is op.Dropout.
func Dropout(x *G.Node, rate float64, stream uint32) (*G.Node, error) {
	return exec.Dropout(x, rate, stream)
}
