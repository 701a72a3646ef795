// Package ops surfaces the host kernels of internal/kernel as differentiable operations on Gorgonia nodes.
//
// Every function adds one fused operation to the graph of its arguments and returns its result. Shapes are checked when
// the graph is built and named in the error. Activations carry any number of leading dimensions: x [..., d] means that
// the operation works on rows of d elements.
//
// A Gorgonia operation has one result. A kernel that yields more, such as an output with the row statistics that its
// backward reuses, packs them into one vector; part takes a view of a piece of it, at no cost.
package ops

import (
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// body is a kernel for both element types.
type body struct{ f32, f64 func(*exec.Frame) error }

// apply adds an operation that runs b.
func (b body) apply(op exec.Op, in ...*G.Node) (*G.Node, error) {
	op.Run32, op.Run64 = b.f32, b.f64
	return op.Apply(in...)
}

// arg returns argument i of f.
func arg[T kernel.Float](f *exec.Frame, i int) []T { return exec.Data[T](f.In[i].Bytes) }

// ints returns argument i of f, which holds integers.
func ints(f *exec.Frame, i int) []int { return exec.Data[int](f.In[i].Bytes) }

// result returns the memory of f's result.
func result[T kernel.Float](f *exec.Frame) []T { return exec.Data[T](f.Out.Bytes) }

// part returns elements [offset, offset+numel(shape)) of packed as a tensor of the given shape. Only one part of a packed
// result may be differentiable; its gradient is handed to the packed operation as it is.
func part(packed *G.Node, offset int, shape tensor.Shape, differentiable bool) (*G.Node, error) {
	op := exec.Op{
		Name: fmt.Sprintf("part(%d,%v,%v)", offset, shape, differentiable), Shape: shape.Clone(),
		View: true, Offset: offset, Diff: []bool{differentiable},
		Grad: func(_ G.Nodes, _, dy *G.Node) (G.Nodes, error) { return G.Nodes{dy}, nil },
	}
	return op.Apply(packed)
}

// rows returns the number of rows of x [..., d] and d.
func rows(x *G.Node) (n, d int) {
	s := x.Shape()
	if len(s) == 0 {
		return 1, 1
	}
	d = s[len(s)-1]
	if d == 0 {
		return 0, 0
	}
	return exec.Numel(s) / d, d
}

// withLast returns x's shape with d as the last dimension.
func withLast(x *G.Node, d int) tensor.Shape {
	s := x.Shape().Clone()
	s[len(s)-1] = d
	return s
}

// wantShape reports that argument name of op has the wrong shape, if it does.
func wantShape(op, name string, n *G.Node, want ...int) error {
	if !n.Shape().Eq(tensor.Shape(want)) {
		return fmt.Errorf("%s: %s is %v, want %v", op, name, n.Shape(), tensor.Shape(want))
	}
	return nil
}

// wantInts reports that argument name of op is not of integers, if so.
func wantInts(op, name string, n *G.Node) error {
	if n.Dtype() != tensor.Int {
		return fmt.Errorf("%s: %s is %v, want int", op, name, n.Dtype())
	}
	return nil
}

// wantRank reports that x has fewer than rank dimensions, if so.
func wantRank(op, name string, x *G.Node, rank int) error {
	if x.Shape().Dims() < rank {
		return fmt.Errorf("%s: %s is %v, want at least %d dimensions", op, name, x.Shape(), rank)
	}
	return nil
}

// Reshape returns x under another shape with as many elements, at no cost.
func Reshape(x *G.Node, shape ...int) (*G.Node, error) {
	if exec.Numel(shape) != exec.Numel(x.Shape()) {
		return nil, fmt.Errorf("reshape: %v to %v changes the number of elements", x.Shape(), tensor.Shape(shape))
	}
	from := x.Shape().Clone()
	op := exec.Op{
		Name: fmt.Sprintf("reshape%v", tensor.Shape(shape)), Shape: tensor.Shape(shape).Clone(), View: true, Diff: []bool{true},
		Grad: func(_ G.Nodes, _, dy *G.Node) (G.Nodes, error) {
			dx, err := Reshape(dy, from...)
			return G.Nodes{dx}, err
		},
	}
	return op.Apply(x)
}
