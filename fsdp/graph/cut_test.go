package graph_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/graph"
)

// callsOf returns the calls of a model, each as a line of its name and the parameters it owns, and
// their modules.
func callsOf(t require.TestingT, m fsdp.Model, precision fsdp.DType) (lines []string, modules []fsdp.Module) {
	policy := func(calls []fsdp.CallInfo) []string {
		lines, modules = nil, nil
		for _, c := range calls {
			line := c.Name + ":"
			for _, p := range c.Params {
				line += " " + p.Name
			}
			lines, modules = append(lines, line), append(modules, c.Module)
		}
		return make([]string, len(calls))
	}
	s := wrap(t, m, fsdp.Config{WrapPolicy: policy, Precision: fsdp.Precision{Compute: precision}})
	require.NoError(t, s.Close())
	return lines, modules
}

func TestCuts(t *testing.T) {
	for _, c := range []struct {
		net  func(tensor.Dtype) *net
		want string
	}{
		{mlp, "w0: w0.w0 w0.b0; w1: w1.w1 w1.b1; w2: w2.w2 w2.b2"},
		{convnet, "conv0: conv0.conv0; conv1: conv1.conv1; fc0: fc0.fc0; fc1: fc1.fc1"},
		{lstm, "wx_o: wx_o.wx_o wx_o.wh_o wx_o.b_o; wx_f: wx_f.wx_f wx_f.wh_f wx_f.b_f; " +
			"wx_i: wx_i.wx_i wx_i.wh_i wx_i.b_i; wx_c: wx_c.wx_c wx_c.wh_c wx_c.b_c; why: why.why; " +
			"wx_o@2:; wx_f@2:; wx_i@2:; wx_c@2:; why@2:; wx_o@3:; wx_f@3:; wx_i@3:; wx_c@3:; why@3:; " +
			"wx_o@4:; wx_f@4:; wx_i@4:; wx_c@4:; why@4:"},
		{decayed, "w: w.w; v: v.v; scale: scale.scale; w@2:; v@2:"},
	} {
		m := c.net(tensor.Float32)
		lines, _ := callsOf(t, m.model(t), fsdp.Float32)
		require.Equal(t, c.want, strings.Join(lines, "; "))
	}
}

// Time steps of a recurrent net share compiled programs, except the first, which owns the
// parameters, and the last, whose state nobody reads.
func TestSharesTimeSteps(t *testing.T) {
	_, modules := callsOf(t, lstm(tensor.Float32).model(t), fsdp.Float32)
	const perStep = 5
	for i := range perStep {
		require.NotSame(t, modules[i], modules[perStep+i])
		require.Same(t, modules[perStep+i], modules[2*perStep+i], "call %d", perStep+i)
	}
}

// Calls that look alike share nothing if their parameters differ, even if these start out equal.
func TestTellsEqualValuesApart(t *testing.T) {
	m := newNet(tensor.Float64)
	h, y := m.input("x", 2, 3), m.input("y", 2, 3)
	w, v := m.weight("w", 3, 3), m.weight("v", 3, 3)
	require.NoError(t, tensor.Copy(v.Value().(*tensor.Dense), w.Value().(*tensor.Dense)))
	for range 3 {
		h = G.Must(G.Tanh(G.Must(G.Mul(h, w))))
		h = G.Must(G.Tanh(G.Must(G.Mul(h, v))))
	}
	m.squares(h, y)
	model := m.model(t)
	_, modules := callsOf(t, model, fsdp.Float64)
	require.Len(t, modules, 6)
	require.Same(t, modules[2], modules[4])
	require.NotSame(t, modules[2], modules[3])
	requireLikeTapeMachine(t, m, model, 2, 1e-10)
}

