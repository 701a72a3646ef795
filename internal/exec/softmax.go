package exec

import (
	"fmt"
	"reflect"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// Softmax is the attribute of KindSoftmax and KindSoftmaxGrad.
type Softmax struct {
	Axis int
	Log  bool
}

var softmaxRow = &Row{
	Kind: KindSoftmax, Attr: Softmax{}, Doc: "exp(x) / Σ exp(x) along an axis, or its logarithm", Shapes: "x [...] -> y [...]",
	Kernels: Kernels{softmax(kernel.Softmax[float32, float32]), softmax(kernel.Softmax[float64, float64]), softmax(kernel.NaiveSoftmax)},
	BF16:    softmax(kernel.Softmax[half.BFloat16, float32]), BF16Scratch: softmaxScratch,
	FLOPs: Each(4), Scratch: softmaxScratch, InPlace: true, Split: ByKernel, Diff: 1,
	Grad: func(o *Op, in G.Nodes, y, dy *G.Node) (G.Nodes, error) {
		dy, err := shaped(dy, o.Shape)
		if err != nil {
			return nil, err
		}
		dx, err := (&Op{Row: softmaxGradRow, Attrs: o.Attrs, Shape: o.Shape}).add(dy, y)
		return G.Nodes{dx}, err
	},
}

var softmaxGradRow = &Row{
	Kind: KindSoftmaxGrad, Attr: Softmax{}, Doc: "y·(dy - Σ y·dy) along an axis, or dy - exp(y)·Σ dy for the logarithm", Shapes: "dy, y -> dx [*]",
	Kernels: Kernels{softmaxGrad(kernel.SoftmaxGrad[float32, float32]), softmaxGrad(kernel.SoftmaxGrad[float64, float64]),
		softmaxGrad(kernel.NaiveSoftmaxGrad)},
	BF16: softmaxGrad(kernel.SoftmaxGrad[half.BFloat16, float32]), BF16Scratch: softmaxScratch,
	FLOPs: Each(4), Scratch: softmaxScratch, InPlace: true, Split: ByKernel,
}

func softmaxScratch(o *Op) int {
	axis := o.Attrs.(Softmax).Axis
	_, inner := around(o.Shape, axis)
	return kernel.SoftmaxScratch(o.Shape[axis], inner)
}

func softmax[E kernel.Element, T kernel.Float](run func(c *kernel.Context, y, x []E, outer, n, inner int, log bool, scratch []T)) Kernel {
	return func(f *Frame) error {
		s := f.Op.Attrs.(Softmax)
		outer, inner := around(f.Op.Shape, s.Axis)
		run(f.Kernel, Data[E](f.Out.Bytes), Data[E](f.In[0].Bytes), outer, f.Op.Shape[s.Axis], inner, s.Log, Data[T](f.Scratch))
		return nil
	}
}

func softmaxGrad[E kernel.Element, T kernel.Float](run func(c *kernel.Context, dx, y, dy []E, outer, n, inner int, log bool, scratch []T)) Kernel {
	return func(f *Frame) error {
		s := f.Op.Attrs.(Softmax)
		outer, inner := around(f.Op.Shape, s.Axis)
		run(f.Kernel, Data[E](f.Out.Bytes), Data[E](f.In[1].Bytes), Data[E](f.In[0].Bytes), outer, f.Op.Shape[s.Axis], inner, s.Log,
			Data[T](f.Scratch))
		return nil
	}
}

// replaceSoftmax replaces Gorgonia's softmax. That is along the last axis if no axis is given, and
// along the first axis of a single column.
func replaceSoftmax(n *G.Node, kids []*G.Node) (*G.Node, error) {
	op, s := reflect.ValueOf(n.Op()).Elem(), Softmax{Axis: n.Dims() - 1}
	if axis := int(op.FieldByName("axis").Int()); axis >= 0 {
		s.Axis = axis
	} else if n.Shape().IsColVec() {
		s.Axis = 0
	}
	s.Log = op.FieldByName("isLog").Bool()
	return NewSoftmax(kids[0], s)
}

// NewSoftmax returns the softmax of x along an existing axis, or its logarithm.
func NewSoftmax(x *G.Node, s Softmax) (*G.Node, error) {
	o := &Op{Row: softmaxRow, Attrs: s}
	if x != nil {
		if s.Axis < 0 || s.Axis >= x.Dims() {
			return nil, fmt.Errorf("softmax: x is %v, which has no axis %d", x.Shape(), s.Axis)
		}
		o.Shape = x.Shape().Clone()
	}
	return o.add(x)
}
