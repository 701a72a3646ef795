package nn

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/generate"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// dropout returns a step that applies dropout, or nothing if rate is 0. Dropouts of one scope need
// different names.
func dropout(b *fsdp.Builder, rate float64, name string) func(*gorgonia.Node) (*gorgonia.Node, error) {
	return func(x *gorgonia.Node) (*gorgonia.Node, error) {
		if rate == 0 {
			return x, nil
		}
		return op.Dropout(x, rate, b.Stream(name))
	}
}

// Dropout zeroes elements of x with probability Rate while training and scales up the rest. In
// evaluation it returns x.
type Dropout struct{ Rate float64 }

// Params implements fsdp.Module.
func (m *Dropout) Params() []fsdp.Param { return nil }

// Build implements fsdp.Module.
func (m *Dropout) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	if err := arguments(in, 1); err != nil {
		return nil, err
	}
	return one(op.Dropout(in[0], m.Rate, b.Stream("dropout")))
}

// MLP maps x [..., Dim] to out(act(fc(x))), with Hidden channels between. With Gated it is
// out(act(g)·u) where fc(x), of 2*Hidden channels, is g and then u: a gated linear unit (Shazeer,
// 2020, arXiv:2002.05202), SwiGLU with Act SiLU. Its fc.weight is the gate_proj.weight of Hugging
// Face's Llama with the up_proj.weight below it, and out is the down_proj. Parameters: the
// parameters of the linear layers fc and out.
type MLP struct {
	Dim, Hidden int
	Act         Activation
	Gated       bool // by Act: GELU, GELUTanh, ReLU or SiLU
	NoBias      bool
	Dropout     float64 // of the result
	Std         float64 // of the initial weights of fc; 0 means 0.02
	OutStd      float64 // of the initial weights of out; 0 means Std
	LoRA        LoRA    // of both layers; gate and up share one adapter
}

func (m *MLP) fc() *Linear {
	out := m.Hidden
	if m.Gated {
		out *= 2
	}
	return &Linear{In: m.Dim, Out: out, NoBias: m.NoBias, Std: m.Std, LoRA: m.LoRA}
}
func (m *MLP) out() *Linear {
	return &Linear{In: m.Hidden, Out: m.Dim, NoBias: m.NoBias, Std: cmp.Or(m.OutStd, m.Std), LoRA: m.LoRA}
}

// Params implements fsdp.Module.
func (m *MLP) Params() []fsdp.Param {
	return slices.Concat(fsdp.Prefix("fc", m.fc()), fsdp.Prefix("out", m.out()))
}

// Build implements fsdp.Module.
func (m *MLP) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	if err := arguments(in, 1); err != nil {
		return nil, err
	}
	act := m.Act.apply
	if m.Gated {
		act = m.Act.gate
	}
	return one(chain(in[0], part(b, "fc", m.fc()), act, part(b, "out", m.out()), dropout(b, m.Dropout, "mlp")))
}

// Block is a pre-norm transformer block on x [B, T, Dim]:
//
//	x = x + attn(ln1(x))
//	x = x + mlp(ln2(x))
//
// With positions or a cache, further inputs and results after x are the same as in Attention.
//
// Parameters, in order: ln1, qkv, proj, ln2, fc and out.
type Block struct {
	Dim, Heads int
	Hidden     int  // 0 means 4*Dim
	Full       bool // attention sees later positions too
	Act        Activation
	NoBias     bool // in the linear layers
	Dropout    float64
	Eps        float64 // of the norms; 0 means 1e-5
	ResidStd   float64 // of the initial weights of proj and out, which feed the residual; 0 means 0.02
	LoRA       LoRA    // of all linear layers
}

func (m *Block) norm() *LayerNorm { return &LayerNorm{Dim: m.Dim, Eps: m.Eps} }
func (m *Block) attn() *Attention {
	return &Attention{Dim: m.Dim, Heads: m.Heads, Causal: !m.Full, NoBias: m.NoBias, Dropout: m.Dropout, ProjStd: m.ResidStd, LoRA: m.LoRA}
}
func (m *Block) mlp() *MLP {
	return &MLP{Dim: m.Dim, Hidden: cmp.Or(m.Hidden, 4*m.Dim), Act: m.Act, NoBias: m.NoBias, Dropout: m.Dropout, OutStd: m.ResidStd, LoRA: m.LoRA}
}

