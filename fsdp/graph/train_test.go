package graph_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/graph"
	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/optim"
)

// net is a model in the style of Gorgonia's examples: it knows nothing of package fsdp.
type net struct {
	g           *G.ExprGraph
	dt          tensor.Dtype
	inputs      G.Nodes
	learn       G.Nodes
	constants   G.Nodes
	pred, cost  *G.Node
	inputShapes []tensor.Shape
	given       [][]fsdp.Tensor // by rank: inputs behind those
}

func newNet(dt tensor.Dtype) *net { return &net{g: G.NewGraph(), dt: dt} }

// u24 returns a number below 1<<24 that is a function of i and s.
func u24(i, s int) int {
	x := uint32(i)*0x9E3779B1 + uint32(s)*0x85EBCA77 + 0x165667B1
	x ^= x >> 15
	x *= 0x2C1B3C6D
	x ^= x >> 12
	x *= 0x297A2D39
	return int((x ^ x>>15) >> 8)
}

// fill returns a tensor of numbers in (-scale, scale) that are a function of the seed.
func fill(dt tensor.Dtype, seed int, scale float64, shape ...int) *tensor.Dense {
	n := tensor.Shape(shape).TotalSize()
	data := make([]float64, n)
	for i := range data {
		data[i] = scale * (float64(u24(i, seed))/(1<<23) - 1)
	}
	return dense(dt, data, shape...)
}

func dense(dt tensor.Dtype, data []float64, shape ...int) *tensor.Dense {
	if dt == tensor.Float64 {
		return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(data))
	}
	data32 := make([]float32, len(data))
	for i, x := range data {
		data32[i] = float32(x)
	}
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(data32))
}

func (m *net) weight(name string, shape ...int) *G.Node {
	v := fill(m.dt, 1000+len(m.learn), 1/math.Sqrt(float64(shape[len(shape)-1])), shape...)
	n := G.NewTensor(m.g, m.dt, len(shape), G.WithName(name), G.WithShape(shape...), G.WithValue(v))
	m.learn = append(m.learn, n)
	return n
}

func (m *net) input(name string, shape ...int) *G.Node {
	n := G.NewTensor(m.g, m.dt, len(shape), G.WithName(name), G.WithShape(shape...))
	m.inputs, m.inputShapes = append(m.inputs, n), append(m.inputShapes, shape)
	return n
}

// state is a leaf that keeps its value.
func (m *net) state(name string, shape ...int) *G.Node {
	n := G.NewTensor(m.g, m.dt, len(shape), G.WithName(name), G.WithShape(shape...), G.WithValue(fill(m.dt, 7, 0.5, shape...)))
	m.constants = append(m.constants, n)
	return n
}

// batch returns the batch of a rank in a step.
func (m *net) batch(step, rank int) []fsdp.Tensor {
	var list []fsdp.Tensor
	for i, s := range m.inputShapes {
		list = append(list, fill(m.dt, 100*step+10*rank+i, 1, s...))
	}
	if m.given != nil {
		list = append(list, m.given[rank]...)
	}
	return list
}

func (m *net) model(t require.TestingT) fsdp.Model {
	model, err := graph.Model(m.cost, m.inputs, m.learn, graph.Results(m.pred), graph.Constants(m.constants...))
	require.NoError(t, err)
	return model
}

// squares sets the cost to the mean of the squared error.
func (m *net) squares(pred, y *G.Node) {
	m.pred = pred
	m.cost = G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(pred, y))))))
}

// addBias adds b [1, n] to each row of x.
func addBias(x, b *G.Node) *G.Node { return G.Must(G.BroadcastAdd(x, b, nil, []byte{0})) }

// mlp is three layers with biases, and softmax cross-entropy written out.
func mlp(dt tensor.Dtype) *net {
	m := newNet(dt)
	x, y := m.input("x", 5, 7), m.input("y", 5, 3)
	w0, b0 := m.weight("w0", 7, 11), m.weight("b0", 1, 11)
	w1, b1 := m.weight("w1", 11, 13), m.weight("b1", 1, 13)
	w2, b2 := m.weight("w2", 13, 3), m.weight("b2", 1, 3)
	h := G.Must(G.Rectify(addBias(G.Must(G.Mul(x, w0)), b0)))
	h = G.Must(G.Tanh(addBias(G.Must(G.Mul(h, w1)), b1)))
	logits := addBias(G.Must(G.Mul(h, w2)), b2)
	e := G.Must(G.Exp(logits))
	m.pred = G.Must(G.BroadcastHadamardDiv(e, G.Must(G.Reshape(G.Must(G.Sum(e, 1)), tensor.Shape{5, 1})), nil, []byte{1}))
	losses := G.Must(G.HadamardProd(G.Must(G.Log(m.pred)), G.Must(G.Square(y))))
	m.cost = G.Must(G.Neg(G.Must(G.Mean(losses))))
	return m
}

