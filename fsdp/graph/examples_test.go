package graph_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/graph"
	"github.com/gofsdp/gofsdp/optim"
)

// Models that call Gorgonia as its own examples do (gorgonia.org/gorgonia/examples), operation by
// operation, on smaller sizes.

// digits is the example convnet: three convolutions with Rectify, MaxPool2D and Dropout, two dense
// layers, SoftMax, and the logarithm of its product with the targets. With drop false it has no
// Dropout: Gorgonia's own panics in its TapeMachine.
func digits(dt tensor.Dtype, drop bool) *net {
	m := newNet(dt)
	x, y := m.input("x", 4, 1, 12, 12), m.input("y", 4, 5)
	dropout := func(x *G.Node, p float64) *G.Node {
		if drop {
			x = G.Must(G.Dropout(x, p))
		}
		return x
	}
	h, one, two := x, []int{1, 1}, []int{2, 2}
	for i, channels := range []int{4, 6, 8} {
		w := m.weight(fmt.Sprint("w", i), channels, h.Shape()[1], 3, 3)
		c := G.Must(G.Conv2d(h, w, tensor.Shape{3, 3}, one, one, one))
		p := G.Must(G.MaxPool2D(G.Must(G.Rectify(c)), tensor.Shape{2, 2}, []int{0, 0}, two))
		if i == 2 {
			s := p.Shape()
			p = G.Must(G.Reshape(p, tensor.Shape{s[0], s[1] * s[2] * s[3]}))
		}
		h = dropout(p, 0.2)
	}
	fc := G.Must(G.Mul(h, m.weight("w3", h.Shape()[1], 12)))
	out := G.Must(G.Mul(dropout(G.Must(G.Rectify(fc)), 0.55), m.weight("w4", 12, 5)))
	m.pred = G.Must(G.SoftMax(out))
	// the example's targets are between 0.1 and 0.9
	target := G.Must(G.Add(G.Must(G.Mul(G.NewConstant(dense(dt, []float64{0.4}, 1).Get(0)), y)), G.NewConstant(dense(dt, []float64{0.5}, 1).Get(0))))
	losses := G.Must(G.Log(G.Must(G.HadamardProd(m.pred, target))))
	m.cost = G.Must(G.Neg(G.Must(G.Mean(losses))))
	return m
}

// falls trains the model on one batch and requires its loss to fall to a part of what it was.
func falls(t *testing.T, model fsdp.Model, batch []fsdp.Tensor, rate, part float64) {
	s := wrap(t, model, fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float64}})
	opt, err := optim.SGD{}.New(s.Params())
	require.NoError(t, err)
	first, last := 0.0, 0.0
	for i := range 60 {
		loss, err := s.Forward(t.Context(), batch...)
		require.NoError(t, err)
		require.NoError(t, s.Backward(t.Context()))
		require.NoError(t, opt.Step(rate))
		s.ZeroGrad()
		last = loss
		if i == 0 {
			first = loss
		}
	}
	require.Less(t, last, part*first)
	require.NoError(t, s.Close())
}

// TestConvnetExample trains as Gorgonia's machine does without Dropout; with it the loss falls, and
// evaluation drops nothing.
func TestConvnetExample(t *testing.T) {
	for dt, tolerance := range map[tensor.Dtype]float64{tensor.Float64: 1e-10, tensor.Float32: 1e-5} {
		m := digits(dt, false)
		requireLikeTapeMachine(t, m, m.model(t), 2, tolerance)
	}
	m := digits(tensor.Float64, true)
	_, err := G.Grad(m.cost, m.learn...) // as the example does; they are ignored
	require.NoError(t, err)
	falls(t, m.model(t), m.batch(0, 0), 0.5, 0.97)
	plain := digits(tensor.Float64, false)
	losses := make(map[bool]float64)
	for drop, n := range map[bool]*net{true: digits(tensor.Float64, true), false: plain} {
		s := wrap(t, n.model(t), fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float64}})
		out, err := s.Eval(t.Context(), n.batch(0, 0)...)
		require.NoError(t, err)
		losses[drop] = floats(out[0])[0]
		require.NoError(t, s.Close())
	}
	require.InDelta(t, losses[false], losses[true], 1e-12)
}

