package exec

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/bf16"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

var transposeRow = &Row{
	Kind: KindTranspose, Attr: Order{}, Doc: "x with its axes in another order", Shapes: "x -> y [*]",
	Kernels: Kernels{transpose(kernel.Transpose[float32]), transpose(kernel.Transpose[float64]), transpose(kernel.NaiveTranspose)},
	BF16:    transpose(kernel.Transpose[half.BFloat16]),
	FLOPs:   Each(0), Cheap: true, Moves: true, Split: ByKernel,
}

func nativeTranspose(n *G.Node, kids []*G.Node) *Op {
	return useWith(transposeRow, pattern(n.Op()), n, kids)
}

func transpose[T kernel.Element](run func(c *kernel.Context, y, x []T, l kernel.Layout)) Kernel {
	return func(f *Frame) error {
		run(f.Kernel, Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes), kernel.Layout{Shape: f.Op.In[0], Order: f.Op.Attrs.(Order).Order})
		return nil
	}
}

// replaceTranspose replaces a transposition that moves only axes of length 1 by a view.
func replaceTranspose(n *G.Node, kids []*G.Node) (*G.Node, error) {
	last := -1
	for _, axis := range pattern(n.Op()).axes(n.Dims()) {
		if kids[0].Shape()[axis] == 1 {
			continue
		}
		if axis < last {
			return nil, nil
		}
		last = axis
	}
	return NewView(kids[0], 0, n.Shape()...)
}

// Slice is the attribute of KindSlice and of KindSliceGrad: the elements from Start on along an
// axis, Step apart.
type Slice struct{ Axis, Start, Step int }

var sliceRow = &Row{
	Kind: KindSlice, Attr: Slice{}, Doc: "some elements of x along an axis", Shapes: "x -> y [*]",
	Kernels: Kernels{slice[float32], slice[float64], slice[float64]}, BF16: slice[half.BFloat16],
	FLOPs: Each(0), Reads: func(o *Op, _ int) int { return Numel(o.Shape) }, Cheap: true, Moves: true, Split: ByKernel, Diff: 1, Grad: sliceGrads,
}

// partRow is a slice that is one piece of memory. It costs nothing.
var partRow = &Row{Kind: KindView, Attr: View{}, Doc: viewRow.Doc, Shapes: viewRow.Shapes, Kernels: viewRow.Kernels,
	FLOPs: Each(0), View: true, Diff: 1,
	Grad: func(o *Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
		dx, err := (&Op{Row: sliceGradRow, Attrs: Slice{Start: o.Attrs.(View).Offset, Step: 1}, Shape: tensor.Shape{Numel(o.In[0])}}).add(dy)
		if err != nil {
			return nil, err
		}
		dx, err = shaped(dx, o.In[0])
		return G.Nodes{dx}, err
	},
}

func sliceGrads(o *Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
	dx, err := (&Op{Row: sliceGradRow, Attrs: o.Attrs, Shape: o.In[0]}).add(dy)
	return G.Nodes{dx}, err
}

var sliceGradRow = &Row{
	Kind: KindSliceGrad, Attr: Slice{}, Doc: "dy at the elements of a slice, and 0 at the others", Shapes: "dy -> dx [*]",
	Kernels: Kernels{sliceGrad[float32], sliceGrad[float64], sliceGrad[float64]}, BF16: sliceGrad[half.BFloat16],
	FLOPs: Each(0), Moves: true, Split: ByKernel,
}

// diagRow is sliceGradRow as an operation in its own right.
var diagRow = func() *Row {
	r := *sliceGradRow
	r.Diff, r.Grad = 1, func(o *Op, _ G.Nodes, _, dy *G.Node) (G.Nodes, error) {
		dx, err := (&Op{Row: sliceRow, Attrs: o.Attrs, Shape: o.In[0]}).add(dy)
		return G.Nodes{dx}, err
	}
	return &r
}()

func slice[T kernel.Element](f *Frame) error {
	copySlice(f, Data[T](f.In[0].Bytes), Data[T](f.Out.Bytes), f.Op.In[0], false)
	return nil
}

func sliceGrad[T kernel.Element](f *Frame) error {
	copySlice(f, Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes), f.Op.Shape, true)
	return nil
}

