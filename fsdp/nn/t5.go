package nn

import (
	"cmp"
	"fmt"
	"math"

	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/generate"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// RelativePositions makes the bias of the attentions of a stack of layers, [Heads, T, T], for
// sequences as long as x [B, T, ...], which may be tokens: see [op.RelativeBias]. A second input
// [B, S] has a column for each key; the last T are the keys of x. Then the result is [Heads, T, S].
// Parameter: weight [Buckets, Heads].
type RelativePositions struct {
	Heads       int
	Buckets     int     // 0 means 32
	MaxDistance int     // distance from which on all share a bucket; 0 means 128
	Causal      bool    // the attentions are causal
	Std         float64 // of the initial weights; 0 means 0.02
}

// Params implements fsdp.Module.
func (m *RelativePositions) Params() []fsdp.Param {
	return []fsdp.Param{{Name: "weight", Shape: []int{cmp.Or(m.Buckets, 32), m.Heads}, Init: weights(m.Std), Full: true}}
}

// Build implements fsdp.Module.
func (m *RelativePositions) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	p, err := operandsOr(b, in, 1, "weight")
	if err != nil {
		return nil, err
	}
	for _, x := range in {
		if x.Dims() < 2 {
			return nil, fmt.Errorf("x is %v, want [B T ...]", x.Shape())
		}
	}
	n, keys := in[0].Shape()[1], in[len(in)-1].Shape()[1]
	return one(op.RelativeBias(p[0], op.Relative{Queries: n, Keys: keys, MaxDistance: cmp.Or(m.MaxDistance, 128), Causal: m.Causal}))
}

// T5 is an encoder and a decoder from text to text (Raffel et al., 2020, arXiv:1910.10683). The
// first version has ReLU and Tied. Version 1.1, the base of Flan-T5 and others, has GELUTanh, Gated
// and its own head. Its batch is ints: for the encoder tokens [B, S] and a mask [B, S], which is
// zero where there is no token; for the decoder its previous tokens, [B, T], and targets [B, T].
// Its results are the loss and the logits [B, T, Vocab]. A target of IgnoreTarget does not count.
// Package generate writes with it: the encoder reads the prompts.
//
// Parameters: embed.weight [Vocab, Dim], which both share; encoder.positions.weight and
// decoder.positions.weight [Buckets, Heads]; encoder.layers.i.* and decoder.layers.i.* as Layer
// names them; encoder.norm.weight and decoder.norm.weight [Dim]; and, unless Tied, head.weight
// [Vocab, Dim].
type T5 struct {
	Vocab              int
	Encoder, Decoder   int // layers
	Dim, Heads, Hidden int
	HeadDim            int // channels of a head; 0 means Dim/Heads
	Buckets            int // of relative positions; 0 means 32
	MaxDistance        int // of relative positions; 0 means 128
	Context            int // tokens of the longest text that it generates; 0 means 512
	Act                Activation
	Gated              bool
	Tied               bool // the head uses the embedding's weight, and its input is scaled by 1/√Dim
	NoScale            bool // the input of a Tied head is not scaled, as in a version 1.1 that transformers 5 initialises
	FusedLoss          bool // the head is Fused: training has no logits in memory
	Dropout            float64
	Eps                float64 // of the norms; 0 means 1e-6
	LoRA               LoRA    // of the layers' linear layers
}

// Inputs names the tensors of a batch.
func (m *T5) Inputs() []string { return []string{"tokens", "mask", "decoder tokens", "targets"} }

// Forward implements fsdp.Model.
func (m *T5) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	if err := checkModel("T5", &m.layer(false).Attn, size{"Vocab", m.Vocab, 1}, size{"Encoder", m.Encoder, 0}, size{"Decoder", m.Decoder, 0},
		size{"Dim", m.Dim, 1}, size{"Heads", m.Heads, 1}, size{"Hidden", m.Hidden, 1}, size{"HeadDim", m.HeadDim, 0},
		size{"Buckets", m.Buckets, 0}, size{"MaxDistance", m.MaxDistance, 0}, size{"Context", m.Context, 0}); err != nil {
		return nil, err
	}
	y := t.Call("embed", m.embedding(), in[0])
	y = m.stack(t, "encoder.", m.Encoder, y, in[0], in[1])
	x := m.stack(t, "decoder.", m.Decoder, t.Again("embed", in[2]), in[2], y, in[1])
	return m.head().results(t, x, in[3]), nil
}

// Programs returns the programs for [fsdp.Sharded.EvalProgram]: see package generate.
func (m *T5) Programs() map[string]fsdp.Program {
	return map[string]fsdp.Program{generate.EncodeProgram: m.encode, generate.Program: m.decode}
}

// encode returns the keys and values that each layer of the decoder makes of tokens [B, S].
func (m *T5) encode(t *fsdp.Tape, in ...fsdp.Ref) (kv []fsdp.Ref, err error) {
	y := m.stack(t, "encoder.", m.Encoder, t.Call("embed", m.embedding(), in[0]), in[0], in[1])
	for i := range m.Decoder {
		k := t.Call(fmt.Sprintf("decoder.layers.%d", i), m.layer(true), y)
		kv = append(kv, k, k.At(1))
	}
	return kv, nil
}

