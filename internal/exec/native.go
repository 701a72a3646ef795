package exec

import (
	"fmt"
	"math"
	"math/bits"
	"reflect"
	"slices"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Some of Gorgonia's operations have kernels here: reductions, because those of package tensor are
// wrong along an inner axis of four or more, and what differentiation adds everywhere, such as sums
// and broadcasts, because Gorgonia's own allocate. A module uses them by Gorgonia's functions, and
// Gorgonia's rules of differentiation hold.

// native returns the operation of n, or nil if n runs as a stock operation.
func native(g *G.ExprGraph, n *G.Node) *Op {
	if op, ok := n.Op().(*Op); ok {
		return op
	}
	if n.Op() == nil || isHost(n) {
		return nil
	}
	kids := children(g, n)
	switch typeName(n.Op()) {
	case "gorgonia.sumOp":
		return useWith(sumRow, along(n.Op()), n, kids)
	case "gorgonia.maxOp":
		return useWith(maxRow, along(n.Op()), n, kids)
	case "gorgonia.repeatOp":
		return useWith(repeatRow, Axes(1)<<reflect.Indirect(reflect.ValueOf(n.Op())).FieldByName("along").Int(), n, kids)
	case "gorgonia.elemBinOp":
		sign, _, _ := strings.Cut(n.Op().String(), " ")
		if sign == "+" && kids[0].Shape().Eq(kids[1].Shape()) {
			return use(addRow, n.Shape(), kids...)
		}
		if signs[sign] {
			return useWith(binaryRow, Binary{sign}, n, kids)
		}
	case "gorgonia.elemUnaryOp":
		if n.Op().String() == "neg" {
			return use(negRow, n.Shape(), kids...)
		}
	case "gorgonia.minBetween":
		return useWith(binaryRow, Binary{"min"}, n, kids)
	case "gorgonia.maxBetween":
		return useWith(binaryRow, Binary{"max"}, n, kids)
	}
	return nil
}

func useWith(r *Row, attrs any, n *G.Node, args []*G.Node) *Op {
	o := use(r, n.Shape(), args...)
	o.Attrs, o.ints = attrs, make([]bool, len(args))
	return o
}

// Axes is a set of axes, bit by bit: the attribute of KindSum, KindMax, KindMaxGrad and KindRepeat.
type Axes uint32

const maxAxes = 32

// String lists the axes.
func (a Axes) String() string {
	var list []string
	for ; a != 0; a &= a - 1 {
		list = append(list, fmt.Sprint(bits.TrailingZeros32(uint32(a))))
	}
	return "(" + strings.Join(list, ",") + ")"
}

func (a Axes) has(axis int) bool { return a>>axis&1 == 1 }

// along returns the axes of a stock reduction.
func along(op G.Op) (a Axes) {
	list := reflect.Indirect(reflect.ValueOf(op)).FieldByName("along")
	for i := range list.Len() {
		a |= 1 << list.Index(i).Int()
	}
	return a
}

var sumRow = &Row{
	Kind: KindSum, Attr: Axes(0), Doc: "the sum of x over axes, one axis after the other and its terms in order; over all axes, the terms of x in order",
	Shapes:  "x [...] -> y [*]",
	Kernels: Kernels{reduce(kernel.SumAxis[float32]), reduce(kernel.SumAxis[float64]), reduce(kernel.NaiveSumAxis)},
	FLOPs:   Each(1), Scratch: reduceScratch,
}

var maxRow = &Row{
	Kind: KindMax, Attr: Axes(0), Doc: "the largest of x over axes, NaN where any is", Shapes: "x [...] -> y [*]",
	Kernels: Kernels{reduce(kernel.MaxAxis[float32]), reduce(kernel.MaxAxis[float64]), reduce(kernel.NaiveMaxAxis)},
	FLOPs:   Each(1), Scratch: reduceScratch, Diff: 1,
	Grad: func(o *Op, in G.Nodes, y, dy *G.Node) (G.Nodes, error) {
		dx, err := (&Op{Row: maxGradRow, Attrs: o.Attrs, Shape: o.In[0]}).add(in[0], y, dy)
		return G.Nodes{dx}, err
	},
}

var maxGradRow = &Row{
	Kind: KindMaxGrad, Attr: Axes(0), Doc: "dy where x is the largest over axes, else 0", Shapes: "x, y, dy -> dx [*]",
	Kernels: Kernels{maxGrad[float32], maxGrad[float64], naiveMaxGrad}, FLOPs: Each(2), InPlace: true,
}

func maxGrad[T kernel.Float](f *Frame) error {
	dx, x, y, dy := Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes), Data[T](f.In[1].Bytes), Data[T](f.In[2].Bytes)
	var at, strides [maxAxes]int // of y; 0 along the axes that it does not have
	shape, axes, n := f.Op.Shape, f.Op.Attrs.(Axes), 1
	for axis := len(shape) - 1; axis >= 0; axis-- {
		if !axes.has(axis) {
			strides[axis] = n
			n *= shape[axis]
		}
	}
	j := 0
	for i := range dx {
		dx[i] = dy[j] * compare("==", x[i], y[j])
		for axis := len(shape) - 1; axis >= 0; axis-- {
			at[axis]++
			j += strides[axis]
			if at[axis] < shape[axis] {
				break
			}
			j -= at[axis] * strides[axis]
			at[axis] = 0
		}
	}
	return nil
}

