package nn

import (
	"cmp"
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// Attention is multi-head scaled dot-product attention (Vaswani et al., 2017, arXiv:1706.03762) on x
// [B, T, Dim], with the result [B, T, Dim]: see op.Attention for what its fields of the same names
// mean. Inputs behind x, in this order, where S is T without Cross:
//
//	Cross    y [B, S, Dim], which keys and values are made of, in place of x
//	Biased   bias [Heads, T, S], added to the scores of every sequence: relative positions, ALiBi
//	Masked   ints [B, S] that hide the keys where they are zero
//
// Llama has KVHeads, Causal, Rope and NoBias, Mistral a Window too, Qwen2 NoProjBias in place of
// NoBias, Qwen3 a HeadDim and QKNorm. T5 has a HeadDim, Scale 1, NoBias, and is Biased or Cross.
//
// Parameters: those of the linear layers qkv, from Dim to (Heads+2*KVHeads)*HeadDim with the heads of
// queries, of keys and of values one after the other, and proj, from Heads*HeadDim to Dim. With
// Apart, Cross or QKNorm there are three layers, q, k and v, in place of qkv. QKNorm adds
// q_norm.weight and k_norm.weight [HeadDim].
type Attention struct {
	Dim, Heads int
	KVHeads    int     // heads of keys and values, each read by Heads/KVHeads of queries; 0 means Heads
	HeadDim    int     // channels of a head; 0 means Dim/Heads
	Causal     bool    // hide later positions
	Window     int     // with Causal, hide all but the last Window positions too; 0 hides none
	Scale      float64 // of the scores; 0 means 1/sqrt(HeadDim)
	Cross      bool
	Biased     bool
	Masked     bool
	QKNorm     bool      // normalise each head of queries and of keys, as RMSNorm does
	Eps        float64   // of that; 0 means 1e-6
	Rope       bool      // then turn queries and keys by their positions
	Rotary     op.Rotary // how; Heads and HeadDim are those of the module
	Apart      bool      // q, k and v have linear layers of their own
	NoBias     bool      // in all linear layers
	NoProjBias bool      // in proj
	Dropout    float64   // of the result
	Std        float64   // of the initial weights of qkv, or of q, k and v; 0 means 0.02
	ProjStd    float64   // of those of proj; 0 means Std
	LoRA       LoRA      // of each linear layer; query, key and value share that of qkv
}

func (m *Attention) joined() bool { return !m.Apart && !m.Cross && !m.QKNorm }
func (m *Attention) kvHeads() int { return cmp.Or(m.KVHeads, m.Heads) }

// width returns the channels of some heads. Where check has something to say, it is of no use.
func (m *Attention) width(heads int) int {
	if m.HeadDim == 0 {
		return m.Dim * max(1, heads) / max(1, m.Heads)
	}
	return m.HeadDim * heads
}

// input returns a layer from the channels to some heads.
func (m *Attention) input(heads int) *Linear {
	return &Linear{In: m.Dim, Out: m.width(heads), NoBias: m.NoBias, Std: m.Std, LoRA: m.LoRA}
}
func (m *Attention) proj() *Linear {
	return &Linear{In: m.width(m.Heads), Out: m.Dim, NoBias: m.NoBias || m.NoProjBias, Std: cmp.Or(m.ProjStd, m.Std), LoRA: m.LoRA}
}
func (m *Attention) norm() *RMSNorm { return &RMSNorm{Dim: m.width(1), Eps: m.Eps} }

// Params implements fsdp.Module.
func (m *Attention) Params() (params []fsdp.Param) {
	if m.joined() {
		params = fsdp.Prefix("qkv", m.input(m.Heads+2*m.kvHeads()))
	} else {
		params = slices.Concat(fsdp.Prefix("q", m.input(m.Heads)), fsdp.Prefix("k", m.input(m.kvHeads())), fsdp.Prefix("v", m.input(m.kvHeads())))
	}
	if m.QKNorm {
		params = slices.Concat(params, fsdp.Prefix("q_norm", m.norm()), fsdp.Prefix("k_norm", m.norm()))
	}
	return append(params, fsdp.Prefix("proj", m.proj())...)
}

// Build implements fsdp.Module.
func (m *Attention) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	if err := m.check(len(in)); err != nil {
		return nil, err
	}
	a := op.Attention{Heads: m.Heads, KVHeads: m.KVHeads, Causal: m.Causal, Window: m.Window, Scale: m.Scale}
	x, y, rest := in[0], in[0], in[1:]
	if m.Cross {
		y, rest = rest[0], rest[1:]
	}
	if m.Biased {
		a.Bias, rest = rest[0], rest[1:]
	}
	if m.Masked {
		a.Mask = rest[0]
	}
	attend := m.apart
	if m.joined() {
		attend = m.together
	}
	out, err := attend(b, x, y, a)
	if err != nil {
		return nil, err
	}
	return one(chain(out, part(b, "proj", m.proj()), dropout(b, m.Dropout, "attention")))
}

