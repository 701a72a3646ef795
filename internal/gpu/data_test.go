//go:build linux && cgo

package gpu_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
	"github.com/gofsdp/gofsdp/internal/gpu/gputest"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// storages are the ways to store values, with the tolerance of results.
var storages = []struct {
	dtype         tensor.Dtype
	half, float16 bool
	tol           float64
}{
	{tensor.Float32, false, false, 1e-5}, {tensor.Float64, false, false, 1e-12},
	{tensor.Float32, true, false, 1.0 / 128}, {tensor.Float32, true, true, 1.0 / 1024},
}

// property checks operations on values of random shapes, stored in any way, that may be views.
// Extents are around the sizes of warps and blocks.
func property(t *testing.T, f func(rt *rapid.T, u *use)) {
	m := gputest.New(t)
	rapid.Check(t, func(rt *rapid.T) {
		s := rapid.SampledFrom(storages).Draw(rt, "storage")
		m.Engine.Float16 = s.float16
		m.Shift = rapid.SampledFrom([]int{0, 0, 1, 2, 8}).Draw(rt, "elements before each argument")
		seed := rapid.Uint64().Draw(rt, "seed")
		f(rt, &use{rt, m, s.dtype, s.half, s.tol, G.NewGraph(), rand.New(rand.NewPCG(seed, 1))})
	})
}

// extent draws a number of rows or elements of a row.
func extent(rt *rapid.T, name string, at ...int) int {
	n := rapid.SampledFrom(append([]int{1, 2, 8, 32}, at...)).Draw(rt, name)
	return max(1, n+rapid.IntRange(-1, 1).Draw(rt, name+" more"))
}

// gradient returns the gradient of an operation with respect to argument i.
func gradient(u *use, n *G.Node, i int, in ...*G.Node) *G.Node {
	y := packed(u, n)
	op := y.Op().(*exec.Op)
	list, err := op.Grad(op, in, y, u.node(n.Shape()...))
	require.NoError(u, err)
	return list[i]
}

// packed returns the node that n is part of the results of.
func packed(u *use, n *G.Node) *G.Node {
	for n.Op().(*exec.Op).Kind == exec.KindView {
		it := u.graph.From(n.ID())
		require.True(u, it.Next())
		n = it.Node().(*G.Node)
	}
	return n
}

// A use is an operation on values.
type use struct {
	gputest.T
	*gputest.Machine
	dtype tensor.Dtype
	half  bool
	tol   float64
	graph *G.ExprGraph
	rand  *rand.Rand
}

// node returns an argument of some shape.
func (u *use) node(shape ...int) *G.Node {
	return G.NewTensor(u.graph, u.dtype, len(shape), G.WithShape(shape...))
}

// ints returns an argument of integers.
func (u *use) ints(shape ...int) *G.Node {
	return G.NewTensor(u.graph, tensor.Int, len(shape), G.WithShape(shape...))
}

// value returns random numbers. They are the same in each form: bfloat16 holds them, and float16
// unless they are tiny.
func (u *use) value(form exec.Form, shape ...int) exec.Value {
	v := exec.Value{Shape: shape, DType: u.dtype, Form: form}
	n := exec.Numel(v.Shape)
	if u.dtype == tensor.Float64 {
		v.Bytes = make([]byte, 8*n)
		for i := range exec.Data[float64](v.Bytes) {
			exec.Data[float64](v.Bytes)[i] = float64(u.number().Float32())
		}
		return v
	}
	_, end := exec.Operand{Shape: shape, Form: form}.Head()
	v.Bytes = make([]byte, max(2*n, end+4*form.Tail))
	if !form.Half {
		v.Bytes = make([]byte, 4*n)
	}
	low, wide := v.Parts()
	for i := range low {
		low[i] = u.Narrow(u.number().Float32())
	}
	for i := range wide {
		wide[i] = u.number().Float32()
	}
	return v
}

// set changes the numbers of v, which are all of one type.
func (u *use) set(v exec.Value, f func(i int, x float64) float64) {
	low, wide := v.Parts()
	for i, x := range u.Floats(v) {
		switch x = f(i, x); {
		case v.DType == tensor.Float64:
			exec.Data[float64](v.Bytes)[i] = x
		case v.Form.Half:
			low[i] = u.Narrow(float32(x))
		default:
			wide[i] = float32(x)
		}
	}
}

