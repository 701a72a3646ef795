package exec_test

import (
	"errors"
	"hash"
	"hash/fnv"
	"testing"

	"github.com/chewxy/hm"
	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
)

// builder is the Build of a Spec.
type builder = func(b *exec.Builder, in []*G.Node) (G.Nodes, error)

// returning makes a Build of a function with one result.
func returning(f func(b *exec.Builder, x []*G.Node) (*G.Node, error)) builder {
	return func(b *exec.Builder, in []*G.Node) (G.Nodes, error) {
		y, err := f(b, in)
		if err != nil {
			return nil, err
		}
		return G.Nodes{y}, nil
	}
}

// stockOp is a stock operation on inputs of given shapes.
type stockOp struct {
	name  string
	in    [][]int
	build func(b *exec.Builder, x []*G.Node) (*G.Node, error)
}

// unaryOp is a stock operation on one input.
func unaryOp(name string, shape []int, op func(*G.Node) (*G.Node, error)) stockOp {
	return stockOp{name, [][]int{shape}, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return op(x[0]) }}
}

// binaryOp is a stock operation on two inputs.
func binaryOp(name string, a, b []int, op func(x, y *G.Node) (*G.Node, error)) stockOp {
	return stockOp{name, [][]int{a, b}, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return op(x[0], x[1]) }}
}

// positive returns x² + 1.
func positive(b *exec.Builder, x *G.Node) *G.Node {
	return G.Must(G.Add(G.Must(G.Square(x)), b.Const(1)))
}

func batchedMatMul(trans ...bool) func(x, y *G.Node) (*G.Node, error) {
	return func(x, y *G.Node) (*G.Node, error) { return G.BatchedMatMul(x, y, trans...) }
}

func broadcastAdd(right ...byte) func(x, y *G.Node) (*G.Node, error) {
	return func(x, y *G.Node) (*G.Node, error) { return G.BroadcastAdd(x, y, nil, right) }
}

func along(op func(*G.Node, ...int) (*G.Node, error), axes ...int) func(*G.Node) (*G.Node, error) {
	return func(x *G.Node) (*G.Node, error) { return op(x, axes...) }
}

func sliced(by ...tensor.Slice) func(*G.Node) (*G.Node, error) {
	return func(x *G.Node) (*G.Node, error) { return G.Slice(x, by...) }
}

func convolution(pad, stride, dilation int) func(x, y *G.Node) (*G.Node, error) {
	return func(x, w *G.Node) (*G.Node, error) {
		return G.Conv2d(x, w, w.Shape()[2:], []int{pad, pad}, []int{stride, stride}, []int{dilation, dilation})
	}
}

var stockConvolutions = []stockOp{
	binaryOp("Conv2d", []int{2, 2, 4, 5}, []int{3, 2, 3, 3}, convolution(1, 1, 1)),
	binaryOp("Conv2d with a stride", []int{2, 2, 5, 6}, []int{3, 2, 3, 3}, convolution(1, 2, 1)),
	binaryOp("Conv2d dilated", []int{1, 2, 5, 6}, []int{2, 2, 2, 2}, convolution(0, 1, 2)),
	binaryOp("Conv2d of single pixels", []int{1, 3, 5, 5}, []int{2, 3, 1, 1}, convolution(0, 2, 1)),
	binaryOp("Conv2d twice, with and without dilation", []int{1, 1, 5, 5}, []int{2, 1, 2, 2}, func(x, w *G.Node) (*G.Node, error) {
		y := G.Must(G.Sum(G.Must(convolution(0, 1, 1)(x, w))))
		return G.Add(y, G.Must(G.Sum(G.Must(convolution(0, 1, 2)(x, w)))))
	}),
}

