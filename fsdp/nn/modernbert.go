package nn

import (
	"cmp"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// ModernBERT is an encoder with rotary positions, gated MLPs and local attention (Warner et al.,
// 2024, arXiv:2412.13663), without biases, with the head of a Task. Its batch is ints [B, T]:
// tokens, a mask, which is zero where there is no token, and the targets of the task. A target of
// IgnoreTarget does not count. ModernBERT base is
//
//	Vocab: 50368, Layers: 22, Dim: 768, Heads: 12, Hidden: 1152, Window: 65, FullEvery: 3,
//	RopeBase: 160000, LocalRopeBase: 10000
//
// Its results are the results of BERT with the same Task, which has no pooler: with Encode the only
// result is the last layer, [B, T, Dim], after a norm, which EmbedSequences pools.
//
// Parameters: embed.weight [Vocab, Dim], embed_norm.weight [Dim], layers.i.* as Layer names them,
// norm.weight [Dim], and the parameters of the head: transform.fc.weight [Dim, Dim] and
// transform.norm.weight of a layer before it, for MaskedTokens head.bias [Vocab], and for classes
// head.weight [Classes, Dim] and head.bias. The first layer has no attn_norm.
//
// It has no kernels for a GPU: see Window of [op.Attention].
type ModernBERT struct {
	Vocab                      int
	Context                    int // tokens of the longest sequence, for package hf; 0 means 8192
	Layers, Dim, Heads, Hidden int
	Act                        Activation
	Window                     int     // tokens that a token sees on each side, including itself, in layers with local attention; 0 means all
	FullEvery                  int     // layers 0, FullEvery, 2*FullEvery and so on see all tokens; 0 means that none does
	RopeBase                   float64 // 0 means 10000
	LocalRopeBase              float64 // in layers with local attention; 0 means RopeBase
	Eps                        float64 // of the norms; 0 means 1e-5
	LoRA                       LoRA    // of the layers' linear layers

	Task     Task
	Targets  Targets // of ClassifySequences
	Classes  int     // of ClassifySequences and ClassifyTokens
	MeanPool bool    // ClassifySequences and EmbedSequences have the mean of all tokens, not the first token

	Normalize bool // vectors of EmbedSequences have length 1
}

// Inputs names the tensors of a batch.
func (m *ModernBERT) Inputs() []string {
	if m.Task == Encode {
		return []string{"tokens", "mask"}
	}
	return []string{"tokens", "mask", "targets"}
}

// Forward implements fsdp.Model.
func (m *ModernBERT) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	if err := checkModel("ModernBERT", &m.layer(0).Attn, size{"Vocab", m.Vocab, 1}, size{"Context", m.Context, 0}, size{"Layers", m.Layers, 0},
		size{"Dim", m.Dim, 1}, size{"Heads", m.Heads, 1}, size{"Hidden", m.Hidden, 1}, size{"Window", m.Window, 0},
		size{"FullEvery", m.FullEvery, 0}); err != nil {
		return nil, err
	}
	if err := checkTask("ModernBERT", m.Task, m.Targets, m.Classes); err != nil {
		return nil, err
	}
	x := m.encode(t, in)
	switch {
	case m.Task == Encode:
		return []fsdp.Ref{x}, nil
	case m.Task == EmbedSequences:
		x = vectors(t, m.MeanPool, m.Normalize, x, in[1])
		return []fsdp.Ref{t.Call("loss", &innerProduct{}, x, in[2]), x}, nil
	case m.Task == ClassifySequences:
		x = vectors(t, m.MeanPool, false, x, in[1])
	}
	var head fsdp.Module = m.head()
	if m.Task == ClassifySequences && m.Targets != OneClass {
		head = &scores{Linear{In: m.Dim, Out: m.Classes}, m.Targets}
	}
	loss := t.Call("head", head, t.Call("transform", m.transform(), x), in[2])
	return []fsdp.Ref{loss, loss.At(1)}, nil
}

// Programs returns [EmbedProgram] for [fsdp.Sharded.EvalProgram], with EmbedSequences.
func (m *ModernBERT) Programs() map[string]fsdp.Program {
	return embedPrograms(m.Task, func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
		return vectors(t, m.MeanPool, m.Normalize, m.encode(t, in), in[1])
	})
}

// encode returns the last layer, after the norm.
func (m *ModernBERT) encode(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
	x := t.Call("embed_norm", m.norm(), t.Call("embed", &Embedding{Rows: m.Vocab, Dim: m.Dim}, in[0]))
	x = layers(t, "", m.Layers, func(i int) fsdp.Module { return m.layer(i) }, x, in[1])
	return t.Call("norm", m.norm(), x)
}

func (m *ModernBERT) eps() float64     { return cmp.Or(m.Eps, 1e-5) }
func (m *ModernBERT) norm() *LayerNorm { return &LayerNorm{Dim: m.Dim, Eps: m.eps(), NoBias: true} }
func (m *ModernBERT) transform() *transform {
	return &transform{Dim: m.Dim, Act: m.Act, Eps: m.eps(), NoBias: true}
}
func (m *ModernBERT) head() *Head {
	if m.Task == MaskedTokens {
		return &Head{Dim: m.Dim, Classes: m.Vocab, Tied: "embed.weight", Bias: true}
	}
	return &Head{Dim: m.Dim, Classes: m.Classes, Bias: true}
}

// window returns the window of layer i, or 0.
func (m *ModernBERT) window(i int) int {
	if m.FullEvery > 0 && i%m.FullEvery == 0 {
		return 0
	}
	return m.Window
}

func (m *ModernBERT) layer(i int) *Layer {
	window, base := m.window(i), m.RopeBase
	if window > 0 {
		base = cmp.Or(m.LocalRopeBase, base)
	}
	return &Layer{
		Attn: Attention{Dim: m.Dim, Heads: m.Heads, Masked: true, Window: window, Rope: true, Rotary: op.Rotary{Base: base}, NoBias: true,
			ProjStd: residStd(m.Layers), LoRA: m.LoRA},
		MLP: MLP{Dim: m.Dim, Hidden: m.Hidden, Act: m.Act, Gated: true, NoBias: true, OutStd: residStd(m.Layers), LoRA: m.LoRA},
		Eps: m.eps(), NoNormBias: true, NoAttnNorm: i == 0,
	}
}

// NumParams returns the number of elements of all parameters.
func (m *ModernBERT) NumParams() int {
	n := elements(&Embedding{Rows: m.Vocab, Dim: m.Dim}, m.norm(), m.norm())
	for i := range m.Layers {
		n += elements(m.layer(i))
	}
	if m.Task != Encode && m.Task != EmbedSequences {
		n += elements(m.transform(), m.head())
	}
	return n
}

// FLOPs returns the floating-point operations of forward and backward for one token of a sequence
// of that length, counted as for BERT.
func (m *ModernBERT) FLOPs(length int) int {
	head, seen := 0, 0
	switch m.Task {
	case MaskedTokens:
		head = matrices(m.transform()) + m.Vocab*m.Dim
	case ClassifyTokens:
		head = matrices(m.transform()) + m.Classes*m.Dim
	}
	for i := range m.Layers {
		n := length
		if window := m.window(i); window > 0 {
			n = min(n, 2*window-1)
		}
		seen += n
	}
	return flops(m.Layers*matrices(m.layer(0))+head, m.Dim*seen)
}
