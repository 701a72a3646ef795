package ops

import (
	"fmt"

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
	kernel.GELU, kernel.GELU, kernel.NaiveGELU, kernel.GELUGrad, kernel.GELUGrad, kernel.NaiveGELUGrad)

// GELUTanh is op.GELUTanh.
func GELUTanh(x *G.Node) (*G.Node, error) { return geluTanh.Apply(nil, x) }

var geluTanh, geluTanhGrad = activation(KindGELUTanh, KindGELUTanhGrad, "x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))", 9,
	kernel.GELUTanh, kernel.GELUTanh, kernel.NaiveGELUTanh, kernel.GELUTanhGrad, kernel.GELUTanhGrad, kernel.NaiveGELUTanhGrad)

// SiLU is op.SiLU.
func SiLU(x *G.Node) (*G.Node, error) { return silu.Apply(nil, x) }

var silu, siluGrad = activation(KindSiLU, KindSiLUGrad, "x/(1 + e⁻ˣ)", 4,
	kernel.SiLU, kernel.SiLU, kernel.NaiveSiLU, kernel.SiLUGrad, kernel.SiLUGrad, kernel.NaiveSiLUGrad)

// Tanh is op.Tanh.
func Tanh(x *G.Node) (*G.Node, error) { return tanh.Apply(nil, x) }

var tanh, tanhGrad = activation(KindTanh, KindTanhGrad, "tanh(x)", 2,
	vec.Tanh, vec.Tanh, kernel.NaiveTanh, vec.TanhGrad, vec.TanhGrad, kernel.NaiveTanhGrad)

// Sigmoid is op.Sigmoid.
func Sigmoid(x *G.Node) (*G.Node, error) { return sigmoid.Apply(nil, x) }

var sigmoid, sigmoidGrad = activation(KindSigmoid, KindSigmoidGrad, "1/(1 + e⁻ˣ)", 3,
	vec.Sigmoid, vec.Sigmoid, kernel.NaiveSigmoid, vec.SigmoidGrad, vec.SigmoidGrad, kernel.NaiveSigmoidGrad)

// ReLU is op.ReLU.
func ReLU(x *G.Node) (*G.Node, error) { return relu.Apply(nil, x) }

var relu, reluGrad = activation(KindReLU, KindReLUGrad, "max(x, 0)", 1,
	kernel.ReLU, kernel.ReLU, kernel.NaiveReLU, kernel.ReLUGrad, kernel.ReLUGrad, kernel.NaiveReLUGrad)