// Params implements fsdp.Module.
func (m *Block) Params() []fsdp.Param {
	return slices.Concat(fsdp.Prefix("ln1", m.norm()), fsdp.Prefix("", m.attn()), fsdp.Prefix("ln2", m.norm()), fsdp.Prefix("", m.mlp()))
}

// Build implements fsdp.Module.
func (m *Block) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	if len(in) < 1 {
		return nil, arguments(in, 1)
	}
	residual := func(steps ...func(*gorgonia.Node) (*gorgonia.Node, error)) func(*gorgonia.Node) (*gorgonia.Node, error) {
		return func(x *gorgonia.Node) (*gorgonia.Node, error) {
			y, err := chain(x, steps...)
			if err != nil {
				return nil, err
			}
			return gorgonia.Add(y, x)
		}
	}
	var kept gorgonia.Nodes
	x, err := chain(in[0],
		residual(part(b, "ln1", m.norm()), keep(b, "", m.attn(), in[1:], &kept)),
		residual(part(b, "ln2", m.norm()), part(b, "", m.mlp())))
	return append(gorgonia.Nodes{x}, kept...), err
}

// IgnoreTarget is the target that does not count in a loss.
const IgnoreTarget = -1

// Add adds two values of one shape: the residual connection of a model that calls the parts of a
// block one by one. It has no parameters.
type Add struct{}

// Params implements fsdp.Module.
func (m *Add) Params() []fsdp.Param { return nil }

// Build implements fsdp.Module.
func (m *Add) Build(_ *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	if err := arguments(in, 2); err != nil {
		return nil, err
	}
	return one(gorgonia.Add(in[0], in[1]))
}

// CrossEntropy maps logits [..., Classes] and targets, ints [...], to the mean cross-entropy in
// nats over the targets that are not IgnoreTarget: shape [1]. It has no parameters.
type CrossEntropy struct{}

// Params implements fsdp.Module.
func (m *CrossEntropy) Params() []fsdp.Param { return nil }

// Build implements fsdp.Module.
func (m *CrossEntropy) Build(_ *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	if err := arguments(in, 2); err != nil {
		return nil, err
	}
	return one(op.CrossEntropy(in[0], in[1], IgnoreTarget))
}

// Head maps x [..., Dim] and targets, ints [...], to the loss, as CrossEntropy does, and the
// logits: its outputs have the shapes [1] and [..., Classes]. A third input, ints [n], selects the
// rows of x that count, as if its leading dimensions were one. Then targets and logits have n rows.
// Parameters: weight [Classes, Dim], its own or tied to the parameter that Tied names, and, with
// Bias, bias [Classes].
//
// With Fused its only output is the loss, and the whole logits are never in memory
// ([op.LinearCrossEntropy]). This suits large vocabularies, and takes four products instead of
// three. On a GPU it takes three, and keeps the gradient of weight from forward to backward.
type Head struct {
	Dim, Classes int
	Tied         string // full name of an embedding's weight, or "" for its own weight
	Bias         bool
	Fused        bool
	Smoothing, Z float64 // of the loss, see [op.Loss]
	Scale        float64 // of x; 0 means 1
	Std          float64 // of the initial weights; 0 means 0.02
}

// Params implements fsdp.Module.
func (m *Head) Params() []fsdp.Param {
	params := []fsdp.Param{{Name: "weight", Shape: []int{m.Classes, m.Dim}, Init: weights(m.Std), Tied: m.Tied}}
	if m.Bias {
		params = append(params, fsdp.Param{Name: "bias", Shape: []int{m.Classes}})
	}
	return params
}

