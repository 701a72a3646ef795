package exec

import (
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/bf16"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// A Kind names an operation. Other engines choose their kernels by it.
type Kind string

// These are the kinds that the compiler itself emits. The kinds of modules are in package ops.
const (
	KindAdd        Kind = "add"
	KindAccumulate Kind = "accumulate"
	KindCopy       Kind = "copy"
	KindConvert    Kind = "convert"
	KindZero       Kind = "zero"
	KindOutput     Kind = "output"
	KindView       Kind = "view"
	KindSum        Kind = "sum"
	KindMax        Kind = "max"
	KindMaxGrad    Kind = "max grad"
	KindRepeat     Kind = "repeat"
	KindUnary      Kind = "unary"
	KindBinary     Kind = "binary"

	KindFromInt     Kind = "from int"
	KindProduct     Kind = "product"
	KindTranspose   Kind = "transpose"
	KindSlice       Kind = "slice"
	KindSliceGrad   Kind = "slice grad"
	KindSliceAdd    Kind = "slice add"
	KindConcat      Kind = "concat"
	KindLookup      Kind = "lookup"
	KindLookupGrad  Kind = "lookup grad"
	KindSoftmax     Kind = "softmax"
	KindSoftmaxGrad Kind = "softmax grad"

	KindStock Kind = "stock"
)

// A Row is one row of the table of operations: everything that is known about a kind. All readers
// use it: the tracer, the compiler, the runner, other engines, planners and tests. Its functions
// take the Op, which has the attributes and the sizes of one use.
type Row struct {
	Kind Kind
	// Serial distinguishes rows of one kind that compute different functions: rows made by users
	// (op.Custom). Rows of the table have 0.
	Serial uint64
	// Doc is the formula of the result.
	Doc string
	// Attr is the zero value of the type of Op.Attrs, which is comparable. Nil means no attributes.
	Attr any
	// Shapes names the arguments and results with their shapes, such as
	//
	//	x [... in], weight [out in], bias? [out] -> y [... out]
	//	logits [... n classes], targets int [... n] -> loss [1] | lse [... n]
	//
	// A word in brackets is a dimension, which is the same in all its places. "..." is any number
	// of dimensions. An argument marked ? may be omitted. An argument marked int holds integers,
	// and all others hold the graph's float type. Several results, divided by |, follow each other
	// in one vector, since a Gorgonia operation has one result (see Part). If Shapes is empty, any
	// floats are accepted, and the result has the shape of the first. A value marked f32 is float32
	// where other values are bfloat16; such results come last. An argument named packed is such a
	// vector. An argument marked any is passed to Row.BF16 in its stored form.
	Shapes string
	// Fit, if not nil, checks conditions that Shapes cannot express. It may set dimensions of
	// results.
	Fit func(o *Op) error
	Kernels
	// FLOPs counts the arithmetic: two for each multiply-add of a product, one for each other
	// operation or elementary function on an element.
	FLOPs func(o *Op) int
	// Product returns the sizes of the matrix products among the FLOPs: rows and columns of the
	// result, and the length of the sums. Nil means that there are none.
	Product func(o *Op) (rows, cols, depth int)
	// Attention returns sizes for an operation whose FLOPs are attention's: the size of a head, the
	// number of scores of all heads including hidden ones, and the number of products for each
	// head. Nil means that it is no attention.
	Attention func(o *Op) (headDim, scores, products int)
	// Reads returns the greatest number of elements of an argument that are read. Nil means all of
	// them.
	Reads func(o *Op, arg int) int
	// Diff is the number of leading arguments with respect to which the result is differentiable.
	// Integers among them do not count.
	Diff int
	// Grad builds their gradients, usually by Op.Gradient. out is the op's own node. Trailing nil
	// gradients may be omitted.
	Grad func(o *Op, in G.Nodes, out, dy *G.Node) (G.Nodes, error)
	// Merged are the operations that compute this one and an operation of a kind that follows: the
	// sum of the result, or of the first of several, and another value (KindAdd), or an operation
	// whose last argument is the result. Their first arguments are the other arguments of the
	// operation that follows, and then those of this one. They serve units whose instructions run
	// apart.
	Merged map[Kind]*Row
	// Early returns the operation that computes gradients together with the result, or nil. It takes
	// the place of o in units that are trained and whose instructions run apart. Its first
	// results are the results of o. needed reports whether an argument needs a gradient.
	Early func(o *Op, needed func(arg int) bool) *Row
	// Check returns an error if the integers of an argument are invalid, so that a batch can be
	// refused before anything runs on it. The kernels check too.
	Check func(o *Op, arg int, v []int) error
	// Scratch returns the number of scratch elements for the kernels. Nil means none.
	Scratch func(o *Op) int
	// BF16 is the kernel for bfloat16 values, and BF16Scratch its number of float32 scratch
	// elements. If BF16 is nil, arguments are widened for the float32 kernel, and its result is
	// rounded.
	BF16        Kernel
	BF16Scratch func(o *Op) int
	Split       Split

	// Constant marks results that depend only on attributes and shapes. They are computed when the
	// first program with them is compiled, and live as long as such a program does. The kernels get
	// no arguments.
	Constant bool

	Moves      bool // elements of the result are elements of the arguments, sums of these, or 0
	Widens     bool // BF16 also writes results in float32, if Frame.Out is float32
	Rounds     bool // F32 and BF16 (with Signature.Apart only BF16) also round the result to bfloat16, once, if Frame.Out is bfloat16
	View       bool // the result is memory of argument 0; programs do not run the kernels
	Cheap      bool // cheaper to compute again than to keep
	InPlace    bool // the result may be written over argument 0
	Accumulate bool // the kernels honour Frame.Acc
}

// Split says how the threads of a rank share an operation. Each thread calls the kernel with its
// own scratch memory.
type Split uint8

const (
	// Whole operations run on one thread.
	Whole Split = iota
	// ByKernel marks kernels that compute only the share in Frame.Kernel, such as its rows.
	ByKernel
	// ByElement marks operations whose element i depends on the elements i of those arguments that
	// are as long as the result. Their frames have a range of these elements.
	ByElement
)

// A Kernel computes an operation.
type Kernel = func(*Frame) error

// Kernels are the host kernels for float32 and float64, and a reference for them and for the
// kernels of other engines: the formula in float64, computed literally.
type Kernels struct{ F32, F64, Naive Kernel }

// Rows returns the rows of the operations that the compiler itself emits.
func Rows() []*Row {
	return append(imageRows(), addRow, accumulateRow, copyRow, convertRow, zeroRow, outputRow, viewRow,
		sumRow, maxRow, maxGradRow, repeatRow, unaryRow, binaryRow, fromIntRow, productRow, transposeRow, sliceRow, sliceGradRow, sliceAddRow,
		concatRow, randomRow,
		lookupRow, lookupGradRow, softmaxRow, softmaxGradRow, stockRow)
}

var addRow = &Row{
	Kind: KindAdd, Doc: "a + b", Shapes: "a [...], b [...] -> y [...]",
	Kernels: Kernels{add[float32], add[float64], naiveAdd},
	FLOPs:   Each(1), Cheap: true, Moves: true, InPlace: true, Split: ByElement, BF16: addHalf, BF16Scratch: ElementScratch,
}

// ElementScratch is the BF16Scratch of element-wise operations.
func ElementScratch(*Op) int { return bf16.ElementScratch }

func addHalf(f *Frame) error {
	bf16.Add(Data[half.BFloat16](f.Out.Bytes), Data[half.BFloat16](f.In[0].Bytes),
		Data[half.BFloat16](f.In[1].Bytes), Data[float32](f.Scratch))
	return nil
}

func naiveAdd(f *Frame) error {
	for i, a := range Data[float64](f.In[0].Bytes) {
		Data[float64](f.Out.Bytes)[i] = a + Data[float64](f.In[1].Bytes)[i]
	}
	return nil
}

func add[T vec.Float](f *Frame) error {
	vec.Add(Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes), Data[T](f.In[1].Bytes))
	return nil
}

