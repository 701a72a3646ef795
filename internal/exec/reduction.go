package exec

import (
	"fmt"
	"math/bits"
	"reflect"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Axes is a set of axes, one bit each. It is the attribute of KindSum, KindMax, KindMaxGrad and
// KindRepeat.
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
	var at, strides [maxAxes]int // of y; 0 along the axes that y does not have
	shape, axes, n := f.Op.Shape, f.Op.Attrs.(Axes), 1
	for axis := len(shape) - 1; axis >= 0; axis-- {
		if !axes.has(axis) {
			strides[axis] = n
			n *= shape[axis]
		}
	}
	j := 0
	for i := range dx {
		largest := T(0)
		if x[i] == y[j] {
			largest = 1
		}
		dx[i] = dy[j] * largest
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

// reduce folds one axis after the other. Intermediate results are in scratch memory, where a kernel
// may write over its argument.
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

// reduceScratch is the size of x after the first axis is folded, unless that is the result.
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

// repeatRow has only the value as argument: its result has a shape, so the number of repetitions is
// not needed.
var repeatRow = &Row{
	Kind: KindRepeat, Attr: Axes(0), Doc: "x, with each element repeated along an axis", Shapes: "x [...] -> y [*]",
	Kernels: Kernels{repeat(vec.Fill[float32]), repeat(vec.Fill[float64]), naiveRepeat}, BF16: repeat(fillHalf),
	FLOPs: Each(0), Cheap: true, Split: ByElement,
}

func nativeRepeat(n *G.Node, kids []*G.Node) *Op {
	axis := reflect.Indirect(reflect.ValueOf(n.Op())).FieldByName("along").Int()
	return useWith(repeatRow, Axes(1)<<axis, n, kids)
}

// repeat writes elements from f.First on: rows of x, or runs of one element.
func repeat[T Elem](fill func(y []T, v T)) Kernel {
	return func(f *Frame) error {
		x, y, i := Data[T](f.In[0].Bytes), Data[T](f.Out.Bytes), f.First
		n, inner := Numel(f.Op.Shape)/Numel(f.Op.In[0]), Numel(f.Op.Shape[bits.Len32(uint32(f.Op.Attrs.(Axes))):])
		if n == 1 {
			copy(y, x)
			return nil
		}
		for len(y) > 0 {
			var done int
			if inner > 1 {
				row, at := i/(n*inner), i%inner
				done = copy(y, x[row*inner+at:(row+1)*inner])
			} else {
				done = min(len(y), n-i%n)
				fill(y[:done], x[i/n])
			}
			y, i = y[done:], i+done
		}
		return nil
	}
}

// timesRow is repeatRow with its own gradient: the sum over the repetitions.
var timesRow = func() *Row {
	r := *repeatRow
	r.Diff, r.Grad = 1, func(o *Op, _ G.Nodes, _, dy *G.Node) (G.Nodes, error) {
		x := o.In[0]
		outer := Numel(x[:bits.Len32(uint32(o.Attrs.(Axes)))])
		dy, err := NewView(dy, 0, outer, Numel(o.Shape)/Numel(x), Numel(x)/outer)
		if err != nil {
			return nil, err
		}
		dx, err := (&Op{Row: sumRow, Attrs: Axes(1 << 1), Shape: tensor.Shape{outer, Numel(x) / outer}}).add(dy)
		if err != nil {
			return nil, err
		}
		dx, err = shaped(dx, x)
		return G.Nodes{dx}, err
	}
	return &r
}()

// replaceUpsample repeats the rows and the columns of an image.
func replaceUpsample(n *G.Node, kids []*G.Node) (x *G.Node, err error) {
	x = kids[0]
	for axis := 2; axis < 4 && err == nil; axis++ {
		shape := x.Shape().Clone()
		shape[axis] = n.Shape()[axis]
		x, err = (&Op{Row: timesRow, Attrs: Axes(1) << axis, Shape: shape}).add(x)
	}
	return x, err
}

func fillHalf(y []half.BFloat16, v half.BFloat16) {
	for i := range y {
		y[i] = v
	}
}

func naiveRepeat(f *Frame) error {
	x, y := Data[float64](f.In[0].Bytes), Data[float64](f.Out.Bytes)
	n, inner := len(y)/len(x), Numel(f.Op.Shape[bits.Len32(uint32(f.Op.Attrs.(Axes))):])
	for i := range y {
		y[i] = x[i/(n*inner)*inner+i%inner]
	}
	return nil
}
