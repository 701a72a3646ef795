package nn

import (
	"cmp"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/generate"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// Llama is a decoder-only transformer language model with rotary positions, RMSNorm, grouped
// queries and a gated MLP, without biases (Touvron et al., 2023, arXiv:2302.13971 and
// arXiv:2307.09288). Llama 2 and 3, Mistral, Qwen2, Qwen3 and Gemma 3 (2025, arXiv:2503.19786) are
// settings of it:
//
//	Llama 2 7B   Vocab: 32000, Layers: 32, Dim: 4096, Heads: 32, Hidden: 11008, Eps: 1e-5
//	Llama 3 8B   Vocab: 128256, Layers: 32, Dim: 4096, Heads: 32, KVHeads: 8, Hidden: 14336,
//	             RopeBase: 500000, Eps: 1e-5; RopeScaling from 3.1 on
//	Mistral 7B   Vocab: 32000, Layers: 32, Dim: 4096, Heads: 32, KVHeads: 8, Hidden: 14336,
//	             Window: 4096, Eps: 1e-5
//	Qwen2 0.5B   Vocab: 151936, Layers: 24, Dim: 896, Heads: 14, KVHeads: 2, Hidden: 4864,
//	             RopeBase: 1e6, QKVBias: true, Tied: true
//	Qwen3 0.6B   Vocab: 151936, Layers: 28, Dim: 1024, Heads: 16, KVHeads: 8, HeadDim: 128,
//	             Hidden: 3072, RopeBase: 1e6, QKNorm: true, Tied: true
//	Gemma 3 1B   Vocab: 262144, Layers: 26, Dim: 1152, Heads: 4, KVHeads: 1, HeadDim: 256,
//	             Hidden: 6912, RopeBase: 1e6, LocalRopeBase: 1e4, Window: 512, FullEvery: 6,
//	             Gemma: true, QKNorm: true, Tied: true
//
// Its batch is tokens and targets, ints [B, T]; its results are the loss and the logits [B, T,
// Vocab]. A target of IgnoreTarget does not count. With Packed a third tensor has positions.
// Package generate writes with it.
//
// Parameters: embed.weight [Vocab, Dim], layers.i.* as Layer names them, norm.weight [Dim] and,
// unless Tied, head.weight [Vocab, Dim]. In a layer, with the names of Hugging Face on the right:
//
//	attn_norm.weight        input_layernorm.weight
//	attn.qkv.weight         self_attn.q_proj.weight, k_proj and v_proj, one below the other
//	attn.proj.weight        self_attn.o_proj.weight
//	mlp_norm.weight         post_attention_layernorm.weight
//	mlp.fc.weight           mlp.gate_proj.weight, and up_proj below it
//	mlp.out.weight          mlp.down_proj.weight
//
// QKVBias adds attn.qkv.bias. With QKNorm, attn.q.weight, attn.k.weight and attn.v.weight replace
// attn.qkv.weight, and there are attn.q_norm.weight and attn.k_norm.weight [HeadDim].
//
// With Gemma, embeddings are multiplied by √Dim, the MLP has GELUTanh in place of SiLU, all norms
// multiply by 1 + weight, and norms follow the attention and the MLP, too: attn_post_norm.weight is
// post_attention_layernorm.weight of Hugging Face, mlp_norm.weight is
// pre_feedforward_layernorm.weight and mlp_post_norm.weight is post_feedforward_layernorm.weight.
type Llama struct {
	Vocab, Layers      int
	Dim, Heads, Hidden int
	KVHeads            int            // heads of keys and values; 0 means Heads
	HeadDim            int            // channels of a head; 0 means Dim/Heads
	Scale              float64        // of the scores of attention; 0 means 1/√HeadDim
	RopeBase           float64        // 0 means 10000
	RopeScaling        op.RopeScaling // for contexts longer than in the first training
	LocalRopeBase      float64        // in layers with a window, in place of RopeBase and RopeScaling; 0 means these
	Context            int            // tokens of the longest sequence that it generates; 0 means 4096
	Window             int            // tokens that a token sees, including itself; 0 means all before it
	FullEvery          int            // every FullEvery-th layer, such as layer 5 for 6, has no window; 0 means that all have it
	Gemma              bool           // the layers of Gemma
	QKVBias            bool           // the layers of queries, keys and values have biases
	QKNorm             bool           // queries and keys are normalised, head by head
	Tied               bool           // the head uses the token embedding's weight
	FusedLoss          bool           // the head is Fused: training has no logits in memory
	Packed             bool           // rows have several documents: see Packed rows in the package comment
	Eps                float64        // of the norms; 0 means 1e-6
	LoRA               LoRA           // of the layers' linear layers
}

// Inputs names the tensors of a batch.
func (m *Llama) Inputs() []string { return inputs(m.Packed, "tokens", "targets") }

// Forward implements fsdp.Model.
func (m *Llama) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	if err := checkModel("Llama", &m.layer(0).Attn, size{"Vocab", m.Vocab, 1}, size{"Layers", m.Layers, 0}, size{"Dim", m.Dim, 1},
		size{"Heads", m.Heads, 1}, size{"Hidden", m.Hidden, 1}, size{"HeadDim", m.HeadDim, 0}, size{"Context", m.Context, 0},
		size{"Window", m.Window, 0}, size{"FullEvery", m.FullEvery, 0}); err != nil {
		return nil, err
	}
	if m.Window == 0 && (m.FullEvery > 0 || m.LocalRopeBase != 0) {
		return nil, fmt.Errorf("nn: Llama: FullEvery is %d and LocalRopeBase is %v, but no layer has a window: set Window", m.FullEvery, m.LocalRopeBase)
	}
	x := t.Call("embed", m.embedding(), in[0])
	x = layers(t, "", m.Layers, m.module, x, positions(m.Packed, in, m.Inputs())...)
	x = t.Call("norm", m.norm(), x)
	return m.head().results(t, x, in[1]), nil
}