// Nor do calls in which a learnable and a constant of equal values have changed places.
func TestTellsLearnablesFromConstants(t *testing.T) {
	m := newNet(tensor.Float64)
	h, y := m.input("x", 3, 3), m.input("y", 3, 3)
	w, v, c := m.weight("w", 3, 3), m.weight("v", 3, 3), m.state("c", 3, 3)
	require.NoError(t, tensor.Copy(v.Value().(*tensor.Dense), c.Value().(*tensor.Dense)))
	for _, order := range []G.Nodes{{c, v}, {v, c}, {c, v}} {
		h = G.Must(G.Tanh(G.Must(G.Mul(h, w))))
		left, right := G.Must(G.Tanh(G.Must(G.Mul(h, order[0])))), G.Must(G.Tanh(G.Must(G.Mul(h, order[1]))))
		h = G.Must(G.Mul(left, right))
	}
	m.squares(G.Must(G.Tanh(G.Must(G.Mul(h, w)))), y)
	model := m.model(t)
	_, modules := callsOf(t, model, fsdp.Float64)
	require.Len(t, modules, 7)
	require.Same(t, modules[2], modules[4])
	require.NotSame(t, modules[3], modules[5])
	requireLikeTapeMachine(t, m, model, 2, 1e-10)
}

// A normalised weight is made of parameters alone, if by way of a number: each call computes it
// again.
func TestRebuildsNormalisedWeights(t *testing.T) {
	m := newNet(tensor.Float64)
	h, y := m.input("x", 2, 5), m.input("y", 2, 5)
	w, v := m.weight("w", 5, 5), m.weight("v", 5, 5)
	unit := G.Must(G.HadamardDiv(w, G.Must(G.Sqrt(G.Must(G.Sum(G.Must(G.Square(w))))))))
	for range 3 {
		h = G.Must(G.Tanh(G.Must(G.Mul(h, unit))))
		h = G.Must(G.Tanh(G.Must(G.Mul(h, v))))
	}
	m.squares(h, y)
	model := m.model(t)
	_, modules := callsOf(t, model, fsdp.Float64)
	for i, module := range modules {
		require.NotContains(t, fmt.Sprint(module), "input float64(5, 5)", "call %d", i)
	}
	requireLikeTapeMachine(t, m, model, 2, 1e-10)
}

// The patches of a convolution are larger than its image, so the image crosses the cut, and each
// call takes its own patches.
func TestCutsWhereLeastCrosses(t *testing.T) {
	_, modules := callsOf(t, convnet(tensor.Float32).model(t), fsdp.Float32)
	for i, want := range []int{1, 1, 0, 0} {
		require.Equal(t, want, strings.Count(fmt.Sprint(modules[i]), "im2col"), "call %d", i)
	}
}

// program is a random net on x [3, 4] that can be built in any graph.
type program struct {
	ops    []instruction
	params [][]int // shapes
}

// instruction computes a value from earlier ones, x being value 0, and a parameter.
type instruction struct {
	kind        string
	a, b, param int
}

func (p *program) build(x *G.Node, param func(i int) *G.Node) *G.Node {
	values := G.Nodes{x}
	for _, o := range p.ops {
		var n *G.Node
		a, b := values[o.a], values[o.b]
		switch o.kind {
		case "add":
			n = G.Must(G.Add(a, b))
		case "gate":
			n = G.Must(G.HadamardProd(a, G.Must(G.Sigmoid(b))))
		case "tanh":
			n = G.Must(G.Tanh(a))
		case "product":
			n = G.Must(G.Mul(a, param(o.param)))
		case "transposed":
			n = G.Must(G.Mul(a, G.Must(G.Transpose(param(o.param), 1, 0))))
		case "bias":
			n = addBias(a, param(o.param))
		case "normed":
			n = G.Must(G.HadamardProd(a, G.Must(G.Sum(G.Must(G.Square(param(o.param)))))))
		case "unit": // or through a number made of it
			w := param(o.param)
			n = G.Must(G.Mul(a, G.Must(G.HadamardDiv(w, G.Must(G.Sqrt(G.Must(G.Sum(G.Must(G.Square(w))))))))))
		case "squashed": // a parameter that goes through an operation first
			n = G.Must(G.Mul(a, G.Must(G.Tanh(param(o.param)))))
		}
		values = append(values, n)
	}
	used := make(map[int]bool)
	for _, o := range p.ops {
		used[o.a], used[o.b] = true, true
	}
	var cost *G.Node
	for i, v := range values[1:] {
		if used[i+1] {
			continue
		}
		loss := G.Must(G.Mean(G.Must(G.Square(v))))
		if cost == nil {
			cost = loss
		} else {
			cost = G.Must(G.Add(cost, loss))
		}
	}
	return cost
}