// characters is the example charRNN: two layers of LSTM over the characters of a sentence, which
// are rows of an embedding that is sliced, SoftMax, and the sum of the negative logarithms at the
// next character. Nothing comes from a batch.
func characters(dt tensor.Dtype, sentence []int) *net {
	m := newNet(dt)
	const vocabulary, embedded = 6, 4
	hidden := []int{5, 3}
	type gate struct{ wx, wh, b *G.Node }
	var layers [][4]gate
	var hs, cs G.Nodes
	in := embedded
	for d, size := range hidden {
		var l [4]gate
		for i, name := range []string{"i", "f", "o", "c"} {
			l[i] = gate{m.weight(fmt.Sprintf("w%sx_%d", name, d), size, in), m.weight(fmt.Sprintf("w%sh_%d", name, d), size, size),
				m.weight(fmt.Sprintf("bias_%s_%d", name, d), size)}
		}
		layers, in = append(layers, l), size
		hs, cs = append(hs, m.state(fmt.Sprint("prevHidden_", d), size)), append(cs, m.state(fmt.Sprint("prevCell_", d), size))
	}
	whd, bias, embedding := m.weight("whd", vocabulary, in), m.weight("bias_d", vocabulary), m.weight("Embedding", vocabulary, embedded)
	for i := range len(sentence) - 1 {
		x := G.Must(G.Slice(embedding, G.S(sentence[i])))
		for d, l := range layers {
			var sums [4]*G.Node
			for j, g := range l {
				sums[j] = G.Must(G.Add(G.Must(G.Add(G.Must(G.Mul(g.wx, x)), G.Must(G.Mul(g.wh, hs[d])))), g.b))
			}
			write := G.Must(G.HadamardProd(G.Must(G.Sigmoid(sums[0])), G.Must(G.Tanh(sums[3]))))
			cs[d] = G.Must(G.Add(G.Must(G.HadamardProd(G.Must(G.Sigmoid(sums[1])), cs[d])), write))
			hs[d] = G.Must(G.HadamardProd(G.Must(G.Sigmoid(sums[2])), G.Must(G.Tanh(cs[d]))))
			x = hs[d]
		}
		m.pred = G.Must(G.SoftMax(G.Must(G.Add(G.Must(G.Mul(whd, x)), bias))))
		loss := G.Must(G.Slice(G.Must(G.Neg(G.Must(G.Log(m.pred)))), G.S(sentence[i+1])))
		if m.cost == nil {
			m.cost = loss
		} else {
			m.cost = G.Must(G.Add(m.cost, loss))
		}
		G.WithName("Cost")(m.cost)
	}
	return m
}

// TestCharRNNExample trains as Gorgonia's machine does, and its loss falls.
func TestCharRNNExample(t *testing.T) {
	sentence := []int{0, 3, 1, 4, 1, 5}
	for dt, tolerance := range map[tensor.Dtype]float64{tensor.Float64: 1e-10, tensor.Float32: 1e-5} {
		m := characters(dt, sentence)
		model, err := graph.Model(m.cost, nil, m.learn, graph.Constants(m.constants...))
		require.NoError(t, err)
		requireLikeTapeMachine(t, m, model, 2, tolerance)
	}
	m := characters(tensor.Float64, sentence)
	model, err := graph.Model(m.cost, nil, m.learn, graph.Constants(m.constants...))
	require.NoError(t, err)
	falls(t, model, nil, 0.3, 0.8)
}

// stacked is the example stacked_autoencoder: layers with a bias for each row, each with a
// denoising autoencoder of tied weights behind it. Its corruption is a single number for the whole
// batch, since the example gives it no shape.
type stacked struct {
	*net
	rows   int
	x      *G.Node
	layers [2]struct{ input, w, b, output, corruption *G.Node }
	final  struct{ w, b, output *G.Node }
}

func newStacked() *stacked {
	const in, out = 7, 4
	m := &stacked{net: newNet(tensor.Float64), rows: 3}
	m.x = m.input("x", m.rows, in)
	h, inputs := m.x, in
	for i := range m.layers {
		l := &m.layers[i]
		l.input, l.w, l.b = h, m.weight(fmt.Sprint("w_", i), inputs, 5), m.weight(fmt.Sprint("b_", i), m.rows, 5)
		l.output = G.Must(G.Sigmoid(G.Must(G.Add(G.Must(G.Mul(h, l.w)), l.b))))
		l.corruption = G.BinomialRandomNode(m.g, tensor.Float64, 1, 0.7+0.1*float64(i))
		h, inputs = l.output, 5
	}
	m.final.w, m.final.b = m.weight("Softmax_w", inputs, out), m.weight("Softmax_b", m.rows, out)
	m.final.output = G.Must(G.SoftMax(G.Must(G.Add(G.Must(G.Mul(h, m.final.w)), m.final.b))))
	return m
}

