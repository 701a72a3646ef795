package ops

import (
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// GELU returns x·Φ(x), with Φ the normal distribution function (Hendrycks and Gimpel, 2016, arXiv:1606.08415).
func GELU(x *G.Node) (*G.Node, error) {
	return activation("gelu", x,
		body{unary(kernel.GELU[float32]), unary(kernel.GELU[float64])},
		body{binary(kernel.GELUGrad[float32]), binary(kernel.GELUGrad[float64])})
}

// GELUTanh returns the tanh approximation of GELU, 0.5x(1 + tanh(sqrt(2/π)(x + 0.044715x³))).
func GELUTanh(x *G.Node) (*G.Node, error) {
	return activation("gelu tanh", x,
		body{unary(kernel.GELUTanh[float32]), unary(kernel.GELUTanh[float64])},
		body{binary(kernel.GELUTanhGrad[float32]), binary(kernel.GELUTanhGrad[float64])})
}

// ReLU returns max(x, 0).
func ReLU(x *G.Node) (*G.Node, error) {
	return activation("relu", x,
		body{unary(kernel.ReLU[float32]), unary(kernel.ReLU[float64])},
		body{binary(kernel.ReLUGrad[float32]), binary(kernel.ReLUGrad[float64])})
}

// activation adds an element-wise operation whose gradient is a function of x and dy.
func activation(name string, x *G.Node, run, grad body) (*G.Node, error) {
	return run.apply(exec.Op{
		Name: name, Shape: x.Shape().Clone(), Cheap: true, InPlace: true, Diff: []bool{true},
		Grad: func(in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
			dx, err := grad.apply(exec.Op{Name: name + " grad", Shape: x.Shape().Clone(), InPlace: true}, in[0], dy)
			return G.Nodes{dx}, err
		},
	}, x)
}

func unary[T kernel.Float](run func(y, x []T)) func(*exec.Frame) error {
	return func(f *exec.Frame) error { run(result[T](f), arg[T](f, 0)); return nil }
}

func binary[T kernel.Float](run func(dx, x, dy []T)) func(*exec.Frame) error {
	return func(f *exec.Frame) error { run(result[T](f), arg[T](f, 0), arg[T](f, 1)); return nil }
}

// Scale returns c·x.
func Scale(x *G.Node, c float64) (*G.Node, error) {
	run := body{scale[float32](c), scale[float64](c)}
	op := exec.Op{Name: fmt.Sprintf("scale(%v)", c), Shape: x.Shape().Clone(), Cheap: true, InPlace: true, Diff: []bool{true}}
	grad := op
	op.Grad = func(_ G.Nodes, _, dy *G.Node) (G.Nodes, error) {
		dx, err := run.apply(grad, dy)
		return G.Nodes{dx}, err
	}
	return run.apply(op, x)
}

func scale[T kernel.Float](c float64) func(*exec.Frame) error {
	return func(f *exec.Frame) error { vec.ScaleTo(result[T](f), T(c), arg[T](f, 0)); return nil }
}

// Dropout zeroes each element of x with probability rate and divides the others by 1-rate while training; in evaluation
// it is the identity. The mask is a function of the call's seed, stream and the element's index, so backward draws the
// same one again and nothing is kept. Dropouts of one module need different streams: see exec.Builder.Stream.
func Dropout(x *G.Node, rate float64, stream uint32) (*G.Node, error) {
	if !(rate >= 0 && rate < 1) {
		return nil, fmt.Errorf("dropout: rate %v is not in [0, 1)", rate)
	}
	run := body{dropout[float32](rate, stream), dropout[float64](rate, stream)}
	op := exec.Op{Name: fmt.Sprintf("dropout(%v,%d)", rate, stream), Shape: x.Shape().Clone(), Cheap: true, InPlace: true, Diff: []bool{true}}
	grad := op
	op.Grad = func(_ G.Nodes, _, dy *G.Node) (G.Nodes, error) {
		dx, err := run.apply(grad, dy)
		return G.Nodes{dx}, err
	}
	return run.apply(op, x)
}

func dropout[T kernel.Float](rate float64, stream uint32) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		if !f.Train {
			copy(f.Out.Bytes, f.In[0].Bytes)
			return nil
		}
		kernel.Dropout(result[T](f), arg[T](f, 0), f.Seed, uint64(stream)<<32, rate)
		return nil
	}
}
