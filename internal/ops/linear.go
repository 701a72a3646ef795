package ops

import (
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// Linear returns x·wᵀ + b for x [..., in], w [out, in] and b [out] or nil: [..., out].
func Linear(x, w, b *G.Node) (*G.Node, error) {
	if err := wantRank("linear", "x", x, 1); err != nil {
		return nil, err
	}
	n, in := rows(x)
	if w.Shape().Dims() != 2 || w.Shape()[1] != in {
		return nil, fmt.Errorf("linear: weight is %v, want [out %d] for x %v", w.Shape(), in, x.Shape())
	}
	l := linear{n: n, in: in, out: w.Shape()[0], bias: b != nil}
	args, diff := G.Nodes{x, w}, []bool{true, true}
	if l.bias {
		if err := wantShape("linear", "bias", b, l.out); err != nil {
			return nil, err
		}
		args, diff = append(args, b), append(diff, true)
	}
	return body{linearRun[float32](l), linearRun[float64](l)}.apply(exec.Op{
		Name: fmt.Sprintf("linear(%v)", l.bias), Shape: withLast(x, l.out), Diff: diff, Grad: l.grad,
	}, args...)
}

// AddLinear returns y + x·wᵀ for y [..., out], x [..., in] and w [out, in]. Other than the sum of y and Linear(x, w), it leaves
// neither of the two to be kept for backward.
func AddLinear(y, x, w *G.Node) (*G.Node, error) {
	if err := wantRank("linear", "x", x, 1); err != nil {
		return nil, err
	}
	n, in := rows(x)
	if w.Shape().Dims() != 2 || w.Shape()[1] != in {
		return nil, fmt.Errorf("linear: weight is %v, want [out %d] for x %v", w.Shape(), in, x.Shape())
	}
	l := linear{n: n, in: in, out: w.Shape()[0]}
	if err := wantShape("linear", "y", y, withLast(x, l.out)...); err != nil {
		return nil, err
	}
	return body{linearAdd[float32](l), linearAdd[float64](l)}.apply(exec.Op{
		Name: "add linear", Shape: y.Shape().Clone(), InPlace: true, Diff: []bool{true, true, true},
		Grad: func(in G.Nodes, out, dy *G.Node) (G.Nodes, error) {
			grads, err := l.grad(in[1:], out, dy)
			return append(G.Nodes{dy}, grads...), err
		},
	}, y, x, w)
}

// linear is the geometry of a linear layer: n rows of in elements to rows of out elements.
type linear struct {
	n, in, out int
	bias       bool
}

func (l linear) grad(in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
	dx, err := body{linearGradX[float32](l), linearGradX[float64](l)}.apply(exec.Op{
		Name: "linear dx", Shape: in[0].Shape().Clone(),
	}, dy, in[1])
	if err != nil {
		return nil, err
	}
	dw, err := body{linearGradW[float32](l), linearGradW[float64](l)}.apply(exec.Op{
		Name: "linear dw", Shape: in[1].Shape().Clone(), Accumulate: true,
	}, dy, in[0])
	if err != nil || !l.bias {
		return G.Nodes{dx, dw}, err
	}
	db, err := body{linearGradB[float32](l), linearGradB[float64](l)}.apply(exec.Op{
		Name: "linear db", Shape: tensor.Shape{l.out}, Accumulate: true,
	}, dy)
	return G.Nodes{dx, dw, db}, err
}

func linearRun[T kernel.Float](l linear) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		var b []T
		if l.bias {
			b = arg[T](f, 2)
		}
		kernel.Linear(f.Kernel, result[T](f), arg[T](f, 0), arg[T](f, 1), b, l.n, l.in, l.out)
		return nil
	}
}

func linearAdd[T kernel.Float](l linear) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		copy(f.Out.Bytes, f.In[0].Bytes)
		kernel.LinearAdd(f.Kernel, result[T](f), arg[T](f, 1), arg[T](f, 2), l.n, l.in, l.out)
		return nil
	}
}

func linearGradX[T kernel.Float](l linear) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		kernel.LinearGradX(f.Kernel, result[T](f), arg[T](f, 0), arg[T](f, 1), l.n, l.in, l.out)
		return nil
	}
}

func linearGradW[T kernel.Float](l linear) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		kernel.LinearGradW(f.Kernel, result[T](f), arg[T](f, 0), arg[T](f, 1), l.n, l.in, l.out, f.Acc)
		return nil
	}
}

func linearGradB[T kernel.Float](l linear) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		kernel.LinearGradB(result[T](f), arg[T](f, 0), l.n, l.out, f.Acc)
		return nil
	}
}
