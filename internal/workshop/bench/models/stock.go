package models

import (
	"fmt"
	"math"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// stockLlama is nn.Llama with layers and a last norm written only with Gorgonia's operations, as a
// user may write them, with the same parameter names.
type stockLlama struct{ of nn.Llama }

// Forward implements fsdp.Model.
func (m *stockLlama) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	of := &m.of
	x := t.Call("embed", &nn.Embedding{Rows: of.Vocab, Dim: of.Dim}, in[0])
	for i := range of.Layers {
		x = t.Call(fmt.Sprintf("layers.%d", i), &stockLayer{of.Dim, of.Heads, of.KVHeads, of.Hidden}, x)
	}
	x = t.Call("norm", &stockNorm{of.Dim}, x)
	return []fsdp.Ref{t.Call("head", &nn.Head{Dim: of.Dim, Classes: of.Vocab}, x, in[1])}, nil
}

// stockLayer maps x [B, T, Dim] to a result of the same shape.
type stockLayer struct{ Dim, Heads, KVHeads, Hidden int }

// Params implements fsdp.Module.
func (m *stockLayer) Params() []fsdp.Param {
	init, one := fsdp.Normal(0.02), fsdp.Constant(1)
	width := m.Dim + 2*m.Dim/m.Heads*m.KVHeads
	return []fsdp.Param{
		{Name: "attn_norm.weight", Shape: []int{m.Dim}, Init: one}, {Name: "attn.qkv.weight", Shape: []int{width, m.Dim}, Init: init},
		{Name: "attn.proj.weight", Shape: []int{m.Dim, m.Dim}, Init: init}, {Name: "mlp_norm.weight", Shape: []int{m.Dim}, Init: one},
		{Name: "mlp.fc.weight", Shape: []int{2 * m.Hidden, m.Dim}, Init: init}, {Name: "mlp.out.weight", Shape: []int{m.Dim, m.Hidden}, Init: init},
	}
}

// Build implements fsdp.Module. Gorgonia's errors are panics, which fsdp converts back to errors.
func (m *stockLayer) Build(b *fsdp.Builder, in ...*G.Node) (G.Nodes, error) {
	var w []*G.Node
	for _, p := range m.Params() {
		v, err := b.Param(p.Name)
		if err != nil {
			return nil, err
		}
		w = append(w, v)
	}
	shape := in[0].Shape().Clone()
	x := reshape(in[0], shape[0]*shape[1], m.Dim)
	qkv := product(stockRMS(b, x, w[0]), w[1])
	x = G.Must(G.Add(x, product(m.attend(b, qkv, shape[0], shape[1]), w[2])))
	fc := reshape(product(stockRMS(b, x, w[3]), w[4]), shape[0]*shape[1], 2, m.Hidden)
	gate, up := G.Must(G.Slice(fc, nil, G.S(0))), G.Must(G.Slice(fc, nil, G.S(1)))
	h := G.Must(G.HadamardProd(G.Must(G.HadamardProd(gate, G.Must(G.Sigmoid(gate)))), up))
	x = G.Must(G.Add(x, product(h, w[5])))
	return G.Nodes{reshape(x, shape...)}, nil
}