var accumulateRow = &Row{
	Kind: KindAccumulate, Doc: "y + x, where y lies", Shapes: "x [...] -> y [...]",
	Kernels: Kernels{accumulate[float32], accumulate[float64], naiveAccumulate}, FLOPs: Each(1), Accumulate: true, Split: ByElement,
	BF16: accumulateHalf, BF16Scratch: ElementScratch,
}

func accumulateHalf(f *Frame) error {
	y := Data[half.BFloat16](f.Out.Bytes)
	bf16.Add(y, y, Data[half.BFloat16](f.In[0].Bytes), Data[float32](f.Scratch))
	return nil
}

func accumulate[T vec.Float](f *Frame) error {
	vec.Accumulate(Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes))
	return nil
}

func naiveAccumulate(f *Frame) error {
	for i, x := range Data[float64](f.In[0].Bytes) {
		Data[float64](f.Out.Bytes)[i] += x
	}
	return nil
}

var copyRow = &Row{Kind: KindCopy, Doc: "x", Shapes: "x [...] -> y [...]", Kernels: copies, FLOPs: Each(0), BF16: copyBytes,
	Split: ByElement}

// outputRow gives an output its own node.
var outputRow = &Row{
	Kind: KindOutput, Attr: Output{},
	Doc: "x, as an output of a module", Shapes: "x [...] -> y [...]", Kernels: copies, FLOPs: Each(0), BF16: copyBytes, Split: ByElement,
	Diff: 1, Grad: func(_ *Op, _ G.Nodes, _, dy *G.Node) (G.Nodes, error) { return G.Nodes{dy}, nil },
}