// convnet is two convolutions, the second with a stride in place of pooling, and two dense layers.
// Behind convolutions it is smooth: a Rectify of a sum near zero goes either way in bfloat16.
func convnet(dt tensor.Dtype) *net {
	m := newNet(dt)
	x, y := m.input("image", 2, 2, 6, 6), m.input("y", 2, 3)
	w0, w1 := m.weight("conv0", 3, 2, 3, 3), m.weight("conv1", 4, 3, 3, 3)
	w2, w3 := m.weight("fc0", 4*3*3, 5), m.weight("fc1", 5, 3)
	one := []int{1, 1}
	h := G.Must(G.Tanh(G.Must(G.Conv2d(x, w0, tensor.Shape{3, 3}, one, one, one))))
	h = G.Must(G.Tanh(G.Must(G.Conv2d(h, w1, tensor.Shape{3, 3}, one, []int{2, 2}, one))))
	h = G.Must(G.Reshape(h, tensor.Shape{2, 4 * 3 * 3}))
	h = G.Must(G.Rectify(G.Must(G.Mul(h, w2))))
	m.squares(G.Must(G.Mul(h, w3)), y)
	return m
}

// lstm is four steps of a recurrent net that predicts something at each.
func lstm(dt tensor.Dtype) *net {
	m := newNet(dt)
	const in, hidden, out = 3, 5, 2
	gate := func(name string) func(x, h *G.Node) *G.Node {
		wx, wh, b := m.weight("wx_"+name, hidden, in), m.weight("wh_"+name, hidden, hidden), m.weight("b_"+name, hidden)
		return func(x, h *G.Node) *G.Node {
			return G.Must(G.Add(G.Must(G.Add(G.Must(G.Mul(wx, x)), G.Must(G.Mul(wh, h)))), b))
		}
	}
	i, f, o, c := gate("i"), gate("f"), gate("o"), gate("c")
	why := m.weight("why", out, hidden)
	h, cell := m.state("h0", hidden), m.state("c0", hidden)
	for _, step := range []string{"0", "1", "2", "3"} {
		x, y := m.input("x"+step, in), m.input("y"+step, out)
		write := G.Must(G.HadamardProd(G.Must(G.Sigmoid(i(x, h))), G.Must(G.Tanh(c(x, h)))))
		cell = G.Must(G.Add(G.Must(G.HadamardProd(G.Must(G.Sigmoid(f(x, h))), cell)), write))
		h = G.Must(G.HadamardProd(G.Must(G.Sigmoid(o(x, h))), G.Must(G.Tanh(cell))))
		m.pred = G.Must(G.Mul(why, h))
		loss := G.Must(G.Sum(G.Must(G.Square(G.Must(G.Sub(m.pred, y))))))
		if m.cost == nil {
			m.cost = loss
		} else {
			m.cost = G.Must(G.Add(m.cost, loss))
		}
	}
	return m
}

// chars is a recurrent net over a few letters as in Gorgonia's example charRNN: it slices rows of
// an embedding, and an element of the logarithm of a SoftMax.
func chars(dt tensor.Dtype) *net {
	m := newNet(dt)
	const letters, embedded, hidden = 6, 4, 5
	embedding, h := m.weight("embedding", letters, embedded), m.input("h0", hidden)
	wx, wh, whd, b := m.weight("wx", hidden, embedded), m.weight("wh", hidden, hidden), m.weight("whd", letters, hidden), m.weight("b", letters)
	text := []int{3, 0, 5, 3, 1}
	for i, letter := range text[:len(text)-1] {
		x := G.Must(G.Slice(embedding, G.S(letter)))
		h = G.Must(G.Tanh(G.Must(G.Add(G.Must(G.Mul(wx, x)), G.Must(G.Mul(wh, h))))))
		m.pred = G.Must(G.SoftMax(G.Must(G.Add(G.Must(G.Mul(whd, h)), b))))
		loss := G.Must(G.Slice(G.Must(G.Neg(G.Must(G.Log(m.pred)))), G.S(text[i+1])))
		if m.cost == nil {
			m.cost = loss
		} else {
			m.cost = G.Must(G.Add(m.cost, loss))
		}
	}
	return m
}