// decode continues from a cache, in which distances equal the distances of positions.
func (m *T5) decode(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	d := newDecoding(in)
	x := t.Call("embed", m.embedding(), d.tokens)
	bias := t.Call("decoder.positions", m.positions(true), d.tokens, d.mask)
	x = m.dropout(t, "decoder.embed_dropout", x)
	var kept []fsdp.Ref
	source := d.past[2*m.Decoder:]
	for i := range m.Decoder {
		x = t.Call(fmt.Sprintf("decoder.layers.%d", i), m.layer(true), x, bias, d.mask, d.positions, d.past[2*i], d.past[2*i+1],
			source[1+2*i], source[2+2*i], source[0])
		kept = append(kept, x.At(1), x.At(2))
	}
	x = m.dropout(t, "decoder.dropout", t.Call("decoder.norm", m.norm(), x))
	return d.results(m.head().logitsOf(t, x, d.targets, d.rows), kept), nil
}

// Cache returns the size of the cache for decoding.
func (m *T5) Cache() generate.Size {
	n := cmp.Or(m.Context, 512)
	width := (&Attention{Dim: m.Dim, Heads: m.Heads, HeadDim: m.HeadDim}).width(m.Heads)
	return generate.Size{Vocab: m.Vocab, Layers: m.Decoder, Width: width, Context: n, Window: n, Encoder: true}
}

// stack calls the layers of the encoder or the decoder, with more inputs after x and the bias.
func (m *T5) stack(t *fsdp.Tape, prefix string, n int, x, tokens fsdp.Ref, more ...fsdp.Ref) fsdp.Ref {
	decoder := len(more) > 1
	bias := t.Call(prefix+"positions", m.positions(decoder), tokens)
	x = m.dropout(t, prefix+"embed_dropout", x)
	x = layers(t, prefix, n, always(m.layer(decoder)), x, append([]fsdp.Ref{bias}, more...)...)
	return m.dropout(t, prefix+"dropout", t.Call(prefix+"norm", m.norm(), x))
}

func (m *T5) dropout(t *fsdp.Tape, name string, x fsdp.Ref) fsdp.Ref {
	if m.Dropout == 0 {
		return x
	}
	return t.Call(name, &Dropout{Rate: m.Dropout}, x)
}

func (m *T5) embedding() *Embedding { return &Embedding{Rows: m.Vocab, Dim: m.Dim} }
func (m *T5) norm() *RMSNorm        { return &RMSNorm{Dim: m.Dim, Eps: m.Eps} }
func (m *T5) positions(decoder bool) *RelativePositions {
	return &RelativePositions{Heads: m.Heads, Buckets: m.Buckets, MaxDistance: m.MaxDistance, Causal: decoder}
}

func (m *T5) layer(decoder bool) *Layer {
	std := residStd(m.Encoder)
	attn := Attention{Dim: m.Dim, Heads: m.Heads, HeadDim: m.HeadDim, Scale: 1, NoBias: true, Dropout: m.Dropout, LoRA: m.LoRA}
	layer := &Layer{RMS: true, Eps: m.Eps}
	if decoder {
		std = residStd(m.Decoder)
		cross := attn
		cross.Cross, cross.Masked, cross.ProjStd = true, true, std
		layer.Cross = &cross
	}
	attn.Biased, attn.Causal, attn.Masked, attn.ProjStd = true, decoder, !decoder, std
	layer.Attn = attn
	layer.MLP = MLP{Dim: m.Dim, Hidden: m.Hidden, Act: m.Act, Gated: m.Gated, NoBias: true, Dropout: m.Dropout, OutStd: std, LoRA: m.LoRA}
	return layer
}

func (m *T5) head() *Head {
	head := headOf(m.Tied, m.FusedLoss, "embed.weight", m.Dim, m.Vocab)
	if m.Tied && !m.NoScale {
		head.Scale = 1 / math.Sqrt(float64(m.Dim))
	}
	return head
}

// NumParams returns the number of elements of all parameters.
func (m *T5) NumParams() int {
	return elements(m.embedding(), m.positions(false), m.positions(true), m.norm(), m.norm(), m.head()) +
		m.Encoder*elements(m.layer(false)) + m.Decoder*elements(m.layer(true))
}

// FLOPs returns the floating-point operations of forward and backward for a pair of sequences of
// these lengths, counted as for the tokens of GPT.
func (m *T5) FLOPs(source, target int) int {
	width := m.Heads * cmp.Or(m.HeadDim, m.Dim/m.Heads)
	kv := 2 * m.Dim * width // the weights of a cross-attention that are multiplied with the encoder's result
	encoder := flops(m.Encoder*matrices(m.layer(false))+m.Decoder*kv, m.Encoder*width*source)
	decoder := flops(m.Decoder*(matrices(m.layer(true))-kv)+m.Vocab*m.Dim, m.Decoder*width*(source+target))
	return source*encoder + target*decoder
}
