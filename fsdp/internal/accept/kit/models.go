package kit

import (
	"errors"
	"fmt"
	"iter"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// Module is a module made of functions, for tests.
type Module struct {
	Parameters []fsdp.Param
	Graph      func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error)
}

// Params implements fsdp.Module.
func (m *Module) Params() []fsdp.Param { return m.Parameters }

// Build implements fsdp.Module.
func (m *Module) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	return m.Graph(b, in)
}

// Model is a model made of a function, for tests.
type Model func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error)

// Forward implements fsdp.Model.
func (m Model) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) { return m(t, in) }

// running is y = x ⊙ w · (1 + mean) for x [n]. It keeps the running mean of x and a count of its
// forwards:
//
//	mean = (mean + mean(x))/2
//	count = count + 1
//
// These are updated after y, so y and its gradient use the old mean.
type running struct{ n int }

func (m *running) Params() []fsdp.Param {
	return []fsdp.Param{
		{Name: "mean", Buffer: true, Init: fsdp.Constant(0.3)}, {Name: "w", Shape: []int{m.n}, Init: fsdp.Uniform(0.5, 1.5)},
		{Name: "count", Shape: []int{1}, Buffer: true},
	}
}

func (m *running) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	var nodes [3]*gorgonia.Node
	for i, p := range m.Params() {
		var err error
		if nodes[i], err = b.Param(p.Name); err != nil {
			return nil, err
		}
	}
	mean, w, count := nodes[0], nodes[1], nodes[2]
	must := func(n *gorgonia.Node, err error) *gorgonia.Node {
		if err != nil {
			panic(err)
		}
		return n
	}
	y := must(gorgonia.HadamardProd(in[0], w))
	y = must(gorgonia.HadamardProd(y, must(gorgonia.Add(mean, b.Const(1)))))
	next := must(gorgonia.Mul(must(gorgonia.Add(mean, must(gorgonia.Mean(in[0])))), b.Const(0.5)))
	return gorgonia.Nodes{y}, errors.Join(b.Update("mean", next), b.Update("count", must(gorgonia.Add(count, b.Const(1)))))
}

// average is the mean of its input.
var average = &Module{Graph: func(_ *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
	loss, err := gorgonia.Mean(in[0])
	return gorgonia.Nodes{loss}, err
}}

// Twice calls running twice with the same parameters.
var Twice Model = func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
	x := t.Call("r", &running{6}, in[0])
	x = t.Again("r", x)
	return []fsdp.Ref{t.Call("loss", average, x)}, nil
}

// Statistics is a chain with running statistics, which it updates twice in a pass.
var Statistics Model = func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
	x := t.Call("l0", &Dense{Dim: ShapeDim}, in[0])
	x = t.Call("bn", &nn.BatchNorm{Dim: ShapeDim}, x)
	x = t.Call("l1", &Dense{Dim: ShapeDim}, x)
	x = t.Again("bn", x)
	for i := 2; i < 5; i++ {
		x = t.Call(fmt.Sprint("l", i), &Dense{Dim: ShapeDim}, x)
	}
	return Regress(t, in, x), nil
}

// Batches returns n batches of a rank.
func Batches(n int, batch func(i int) []fsdp.Tensor) iter.Seq2[[]fsdp.Tensor, error] {
	return func(yield func([]fsdp.Tensor, error) bool) {
		for i := range n {
			if !yield(batch(i), nil) {
				return
			}
		}
	}
}

// Dense is y = tanh(x·w + m·v) on x [rows, dim] and, if mem, m [rows, dim].
type Dense struct {
	Dim int
	Mem bool
}

// Params implements fsdp.Module.
func (m *Dense) Params() []fsdp.Param {
	params := []fsdp.Param{{Name: "w", Shape: []int{m.Dim, m.Dim}, Init: fsdp.Uniform(-0.6, 0.6)}}
	if m.Mem {
		params = append(params, fsdp.Param{Name: "v", Shape: []int{m.Dim, m.Dim}, Init: fsdp.Normal(0.4)})
	}
	return params
}

// Build implements fsdp.Module.
func (m *Dense) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	y, err := m.Sum(b, in)
	if err != nil {
		return nil, err
	}
	y, err = gorgonia.Tanh(y)
	return gorgonia.Nodes{y}, err
}