// Programs returns the programs for [fsdp.Sharded.EvalProgram]: see package generate.
func (m *Llama) Programs() map[string]fsdp.Program {
	return map[string]fsdp.Program{generate.Program: func(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
		d := newDecoding(in)
		x := t.Call("embed", m.embedding(), d.tokens)
		x, kept := d.layers(t, "layers", m.Layers, m.module, x)
		x = t.Call("norm", m.norm(), x)
		return d.results(m.head().logitsOf(t, x, d.targets, d.rows), kept), nil
	}}
}

// Cache returns the size of the cache for decoding. If some layers have no window, the cache has
// the tokens of the whole sequence for all layers.
func (m *Llama) Cache() generate.Size {
	width := (&Attention{Dim: m.Dim, Heads: m.Heads, HeadDim: m.HeadDim}).width(cmp.Or(m.KVHeads, m.Heads))
	size := generate.Size{Vocab: m.Vocab, Layers: m.Layers, Width: width, Context: cmp.Or(m.Context, 4096), Window: m.Window}
	if m.FullEvery > 0 { // in a cache with a window, distances equal the distances of positions
		size.Window = size.Context
	}
	return size
}

func (m *Llama) embedding() *Embedding {
	e := &Embedding{Rows: m.Vocab, Dim: m.Dim}
	if m.Gemma {
		e.Scale = math.Sqrt(float64(m.Dim))
	}
	return e
}
func (m *Llama) norm() *RMSNorm { return &RMSNorm{Dim: m.Dim, Eps: m.Eps, UnitOffset: m.Gemma} }

// window returns the window of layer i, or 0.
func (m *Llama) window(i int) int {
	if m.FullEvery > 0 && (i+1)%m.FullEvery == 0 {
		return 0
	}
	return m.Window
}

func (m *Llama) layer(i int) *Layer {
	act, rotary := SiLU, op.Rotary{Base: m.RopeBase, Scaling: m.RopeScaling, Context: m.Cache().Context}
	if m.Gemma {
		act = GELUTanh
	}
	window := m.window(i)
	if window > 0 && m.LocalRopeBase != 0 {
		rotary.Base, rotary.Scaling = m.LocalRopeBase, op.RopeScaling{}
	}
	return &Layer{
		Attn: Attention{
			Dim: m.Dim, Heads: m.Heads, KVHeads: m.KVHeads, HeadDim: m.HeadDim, Causal: true, Window: window, Scale: m.Scale,
			Rope: true, Rotary: rotary, QKNorm: m.QKNorm, Eps: m.Eps, UnitOffset: m.Gemma,
			NoBias: !m.QKVBias, NoProjBias: true, ProjStd: residStd(m.Layers), LoRA: m.LoRA,
		},
		MLP: MLP{Dim: m.Dim, Hidden: m.Hidden, Act: act, Gated: true, NoBias: true, OutStd: residStd(m.Layers), LoRA: m.LoRA},
		RMS: true, Eps: m.Eps, UnitOffset: m.Gemma, SandwichNorm: m.Gemma,
	}
}
func (m *Llama) module(i int) fsdp.Module { return m.layer(i) }
func (m *Llama) head() *Head              { return headOf(m.Tied, m.FusedLoss, "embed.weight", m.Dim, m.Vocab) }

// NumParams returns the number of elements of all parameters.
func (m *Llama) NumParams() int {
	return elements(m.embedding(), m.norm(), m.head()) + m.Layers*elements(m.layer(0))
}

// FLOPs returns the floating-point operations of forward and backward for one token of a sequence
// of that length, counted as for GPT.
func (m *Llama) FLOPs(length int) int {
	layer, seen := m.layer(0), 0
	for i := range m.Layers {
		n := length
		if window := m.window(i); window > 0 {
			n = min(n, window)
		}
		seen += n
	}
	return flops(m.Layers*matrices(layer)+m.Vocab*m.Dim, layer.Attn.width(m.Heads)*seen)
}