var stockProducts = []stockOp{
	binaryOp("Mul", []int{3, 4}, []int{4, 5}, G.Mul),
	binaryOp("Mul by vector", []int{3, 4}, []int{4}, G.Mul),
	binaryOp("Mul of vectors", []int{4}, []int{4}, G.Mul),
	binaryOp("Mul by Transpose", []int{3, 4}, []int{5, 4}, func(x, y *G.Node) (*G.Node, error) {
		return G.Mul(x, G.Must(G.Transpose(y, 1, 0)))
	}),
	binaryOp("BatchedMatMul", []int{2, 3, 4}, []int{2, 4, 5}, batchedMatMul()),
	binaryOp("BatchedMatMul, left transposed", []int{2, 4, 3}, []int{2, 4, 5}, batchedMatMul(true, false)),
	binaryOp("BatchedMatMul, right transposed", []int{2, 3, 4}, []int{2, 5, 4}, batchedMatMul(false, true)),
	binaryOp("BatchedMatMul, both transposed", []int{2, 4, 3}, []int{2, 5, 4}, batchedMatMul(true, true)),
	binaryOp("BatchedMatMul of four axes", []int{2, 2, 3, 4}, []int{2, 2, 4, 5}, batchedMatMul()),
	binaryOp("Tensordot", []int{2, 3, 4}, []int{4, 5}, func(x, y *G.Node) (*G.Node, error) {
		return G.Tensordot([]int{2}, []int{0}, x, y)
	}),
}

var stockElementwise = []stockOp{
	unaryOp("Rectify", []int{3, 4}, G.Rectify),
	unaryOp("LeakyRelu", []int{3, 4}, func(x *G.Node) (*G.Node, error) { return G.LeakyRelu(x, 0.1) }),
	unaryOp("Sigmoid", []int{3, 4}, G.Sigmoid),
	unaryOp("Softplus", []int{3, 4}, G.Softplus),
	unaryOp("Mish", []int{3, 4}, G.Mish),
	unaryOp("Tanh", []int{3, 4}, G.Tanh),
	unaryOp("Exp", []int{3, 4}, G.Exp),
	unaryOp("Neg", []int{3, 4}, G.Neg),
	unaryOp("Cube", []int{3, 4}, G.Cube),
	unaryOp("Abs", []int{3, 4}, G.Abs),
	{"Sqrt", [][]int{{3, 4}}, func(b *exec.Builder, x []*G.Node) (*G.Node, error) { return G.Sqrt(positive(b, x[0])) }},
	{"Log", [][]int{{3, 4}}, func(b *exec.Builder, x []*G.Node) (*G.Node, error) { return G.Log(positive(b, x[0])) }},
	{"Inverse", [][]int{{3, 4}}, func(b *exec.Builder, x []*G.Node) (*G.Node, error) { return G.Inverse(positive(b, x[0])) }},
	{"Pow", [][]int{{3, 4}}, func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		return G.Pow(positive(b, x[0]), b.Const(1.5))
	}},
	{"HadamardDiv", [][]int{{3, 4}, {3, 4}}, func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		return G.HadamardDiv(x[0], positive(b, x[1]))
	}},
	binaryOp("Add", []int{3, 4}, []int{3, 4}, G.Add),
	binaryOp("Sub", []int{3, 4}, []int{3, 4}, G.Sub),
	binaryOp("HadamardProd", []int{3, 4}, []int{3, 4}, G.HadamardProd),
	binaryOp("HadamardProd by a scalar", []int{3, 4}, nil, G.HadamardProd),
	binaryOp("Add of scalars", nil, nil, G.Add),
}

var stockShapes = []stockOp{
	unaryOp("Transpose of four axes", []int{2, 3, 2, 4}, along(G.Transpose, 0, 2, 1, 3)),
	unaryOp("Transpose of three axes", []int{2, 3, 4}, along(G.Transpose, 2, 0, 1)),
	unaryOp("Reshape", []int{2, 3, 4}, func(x *G.Node) (*G.Node, error) { return G.Reshape(x, tensor.Shape{6, 4}) }),
	unaryOp("Slice of columns", []int{3, 6}, sliced(nil, G.S(2, 4))),
	unaryOp("Slice of rows", []int{6, 3}, sliced(G.S(2, 4))),
	unaryOp("Slice of one row", []int{6, 3}, sliced(G.S(2, 3))),
	unaryOp("Slice of a middle axis", []int{2, 6, 3}, sliced(nil, G.S(2, 4))),
	binaryOp("Concat of columns", []int{3, 2}, []int{3, 4}, func(x, y *G.Node) (*G.Node, error) { return G.Concat(1, x, y) }),
	binaryOp("Concat of rows", []int{3, 2}, []int{4, 2}, func(x, y *G.Node) (*G.Node, error) { return G.Concat(0, x, y) }),
	binaryOp("BroadcastAdd", []int{2, 3, 4}, []int{1, 3, 4}, broadcastAdd(0)),
	binaryOp("BroadcastAdd along two axes", []int{2, 3, 4}, []int{1, 1, 4}, broadcastAdd(0, 1)),
	binaryOp("BroadcastAdd of four axes", []int{2, 2, 3, 3}, []int{1, 2, 3, 3}, broadcastAdd(0)),
	binaryOp("BroadcastAdd of a vector", []int{2, 3, 4}, []int{4}, broadcastAdd(0, 1)),
}

