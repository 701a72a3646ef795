package train

import (
	"errors"
	"fmt"
	"math"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// newTape trains the same model, written with Gorgonia's own operations, on its TapeMachine with
// its default BLAS, gonum's. Two things are Gorgonia's own: GELU is the tanh form, because there is
// no erf, and the update is its Adam, which decays nothing and clips single elements. It is here
// for its speed: on graphs like this one the machine's in-place operations can corrupt values (see
// package exec).
func newTape(s size) (*contestant, error) {
	b := &tapeModel{size: s, g: G.NewGraph(), init: 0.02}
	loss := b.build()
	if b.err != nil {
		return nil, b.err
	}
	if _, err := G.Grad(loss, b.params...); err != nil {
		return nil, err
	}
	vm := G.NewTapeMachine(b.g, G.BindDualValues(b.params...))
	solver := G.NewAdamSolver(G.WithLearnRate(3e-4), G.WithBeta2(0.95), G.WithClip(1))
	return &contestant{
		name: "Gorgonia TapeMachine", cores: 1, close: vm.Close,
		step: func() error {
			vm.Reset()
			return errors.Join(vm.RunAll(), solver.Step(G.NodesToValueGrads(b.params)))
		},
	}, nil
}

// tapeModel builds the graph of a GPT. The first error sticks.
type tapeModel struct {
	size
	g      *G.ExprGraph
	params G.Nodes
	init   float64
	err    error
}

// must keeps the first error.
func (b *tapeModel) must(n *G.Node, err error) *G.Node {
	if b.err == nil {
		b.err = err
	}
	return n
}

// do runs f unless there was an error.
func (b *tapeModel) do(f func() (*G.Node, error)) *G.Node {
	if b.err != nil {
		return nil
	}
	return b.must(f())
}

func (b *tapeModel) param(name string, shape ...int) *G.Node {
	init := G.Zeroes() // biases
	switch {
	case len(shape) == 2:
		init = G.Gaussian(0, b.init)
	// Gains. With zeros every activation would be zero, and gonum skips zeros.
	case strings.HasSuffix(name, ".g"):
		init = G.Ones()
	}
	n := G.NewTensor(b.g, tensor.Float32, len(shape), G.WithShape(shape...), G.WithName(name), G.WithInit(init))
	b.params = append(b.params, n)
	return n
}

func (b *tapeModel) constant(v float32) *G.Node {
	return G.NewConstant(v, G.WithName(fmt.Sprintf("%v", v)))
}

func (b *tapeModel) input(name string, v *tensor.Dense) *G.Node {
	return G.NewTensor(b.g, v.Dtype(), v.Dims(), G.WithShape(v.Shape()...), G.WithName(name), G.WithValue(v))
}

// build adds the model and returns its loss.
func (b *tapeModel) build() *G.Node {
	tokens, targets := b.rows(0, b.batch)
	n := b.tokens()
	positions := make([]int, n)
	oneHot := make([]float32, n*b.vocab)
	for i := range n {
		positions[i] = i % b.context
		oneHot[i*b.vocab+targets[i]] = 1
	}
	tok := b.input("tokens", tensor.New(tensor.WithShape(n), tensor.WithBacking(tokens)))
	pos := b.input("positions", tensor.New(tensor.WithShape(n), tensor.WithBacking(positions)))
	want := b.input("targets", tensor.New(tensor.WithShape(n, b.vocab), tensor.WithBacking(oneHot)))
	mask := b.input("mask", b.mask())
	wte, wpe := b.param("wte", b.vocab, b.dim), b.param("wpe", b.context, b.dim)
	x := b.do(func() (*G.Node, error) { return G.ByIndices(wte, tok, 0) })
	p := b.do(func() (*G.Node, error) { return G.ByIndices(wpe, pos, 0) })
	x = b.do(func() (*G.Node, error) { return G.Add(x, p) })
	for l := range b.layers {
		x = b.block(fmt.Sprintf("h%d", l), x, mask)
	}
	x = b.norm("lnf", x)
	head := b.param("head.w", b.dim, b.vocab)
	logits := b.do(func() (*G.Node, error) { return G.Mul(x, head) })
	lp := b.do(func() (*G.Node, error) { return G.LogSoftMax(logits, 1) })
	picked := b.do(func() (*G.Node, error) { return G.HadamardProd(lp, want) })
	sum := b.do(func() (*G.Node, error) { return G.Sum(picked) })
	return b.do(func() (*G.Node, error) { return G.HadamardProd(sum, b.constant(-1/float32(n))) })
}

func (b *tapeModel) mask() *tensor.Dense {
	m := make([]float32, b.context*b.context)
	for i := range b.context {
		for j := i + 1; j < b.context; j++ {
			m[i*b.context+j] = -1e9
		}
	}
	return tensor.New(tensor.WithShape(1, b.context, b.context), tensor.WithBacking(m))
}

// linear is x [n, in]·w [in, out] + bias.
func (b *tapeModel) linear(name string, x *G.Node, out int) *G.Node {
	if b.err != nil {
		return nil
	}
	w, bias := b.param(name+".w", x.Shape()[1], out), b.param(name+".b", out)
	y := b.do(func() (*G.Node, error) { return G.Mul(x, w) })
	return b.row(y, bias, G.BroadcastAdd)
}

type broadcast func(a, b *G.Node, left, right []byte) (*G.Node, error)

// row combines every row of x with the vector v.
func (b *tapeModel) row(x, v *G.Node, op broadcast) *G.Node {
	r := b.do(func() (*G.Node, error) { return G.Reshape(v, tensor.Shape{1, v.Shape()[0]}) })
	return b.do(func() (*G.Node, error) { return op(x, r, nil, []byte{0}) })
}

// norm is LayerNorm of the rows of x.
func (b *tapeModel) norm(name string, x *G.Node) *G.Node {
	if b.err != nil {
		return nil
	}
	gain, bias := b.param(name+".g", b.dim), b.param(name+".b", b.dim)
	column := func(f func() (*G.Node, error)) *G.Node {
		v := b.do(f)
		return b.do(func() (*G.Node, error) { return G.Reshape(v, tensor.Shape{b.tokens(), 1}) })
	}
	mean := column(func() (*G.Node, error) { return G.Mean(x, 1) })
	centred := b.do(func() (*G.Node, error) { return G.BroadcastSub(x, mean, nil, []byte{1}) })
	square := b.do(func() (*G.Node, error) { return G.Square(centred) })
	variance := b.do(func() (*G.Node, error) { return G.Mean(square, 1) })
	shifted := b.do(func() (*G.Node, error) { return G.Add(variance, b.constant(1e-5)) })
	std := column(func() (*G.Node, error) { return G.Sqrt(shifted) })
	y := b.do(func() (*G.Node, error) { return G.BroadcastHadamardDiv(centred, std, nil, []byte{1}) })
	return b.row(b.row(y, gain, G.BroadcastHadamardProd), bias, G.BroadcastAdd)
}

// block is a transformer block on x [B*T, dim].
func (b *tapeModel) block(name string, x, mask *G.Node) *G.Node {
	a := b.attention(b.linear(name+".qkv", b.norm(name+".ln1", x), 3*b.dim), mask)
	a = b.linear(name+".proj", a, b.dim)
	x1 := b.do(func() (*G.Node, error) { return G.Add(x, a) })
	h := b.gelu(b.linear(name+".fc", b.norm(name+".ln2", x1), 4*b.dim))
	h = b.linear(name+".out", h, b.dim)
	return b.do(func() (*G.Node, error) { return G.Add(x1, h) })
}

// gelu is the tanh approximation.
func (b *tapeModel) gelu(x *G.Node) *G.Node {
	cube := b.do(func() (*G.Node, error) { return G.Cube(x) })
	c := b.do(func() (*G.Node, error) { return G.HadamardProd(cube, b.constant(0.044715)) })
	in := b.do(func() (*G.Node, error) { return G.Add(x, c) })
	in2 := b.do(func() (*G.Node, error) { return G.HadamardProd(in, b.constant(float32(math.Sqrt(2/math.Pi)))) })
	t := b.do(func() (*G.Node, error) { return G.Tanh(in2) })
	t1 := b.do(func() (*G.Node, error) { return G.Add(t, b.constant(1)) })
	y := b.do(func() (*G.Node, error) { return G.HadamardProd(x, t1) })
	return b.do(func() (*G.Node, error) { return G.HadamardProd(y, b.constant(0.5)) })
}

// attention is causal attention over qkv [B*T, 3*dim].
func (b *tapeModel) attention(qkv, mask *G.Node) *G.Node {
	bs, t, h, dh := b.batch, b.context, b.heads, b.dim/b.heads
	heads := func(i int) *G.Node { // [B*h, T, dh]
		s := b.do(func() (*G.Node, error) { return G.Slice(qkv, nil, G.S(i*b.dim, (i+1)*b.dim)) })
		s = b.reshape(s, bs, t, h, dh)
		s = b.do(func() (*G.Node, error) { return G.Transpose(s, 0, 2, 1, 3) })
		return b.reshape(s, bs*h, t, dh)
	}
	q, k, v := heads(0), heads(1), heads(2)
	s := b.do(func() (*G.Node, error) { return G.BatchedMatMul(q, k, false, true) })
	scaled := b.do(func() (*G.Node, error) { return G.HadamardProd(s, b.constant(float32(1/math.Sqrt(float64(dh))))) })
	masked := b.do(func() (*G.Node, error) { return G.BroadcastAdd(scaled, mask, nil, []byte{0}) })
	p := b.do(func() (*G.Node, error) { return G.SoftMax(masked, 2) })
	y := b.reshape(b.do(func() (*G.Node, error) { return G.BatchedMatMul(p, v) }), bs, h, t, dh)
	y = b.do(func() (*G.Node, error) { return G.Transpose(y, 0, 2, 1, 3) })
	return b.reshape(y, bs*t, b.dim)
}

func (b *tapeModel) reshape(x *G.Node, shape ...int) *G.Node {
	return b.do(func() (*G.Node, error) { return G.Reshape(x, tensor.Shape(shape)) })
}