// check says what is wrong with the sizes or the number of inputs, if anything.
func (m *Attention) check(inputs int) error {
	if m.HeadDim == 0 && (m.Heads < 1 || m.Dim%m.Heads != 0) {
		return fmt.Errorf("%d channels do not divide into %d heads", m.Dim, m.Heads)
	}
	if m.Heads < 1 || m.kvHeads() < 1 || m.Heads%m.kvHeads() != 0 {
		return fmt.Errorf("%d heads of queries do not divide into %d heads of keys", m.Heads, m.kvHeads())
	}
	if want := m.inputs(); inputs != want {
		return fmt.Errorf("%d inputs, want %d", inputs, want)
	}
	return nil
}

// inputs returns the number of inputs.
func (m *Attention) inputs() int {
	n := 1
	for _, more := range []bool{m.Cross, m.Biased, m.Masked} {
		if more {
			n++
		}
	}
	return n
}

// together attends with queries, keys and values of one layer.
func (m *Attention) together(b *fsdp.Builder, x, _ *gorgonia.Node, a op.Attention) (*gorgonia.Node, error) {
	qkv, err := chain(x, part(b, "qkv", m.input(m.Heads+2*m.kvHeads())), m.turn(m.Heads+m.kvHeads()))
	if err != nil {
		return nil, err
	}
	return op.SelfAttention(qkv, a)
}

// apart attends with queries of x and with keys and values of y.
func (m *Attention) apart(b *fsdp.Builder, x, y *gorgonia.Node, a op.Attention) (*gorgonia.Node, error) {
	heads := func(x *gorgonia.Node, name string, n int) (*gorgonia.Node, error) {
		return chain(x, part(b, name, m.input(n)), m.normalise(b, name+"_norm", n), m.turn(n))
	}
	q, err := heads(x, "q", m.Heads)
	if err != nil {
		return nil, err
	}
	k, err := heads(y, "k", m.kvHeads())
	if err != nil {
		return nil, err
	}
	v, err := part(b, "v", m.input(m.kvHeads()))(y)
	if err != nil {
		return nil, err
	}
	return op.SDPA(q, k, v, a)
}

// normalise returns a step that normalises each head, if QKNorm says so.
func (m *Attention) normalise(b *fsdp.Builder, name string, heads int) func(*gorgonia.Node) (*gorgonia.Node, error) {
	return func(x *gorgonia.Node) (*gorgonia.Node, error) {
		if !m.QKNorm {
			return x, nil
		}
		s := x.Shape()
		return chain(x, reshape(s[0], s[1], heads, m.width(1)), part(b, name, m.norm()), reshape(s...))
	}
}

func reshape(shape ...int) func(*gorgonia.Node) (*gorgonia.Node, error) {
	return func(x *gorgonia.Node) (*gorgonia.Node, error) { return gorgonia.Reshape(x, shape) }
}

// turn returns a step that turns the first heads, if Rope says so.
func (m *Attention) turn(heads int) func(*gorgonia.Node) (*gorgonia.Node, error) {
	return func(x *gorgonia.Node) (*gorgonia.Node, error) {
		if !m.Rope {
			return x, nil
		}
		r := m.Rotary
		r.Heads, r.HeadDim = heads, m.width(1)
		return op.Rope(x, nil, r)
	}
}
