package exec

import (
	"reflect"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/kernel"
)

// These are Gorgonia's operations on images. A Conv2d is an Im2Col, reshapes, a product and a
// transposition, and is turned back into one operation. Gorgonia's pooling and Dropout keep state
// for backward in the operation. Its Dropout also draws from a global generator and has a wrong
// gradient. The replacements here do none of this.

// Patches is the attribute of KindPatches and of its gradient: pairs of rows and columns.
type Patches struct{ Kernel, Pad, Stride, Dilation [2]int }

var patchesRow = &Row{
	Kind: KindPatches, Attr: Patches{}, Doc: "the pixels of x that each place of a kernel sees", Shapes: "x [B C H W] -> y [B P Q n]",
	Fit: func(o *Op) error {
		g, a := patchesOf(o), o.Attrs.(Patches)
		o.SetDim("P", g.OutHeight())
		o.SetDim("Q", g.OutWidth())
		o.SetDim("n", g.In*a.Kernel[0]*a.Kernel[1])
		return nil
	},
	Kernels: Kernels{patches(kernel.Patches[float32]), patches(kernel.Patches[float64]), patches(kernel.NaivePatches)},
	FLOPs:   Each(0), Split: ByKernel, Cheap: true, Diff: 1,
	Grad: func(o *Op, _ G.Nodes, _, dy *G.Node) (G.Nodes, error) { return o.Gradient(patchesGradRow, dy) },
}

var patchesGradRow = &Row{
	Kind: KindPatchesGrad, Attr: Patches{}, Doc: "the sum of the elements of dy at the pixel that they come from", Shapes: "dy -> dx [B C H W]",
	Kernels: Kernels{patches(kernel.PatchesGrad[float32]), patches(kernel.PatchesGrad[float64]), patches(kernel.NaivePatchesGrad)},
	FLOPs:   Each(1), Split: ByKernel,
}

func patchesOf(o *Op) kernel.Conv {
	a := o.Attrs.(Patches)
	return kernel.Conv{
		Batch: o.Dim("B"), In: o.Dim("C"), Height: o.Dim("H"), Width: o.Dim("W"), KernelHeight: a.Kernel[0], KernelWidth: a.Kernel[1],
		Stride: a.Stride, Pad: a.Pad, Dilation: a.Dilation,
	}
}

func patches[T kernel.Float](run func(c *kernel.Context, g kernel.Conv, y, x []T)) Kernel {
	return func(f *Frame) error {
		run(f.Kernel, patchesOf(f.Op), Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes))
		return nil
	}
}

// pairOf returns two integers of a stock operation.
func pairOf(op G.Op, rows, columns string) [2]int {
	v := reflect.Indirect(reflect.ValueOf(op))
	return [2]int{int(v.FieldByName(rows).Int()), int(v.FieldByName(columns).Int())}
}

func replacePatches(n *G.Node, kids []*G.Node) (*G.Node, error) {
	op := n.Op()
	return patchesRow.Apply(Patches{pairOf(op, "h", "w"), pairOf(op, "padH", "padW"), pairOf(op, "strideH", "strideW"),
		pairOf(op, "dilationH", "dilationW")}, kids...)
}

// convolution returns the convolution whose last node is n, with the replacements of its arguments.
// It returns nil if n does not end a convolution.
func (tr *trace) convolution(n *G.Node, made map[*G.Node]*G.Node, uses map[*G.Node]int) (*G.Node, error) {
	if !slices.Equal(pattern(n.Op()).axes(n.Dims()), []int{0, 3, 1, 2}) {
		return nil, nil
	}
	behind := func(n *G.Node, op string) []*G.Node {
		if n.Op() == nil || typeName(n.Op()) != op {
			return nil
		}
		return arguments(tr.g, n)
	}
	y := arguments(tr.g, n)[0]
	flat := behind(y, "gorgonia.reshapeOp")
	if flat == nil || uses[y] > 1 || uses[flat[0]] > 1 {
		return nil, nil
	}
	factors := behind(flat[0], "gorgonia.linAlgBinOp")
	if factors == nil || !reflect.Indirect(reflect.ValueOf(flat[0].Op())).FieldByName("transB").Bool() {
		return nil, nil
	}
	rows, filters := behind(factors[0], "gorgonia.reshapeOp"), behind(factors[1], "gorgonia.reshapeOp")
	if rows == nil || filters == nil {
		return nil, nil
	}
	x := behind(rows[0], "gorgonia.im2colOp")
	if x == nil {
		return nil, nil
	}
	op, w, p := rows[0].Op(), filters[0], rows[0].Shape()
	kernel := pairOf(op, "h", "w")
	if !slices.Equal(w.Shape(), []int{y.Shape()[3], x[0].Shape()[1], kernel[0], kernel[1]}) ||
		!slices.Equal(y.Shape(), []int{p[0], p[1], p[2], w.Shape()[0]}) {
		return nil, nil
	}
	return Convolution(made[x[0]], made[w], nil, Conv{pairOf(op, "strideH", "strideW"), pairOf(op, "padH", "padW"),
		pairOf(op, "dilationH", "dilationW"), 1})
}

// stockPool returns the attribute of a stock pooling, and whether there is a kernel for it.
func stockPool(op G.Op) (p Pool, ok bool) {
	p = Pool{pairOf(op, "h", "w"), pairOf(op, "strideH", "strideW"), pairOf(op, "padNorth", "padWest")}
	return p, p.Pad == pairOf(op, "padSouth", "padEast") && 2*p.Pad[0] <= p.Kernel[0] && 2*p.Pad[1] <= p.Kernel[1]
}

func replacePool(n *G.Node, kids []*G.Node) (*G.Node, error) {
	p, _ := stockPool(n.Op())
	return MaxPool(kids[0], p)
}

func replaceDropout(n *G.Node, kids []*G.Node) (*G.Node, error) {
	op := reflect.Indirect(reflect.ValueOf(n.Op()))
	if !op.FieldByName("isTraining").Bool() {
		return kids[0], nil
	}
	return Dropout(kids[0], op.FieldByName("probability").Float(), 0)
}