var stockReductions = []stockOp{
	unaryOp("Mean", []int{3, 4}, along(G.Mean)),
	unaryOp("Mean of rows", []int{3, 4}, along(G.Mean, 1)),
	unaryOp("Mean of the last of three axes", []int{2, 3, 4}, along(G.Mean, 2)),
	unaryOp("Sum", []int{3, 4}, along(G.Sum)),
	unaryOp("Sum of columns", []int{3, 4}, along(G.Sum, 0)),
	unaryOp("Sum of a middle axis", []int{2, 3, 4}, along(G.Sum, 1)),
	unaryOp("Sum of two axes", []int{2, 3, 4}, along(G.Sum, 0, 1)),
	unaryOp("Max of rows", []int{3, 4}, along(G.Max, 1)),
}

// TestStockOperations holds every stock operation that models are made of against central
// differences, and float32 against float64.
func TestStockOperations(t *testing.T) {
	for _, table := range [][]stockOp{stockProducts, stockConvolutions, stockElementwise, stockShapes, stockReductions} {
		for _, op := range table {
			t.Run(op.name, func(t *testing.T) {
				trial := exectest.New(t, &exec.Spec{Build: returning(op.build)}, exectest.Signature(tensor.Float64, op.in...))
				trial.CheckGradients(t)
				trial.CheckFloat32(t, 1e-5)
			})
		}
	}
}

// foreign is an operation of somebody else, neither stock nor fused.
type foreign func(...G.Value) (G.Value, error)

func (foreign) Arity() int                                       { return 1 }
func (foreign) Type() hm.Type                                    { return hm.NewFnType(hm.TypeVariable('a'), hm.TypeVariable('a')) }
func (foreign) InferShape(s ...G.DimSizer) (tensor.Shape, error) { return s[0].(tensor.Shape), nil }
func (f foreign) Do(in ...G.Value) (G.Value, error)              { return f(in...) }
func (foreign) ReturnsPtr() bool                                 { return false }
func (foreign) CallsExtern() bool                                { return false }
func (foreign) OverwritesInput() int                             { return -1 }
func (f foreign) WriteHash(h hash.Hash)                          { h.Write([]byte(f.String())) }
func (f foreign) Hashcode() uint32                               { h := fnv.New32a(); f.WriteHash(h); return h.Sum32() }
func (foreign) String() string                                   { return "foreign" }

// TestForeignOperations runs operations that are not fused as Gorgonia would, and turns their
// errors, panics and odd results into errors that name the operation.
func TestForeignOperations(t *testing.T) {
	run := func(do foreign) ([][]float64, error) {
		sig := &exec.Signature{DType: tensor.Float64, Inputs: []exec.Input{{Shape: []int{2}, DType: tensor.Float64}}}
		trial := exectest.New(t, &exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
			return G.ApplyOp(do, x[0])
		})}, sig)
		trial.In[0] = []float64{1, 2}
		var r exec.Runner
		c := trial.Call()
		err := r.Forward(trial.Unit, c)
		return [][]float64{exec.Data[float64](c.Out[0])}, err
	}
	y, err := run(func(in ...G.Value) (G.Value, error) { return in[0], nil })
	require.NoError(t, err)
	require.Equal(t, [][]float64{{1, 2}}, y)

	for want, do := range map[string]foreign{
		"foreign: no luck":                 func(...G.Value) (G.Value, error) { return nil, errors.New("no luck") },
		"foreign: panic: no such luck":     func(...G.Value) (G.Value, error) { panic("no such luck") },
		"foreign: result is a *gorgonia.I": func(...G.Value) (G.Value, error) { return G.NewI(1), nil },
		"foreign: result is 8 bytes of float64, want (2) of float64": func(...G.Value) (G.Value, error) {
			return G.NewF64(1), nil
		},
	} {
		_, err := run(do)
		require.EqualError(t, err, want)
	}
}