func naiveMaxGrad(f *Frame) error {
	x, y, dy := Data[float64](f.In[0].Bytes), Data[float64](f.In[1].Bytes), Data[float64](f.In[2].Bytes)
	for i := range x {
		j, left, size := 0, i, len(x)
		for axis, n := range f.Op.Shape {
			size /= n
			if !f.Op.Attrs.(Axes).has(axis) {
				j = j*n + left/size
			}
			left %= size
		}
		Data[float64](f.Out.Bytes)[i] = 0
		if x[i] == y[j] {
			Data[float64](f.Out.Bytes)[i] = dy[j]
		}
	}
	return nil
}

// reduce folds one axis after the other. What is between two of them lies in scratch memory, where
// a kernel may write over what it reads.
func reduce[T kernel.Float](fold func(y, x []T, outer, n, inner int)) Kernel {
	return func(f *Frame) error {
		x, y, shape, axes := Data[T](f.In[0].Bytes), Data[T](f.Out.Bytes), f.Op.In[0], f.Op.Attrs.(Axes)
		if axes == 1<<len(shape)-1 {
			fold(y, x, 1, len(x), 1)
			return nil
		}
		outer, inner := 1, len(x)
		for axis, n := range shape {
			inner /= n
			if n == 1 || !axes.has(axis) {
				outer *= n
				continue
			}
			to := y
			if outer*inner > len(y) {
				to = Data[T](f.Scratch)[:outer*inner]
			}
			fold(to, x, outer, n, inner)
			x = to
		}
		if len(x) == len(y) && &x[0] != &y[0] { // all axes were of length 1
			copy(y, x)
		}
		return nil
	}
}

// reduceScratch is what is left of x after the first axis, if that is not the result.
func reduceScratch(o *Op) int {
	axes, left := o.Attrs.(Axes), Numel(o.In[0])
	for axis, n := range o.In[0] {
		if n > 1 && axes.has(axis) {
			left /= n
			break
		}
	}
	if left == Numel(o.Shape) || axes == 1<<len(o.In[0])-1 {
		return 0
	}
	return left
}

// repeatRow has as arguments the value alone: its result has a shape, so nobody asks how often.
var repeatRow = &Row{
	Kind: KindRepeat, Attr: Axes(0), Doc: "x, with each element repeated along an axis", Shapes: "x [...] -> y [*]",
	Kernels: Kernels{repeat(kernel.Repeat[float32]), repeat(kernel.Repeat[float64]), repeat(kernel.NaiveRepeat)},
	FLOPs:   Each(0), Cheap: true,
}