// decayed is a net with a tied, transposed weight, a residual, a scalar parameter, and weight decay
// in its cost.
func decayed(dt tensor.Dtype) *net {
	m := newNet(dt)
	x, y := m.input("x", 4, 6), m.input("y", 4, 6)
	w, v := m.weight("w", 6, 5), m.weight("v", 5, 5)
	scale := G.NewScalar(m.g, dt, G.WithName("scale"), G.WithValue(dense(dt, []float64{0.7}, 1).Get(0)))
	m.learn = append(m.learn, scale)
	h := G.Must(G.Tanh(G.Must(G.Mul(x, w))))
	h = G.Must(G.Add(h, G.Must(G.Tanh(G.Must(G.Mul(h, v))))))
	h = G.Must(G.HadamardProd(h, scale))
	m.squares(G.Must(G.Mul(h, G.Must(G.Transpose(w, 1, 0)))), y)
	for _, p := range []*G.Node{w, v} {
		half := G.NewConstant(dense(dt, []float64{0.05}, 1).Get(0))
		m.cost = G.Must(G.Add(m.cost, G.Must(G.Mul(half, G.Must(G.Sum(G.Must(G.Square(p))))))))
	}
	return m
}

// squared is x², with kernels of the test's own.
var squared = &op.Custom{
	Name: "squared", Shapes: "x [...] -> y [...]",
	Forward:  op.Kernel{F32: square[float32], F64: square[float64]},
	Backward: op.Kernel{F32: squareGrad[float32], F64: squareGrad[float64]},
}

func square[T op.Float](a op.Args[T]) error {
	for i, x := range a.In(0) {
		a.Out(0)[i] = x * x
	}
	return nil
}

func squareGrad[T op.Float](a op.Args[T]) error {
	for i, x := range a.In(0) {
		a.Grad(0)[i] = 2 * x * a.DOut()[i]
	}
	return nil
}

// fused is a net of operations of package op, some of which leave statistics behind their results.
func fused(dt tensor.Dtype) *net {
	m := newNet(dt)
	x, y := m.input("x", 2, 3, 12), m.input("y", 2, 3, 4)
	h := G.Must(op.LayerNorm(x, m.weight("gain0", 12), m.weight("bias0", 12), 1e-5))
	h = G.Must(op.Linear(h, m.weight("qkv", 24, 12), m.weight("bias1", 24)))
	h = G.Must(op.SelfAttention(h, op.Attention{Heads: 2, Causal: true}))
	h = G.Must(op.Linear(h, m.weight("proj", 4, 8), nil))
	h = G.Must(op.RMSNorm(h, m.weight("gain1", 4), 1e-5))
	h = G.Must(squared.Apply(h))
	m.squares(G.Must(op.AddLinear(h, G.Must(op.GELU(h)), m.weight("out", 4, 4))), y)
	return m
}

// rotary has a constant table, an operation of two results, and one whose gradient has two.
func rotary(dt tensor.Dtype) *net {
	m := newNet(dt)
	x, y := m.input("x", 2, 3, 8), m.input("y", 6, 3)
	gate, up, out := m.weight("gate", 5, 8), m.weight("up", 5, 8), m.weight("out", 3, 5)
	h := G.Must(op.Rope(x, nil, op.Rotary{HeadDim: 4}))
	h = G.Must(op.SwiGLU(G.Must(op.Linear(h, gate, nil)), G.Must(op.Linear(h, up, nil))))
	h = G.Must(op.Rope(G.Must(op.Linear(h, out, nil)), nil, op.Rotary{HeadDim: 2, Heads: 1, Interleaved: true}))
	m.squares(G.Must(G.Reshape(h, tensor.Shape{6, 3})), y)
	return m
}