// copySlice copies the thread's share of a slice of whole, which has the given shape, to part. With
// back it copies part to whole, with zeros around it.
func copySlice[T kernel.Element](f *Frame, whole, part []T, shape tensor.Shape, back bool) {
	s := f.Op.Attrs.(Slice)
	outer, inner := around(shape, s.Axis)
	whole, _ = ownRows(f, whole, outer)
	part, rows := ownRows(f, part, outer)
	if back {
		clear(whole)
	}
	groups, width, apart := min(1, rows), len(part)/max(1, rows), len(whole)/max(1, rows)
	if s.Step > 1 {
		groups, rows, width, apart = rows, width/inner, inner, s.Step*inner
	}
	for g := range groups {
		w, p := whole[g*len(whole)/groups+s.Start*inner:], part[g*len(part)/groups:]
		if back {
			kernel.CopyRows(w, p, rows, width, apart, width)
		} else {
			kernel.CopyRows(p, w, rows, width, width, apart)
		}
	}
}

// ownRows returns the thread's share of the rows of x, and the number of these rows.
func ownRows[T kernel.Element](f *Frame, x []T, rows int) ([]T, int) {
	lo, hi := f.Kernel.Share(rows, 1)
	return x[lo*len(x)/rows : hi*len(x)/rows], hi - lo
}

// replaceSlice replaces a slice that is one piece of memory by a view.
func replaceSlice(n *G.Node, kids []*G.Node) (*G.Node, error) {
	x, op := kids[0], reflect.ValueOf(n.Op()).Elem()
	if op.FieldByName("Slice").IsNil() {
		return x, nil
	}
	by, s := n.Op().(tensor.Slice), Slice{Axis: int(op.FieldByName("along").Int()), Step: 1}
	if by.End() > by.Start() {
		s.Start, s.Step = by.Start(), max(1, by.Step())
	}
	outer, inner := around(x.Shape(), s.Axis)
	if outer > 1 || s.Step > 1 {
		return (&Op{Row: sliceRow, Attrs: s, Shape: n.Shape().Clone()}).add(x)
	}
	return partRow.view(x, View{s.Start * inner}, n.Shape())
}

// sliceAddRow adds the gradient of a slice to another gradient of the same tensor.
var sliceAddRow = &Row{
	Kind: KindSliceAdd, Attr: Slice{}, Doc: "x, with dy added to the elements of a slice", Shapes: "x, dy -> y [*]",
	Kernels: Kernels{sliceAdd(vec.Accumulate[float32]), sliceAdd(vec.Accumulate[float64]), sliceAdd(naiveSliceAdd)},
	BF16:    sliceAddHalf, BF16Scratch: ElementScratch,
	FLOPs: func(o *Op) int { return Numel(o.In[1]) }, InPlace: true, Moves: true, Split: ByKernel,
}

func sliceAdd[T kernel.Element](add func(y, x []T)) Kernel {
	return func(f *Frame) error {
		s := f.Op.Attrs.(Slice)
		outer, inner := around(f.Op.Shape, s.Axis)
		y, rows := ownRows(f, Data[T](f.Out.Bytes), outer)
		x, _ := ownRows(f, Data[T](f.In[0].Bytes), outer)
		dy, _ := ownRows(f, Data[T](f.In[1].Bytes), outer)
		if rows > 0 && &x[0] != &y[0] {
			copy(y, x)
		}
		for i := range rows {
			part := dy[i*len(dy)/rows : (i+1)*len(dy)/rows]
			add(y[i*len(y)/rows+s.Start*inner:][:len(part)], part)
		}
		return nil
	}
}

func sliceAddHalf(f *Frame) error {
	return sliceAdd(func(y, x []half.BFloat16) { bf16.Add(y, y, x, Data[float32](f.Scratch)) })(f)
}

func naiveSliceAdd(y, x []float64) {
	for i, v := range x {
		y[i] += v
	}
}

// addSlices is a replacer. It merges a sum with the gradient of a slice that no other node needs.
func addSlices(n *G.Node, kids []*G.Node, _ map[*G.Node]*G.Node, uses map[*G.Node]int) (*G.Node, error) {
	if typeName(n.Op()) != "gorgonia.elemBinOp" || !strings.HasPrefix(n.Op().String(), "+ ") {
		return nil, nil
	}
	for i := range kids {
		dy, x := kids[1-i], kids[i]
		op, ours := dy.Op().(*Op)
		if ours && op.Kind == KindSliceGrad && op.Attrs.(Slice).Step == 1 && uses[arguments(n.Graph(), n)[1-i]] == 1 &&
			Numel(x.Shape()) == Numel(dy.Shape()) && slices.Equal(n.Shape(), dy.Shape()) {
			return (&Op{Row: sliceAddRow, Attrs: op.Attrs, Shape: n.Shape().Clone()}).add(x, arguments(dy.Graph(), dy)[0])
		}
	}
	return nil, nil
}

