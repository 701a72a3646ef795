package exec

import (
	"fmt"
	"reflect"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// Product is the attribute of KindProduct: the orders in which the axes of the arguments are read,
// and the axes of the result are written.
type Product struct{ A, B, Y Order }

// Order is the attribute of KindTranspose: axis i of the result is axis Order[i] of the argument.
type Order struct{ kernel.Order }

// String lists the axes.
func (o Order) String() string {
	axes := make([]byte, 0, 2*len(o.Order)+1)
	for i := range o.Order {
		axes = append(axes, ',', '0'+o.Order[i])
	}
	return "(" + string(axes[min(1, len(axes)):]) + ")"
}

func orderOf(axes []int) Order {
	b := make([]byte, len(axes))
	for i, axis := range axes {
		b[i] = byte(axis)
	}
	if slices.IsSorted(axes) {
		return Order{}
	}
	return Order{kernel.Order(b)}
}

// axes returns the order of a tensor of the given rank as a list.
func (o Order) axes(rank int) []int {
	list := make([]int, rank)
	for i := range list {
		list[i] = o.At(i)
	}
	return list
}

// inverse returns the inverse permutation of o.
func (o Order) inverse() Order {
	list := make([]int, len(o.Order))
	for i := range list {
		list[o.At(i)] = i
	}
	return orderOf(list)
}

// swapped returns o with the last two axes swapped.
func (o Order) swapped(rank int) Order {
	list := o.axes(rank)
	list[rank-1], list[rank-2] = list[rank-2], list[rank-1]
	return orderOf(list)
}

// compose returns the composition of first and o: the order of a tensor that is read in order first
// and then in order o.
func (o Order) compose(first Order, rank int) Order {
	list := o.axes(rank)
	for i, axis := range list {
		list[i] = first.At(axis)
	}
	return orderOf(list)
}

// direct reports whether products accept a tensor in order o without a copy.
func (o Order) direct(rank int) bool { return o.At(rank-1) == rank-1 || o.At(rank-2) == rank-1 }

var productRow = &Row{
	Kind: KindProduct, Attr: Product{},
	Doc:    "a·b of the matrices in the last two axes, after the axes of a and of b are put in their orders and before those of y are",
	Shapes: "a, b -> y [*]",
	Kernels: Kernels{multiplyFloat32, multiply(kernel.Product[float64, float64]),
		multiply(kernel.NaiveProduct)},
	BF16: multiplyHalf, Widens: true, Rounds: true,
	FLOPs: func(o *Op) int {
		a := o.In[0]
		return 2 * Numel(o.Shape) * a[o.Attrs.(Product).A.At(len(a)-1)]
	},
	Product: func(o *Op) (rows, cols, depth int) {
		p, n := o.Attrs.(Product), len(o.Shape)
		a, b := o.In[0], o.In[1]
		return a[p.A.At(n-2)], b[p.B.At(n-1)], a[p.A.At(n-1)]
	},
	Accumulate: true, Split: ByKernel, Diff: 2, Grad: productGrads,
}

func multiply[T, Y kernel.Element](run func(c *kernel.Context, y []Y, a, b []T, yl, al, bl kernel.Layout, acc bool)) Kernel {
	return func(f *Frame) error {
		p := f.Op.Attrs.(Product)
		run(f.Kernel, Data[Y](f.Out.Bytes), Data[T](f.In[0].Bytes), Data[T](f.In[1].Bytes), kernel.Layout{Shape: f.Op.Shape, Order: p.Y.Order},
			kernel.Layout{Shape: f.Op.In[0], Order: p.A.Order}, kernel.Layout{Shape: f.Op.In[1], Order: p.B.Order}, f.Acc)
		return nil
	}
}

// multiplyFloat32 and multiplyHalf multiply matrices of float32 and of bfloat16. The result is in
// either type.
var (
	multiplyFloat32 = Rounding(multiply(kernel.Product[float32, float32]), multiply(kernel.Product[float32, half.BFloat16]))
	multiplyHalf    = Rounding(multiply(kernel.Product[half.BFloat16, float32]), multiply(kernel.Product[half.BFloat16, half.BFloat16]))
)

func productGrads(o *Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
	p, rank := o.Attrs.(Product), len(o.Shape)
	dy, err := shaped(dy, o.Shape)
	if err != nil {
		return nil, err
	}
	da, err := (&Op{Row: o.Row, Attrs: Product{p.Y, p.B.swapped(rank), p.A}, Shape: o.In[0]}).add(dy, in[1])
	if err != nil {
		return nil, err
	}
	db, err := (&Op{Row: o.Row, Attrs: Product{p.A.swapped(rank), p.Y, p.B}, Shape: o.In[1]}).add(in[0], dy)
	return G.Nodes{da, db}, err
}

// shaped returns x under another shape. It costs nothing.
func shaped(x *G.Node, shape tensor.Shape) (*G.Node, error) {
	if slices.Equal(x.Shape(), shape) {
		return x, nil
	}
	return NewView(x, 0, shape...)
}

// product returns a·b for matrices in the last two axes. If an argument is a transposition, it
// reads the argument of the transposition.
func product(a, b *G.Node, transA, transB bool) (*G.Node, error) {
	rank := a.Dims()
	p := Product{}
	read := func(x *G.Node, trans bool) (*G.Node, Order) {
		var o Order
		if trans {
			o = o.swapped(rank)
		}
		for x.Op() != nil && typeName(x.Op()) == "gorgonia.transposeOp" {
			next := o.compose(pattern(x.Op()), rank)
			if !next.direct(rank) {
				break
			}
			x, o = arguments(x.Graph(), x)[0], next
		}
		return x, o
	}
	a, p.A = read(a, transA)
	b, p.B = read(b, transB)
	if columns, rows := a.Shape()[p.A.At(rank-1)], b.Shape()[p.B.At(rank-2)]; columns != rows {
		return nil, fmt.Errorf("matrix product of %v and %v: %d columns and %d rows must be equal", a.Shape(), b.Shape(), columns, rows)
	}
	shape := make(tensor.Shape, rank)
	for i, axis := range p.A.axes(rank) {
		shape[i] = a.Shape()[axis]
	}
	shape[rank-1] = b.Shape()[p.B.At(rank-1)]
	return (&Op{Row: productRow, Attrs: p, Shape: shape}).add(a, b)
}

// pattern returns the order of a stock transposition.
func pattern(op G.Op) Order {
	list := reflect.Indirect(reflect.ValueOf(op)).FieldByName("pattern")
	axes := make([]int, list.Len())
	for i := range axes {
		axes[i] = int(list.Index(i).Int())
	}
	return orderOf(axes)
}

// These are Gorgonia's products, by the number of the operator.
const (
	matVecMul = 1 + iota
	vecDot
	outerProduct
)

// replaceProduct replaces any of Gorgonia's products by a product of matrices.
func replaceProduct(n *G.Node, kids []*G.Node) (y *G.Node, err error) {
	op, a, b := reflect.Indirect(reflect.ValueOf(n.Op())), kids[0], kids[1]
	size := [2]int{Numel(a.Shape()), Numel(b.Shape())}
	which := op.FieldByName("āBinaryOperator").Uint()
	switch which {
	case vecDot:
		a, err = NewView(a, 0, 1, size[0])
	case outerProduct:
		a, err = NewView(a, 0, size[0], 1)
	}
	if err != nil {
		return nil, err
	}
	switch which {
	case vecDot, matVecMul:
		b, err = NewView(b, 0, size[1], 1)
	case outerProduct:
		b, err = NewView(b, 0, 1, size[1])
	}
	if err != nil {
		return nil, err
	}
	if y, err = product(a, b, op.FieldByName("transA").Bool(), op.FieldByName("transB").Bool()); err != nil {
		return nil, err
	}
	return shaped(y, n.Shape())
}

// into merges n, a transposition, into its argument: a product that no other node needs. It returns
// a product that writes its result in the transposed order, or nil if that is not possible.
func into(n, y *G.Node) (*G.Node, error) {
	op, ours := y.Op().(*Op)
	if !ours || op.Kind != KindProduct {
		return nil, nil
	}
	p, rank := op.Attrs.(Product), len(op.Shape)
	written := p.Y.compose(pattern(n.Op()).inverse(), rank)
	if !written.direct(rank) {
		return nil, nil
	}
	p.Y = written
	return (&Op{Row: productRow, Attrs: p, Shape: n.Shape().Clone()}).add(arguments(y.Graph(), y)...)
}
