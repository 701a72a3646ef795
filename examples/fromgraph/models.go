package main

import (
	"math/rand/v2"
	"sync"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// net is a model as one writes it for Gorgonia.
type net struct {
	name      string
	rate      float64
	graph     *G.ExprGraph
	inputs    G.Nodes // the images and their targets
	learn     G.Nodes
	constants G.Nodes
	cost      *G.Node
}

func newNet(name string, rate float64, shape ...int) (m *net, x *G.Node) {
	m = &net{name: name, rate: rate, graph: G.NewGraph()}
	x = G.NewTensor(m.graph, tensor.Float32, len(shape), G.WithName("x"), G.WithShape(shape...))
	y := G.NewMatrix(m.graph, tensor.Float32, G.WithName("y"), G.WithShape(rows, 1))
	m.inputs = G.Nodes{x, y}
	return m, x
}

// weight adds a learnable. Gorgonia's own initial values differ from run to run.
func (m *net) weight(name string, shape ...int) *G.Node {
	r := rand.New(rand.NewPCG(uint64(len(m.learn)), 0))
	values := make([]float32, tensor.Shape(shape).TotalSize())
	for i := range values {
		values[i] = float32(r.NormFloat64() * 0.25)
	}
	value := tensor.New(tensor.WithShape(shape...), tensor.WithBacking(values))
	n := G.NewTensor(m.graph, tensor.Float32, len(shape), G.WithName(name), G.WithShape(shape...), G.WithValue(value))
	m.learn = append(m.learn, n)
	return n
}

// linear is x·w + b, with a new weight and bias.
func (m *net) linear(name string, x *G.Node, in, out int) *G.Node {
	product := G.Must(G.Mul(x, m.weight("w"+name, in, out)))
	return G.Must(G.BroadcastAdd(product, m.weight("b"+name, 1, out), nil, []byte{0}))
}

// squaredError sets the cost.
func (m *net) squaredError(prediction *G.Node) *net {
	m.cost = G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(prediction, m.inputs[1]))))))
	return m
}

// building is held while a graph is made: Gorgonia counts in global variables, and ranks may be
// goroutines.
var building sync.Mutex

func nets() []*net {
	building.Lock()
	defer building.Unlock()
	return []*net{mlp(), convnet(), elman()}
}

// mlp is three dense layers.
func mlp() *net {
	m, x := newNet("mlp", 0.1, rows, 24)
	h := G.Must(G.Rectify(m.linear("0", x, 24, 32)))
	h = G.Must(G.Rectify(m.linear("1", h, 32, 32)))
	return m.squaredError(m.linear("2", h, 32, 1))
}

// convnet is two convolutions, with strides in place of pooling, and a dense layer.
func convnet() *net {
	m, x := newNet("convnet", 0.05, rows, 1, 8, 8)
	conv := func(name string, x *G.Node, in, out int) *G.Node {
		c := G.Must(G.Conv2d(x, m.weight(name, out, in, 3, 3), tensor.Shape{3, 3}, []int{1, 1}, []int{2, 2}, []int{1, 1}))
		return G.Must(G.Rectify(c))
	}
	h := conv("conv1", conv("conv0", x, 1, 8), 8, 16) // [rows, 16, 2, 2]
	return m.squaredError(m.linear("fc", G.Must(G.Reshape(h, tensor.Shape{rows, 64})), 64, 1))
}

// elman is a recurrent net (Elman, 1990) over six steps of four numbers.
func elman() *net {
	const time, in, hidden = 6, 4, 16
	m, x := newNet("elman", 0.05, rows, time*in)
	wx, wh, b := m.weight("wx", in, hidden), m.weight("wh", hidden, hidden), m.weight("b", 1, hidden)
	h := G.NewMatrix(m.graph, tensor.Float32, G.WithName("h0"), G.WithShape(rows, hidden), G.WithInit(G.Zeroes()))
	m.constants = G.Nodes{h}
	for t := range time {
		now := G.Must(G.Slice(x, nil, G.S(t*in, (t+1)*in)))
		sum := G.Must(G.Add(G.Must(G.Mul(now, wx)), G.Must(G.Mul(h, wh))))
		h = G.Must(G.Tanh(G.Must(G.BroadcastAdd(sum, b, nil, []byte{0}))))
	}
	return m.squaredError(m.linear("y", h, hidden, 1))
}
