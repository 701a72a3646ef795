package nn

import (
	"cmp"
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// Attention is multi-head scaled dot-product attention (Vaswani et al., 2017, arXiv:1706.03762) on
// x [B, T, Dim], with the result [B, T, Dim]. See op.Attention for the fields with the same names.
// Further inputs follow x, in this order, where S is T without Cross:
//
//	Cross    y [B, S, Dim], which keys and values are made of, in place of x
//	Biased   bias [Heads, T, S], added to the scores of every sequence: relative positions, ALiBi
//	Masked   ints [B, S] that hide the keys where they are zero
//
// With one more input, positions, ints [B, T], rows may have several documents: tokens only attend
// to tokens of their own document, and Rope turns by these positions. See op.Attention. Cross has
// no such input.
//
// With four more inputs Attention continues from a cache, as in package generate: mask, ints [B,
// P+T], which hides keys of the cache and new keys where it is zero, positions, ints [B, T], and
// the keys and the values of the cache, [B, P, KVHeads*HeadDim]. Then the results are the result
// for x, and the keys and the values of x.
//
// With Cross, keys and values [B, S, KVHeads*HeadDim] may replace y. With y as the only input, the
// results are these keys and values.
//
// Llama has KVHeads, Causal, Rope and NoBias. Mistral also has a Window. Qwen2 has NoProjBias
// instead of NoBias, Qwen3 a HeadDim and QKNorm, Gemma also UnitOffset and Scale. T5 has a HeadDim,
// Scale 1, NoBias, and is Biased or Cross.
//
// Parameters: the parameters of the linear layers qkv, from Dim to (Heads+2*KVHeads)*HeadDim with
// the heads of queries, then of keys, then of values, and proj, from Heads*HeadDim to Dim. With
// Apart, Cross or QKNorm three layers, q, k and v, replace qkv. QKNorm adds q_norm.weight and
// k_norm.weight [HeadDim].
type Attention struct {
	Dim, Heads int
	KVHeads    int     // heads of keys and values, each read by Heads/KVHeads of queries; 0 means Heads
	HeadDim    int     // channels of a head; 0 means Dim/Heads
	Causal     bool    // hide later positions
	Window     int     // hide positions that are Window or more away; 0 hides none
	Scale      float64 // of the scores; 0 means 1/sqrt(HeadDim)
	Cross      bool
	Biased     bool
	Masked     bool
	QKNorm     bool      // normalise each head of queries and of keys, as RMSNorm does
	Eps        float64   // of these norms; 0 means 1e-6
	UnitOffset bool      // of these norms
	Rope       bool      // then turn queries and keys by their positions
	Rotary     op.Rotary // settings of Rope; the module sets Heads and HeadDim
	Apart      bool      // q, k and v have their own linear layers
	NoBias     bool      // in all linear layers
	NoProjBias bool      // in proj
	Dropout    float64   // of the result
	Std        float64   // of the initial weights of qkv, or of q, k and v; 0 means 0.02
	ProjStd    float64   // of the initial weights of proj; 0 means Std
	LoRA       LoRA      // of each linear layer; query, key and value share the adapter of qkv
}

func (m *Attention) joined() bool { return !m.Apart && !m.Cross && !m.QKNorm }
func (m *Attention) kvHeads() int { return cmp.Or(m.KVHeads, m.Heads) }

// width returns the channels of some heads. If check fails, the result has no meaning.
func (m *Attention) width(heads int) int {
	if m.HeadDim == 0 {
		return m.Dim * max(1, heads) / max(1, m.Heads)
	}
	return m.HeadDim * heads
}

// input returns a layer from Dim to the channels of some heads.
func (m *Attention) input(heads int) *Linear {
	return &Linear{In: m.Dim, Out: m.width(heads), NoBias: m.NoBias, Std: m.Std, LoRA: m.LoRA}
}
func (m *Attention) proj() *Linear {
	return &Linear{In: m.width(m.Heads), Out: m.Dim, NoBias: m.NoBias || m.NoProjBias, Std: cmp.Or(m.ProjStd, m.Std), LoRA: m.LoRA}
}
func (m *Attention) norm() *RMSNorm {
	return &RMSNorm{Dim: m.width(1), Eps: m.Eps, UnitOffset: m.UnitOffset}
}

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
	if m.Cross && len(in) == 1 {
		return m.keys(b, in[0], nil)
	}
	a := op.Attention{Heads: m.Heads, KVHeads: m.KVHeads, Causal: m.Causal, Window: m.Window, Scale: m.Scale}
	x, rest := in[0], in[1:]
	y := []*gorgonia.Node{x}
	if m.Cross {
		n := 2 + len(in) - m.inputs()
		y, rest = rest[:n-1], rest[n-1:]
	}
	if m.Biased {
		a.Bias, rest = rest[0], rest[1:]
	}
	if m.Masked {
		a.Mask, rest = rest[0], rest[1:]
	}
	if len(rest) == positioned {
		a.Positions, rest = rest[0], nil
	}
	out, kept, err := m.attend(b, x, y, rest, a)
	if err != nil {
		return nil, err
	}
	out, err = chain(out, part(b, "proj", m.proj()), dropout(b, m.Dropout, "attention"))
	return append(gorgonia.Nodes{out}, kept...), err
}