func repeat[T kernel.Float](run func(y, x []T, outer, n, inner int)) Kernel {
	return func(f *Frame) error {
		x, y := Data[T](f.In[0].Bytes), Data[T](f.Out.Bytes)
		inner := Numel(f.Op.Shape[bits.Len32(uint32(f.Op.Attrs.(Axes))):])
		run(y, x, len(x)/inner, len(y)/len(x), inner)
		return nil
	}
}

var negRow = &Row{
	Kind: KindNeg, Doc: "-x", Shapes: "x [...] -> y [...]",
	Kernels: Kernels{neg[float32], neg[float64], naiveNeg}, FLOPs: Each(1), InPlace: true, Split: ByElement,
}

func neg[T kernel.Float](f *Frame) error {
	vec.ScaleTo(Data[T](f.Out.Bytes), -1, Data[T](f.In[0].Bytes))
	return nil
}

func naiveNeg(f *Frame) error {
	for i, x := range Data[float64](f.In[0].Bytes) {
		Data[float64](f.Out.Bytes)[i] = -x
	}
	return nil
}

// Binary is the attribute of KindBinary: the sign of the operation, one of + - ⊙ ÷ < > <= >= == != min max.
type Binary struct{ Sign string }

var signs = map[string]bool{"+": true, "-": true, "⊙": true, "÷": true, "<": true, ">": true, "<=": true, ">=": true, "==": true, "!=": true}

var binaryRow = &Row{
	Kind: KindBinary, Attr: Binary{}, Doc: "a and b, element by element; either may be a single number. A comparison is 1 or 0",
	Shapes:  "a, b -> y [*]",
	Kernels: Kernels{elementwise[float32], elementwise[float64], naiveElementwise},
	FLOPs:   func(o *Op) int { return Numel(o.Shape) }, InPlace: true, Split: ByElement,
}

func elementwise[T kernel.Float](f *Frame) error {
	y, a, b := Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes), Data[T](f.In[1].Bytes)
	sa, sb := stride(a, y), stride(b, y)
	sign := f.Op.Attrs.(Binary).Sign
	switch {
	case sign == "+":
		for i := range y {
			y[i] = a[i*sa] + b[i*sb]
		}
	case sign == "-":
		for i := range y {
			y[i] = a[i*sa] - b[i*sb]
		}
	case sign == "⊙" && sb == 0:
		vec.ScaleTo(y, b[0], a)
	case sign == "⊙":
		for i := range y {
			y[i] = a[i*sa] * b[i*sb]
		}
	case sign == "÷":
		for i := range y {
			y[i] = a[i*sa] / b[i*sb]
		}
	case sign == "min":
		for i := range y {
			y[i] = min(a[i*sa], b[i*sb])
		}
	case sign == "max":
		for i := range y {
			y[i] = max(a[i*sa], b[i*sb])
		}
	default:
		for i := range y {
			y[i] = compare(sign, a[i*sa], b[i*sb])
		}
	}
	return nil
}

// stride is 0 for a single number, which every element of y takes.
func stride[T kernel.Float](a, y []T) int {
	if len(a) < len(y) {
		return 0
	}
	return 1
}

func compare[T kernel.Float](sign string, a, b T) T {
	var is bool
	switch sign {
	case "<":
		is = a < b
	case ">":
		is = a > b
	case "<=":
		is = a <= b
	case ">=":
		is = a >= b
	case "==":
		is = a == b
	default:
		is = a != b
	}
	if is {
		return 1
	}
	return 0
}