// activation returns the rows of an element-wise operation of n FLOPs and of its gradient, a
// function of x and dy.
func activation(kind, gradKind exec.Kind, doc string, n int, f32 func(y, x []float32), f64, naive func(y, x []float64),
	grad32 func(dx, x, dy []float32), grad64, gradNaive func(dx, x, dy []float64)) (row, grad *exec.Row) {
	grad = &exec.Row{
		Kind: gradKind, Doc: "dy times the slope of " + string(kind) + " at x", Shapes: "x, dy -> dx [...]",
		Kernels: kernels(runBinary(grad32), runBinary(grad64), runBinary(gradNaive)), FLOPs: exec.Each(2*n + 1), InPlace: true, Split: exec.ByElement,
		BF16: func(f *exec.Frame) error {
			bf16.Binary(grad32, result[half.BFloat16](f), low(f, 0), low(f, 1), wide(f))
			return nil
		},
		BF16Scratch: exec.ElementScratch,
	}
	return &exec.Row{
		Kind: kind, Doc: doc, Shapes: "x [...] -> y [...]",
		Kernels: kernels(runUnary(f32), runUnary(f64), runUnary(naive)), FLOPs: exec.Each(n), Cheap: true, InPlace: true, Split: exec.ByElement, Diff: 1,
		BF16: func(f *exec.Frame) error {
			bf16.Unary(f32, result[half.BFloat16](f), low(f, 0), wide(f))
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

// Factor is the attribute of KindScale.
type Factor struct{ C float64 }

// Scale is op.Scale.
func Scale(x *G.Node, c float64) (*G.Node, error) { return scale.Apply(Factor{c}, x) }

var scale = &exec.Row{
	Kind: KindScale, Attr: Factor{}, Doc: "c·x", Shapes: "x [...] -> y [...]",
	Kernels: exec.Kernels{
		F32: runScale(vec.ScaleTo[float32]), F64: runScale(vec.ScaleTo[float64]),
		Naive: runScale(func(y []float64, c float64, x []float64) {
			for i, v := range x {
				y[i] = c * v
			}
		}),
	},
	BF16: scaleHalf, BF16Scratch: exec.ElementScratch,
	FLOPs: exec.Each(1), Cheap: true, InPlace: true, Split: exec.ByElement, Diff: 1, Grad: again,
}

func scaleHalf(f *exec.Frame) error {
	c := float32(f.Op.Attrs.(Factor).C)
	bf16.Unary(func(y, x []float32) { vec.ScaleTo(y, c, x) }, result[half.BFloat16](f), low(f, 0), wide(f))
	return nil
}

func runScale[T kernel.Float](run func(y []T, c T, x []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		run(result[T](f), T(f.Op.Attrs.(Factor).C), arg[T](f, 0))
		return nil
	}
}

// again is the gradient of an operation that is linear and its own transpose: the same operation on
// dy.
func again(o *exec.Op, _ G.Nodes, _, dy *G.Node) (G.Nodes, error) { return o.Gradient(o.Row, dy) }

// Mask is the attribute of KindDropout.
type Mask struct {
	Rate   float64
	Stream uint32
}

// Dropout is op.Dropout.
func Dropout(x *G.Node, rate float64, stream uint32) (*G.Node, error) {
	if !(rate >= 0 && rate < 1) {
		return nil, fmt.Errorf("dropout: rate %v is not in [0, 1)", rate)
	}
	return dropout.Apply(Mask{rate, unused(x, stream)}, x)
}

// unused returns the first stream from s on that no dropout has in the graph of x.
func unused(x *G.Node, s uint32) uint32 {
	if x == nil || x.Graph() == nil {
		return s
	}
	taken := make(map[uint32]bool)
	for _, n := range x.Graph().AllNodes() {
		if o, ok := n.Op().(*exec.Op); ok && o.Row == dropout {
			taken[o.Attrs.(Mask).Stream] = true
		}
	}
	for taken[s] {
		s++
	}
	return s
}

var dropout = &exec.Row{
	Kind: KindDropout, Attr: Mask{}, Doc: "x/(1 - rate) or 0, by seed and stream; x in evaluation", Shapes: "x [...] -> y [...]",
	Kernels: kernels(runDropout(kernel.Dropout[float32]), runDropout(kernel.Dropout[float64]),
		runDropout(kernel.NaiveDropout)),
	BF16: dropoutHalf, BF16Scratch: exec.ElementScratch,
	FLOPs: exec.Each(12), Cheap: true, InPlace: true, Split: exec.ByElement, Diff: 1, Grad: again,
}

func dropoutHalf(f *exec.Frame) error {
	return runDropout(func(y, x []half.BFloat16, seed, base uint64, rate float64) {
		bf16.Dropout(y, x, seed, base, rate, wide(f))
	})(f)
}

func runDropout[T kernel.Element](run func(y, x []T, seed, base uint64, rate float64)) exec.Kernel {
	return func(f *exec.Frame) error {
		if !f.Train {
			copy(f.Out.Bytes, f.In[0].Bytes)
			return nil
		}
		a := f.Op.Attrs.(Mask)
		run(result[T](f), arg[T](f, 0), f.Seed, uint64(a.Stream)<<32+uint64(f.First), a.Rate)
		return nil
	}
}
