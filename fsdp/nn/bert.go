package nn

import (
	"cmp"
	"fmt"

	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/fsdp"
)

// BERT is an encoder that is trained to predict masked tokens (Devlin et al., 2018,
// arXiv:1810.04805). Its batch is ints [B, T]: tokens, their kinds (which of two texts they belong
// to), a mask, which is zero where there is no token, and targets. Its results are the loss and the
// logits [B, T, Vocab]. A target of IgnoreTarget does not count: only masked tokens have other
// targets.
//
// Parameters: embed.weight [Vocab, Dim], kinds.weight [Kinds, Dim], positions.weight [Context,
// Dim], embed_norm.*, layers.i.* as Layer names them, transform.fc.* and transform.norm.* of the
// layer before the head, and head.bias [Vocab]. The head shares the weight of the embedding.
type BERT struct {
	Vocab, Context             int
	Kinds                      int // 0 means 2
	Layers, Dim, Heads, Hidden int
	Act                        Activation
	Dropout                    float64
	Eps                        float64 // of the norms; 0 means 1e-12
	LoRA                       LoRA    // of the layers' linear layers
}

// Inputs names the tensors of a batch.
func (m *BERT) Inputs() []string { return []string{"tokens", "kinds", "mask", "targets"} }

// Forward implements fsdp.Model.
func (m *BERT) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	if m.Layers < 0 || m.Kinds < 0 || min(m.Vocab, m.Context, m.Dim, m.Heads, m.Hidden) < 1 {
		return nil, fmt.Errorf("nn: BERT %+v has sizes that are not positive", *m)
	}
	if err := (&Attention{Dim: m.Dim, Heads: m.Heads}).checkHeads(); err != nil {
		return nil, fmt.Errorf("nn: BERT: %w", err)
	}
	x := t.Call("add_kinds", &Add{}, t.Call("embed", m.embedding(m.Vocab), in[0]), t.Call("kinds", m.kinds(), in[1]))
	x = t.Call("positions", m.positions(), x)
	x = t.Call("embed_norm", m.norm(), x)
	if m.Dropout > 0 {
		x = t.Call("embed_dropout", &Dropout{Rate: m.Dropout}, x)
	}
	x = layers(t, "", m.Layers, m.layer(), x, in[2])
	x = t.Call("transform", m.transform(), x)
	loss := t.Call("head", m.head(), x, in[3])
	return []fsdp.Ref{loss, loss.At(1)}, nil
}

func (m *BERT) eps() float64                  { return cmp.Or(m.Eps, 1e-12) }
func (m *BERT) embedding(rows int) *Embedding { return &Embedding{Rows: rows, Dim: m.Dim} }
func (m *BERT) kinds() *Embedding             { return m.embedding(cmp.Or(m.Kinds, 2)) }
func (m *BERT) positions() *Positions         { return &Positions{Rows: m.Context, Dim: m.Dim} }
func (m *BERT) norm() *LayerNorm              { return &LayerNorm{Dim: m.Dim, Eps: m.eps()} }
func (m *BERT) layer() *Layer {
	return &Layer{
		Attn:     Attention{Dim: m.Dim, Heads: m.Heads, Masked: true, Dropout: m.Dropout, LoRA: m.LoRA},
		MLP:      MLP{Dim: m.Dim, Hidden: m.Hidden, Act: m.Act, Dropout: m.Dropout, LoRA: m.LoRA},
		PostNorm: true, Eps: m.eps(),
	}
}
func (m *BERT) transform() *transform { return &transform{Dim: m.Dim, Act: m.Act, Eps: m.eps()} }
func (m *BERT) head() *Head {
	return &Head{Dim: m.Dim, Classes: m.Vocab, Tied: "embed.weight", Bias: true}
}

// transform is the layer before BERT's head: norm(act(fc(x))).
type transform struct {
	Dim int
	Act Activation
	Eps float64
}

func (m *transform) fc() *Linear      { return &Linear{In: m.Dim, Out: m.Dim} }
func (m *transform) norm() *LayerNorm { return &LayerNorm{Dim: m.Dim, Eps: m.Eps} }

// Params implements fsdp.Module.
func (m *transform) Params() []fsdp.Param {
	return append(fsdp.Prefix("fc", m.fc()), fsdp.Prefix("norm", m.norm())...)
}

// Build implements fsdp.Module.
func (m *transform) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	if err := arguments(in, 1); err != nil {
		return nil, err
	}
	return one(chain(in[0], part(b, "fc", m.fc()), m.Act.apply, part(b, "norm", m.norm())))
}

// NumParams returns the number of elements of all parameters.
func (m *BERT) NumParams() int {
	return elements(m.embedding(m.Vocab), m.kinds(), m.positions(), m.norm(), m.transform(), m.head()) + m.Layers*elements(m.layer())
}

// FLOPs returns the floating-point operations of forward and backward for one token of a sequence
// of that length, counted as for GPT.
func (m *BERT) FLOPs(length int) int {
	return flops(m.Layers*matrices(m.layer())+matrices(m.transform())+m.Vocab*m.Dim, m.Layers*m.Dim*length)
}