// attend computes attention of qkv [batch*length, ...]. The query heads that read one key head are
// stacked.
func (m *stockLayer) attend(b *fsdp.Builder, qkv *G.Node, batch, length int) *G.Node {
	head, group := m.Dim/m.Heads, m.Heads/m.KVHeads
	qkv = reshape(qkv, batch, length, m.Heads+2*m.KVHeads, head)
	heads := func(from, n int) *G.Node { // [batch, n, length, head]
		x := reshape(G.Must(G.Slice(qkv, nil, nil, G.S(from, from+n))), batch, length, n, head)
		return G.Must(G.Transpose(x, 0, 2, 1, 3))
	}
	q, k, v := turned(b, heads(0, m.Heads)), turned(b, heads(m.Heads, m.KVHeads)), heads(m.Heads+m.KVHeads, m.KVHeads)
	q = reshape(q, batch*m.KVHeads, group*length, head)
	k, v = reshape(k, batch*m.KVHeads, length, head), reshape(v, batch*m.KVHeads, length, head)
	hidden := constant(b, func(i int) float64 {
		if i%length > i/length%length {
			return math.Inf(-1)
		}
		return 0
	}, 1, group*length, length)
	scores := G.Must(G.Mul(G.Must(G.BatchedMatMul(q, k, false, true)), b.Const(1/math.Sqrt(float64(head)))))
	p := G.Must(G.SoftMax(G.Must(G.BroadcastAdd(scores, hidden, nil, []byte{0})), 2))
	y := reshape(G.Must(G.BatchedMatMul(p, v)), batch, m.Heads, length, head)
	return reshape(G.Must(G.Transpose(y, 0, 2, 1, 3)), batch*length, m.Dim)
}

// turned is the rotary embedding of x [B, H, T, Dh].
func turned(b *fsdp.Builder, x *G.Node) *G.Node {
	length, half := x.Shape()[2], x.Shape()[3]/2
	table := func(of func(float64) float64) *G.Node {
		return constant(b, func(i int) float64 {
			return of(float64(i/half) * math.Pow(10000, -float64(i%half)/float64(half)))
		}, 1, 1, length, half)
	}
	times := func(x, table *G.Node) *G.Node { return G.Must(G.BroadcastHadamardProd(x, table, nil, []byte{0, 1})) }
	cos, sin := table(math.Cos), table(math.Sin)
	u, v := G.Must(G.Slice(x, nil, nil, nil, G.S(0, half))), G.Must(G.Slice(x, nil, nil, nil, G.S(half, 2*half)))
	return G.Must(G.Concat(3, G.Must(G.Sub(times(u, cos), times(v, sin))), G.Must(G.Add(times(u, sin), times(v, cos)))))
}

// stockNorm is RMSNorm of x [B, T, Dim].
type stockNorm struct{ Dim int }

// Params implements fsdp.Module.
func (m *stockNorm) Params() []fsdp.Param {
	return []fsdp.Param{{Name: "weight", Shape: []int{m.Dim}, Init: fsdp.Constant(1)}}
}

// Build implements fsdp.Module.
func (m *stockNorm) Build(b *fsdp.Builder, in ...*G.Node) (G.Nodes, error) {
	gain, err := b.Param("weight")
	if err != nil {
		return nil, err
	}
	shape := in[0].Shape().Clone()
	return G.Nodes{reshape(stockRMS(b, reshape(in[0], shape[0]*shape[1], m.Dim), gain), shape...)}, nil
}

// stockRMS normalises the rows of x [N, Dim].
func stockRMS(b *fsdp.Builder, x, gain *G.Node) *G.Node {
	mean := reshape(G.Must(G.Mean(G.Must(G.Square(x)), 1)), x.Shape()[0], 1)
	root := G.Must(G.Sqrt(G.Must(G.Add(mean, b.Const(1e-6)))))
	y := G.Must(G.BroadcastHadamardDiv(x, root, nil, []byte{1}))
	return G.Must(G.BroadcastHadamardProd(y, reshape(gain, 1, x.Shape()[1]), nil, []byte{0}))
}

func reshape(x *G.Node, shape ...int) *G.Node { return G.Must(G.Reshape(x, shape)) }

// product returns x·wᵀ.
func product(x, w *G.Node) *G.Node { return G.Must(G.Mul(x, G.Must(G.Transpose(w, 1, 0)))) }

// constant returns a tensor whose element i is f(i).
func constant(b *fsdp.Builder, f func(i int) float64, shape ...int) *G.Node {
	d := tensor.New(tensor.WithShape(shape...), tensor.Of(b.DType()))
	for i := range d.Size() {
		switch v := d.Data().(type) {
		case []float32:
			v[i] = float32(f(i))
		case []float64:
			v[i] = f(i)
		}
	}
	return G.Must(b.ConstTensor(d))
}