// mergeResults merges operations with the operation of an argument (Row.Merged), if no other node
// needs that argument. The merged operation rounds once, where two round twice.
func (tr *trace) mergeResults() error {
	roots := []G.Nodes{tr.outs, tr.updates, tr.gradIn, tr.gradParam}
	merged := make(map[*G.Node]*G.Node) // by operation of several results
	if err := tr.rebuild(mergeResult(merged), roots...); err != nil || len(merged) == 0 {
		return err
	}
	return tr.rebuild(func(n *G.Node, kids []*G.Node, _ map[*G.Node]*G.Node, _ map[*G.Node]int) (*G.Node, error) {
		if op, ours := n.Op().(*Op); ours && op.View && merged[kids[0]] != nil {
			return G.ApplyOp(op, merged[kids[0]]) // another result
		}
		return nil, nil
	}, roots...)
}

// mergeResult returns the replacer of mergeResults. It lists operations of several results.
func mergeResult(merged map[*G.Node]*G.Node) replacer {
	return func(n *G.Node, kids []*G.Node, _ map[*G.Node]*G.Node, uses map[*G.Node]int) (*G.Node, error) {
		next := native(n.Graph(), n)
		if next == nil || len(kids) != 2 || !slices.Equal(kids[0].Shape(), kids[1].Shape()) {
			return nil, nil
		}
		for i, x := range kids {
			if uses[arguments(n.Graph(), n)[i]] > 1 || !slices.Equal(n.Shape(), x.Shape()) || i == 0 && next.Row != addRow {
				continue
			}
			from := x
			if isView(x) && offset(x) == 0 {
				from = children(n.Graph(), x)[0]
			}
			op, ours := from.Op().(*Op)
			if !ours || op.Merged[next.Kind] == nil || (op.parts == nil) != (from == x) || merged[from] != nil {
				continue
			}
			both := &Op{Row: op.Merged[next.Kind], Attrs: op.Attrs, dims: op.dims, lead: op.lead}
			to, err := both.add(append(G.Nodes{kids[1-i]}, arguments(n.Graph(), from)...)...)
			if err != nil || from == x {
				return to, err
			}
			merged[from] = to
			return Part(to, 0)
		}
		return nil, nil
	}
}

// replaceAt replaces the access to an element by a view.
func replaceAt(n *G.Node, kids []*G.Node) (*G.Node, error) {
	at, shape := 0, kids[0].Shape()
	list := reflect.ValueOf(n.Op()).FieldByName("coordinates")
	if list.Len() != len(shape) {
		return nil, fmt.Errorf("%d coordinates for shape %v", list.Len(), shape)
	}
	for axis, size := range shape {
		i := int(list.Index(axis).Int())
		if i < 0 || i >= size {
			return nil, fmt.Errorf("the coordinates are outside shape %v", shape)
		}
		at = at*size + i
	}
	return partRow.view(kids[0], View{at}, n.Shape())
}

// replaceDiag puts the elements on the diagonal of a matrix of zeros.
func replaceDiag(n *G.Node, kids []*G.Node) (*G.Node, error) {
	size := Numel(kids[0].Shape())
	y, err := (&Op{Row: diagRow, Attrs: Slice{Step: size + 1}, Shape: tensor.Shape{size * size}}).add(kids...)
	if err != nil {
		return nil, err
	}
	return shaped(y, n.Shape())
}

// NewSlice returns the elements from lo to hi of x along an axis. Gorgonia merges some of its own
// slices by mistake: see distinctNodes.
func NewSlice(x *G.Node, axis, lo, hi int) (*G.Node, error) {
	shape := x.Shape().Clone()
	if axis < 0 || axis >= len(shape) || lo < 0 || hi <= lo || hi > shape[axis] {
		return nil, fmt.Errorf("slice: x is %v and has no elements %d to %d along axis %d", x.Shape(), lo, hi, axis)
	}
	shape[axis] = hi - lo
	return (&Op{Row: sliceRow, Attrs: Slice{Axis: axis, Start: lo, Step: 1}, Shape: shape}).add(x)
}

// around returns the number of elements before an axis and the number of elements after it.
func around(shape tensor.Shape, axis int) (outer, inner int) {
	return Numel(shape[:axis]), Numel(shape[axis+1:])
}

// Axis is the attribute of operations along an axis.
type Axis int

// String returns the axis in brackets.
func (a Axis) String() string { return fmt.Sprintf("(%d)", int(a)) }