// attend attends with queries of x to keys and values of y, and of a cache, if there is one. y may
// be the keys and values themselves. With a cache, attend also returns the new keys and values.
func (m *Attention) attend(b *fsdp.Builder, x *gorgonia.Node, y, cache []*gorgonia.Node, a op.Attention) (out *gorgonia.Node, kept gorgonia.Nodes, err error) {
	var q *gorgonia.Node
	switch {
	case len(cache) > 0:
		if q, kept, err = m.operands(b, x, cache[1]); err != nil {
			return nil, nil, err
		}
		y = make(gorgonia.Nodes, 2)
		for i, k := range kept {
			if y[i], err = gorgonia.Concat(1, cache[2+i], k); err != nil {
				return nil, nil, err
			}
		}
		a.Mask = cache[0]
	case m.joined():
		qkv, err := m.layer(b, x, a.Positions)
		if err != nil {
			return nil, nil, err
		}
		out, err = op.SelfAttention(qkv, a)
		return out, nil, err
	default:
		if q, err = m.heads(b, x, "q", m.Heads, a.Positions); err != nil {
			return nil, nil, err
		}
		if len(y) == 1 {
			if y, err = m.keys(b, y[0], a.Positions); err != nil {
				return nil, nil, err
			}
		}
	}
	out, err = op.SDPA(q, y[0], y[1], a)
	return out, kept, err
}

// checkHeads returns an error if the heads do not fit the channels.
func (m *Attention) checkHeads() error {
	if m.HeadDim == 0 && (m.Heads < 1 || m.Dim%m.Heads != 0) {
		return fmt.Errorf("%d channels do not divide into %d heads", m.Dim, m.Heads)
	}
	if m.Heads < 1 || m.kvHeads() < 1 || m.Heads%m.kvHeads() != 0 {
		return fmt.Errorf("%d query heads are not a positive multiple of %d key heads", m.Heads, m.kvHeads())
	}
	return nil
}

// check returns an error if the sizes or the number of inputs are wrong.
func (m *Attention) check(inputs int) error {
	if err := m.checkHeads(); err != nil {
		return err
	}
	want := m.inputs()
	switch {
	case inputs == want:
	case m.Cross && (inputs == 1 || inputs == want+1):
	case !m.Cross && inputs == want+positioned:
	case !m.Cross && !m.Masked && inputs == want+cached:
	default:
		return fmt.Errorf("%d inputs, want %d", inputs, want)
	}
	return nil
}

// positioned and cached are the numbers of further inputs with positions of documents, and with a
// cache.
const positioned, cached = 1, 4

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

// operands returns queries, and keys and values, of x at some positions.
func (m *Attention) operands(b *fsdp.Builder, x, positions *gorgonia.Node) (q *gorgonia.Node, kv gorgonia.Nodes, err error) {
	if !m.joined() {
		if q, err = m.heads(b, x, "q", m.Heads, positions); err == nil {
			kv, err = m.keys(b, x, positions)
		}
		return q, kv, err
	}
	qkv, err := m.layer(b, x, positions)
	at := 0
	columns := func(heads int) (part *gorgonia.Node) {
		if err == nil {
			from := at
			at += m.width(heads)
			part, err = op.Columns(qkv, from, at)
		}
		return part
	}
	return columns(m.Heads), gorgonia.Nodes{columns(m.kvHeads()), columns(m.kvHeads())}, err
}

// layer returns queries, keys and values from one layer.
func (m *Attention) layer(b *fsdp.Builder, x, positions *gorgonia.Node) (*gorgonia.Node, error) {
	return chain(x, part(b, "qkv", m.input(m.Heads+2*m.kvHeads())), m.turn(m.Heads+m.kvHeads(), positions))
}

// keys returns keys and values from their own layers.
func (m *Attention) keys(b *fsdp.Builder, y, positions *gorgonia.Node) (gorgonia.Nodes, error) {
	k, err := m.heads(b, y, "k", m.kvHeads(), positions)
	if err != nil {
		return nil, err
	}
	v, err := part(b, "v", m.input(m.kvHeads()))(y)
	return gorgonia.Nodes{k, v}, err
}

// heads returns heads of queries or of keys from their own layer. They are at positions or, without
// positions, from 0 on.
func (m *Attention) heads(b *fsdp.Builder, x *gorgonia.Node, name string, n int, positions *gorgonia.Node) (*gorgonia.Node, error) {
	return chain(x, part(b, name, m.input(n)), m.normalise(b, name+"_norm", n), m.turn(n, positions))
}

// normalise returns a step that normalises each head, if QKNorm is set.
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

// turn returns a step that turns the first heads, if Rope is set.
func (m *Attention) turn(heads int, positions *gorgonia.Node) func(*gorgonia.Node) (*gorgonia.Node, error) {
	return func(x *gorgonia.Node) (*gorgonia.Node, error) {
		if !m.Rope {
			return x, nil
		}
		r := m.Rotary
		r.Heads, r.HeadDim = heads, m.width(1)
		switch length := x.Shape()[1]; {
		case positions == nil:
			r.Context = 0 // as many as there are
		case r.Context < length:
			r.Context = length // of documents in rows that are longer than Context
		}
		return op.Rope(x, positions, r)
	}
}