var nets = map[string]func(tensor.Dtype) *net{"mlp": mlp, "convnet": convnet, "lstm": lstm, "chars": chars, "decayed": decayed, "fused": fused, "rotary": rotary}

// result is what one step of training leaves: the loss of each rank and the mean gradient of each
// learnable.
type result struct {
	losses []float64
	grads  map[string][]float64
}

// tapeMachine trains m by Gorgonia's own machine and solver, with the batches of all ranks in turn.
func tapeMachine(t *testing.T, m *net, ranks, steps int, rate float64) []result {
	_, err := G.Grad(m.cost, m.learn...)
	require.NoError(t, err)
	vm := G.NewTapeMachine(m.g, G.BindDualValues(m.learn...))
	defer vm.Close()
	solver := G.NewVanillaSolver(G.WithLearnRate(rate))
	var trace []result
	for step := range steps {
		s := result{grads: make(map[string][]float64)}
		for rank := range ranks {
			for i, v := range m.batch(step, rank) {
				require.NoError(t, G.Let(m.inputs[i], v))
			}
			require.NoError(t, vm.RunAll())
			s.losses = append(s.losses, floats(m.cost.Value())[0])
			for _, n := range m.learn {
				g, err := n.Grad()
				require.NoError(t, err)
				if s.grads[n.Name()] == nil {
					s.grads[n.Name()] = make([]float64, len(floats(g)))
				}
				for i, x := range floats(g) {
					s.grads[n.Name()][i] += x / float64(ranks)
				}
				clearValue(g)
			}
			vm.Reset()
		}
		var update []G.ValueGrad
		for _, n := range m.learn {
			g := dense(m.dt, append([]float64(nil), s.grads[n.Name()]...), n.Shape()...)
			update = append(update, valueGrad{n, g})
		}
		require.NoError(t, solver.Step(update))
		trace = append(trace, s)
	}
	return trace
}

// valueGrad pairs a learnable with a gradient for a solver.
type valueGrad struct {
	n *G.Node
	g *tensor.Dense
}

func (v valueGrad) Value() G.Value { return v.n.Value() }

func (v valueGrad) Grad() (G.Value, error) {
	if !v.n.IsScalar() {
		return v.g, nil
	}
	return G.NewConstant(v.g.Get(0)).Value(), nil
}

func floats(v G.Value) []float64 {
	switch data := v.Data().(type) {
	case float64:
		return []float64{data}
	case float32:
		return []float64{float64(data)}
	case []float64:
		return data
	default:
		var list []float64
		for _, x := range data.([]float32) {
			list = append(list, float64(x))
		}
		return list
	}
}

func clearValue(v G.Value) {
	switch v := v.(type) {
	case *tensor.Dense:
		v.Zero()
	case *G.F64:
		*v = 0
	case *G.F32:
		*v = 0
	}
}

// train trains the model sharded and returns what tapeMachine does. Names are those of the model.
func train(t *testing.T, m *net, model fsdp.Model, ranks, steps int, rate float64, cfg fsdp.Config) []result {
	trace := make([]result, steps)
	for i := range trace {
		trace[i] = result{losses: make([]float64, ranks), grads: make(map[string][]float64)}
	}
	if m.dt == tensor.Float64 {
		cfg.Precision.Compute = fsdp.Float64
	}
	onRanks(t, ranks, func(ctx context.Context, g comm.Group) {
		cfg := cfg
		cfg.Group = g
		s := wrap(t, model, cfg)
		opt, err := optim.SGD{}.New(s.Params())
		require.NoError(t, err)
		for step := range steps {
			loss, err := s.Forward(ctx, m.batch(step, g.Rank())...)
			require.NoError(t, err)
			trace[step].losses[g.Rank()] = loss
			require.NoError(t, s.Backward(ctx))
			grads, err := s.FullGrads(ctx)
			require.NoError(t, err)
			if g.Rank() == 0 {
				for name, v := range grads {
					trace[step].grads[name] = floats(v)
				}
			}
			require.NoError(t, opt.Step(rate))
			s.ZeroGrad()
		}
		require.NoError(t, s.Close())
	})
	return trace
}

// requireClose requires that every number is that of want up to rounding, relative to the largest.
func requireClose(t require.TestingT, want, got []float64, tolerance float64, what string, args ...any) {
	require.Len(t, got, len(want), append([]any{what}, args...)...)
	scale := 1e-3
	for _, x := range want {
		scale = max(scale, math.Abs(x))
	}
	for i := range want {
		require.InDelta(t, want[i], got[i], tolerance*scale, append([]any{what}, args...)...)
	}
}