func (u *use) number() half.BFloat16 { return half.ToBFloat16(float32(u.rand.NormFloat64())) }

// low is the form of values, tail the form of several values of which the last n are marked f32,
// and wide the form of values that are marked so.
func (u *use) low() exec.Form { return exec.Form{Half: u.half} }

func (u *use) tail(n int) exec.Form {
	if !u.half {
		return wide
	}
	return exec.Form{Half: true, Tail: n}
}

var wide exec.Form

// index returns n integers in [0, below).
func (u *use) index(n, below int) exec.Value {
	list := make([]int, n)
	for i := range list {
		list[i] = u.rand.IntN(below)
		if u.rand.IntN(3) == 0 {
			list[i] = 0 // often
		}
	}
	return exec.Value{Shape: tensor.Shape{n}, DType: tensor.Int, Bytes: exec.Bytes(list)}
}

// check runs the operation of a node on values. Out has the form of the result.
func (u *use) check(n *G.Node, err error, out exec.Form, args ...exec.Value) exec.Value {
	u.Helper()
	return u.checkInstruction(u.instr(n, err, out, args))
}

// checkInstruction runs an instruction in every way, and returns its result.
func (u *use) checkInstruction(in exec.Instr, f *exec.Frame) exec.Value {
	u.Helper()
	u.Check(u, in, f, u.tol)
	for i := range f.Out.Bytes {
		f.Out.Bytes[i] = math.MaxUint8
	}
	return u.Run(u, in, f, false)
}

// instr returns an instruction of the operation of a node, and its operands.
func (u *use) instr(n *G.Node, err error, out exec.Form, args []exec.Value) (exec.Instr, *exec.Frame) {
	u.Helper()
	require.NoError(u, err)
	return u.instruction(packed(u, n).Op().(*exec.Op), out, args)
}

// compiled returns the first instruction of a kind in a module of operations of Gorgonia's, on what
// is as many of args as it takes.
func (u *use) compiled(kind exec.Kind, f func(x []*G.Node) (*G.Node, error), out exec.Form, args ...exec.Value) (exec.Instr, *exec.Frame) {
	u.Helper()
	sig := exectest.Signature(u.dtype)
	for _, a := range args {
		sig.Inputs = append(sig.Inputs, exec.Input{Shape: a.Shape, DType: a.DType})
	}
	sig.GradOut, sig.Apart = nil, true
	build := func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) {
		y, err := f(x)
		return G.Nodes{y}, err
	}
	for in := range exectest.New(u, &exec.Spec{Build: build}, sig).Unit.Forward.All() {
		if in.Op.Kind == kind {
			return u.instruction(in.Op, out, args[:len(in.Op.In)])
		}
	}
	require.Fail(u, "no instruction", kind)
	return exec.Instr{}, nil
}

// instruction returns an instruction of an operation, and its operands.
func (u *use) instruction(op *exec.Op, out exec.Form, args []exec.Value) (exec.Instr, *exec.Frame) {
	in := exec.Instr{Op: op, Half: u.half && op.BF16 != nil}
	f := &exec.Frame{Op: op, In: args, Out: u.value(out, op.Shape...)}
	operand := func(v exec.Value) exec.Operand {
		return exec.Operand{Shape: v.Shape, DType: v.DType, Bytes: len(v.Bytes), Form: v.Form}
	}
	for _, a := range args {
		in.In = append(in.In, operand(a))
	}
	in.Out = operand(f.Out)
	return in, f
}

// of returns the node of an operation.
func (u *use) of(kind exec.Kind) *G.Node {
	for _, n := range u.graph.AllNodes() {
		if op, ok := n.Op().(*exec.Op); ok && op.Kind == kind {
			return n
		}
	}
	require.Fail(u, string(kind))
	return nil
}

// op returns an operation of the table whose shapes say all.
func (u *use) op(kind exec.Kind, attrs any, shape tensor.Shape, in ...tensor.Shape) *exec.Op {
	for _, r := range ops.Table() {
		if r.Kind == kind {
			return &exec.Op{Row: r, Attrs: attrs, Shape: shape, In: in}
		}
	}
	require.Fail(u, string(kind))
	return nil
}

// checkOp is check for an operation that is in no graph.
func (u *use) checkOp(op *exec.Op, out exec.Form, args ...exec.Value) exec.Value {
	u.Helper()
	return u.checkInstruction(u.instruction(op, out, args))
}