// Sum is x·w + m·v.
func (m *Dense) Sum(b *fsdp.Builder, in []*gorgonia.Node) (*gorgonia.Node, error) {
	w, err := b.Param("w")
	if err != nil {
		return nil, err
	}
	y, err := gorgonia.Mul(in[0], w)
	if err != nil {
		return nil, err
	}
	if m.Mem {
		v, err := b.Param("v")
		if err != nil {
			return nil, err
		}
		z, err := gorgonia.Mul(in[1], v)
		if err != nil {
			return nil, err
		}
		if y, err = gorgonia.Add(y, z); err != nil {
			return nil, err
		}
	}
	return y, nil
}

// Distance is the mean of (x - y)², without parameters, and x - y as a second output.
var Distance = &Module{Graph: func(_ *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
	d, err := gorgonia.Sub(in[0], in[1])
	if err != nil {
		return nil, err
	}
	sq, err := gorgonia.Square(d)
	if err != nil {
		return nil, err
	}
	loss, err := gorgonia.Mean(sq)
	return gorgonia.Nodes{loss, d}, err
}}

// product is the element-wise product of its two inputs, scaled by a parameter of the same shape
// [rows, dim].
func product(rows, dim int) *Module {
	return &Module{[]fsdp.Param{{Name: "scale", Shape: []int{rows, dim}, Init: fsdp.Constant(0.7)}}, func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		scale, err := b.Param("scale")
		if err != nil {
			return nil, err
		}
		y, err := gorgonia.HadamardProd(in[0], in[1])
		if err != nil {
			return nil, err
		}
		y, err = gorgonia.HadamardProd(y, scale)
		return gorgonia.Nodes{y}, err
	}}
}

// Halves returns tanh(x·w) and sigmoid(x·w) as two outputs, and a third output that is not used.
func Halves(dim int) *Module {
	return &Module{[]fsdp.Param{{Name: "w", Shape: []int{dim, dim}, Init: fsdp.Normal(0.5)}}, func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		w, err := b.Param("w")
		if err != nil {
			return nil, err
		}
		h, err := gorgonia.Mul(in[0], w)
		if err != nil {
			return nil, err
		}
		var out gorgonia.Nodes
		for _, f := range []func(*gorgonia.Node) (*gorgonia.Node, error){gorgonia.Tanh, gorgonia.Sigmoid, gorgonia.Square} {
			y, err := f(h)
			if err != nil {
				return nil, err
			}
			out = append(out, y)
		}
		return out, nil
	}}
}

// ShapeRows and ShapeDim are the dimensions of a ShapeBatch.
const (
	ShapeRows = 3
	ShapeDim  = 5
)

// Regress ends a model: the distance of x to the second input.
func Regress(t *fsdp.Tape, in []fsdp.Ref, x fsdp.Ref) []fsdp.Ref {
	loss := t.Call("distance", Distance, x, in[1])
	return []fsdp.Ref{loss, loss.At(1)}
}

// Shapes are the models.
var Shapes = map[string]Model{
	"chain": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := in[0]
		for i := range 4 {
			x = t.Call(fmt.Sprint("l", i), &Dense{Dim: ShapeDim}, x)
		}
		return Regress(t, in, x), nil
	},
	"encoder and decoder": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		enc := t.Call("enc.0", &Dense{Dim: ShapeDim}, in[0])
		enc = t.Call("enc.1", &Dense{Dim: ShapeDim}, enc)
		x := in[0]
		for i := range 3 {
			x = t.Call(fmt.Sprint("dec.", i), &Dense{ShapeDim, true}, x, enc)
		}
		return Regress(t, in, x), nil
	},
	"recurrence": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		cell := &Dense{ShapeDim, true}
		h := t.Call("cell", cell, in[0], in[1])
		between := t.Call("between", &Dense{Dim: ShapeDim}, h)
		for range 3 {
			h = t.Again("cell", h, between)
		}
		return Regress(t, in, h), nil
	},
	"tied across groups": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("a", &Dense{Dim: ShapeDim}, in[0])
		x = t.Call("b", &Dense{Dim: ShapeDim}, x)
		tied := &Module{[]fsdp.Param{Weight("own", ShapeDim, ShapeDim), {Name: "w", Shape: []int{ShapeDim, ShapeDim}, Tied: "a.w"}}, (&Dense{Dim: ShapeDim}).Graph}
		tied.Parameters[0].Init = fsdp.Normal(0.3)
		x = t.Call("c", tied, x)
		return Regress(t, in, x), nil
	},
	"several outputs": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		a := t.Call("a", Halves(ShapeDim), in[0])
		b := t.Call("b", Halves(ShapeDim), a.At(1))
		x := t.Call("x", product(ShapeRows, ShapeDim), a, b.At(0))
		y := t.Call("y", &Dense{Dim: ShapeDim}, b.At(1))
		x = t.Call("z", &Dense{ShapeDim, true}, x, y)
		return append(Regress(t, in, x), a.At(2), y), nil
	},
	"a value used thrice": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("a", &Dense{Dim: ShapeDim}, in[0])
		square := t.Call("square", product(ShapeRows, ShapeDim), x, x)
		x = t.Call("b", &Dense{ShapeDim, true}, square, x)
		return Regress(t, in, x), nil
	},
	"an unused call": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("a", &Dense{Dim: ShapeDim}, in[0])
		aside := t.Call("aside", &Dense{Dim: ShapeDim}, x)
		x = t.Call("b", &Dense{Dim: ShapeDim}, x)
		return append(Regress(t, in, x), aside), nil
	},
	"an unused parameter": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		m := &Dense{ShapeDim, true}
		x := t.Call("a", &Module{m.Params(), (&Dense{Dim: ShapeDim}).Graph}, in[0], in[1])
		return Regress(t, in, x), nil
	},
	"all in one call": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("a", stack(ShapeDim, 3), in[0])
		return Regress(t, in, x), nil
	},
}