// Build implements fsdp.Module.
func (m *Head) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	p, err := operandsOr(b, in, 2, "weight")
	if err != nil {
		return nil, err
	}
	x, err := m.scaled(in[0], in[2:])
	if err != nil {
		return nil, err
	}
	loss := op.Loss{Ignore: IgnoreTarget, Smoothing: m.Smoothing, Z: m.Z}
	bias, err := m.bias(b)
	if err != nil {
		return nil, err
	}
	if m.Fused {
		return one(op.LinearCrossEntropy(x, p[0], bias, in[1], loss))
	}
	logits, err := op.Linear(x, p[0], bias)
	if err != nil {
		return nil, err
	}
	if loss == (op.Loss{Ignore: IgnoreTarget}) {
		y, err := op.CrossEntropy(logits, in[1], IgnoreTarget)
		return gorgonia.Nodes{y, logits}, err
	}
	y, err := op.SmoothCrossEntropy(logits, in[1], loss)
	return gorgonia.Nodes{y, logits}, err
}

// scaled returns the operand of the product with the weight: x, or its rows that index names, times
// Scale.
func (m *Head) scaled(x *gorgonia.Node, index gorgonia.Nodes) (_ *gorgonia.Node, err error) {
	if len(index) > 0 {
		if x, err = chain(x, reshape(x.Shape().TotalSize()/m.Dim, m.Dim), rows(index[0])); err != nil {
			return nil, err
		}
	}
	if m.Scale == 0 {
		return x, nil
	}
	return op.Scale(x, m.Scale)
}

// bias returns the parameter, or nil if there is none.
func (m *Head) bias(b *fsdp.Builder) (*gorgonia.Node, error) {
	if !m.Bias {
		return nil, nil
	}
	return b.Param("bias")
}

// rows returns a step that takes rows of a matrix.
func rows(index *gorgonia.Node) func(*gorgonia.Node) (*gorgonia.Node, error) {
	return func(x *gorgonia.Node) (*gorgonia.Node, error) { return op.Embedding(x, index) }
}

// results calls the head of a model, named head, and returns the loss and the logits. The logits of
// a fused head are a separate call, which training leaves out.
func (m *Head) results(t *fsdp.Tape, x, targets fsdp.Ref) []fsdp.Ref {
	loss := t.Call("head", m, x, targets)
	if !m.Fused {
		return []fsdp.Ref{loss, loss.At(1)}
	}
	return []fsdp.Ref{loss, t.Call("logits", &logits{m}, x)}
}

// logitsOf returns the logits of some rows of x. It does not use targets if the head is fused.
func (m *Head) logitsOf(t *fsdp.Tape, x, targets, rows fsdp.Ref) fsdp.Ref {
	if m.Fused {
		return t.Call("logits", &logits{m}, x, rows)
	}
	return t.Call("head", m, x, targets, rows).At(1)
}

// logits computes the logits of a head.
type logits struct{ *Head }

// Params implements fsdp.Module.
func (m *logits) Params() []fsdp.Param {
	return []fsdp.Param{{Name: "weight", Shape: []int{m.Classes, m.Dim}, Tied: cmp.Or(m.Tied, "head.weight")}}
}

// Build implements fsdp.Module.
func (m *logits) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	p, err := operandsOr(b, in, 1, "weight")
	if err != nil {
		return nil, err
	}
	x, err := m.scaled(in[0], in[1:])
	if err != nil {
		return nil, err
	}
	return one(op.Linear(x, p[0], nil))
}

// GPT is a decoder-only transformer language model with learned positions (GPT-2, Radford et al.,
// 2019). Its batch is tokens and targets, ints [B, T]; its results are the loss and the logits [B,
// T, Vocab]. A target of IgnoreTarget does not count. With Packed a third tensor has positions.
// Package generate writes with it.
//
// Parameters: wte.weight [Vocab, Dim], wpe.weight [Context, Dim], blocks.i.*, lnf.weight and
// lnf.bias [Dim] and, unless Tied, head.weight [Vocab, Dim]. LoRA adds the parameters of each
// block's adapters.
type GPT struct {
	Vocab, Context     int
	Layers, Dim, Heads int
	Act                Activation
	NoBias             bool // in the linear layers
	Tied               bool // the head uses the token embedding's weight
	FusedLoss          bool // the head is Fused: training has no logits in memory
	Packed             bool // rows have several documents: see Packed rows in the package comment
	Dropout            float64
	Eps                float64 // of the norms; 0 means 1e-5
	LoRA               LoRA    // of the blocks' linear layers
}