func TestTrainsLikeTapeMachine(t *testing.T) {
	for name, build := range nets {
		for dt, tolerance := range map[tensor.Dtype]float64{tensor.Float64: 1e-10, tensor.Float32: 1e-5} {
			for ranks := 1; ranks <= 3; ranks++ {
				t.Run(fmt.Sprintf("%s/%v/%d", name, dt, ranks), func(t *testing.T) {
					m := build(dt)
					requireLikeTapeMachine(t, m, m.model(t), ranks, tolerance)
				})
			}
		}
	}
}

// TestTrainsInBFloat16 trains in bfloat16, whose rounding shows, and only that.
func TestTrainsInBFloat16(t *testing.T) {
	for name, build := range nets {
		for ranks := 1; ranks <= 3; ranks++ {
			t.Run(fmt.Sprintf("%s/%d", name, ranks), func(t *testing.T) {
				m := build(tensor.Float32)
				model := m.model(t)
				wide := train(t, m, model, ranks, 5, 0.1, fsdp.Config{WrapPolicy: fsdp.WrapEach()})
				half := train(t, m, model, ranks, 5, 0.1, fsdp.Config{WrapPolicy: fsdp.WrapEach(), Poison: true, Precision: fsdp.BF16()})
				for i := range wide {
					require.NotEqual(t, wide[i].losses, half[i].losses)
					requireClose(t, wide[i].losses, half[i].losses, 0.02, "losses of step %d", i)
				}
				require.Len(t, half[0].grads, len(wide[0].grads))
				for name, g := range half[0].grads {
					requireClose(t, wide[0].grads[name], g, 0.05, "gradient of %s", name)
				}
			})
		}
	}
}

// requireLikeTapeMachine requires that sharded training of the model, which is m's, gives the
// losses and every gradient that Gorgonia's machine gives.
func requireLikeTapeMachine(t *testing.T, m *net, model fsdp.Model, ranks int, tolerance float64) {
	const steps, rate = 5, 0.1
	got := train(t, m, model, ranks, steps, rate, fsdp.Config{WrapPolicy: fsdp.WrapEach(), Poison: true})
	for i, want := range tapeMachine(t, m, ranks, steps, rate) {
		requireClose(t, want.losses, got[i].losses, tolerance, "losses of step %d", i)
		require.Len(t, got[i].grads, len(want.grads))
		for full, g := range got[i].grads {
			local := full[strings.LastIndex(full, ".")+1:]
			requireClose(t, want.grads[local], g, tolerance, "step %d: gradient of %s", i, full)
		}
	}
}

// TestRecurrentNetsWarn wraps a recurrent net in units that each time step gathers again, and as
// its comment says.
func TestRecurrentNetsWarn(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  fsdp.Config
		want string
	}{
		{"WrapEach", fsdp.Config{WrapPolicy: fsdp.WrapEach()}, `give these calls one unit in Config.WrapPolicy or leave them to the root unit, or set Strategy to ShardGradOp, which keeps the units gathered during a pass" ` +
			`rank=0 unit=wx_o gathers=8 units=5 "gathers of all"=38`},
		{"nil", fsdp.Config{}, ""},
		{"ShardGradOp", fsdp.Config{WrapPolicy: fsdp.WrapEach(), Strategy: fsdp.ShardGradOp}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			model, said := lstm(tensor.Float32).model(t), make([]bytes.Buffer, 2)
			require.NoError(t, comm.Run(t.Context(), 2, func(_ context.Context, g comm.Group) error {
				cfg := c.cfg
				cfg.Group, cfg.Logger = g, slog.New(slog.NewTextHandler(&said[g.Rank()], &slog.HandlerOptions{Level: slog.LevelWarn}))
				m, err := fsdp.Wrap(model, cfg)
				if err != nil {
					return err
				}
				return m.Close()
			}))
			if c.want == "" {
				require.Empty(t, said[0].String())
			} else {
				require.Contains(t, said[0].String(), c.want)
				require.Equal(t, 1, strings.Count(said[0].String(), "a pass gathers some units many times"))
			}
		})
	}
}