// Graph is Build with its inputs in a slice, as in Module.
func (m *Dense) Graph(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
	return m.Build(b, in...)
}

// stack is depth dense modules as one.
func stack(dim, depth int) *Module {
	part := &Dense{Dim: dim}
	m := &Module{}
	for i := range depth {
		m.Parameters = append(m.Parameters, fsdp.Prefix(fmt.Sprint("l", i), part)...)
	}
	m.Graph = func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		for i := range depth {
			out, err := b.Call(fmt.Sprint("l", i), part, in...)
			if err != nil {
				return nil, err
			}
			in = out
		}
		return in, nil
	}
	return m
}

// ShapeBatch is the batch of a rank.
func ShapeBatch(rank int) []fsdp.Tensor {
	return []fsdp.Tensor{Floats(2*rank+1, ShapeRows, ShapeDim), Floats(2*rank+2, ShapeRows, ShapeDim)}
}

// Regression is the mean squared error of x·w, both of 4 elements, against y.
var Regression Model = func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
	return []fsdp.Ref{t.Call("fit", squaredError, in[0], in[1])}, nil
}

var squaredError = &Module{
	[]fsdp.Param{{Name: "w", Shape: []int{4}, Init: fsdp.Constant(0.5)}},
	func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		w, err := b.Param("w")
		if err != nil {
			return nil, err
		}
		y, err := gorgonia.HadamardProd(in[0], w)
		if err != nil {
			return nil, err
		}
		d, err := gorgonia.Sub(y, in[1])
		if err != nil {
			return nil, err
		}
		if d, err = gorgonia.Square(d); err != nil {
			return nil, err
		}
		loss, err := gorgonia.Mean(d)
		return gorgonia.Nodes{loss}, err
	},
}

// Vector returns a tensor of one dimension.
func Vector(data ...float64) fsdp.Tensor {
	return tensor.New(tensor.WithShape(len(data)), tensor.WithBacking(data))
}

// Chain64 wraps the chain of dense modules, each in its own unit.
func Chain64(t require.TestingT, g comm.Group, change ...func(*fsdp.Config)) *fsdp.Sharded {
	cfg := fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: Float64s, Poison: true}
	for _, f := range change {
		f(&cfg)
	}
	return Wrap(t, Shapes["chain"], cfg)
}

// Calls returns a model that makes the given calls with in[0] and returns the last.
func Calls(make ...func(t *fsdp.Tape, x fsdp.Ref) fsdp.Ref) Model {
	return func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := in[0]
		for _, call := range make {
			x = call(t, x)
		}
		return []fsdp.Ref{x}, nil
	}
}

// Call returns a call for calls.
func Call(name string, m fsdp.Module) func(*fsdp.Tape, fsdp.Ref) fsdp.Ref {
	return func(t *fsdp.Tape, x fsdp.Ref) fsdp.Ref { return t.Call(name, m, x) }
}

// Having returns a module with these parameters that returns its input.
func Having(params ...fsdp.Param) *Module {
	return &Module{params, func(_ *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) { return in, nil }}
}

// Weight is a parameter.
func Weight(name string, shape ...int) fsdp.Param { return fsdp.Param{Name: name, Shape: shape} }