// Inputs names the tensors of a batch.
func (m *GPT) Inputs() []string { return inputs(m.Packed, "tokens", "targets") }

// Forward implements fsdp.Model.
func (m *GPT) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	if err := checkModel("GPT", m.block().attn(), size{"Vocab", m.Vocab, 1}, size{"Context", m.Context, 1}, size{"Layers", m.Layers, 0},
		size{"Dim", m.Dim, 1}, size{"Heads", m.Heads, 1}); err != nil {
		return nil, err
	}
	x := t.Call("wte", m.embedding(), in[0])
	at, block := positions(m.Packed, in, m.Inputs()), m.block()
	x = t.Call("wpe", m.positions(), append([]fsdp.Ref{x}, at...)...)
	for i := range m.Layers {
		x = t.Call(fmt.Sprintf("blocks.%d", i), block, append([]fsdp.Ref{x}, at...)...)
	}
	x = t.Call("lnf", m.norm(), x)
	return m.head().results(t, x, in[1]), nil
}

// Programs returns the programs for [fsdp.Sharded.EvalProgram]: see package generate.
func (m *GPT) Programs() map[string]fsdp.Program {
	return map[string]fsdp.Program{generate.Program: func(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
		d := newDecoding(in)
		x := t.Call("wte", m.embedding(), d.tokens)
		x = t.Call("wpe", m.positions(), x, d.positions)
		x, kept := d.layers(t, "blocks", m.Layers, always(m.block()), x)
		x = t.Call("lnf", m.norm(), x)
		return d.results(m.head().logitsOf(t, x, d.targets, d.rows), kept), nil
	}}
}

// Cache returns the size of the cache for decoding.
func (m *GPT) Cache() generate.Size {
	return generate.Size{Vocab: m.Vocab, Layers: m.Layers, Width: m.Dim, Context: m.Context}
}

func (m *GPT) embedding() *Embedding { return &Embedding{Rows: m.Vocab, Dim: m.Dim} }
func (m *GPT) positions() *Positions { return &Positions{Rows: m.Context, Dim: m.Dim} }
func (m *GPT) norm() *LayerNorm      { return &LayerNorm{Dim: m.Dim, Eps: m.Eps} }
func (m *GPT) block() *Block {
	return &Block{Dim: m.Dim, Heads: m.Heads, Act: m.Act, NoBias: m.NoBias, Dropout: m.Dropout, Eps: m.Eps, LoRA: m.LoRA,
		ResidStd: residStd(m.Layers)}
}
func (m *GPT) head() *Head { return headOf(m.Tied, m.FusedLoss, "wte.weight", m.Dim, m.Vocab) }

// headOf returns a head with its own weight or, if tied, the weight of the embedding.
func headOf(tied, fused bool, embedding string, dim, classes int) *Head {
	if !tied {
		embedding = ""
	}
	return &Head{Dim: dim, Classes: classes, Tied: embedding, Fused: fused}
}

// residStd returns the standard deviation of the initial weights of layers that feed the residual,
// two in each block.
func residStd(blocks int) float64 { return defaultStd / math.Sqrt(2*math.Max(1, float64(blocks))) }

// NumParams returns the number of elements of all parameters.
func (m *GPT) NumParams() int {
	return elements(m.embedding(), m.positions(), m.norm(), m.head()) + m.Layers*elements(m.block())
}

// FLOPs returns the floating-point operations of forward and backward for one token of a sequence
// of that length: six for each weight that it is multiplied with, and twelve, in each layer, for
// each column of each token of the sequence. Recomputation to save memory does not count. Tokens
// that a causal mask hides, half of them, count, too (Chowdhery et al., 2022, arXiv:2204.02311,
// appendix B).
func (m *GPT) FLOPs(length int) int {
	return flops(m.Layers*matrices(m.block())+m.Vocab*m.Dim, m.Layers*m.Dim*length)
}