// Output is the attribute of KindOutput: the number of the output.
type Output struct{ Index int }

var copies = Kernels{copyBytes, copyBytes, copyBytes}

func copyBytes(f *Frame) error { copy(f.Out.Bytes, f.In[0].Bytes); return nil }

var zeroRow = &Row{
	Kind: KindZero, Doc: "0", Shapes: "-> y [...]", FLOPs: func(*Op) int { return 0 },
	Kernels: Kernels{zero, zero, zero}, Split: ByElement,
}

func zero(f *Frame) error { clear(f.Out.Bytes); return nil }

// viewRow returns elements of a vector, or a tensor under another shape. It costs nothing.
var viewRow = &Row{
	Kind: KindView, Attr: View{}, Doc: "the elements of x from an offset on, under another shape", Shapes: "x [...] -> y [*]",
	Kernels: Kernels{viewed, viewed, viewed}, FLOPs: Each(0), View: true, Diff: 1,
	Grad: func(o *Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
		if Numel(o.Shape) < Numel(o.In[0]) {
			return G.Nodes{dy}, nil // the operation that packed x accepts it as it is
		}
		dx, err := o.Row.view(dy, View{}, o.In[0])
		return G.Nodes{dx}, err
	},
}

// View is the attribute of KindView.
type View struct{ Offset int } // in elements

// NewView returns the elements of x from offset on as a tensor of the given shape. It costs
// nothing. The gradient of a part of x is passed to x's operation unchanged, so only one part of a
// value may be differentiated.
func NewView(x *G.Node, offset int, shape ...int) (*G.Node, error) {
	return viewRow.view(x, View{offset}, shape)
}

func (r *Row) view(x *G.Node, v View, shape tensor.Shape) (*G.Node, error) {
	return (&Op{Row: r, Attrs: v, Shape: append(tensor.Shape{}, shape...)}).add(x)
}

func viewed(f *Frame) error {
	copy(f.Out.Bytes, f.In[0].Bytes[f.Op.Attrs.(View).Offset*int(f.Out.DType.Size()):])
	return nil
}

// stockRow stands for all of Gorgonia's own operations. They have no kernels here: see stock.go.
var stockRow = &Row{Kind: KindStock, Attr: Stock{}, Doc: "an operation of Gorgonia's, run by its own Do",
	FLOPs: func(o *Op) int { return Numel(o.Shape) }}

// Stock is the attribute of KindStock: the operation's name.
type Stock struct{ Name string }

// Each returns the FLOPs of an operation with n operations for each element of argument 0.
func Each(n int) func(*Op) int { return func(o *Op) int { return n * Numel(o.In[0]) } }