var concatRow = &Row{
	Kind: KindConcat, Attr: Axis(0), Doc: "the arguments, one after the other along an axis", Shapes: "x -> y [*]",
	Kernels: Kernels{concat[float32], concat[float64], concat[float64]}, BF16: concat[half.BFloat16],
	FLOPs: Each(0), Cheap: true, Moves: true, Split: ByKernel, Diff: math.MaxInt,
	Grad: func(o *Op, in G.Nodes, _, dy *G.Node) (grads G.Nodes, err error) {
		if dy, err = shaped(dy, o.Shape); err != nil {
			return nil, err
		}
		s := Slice{Axis: int(o.Attrs.(Axis)), Step: 1}
		for _, x := range in {
			dx, err := (&Op{Row: sliceRow, Attrs: s, Shape: x.Shape().Clone()}).add(dy)
			if err != nil {
				return nil, err
			}
			grads, s.Start = append(grads, dx), s.Start+x.Shape()[s.Axis]
		}
		return grads, nil
	},
}

func replaceConcat(n *G.Node, kids []*G.Node) (*G.Node, error) {
	if len(kids) == 1 {
		return kids[0], nil
	}
	return (&Op{Row: concatRow, Attrs: Axis(reflect.ValueOf(n.Op()).FieldByName("axis").Int()), Shape: n.Shape().Clone()}).add(kids...)
}

func concat[T kernel.Element](f *Frame) error {
	outer, _ := around(f.Op.Shape, int(f.Op.Attrs.(Axis)))
	y, rows := ownRows(f, Data[T](f.Out.Bytes), outer)
	for at, i := 0, 0; i < len(f.In) && rows > 0; i++ {
		x, _ := ownRows(f, Data[T](f.In[i].Bytes), outer)
		kernel.CopyRows(y[at:], x, rows, len(x)/rows, len(y)/rows, len(x)/rows)
		at += len(x) / rows
	}
	return nil
}

var lookupRow = &Row{
	Kind: KindLookup, Attr: Axis(0), Doc: "the elements of x along an axis that index names", Shapes: "x, index int -> y [*]",
	Kernels: Kernels{lookup(kernel.Embedding[float32]), lookup(kernel.Embedding[float64]), lookup(kernel.NaiveEmbedding)},
	BF16:    lookup(kernel.Embedding[half.BFloat16]),
	FLOPs:   Each(0),
	Reads: func(o *Op, arg int) int {
		if arg == 0 {
			return Numel(o.Shape)
		}
		return Numel(o.In[arg])
	},
	Check: func(o *Op, _ int, v []int) error { return kernel.CheckIndices(v, o.In[0][o.Attrs.(Axis)]) },
	Diff:  1,
	Grad: func(o *Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
		dx, err := (&Op{Row: lookupGradRow, Attrs: o.Attrs, Shape: o.In[0]}).add(dy, in[1])
		return G.Nodes{dx}, err
	},
}

var lookupGradRow = &Row{
	Kind: KindLookupGrad, Attr: Axis(0), Doc: "the sum of the elements of dy at the place along the axis that they come from",
	Shapes: "dy, index int -> dx f32 [*]", FLOPs: Each(1), Accumulate: true,
	Kernels: Kernels{lookupGrad(kernel.EmbeddingGrad[float32]), lookupGrad(kernel.EmbeddingGrad[float64]),
		lookupGrad(kernel.NaiveEmbeddingGrad)},
}

func replaceLookup(n *G.Node, kids []*G.Node) (*G.Node, error) {
	axis := reflect.Indirect(reflect.ValueOf(n.Op())).FieldByName("axis").Int()
	return (&Op{Row: lookupRow, Attrs: Axis(axis), Shape: n.Shape().Clone()}).add(kids...)
}

func lookup[T kernel.Element](run func(y, table []T, idx []int, rows, d int) error) Kernel {
	return func(f *Frame) error {
		y, x, idx, axis := Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes), Data[int](f.In[1].Bytes), int(f.Op.Attrs.(Axis))
		outer, inner := around(f.Op.Shape, axis)
		for o := range outer {
			x, y := x[o*len(x)/outer:][:len(x)/outer], y[o*len(y)/outer:][:len(y)/outer]
			if err := run(y, x, idx, len(x)/inner, inner); err != nil {
				return err
			}
		}
		return nil
	}
}

func lookupGrad[T kernel.Float](run func(dtable, dy []T, idx []int, rows, d int, acc bool)) Kernel {
	return func(f *Frame) error {
		dx, dy, idx, axis := Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes), Data[int](f.In[1].Bytes), int(f.Op.Attrs.(Axis))
		outer, inner := around(f.Op.Shape, axis)
		for o := range outer {
			dx, dy := dx[o*len(dx)/outer:][:len(dx)/outer], dy[o*len(dy)/outer:][:len(dy)/outer]
			run(dx, dy, idx, len(dx)/inner, inner, f.Acc)
		}
		return nil
	}
}