func drawProgram(t *rapid.T) *program {
	p := &program{}
	kinds := []string{"add", "gate", "tanh", "product", "transposed", "bias", "normed", "squashed", "unit"}
	for i := range rapid.IntRange(1, 12).Draw(t, "ops") {
		o := instruction{kind: rapid.SampledFrom(kinds).Draw(t, "kind"), a: rapid.IntRange(max(0, i-2), i).Draw(t, "a"), b: rapid.IntRange(0, i).Draw(t, "b")}
		if o.kind != "add" && o.kind != "gate" {
			o.b = o.a
		}
		shape := []int{4, 4}
		switch o.kind {
		case "add", "gate", "tanh":
			shape = nil
			if i == 0 { // at least one parameter
				o.kind, o.b, shape = "product", o.a, []int{4, 4}
			}
		case "bias":
			shape = []int{1, 4}
		}
		if shape != nil {
			var same []int
			for j, s := range p.params {
				if s[0] == shape[0] {
					same = append(same, j)
				}
			}
			o.param = len(p.params)
			if len(same) > 0 && rapid.Bool().Draw(t, "tied") {
				o.param = rapid.SampledFrom(same).Draw(t, "param")
			} else {
				p.params = append(p.params, shape)
			}
		}
		p.ops = append(p.ops, o)
	}
	return p
}

func (p *program) value(i int) *tensor.Dense {
	return fill(tensor.Float64, 50+i, 0.6, p.params[i]...)
}

// whole is the same net as one hand-written module.
type whole struct{ *program }

func (m whole) Params() (list []fsdp.Param) {
	for i, s := range m.params {
		data := floats(m.value(i))
		list = append(list, fsdp.Param{Name: fmt.Sprint("p", i), Shape: s, Init: func(_ fsdp.Stream, first int, dst []float64) { copy(dst, data[first:]) }})
	}
	return list
}

func (m whole) Build(b *fsdp.Builder, in ...*G.Node) (G.Nodes, error) {
	return G.Nodes{m.build(in[0], func(i int) *G.Node {
		n, err := b.Param(fmt.Sprint("p", i))
		if err != nil {
			panic(err)
		}
		return n
	})}, nil
}

func (m whole) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	return []fsdp.Ref{t.Call("all", &m, in[0])}, nil
}

// A graph that is cut anywhere computes what it computes in one piece.
func TestEqualsOneModule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawProgram(t)
		g := G.NewGraph()
		x := G.NewMatrix(g, tensor.Float64, G.WithName("x"), G.WithShape(3, 4))
		var learn G.Nodes
		for i, s := range p.params {
			learn = append(learn, G.NewMatrix(g, tensor.Float64, G.WithName(fmt.Sprint("p", i)), G.WithShape(s...), G.WithValue(p.value(i))))
		}
		model, err := graph.Model(p.build(x, func(i int) *G.Node { return learn[i] }), G.Nodes{x}, learn)
		require.NoError(t, err)
		batch := fill(tensor.Float64, 9, 1, 3, 4)
		run := func(m fsdp.Model, units fsdp.Policy) (loss float64, grads map[string][]float64) {
			grads = make(map[string][]float64)
			s, err := fsdp.Wrap(m, fsdp.Config{WrapPolicy: units, Poison: true, Precision: fsdp.Precision{Compute: fsdp.Float64}})
			require.NoError(t, err)
			defer s.Close()
			ctx := context.Background()
			loss, err = s.Forward(ctx, batch)
			require.NoError(t, err)
			require.NoError(t, s.Backward(ctx))
			full, err := s.FullGrads(ctx)
			require.NoError(t, err)
			for name, v := range full {
				grads[name[strings.LastIndex(name, ".")+1:]] = floats(v)
			}
			return loss, grads
		}
		loss, grads := run(model, fsdp.WrapEach())
		wantLoss, want := run(&whole{p}, nil)
		require.InEpsilon(t, wantLoss, loss, 1e-12)
		require.Len(t, grads, len(want))
		for name := range want {
			requireClose(t, want[name], grads[name], 1e-11, "gradient of %s", name)
		}
	})
}