// pretrain sets the cost to that of layer i's autoencoder.
func (m *stacked) pretrain(i int) *stacked {
	l := m.layers[i]
	back := m.weight(fmt.Sprint("b_h_", i), l.input.Shape()...)
	y := G.Must(G.Sigmoid(G.Must(G.Add(G.Must(G.Mul(G.Must(G.HadamardProd(l.corruption, l.input)), l.w)), l.b))))
	m.pred = G.Must(G.Sigmoid(G.Must(G.Add(G.Must(G.Mul(y, G.Must(G.Transpose(l.w)))), back))))
	m.cost = G.Must(G.Mean(G.Must(G.BinaryXent(m.pred, l.input))))
	m.learn = G.Nodes{l.w, l.b, back}
	for _, below := range m.layers[:i] {
		m.constants = append(m.constants, below.w, below.b)
	}
	return m
}

// finetune sets the cost to the mean of minus the logarithms of the right classes.
func (m *stacked) finetune() *stacked {
	m.pred = m.final.output
	logprobs := G.Must(G.Neg(G.Must(G.Log(m.pred))))
	var losses G.Nodes
	for i, correct := range []int{2, 0, 3} {
		losses = append(losses, G.Must(G.Slice(logprobs, G.S(i), G.S(correct))))
	}
	m.cost = G.Must(G.Div(G.Must(G.ReduceAdd(losses)), G.NewConstant(3.0)))
	return m
}

// pixels returns images of the example, whose pixels are in (0, 1).
func (m *stacked) pixels(step, rank int) []fsdp.Tensor {
	x := m.batch(step, rank)[0].Data().([]float64)
	for i, v := range x {
		x[i] = 0.55 + 0.4*v
	}
	return []fsdp.Tensor{dense(tensor.Float64, x, m.rows, 7)}
}

// TestAutoencoderExample trains the layers, each on the outputs of the layer below, and then all of
// them together, on one and on two ranks. The losses fall.
func TestAutoencoderExample(t *testing.T) {
	requireLikeTapeMachine(t, newStacked().finetune().net, newStacked().finetune().model(t), 2, 1e-10)
	for ranks := 1; ranks <= 2; ranks++ {
		trained := make(map[string]G.Value)
		for stage, build := range []func(m *stacked){
			func(m *stacked) { m.pretrain(0) }, func(m *stacked) { m.pretrain(1) }, func(m *stacked) { m.finetune() },
		} {
			m := newStacked()
			build(m)
			for _, n := range m.g.AllNodes() {
				if v := trained[n.Name()]; v != nil {
					require.NoError(t, G.Let(n, v))
				}
			}
			model, first, last := m.model(t), make([]float64, ranks), make([]float64, ranks)
			onRanks(t, ranks, func(ctx context.Context, g comm.Group) {
				s := wrap(t, model, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: fsdp.Precision{Compute: fsdp.Float64}})
				opt, err := optim.SGD{}.New(s.Params())
				require.NoError(t, err)
				for i := range 60 {
					loss, err := s.Forward(ctx, m.pixels(0, g.Rank())...)
					require.NoError(t, err)
					require.NoError(t, s.Backward(ctx))
					require.NoError(t, opt.Step(1))
					s.ZeroGrad()
					last[g.Rank()] = loss
					if i == 0 {
						first[g.Rank()] = loss
					}
				}
				full, err := s.StateDict(ctx, nil)
				require.NoError(t, err)
				for name, v := range full { // nil but on rank 0
					trained[name[strings.LastIndex(name, ".")+1:]] = v
				}
				require.NoError(t, s.Close())
			})
			for rank := range ranks {
				require.Less(t, last[rank], 0.96*first[rank], "stage %d, rank %d of %d", stage, rank, ranks)
			}
		}
	}
}