func naiveElementwise(f *Frame) error {
	y, a, b := Data[float64](f.Out.Bytes), Data[float64](f.In[0].Bytes), Data[float64](f.In[1].Bytes)
	for i := range y {
		a, b := a[i%len(a)], b[i%len(b)]
		switch sign := f.Op.Attrs.(Binary).Sign; sign {
		case "+":
			y[i] = a + b
		case "-":
			y[i] = a - b
		case "⊙":
			y[i] = a * b
		case "÷":
			y[i] = a / b
		case "min":
			y[i] = math.Min(a, b)
		case "max":
			y[i] = math.Max(a, b)
		default:
			y[i] = compare(sign, a, b)
		}
	}
	return nil
}

// replace puts operations with gradients of their own in the place of stock operations whose rules
// of differentiation are wrong, and makes what depends on them anew. Gorgonia broadcasts the first
// four axes only, by which the gradient of a Max along another would be wrong. A Tensordot becomes
// a product of matrices: its own rules hold for a few pairs of axes.
func (tr *trace) replace() error {
	made := make(map[*G.Node]*G.Node)
	for _, n := range order(tr.g, slices.Concat(tr.outs, tr.updates), nil) {
		made[n] = n
		if n.Op() == nil {
			continue
		}
		op, kids := n.Op(), arguments(tr.g, n)
		fresh := typeName(op) == "gorgonia.maxOp" && along(op) >= 1<<4 && !isHost(n)
		if fresh {
			op = native(tr.g, n)
		}
		for i, c := range kids {
			if to, seen := made[c]; seen {
				kids[i], fresh = to, fresh || to != c
			}
		}
		var err error
		if typeName(op) == "gorgonia.tensordotOp" {
			made[n], err = contraction(n, kids)
		} else if fresh {
			made[n], err = G.ApplyOp(op, kids...)
		}
		if err != nil {
			return fmt.Errorf("%v: %w", n.Op(), err)
		}
	}
	for _, list := range []G.Nodes{tr.outs, tr.updates} {
		for i, n := range list {
			if n != nil {
				list[i] = made[n]
			}
		}
	}
	return nil
}

// contraction returns what n, a Tensordot of args, computes, as a product of matrices.
func contraction(n *G.Node, args []*G.Node) (*G.Node, error) {
	// matrix returns x with the axes in front, or behind the others, as [rows, columns]. It is a
	// vector if there are no others in either argument.
	matrix := func(x *G.Node, field string, front bool) (*G.Node, error) {
		var axes, others []int
		list := reflect.ValueOf(n.Op()).FieldByName(field)
		for i := range list.Len() {
			axes = append(axes, int(list.Index(i).Int()))
		}
		summed, shape := 1, x.Shape().Clone()
		for axis, size := range shape {
			if slices.Contains(axes, axis) {
				summed *= size
			} else {
				others = append(others, axis)
			}
		}
		to := tensor.Shape{Numel(shape) / summed, summed}
		order := slices.Concat(others, axes)
		if front {
			to, order = tensor.Shape{summed, Numel(shape) / summed}, slices.Concat(axes, others)
		}
		if n.IsScalar() {
			to = tensor.Shape{summed}
		}
		x, err := G.Transpose(x, order...)
		if err != nil {
			return nil, err
		}
		return G.Reshape(x, to)
	}
	a, err := matrix(args[0], "aAxes", false)
	if err != nil {
		return nil, err
	}
	b, err := matrix(args[1], "bAxes", true)
	if err != nil {
		return nil, err
	}
	y, err := G.Mul(a, b)
	if err != nil || n.IsScalar() {
		return y, err
	}
	return G.Reshape(y, n.Shape().Clone())
}

// constSize returns the number that a SizeOf of Gorgonia's stands for, which is known when a module
// is traced, or nil if n is something else.
func constSize(n *G.Node) G.Value {
	if n.Op() == nil || typeName(n.Op()) != "gorgonia.sizeOp" {
		return nil
	}
	size := reflect.ValueOf(n.Op()).FieldByName("val").Int()
	switch n.Dtype() {
	case tensor.Float32:
		return G.NewF32(float32(size))
	case tensor.Float64:
		return G.NewF64(float64(size))
	case tensor.Int:
		return G.NewI(int(size))
	}
	return nil
}
