package nn

import (
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/fsdp"
)

// Layer is a transformer layer of any attention and any MLP on x [B, T, Dim]:
//
//	x = x + attn(attn_norm(x))
//	x = x + cross(cross_norm(x), y)  // if there is a Cross
//	x = x + mlp(mlp_norm(x))
//
// With PostNorm it normalises sums: x = attn_norm(x + attn(x)). With SandwichNorm it normalises
// before and after: x = x + attn_post_norm(attn(attn_norm(x))). After x come the further inputs of
// Attn, including its positions or its cache, and then the inputs of Cross. The first of these is y
// [B, S, Dim], which keys and values may replace. The results after x are the further results of
// Attn. With a Cross, and y as the only input, the results are the keys and values that Cross makes
// of y.
//
// The models of this package except GPT consist of it: fsdp.WrapTypes(&nn.Layer{}) makes a unit of
// each layer.
//
// Parameters: attn_norm.*, attn.*, cross_norm.*, cross.*, mlp_norm.* and mlp.*. SandwichNorm adds
// attn_post_norm.* after attn.*, and the same for the other parts.
type Layer struct {
	Attn         Attention
	Cross        *Attention // nil for none
	MLP          MLP
	RMS          bool    // norms are RMSNorm, not LayerNorm
	UnitOffset   bool    // of RMSNorm
	NoNormBias   bool    // of LayerNorm
	NoAttnNorm   bool    // the attention has no norm before it, as in the first layer of ModernBERT
	PostNorm     bool    // as in the first transformers and in BERT
	SandwichNorm bool    // as in Gemma
	Eps          float64 // of the norms; 0 means their default
}

// sublayer is a part of a layer with its own norm and residual connection.
type sublayer struct {
	name   string
	module fsdp.Module
	more   int // inputs after x
}

func (m *Layer) sublayers() []sublayer {
	list := []sublayer{{"attn", &m.Attn, m.Attn.inputs() - 1}, {"mlp", &m.MLP, 0}}
	if m.Cross != nil {
		list = slices.Insert(list, 1, sublayer{"cross", m.Cross, m.Cross.inputs() - 1})
	}
	return list
}

// norm returns one of the two norms.
func (m *Layer) norm() fsdp.Module {
	if m.RMS {
		return &RMSNorm{Dim: m.Attn.Dim, Eps: m.Eps, UnitOffset: m.UnitOffset}
	}
	return &LayerNorm{Dim: m.Attn.Dim, Eps: m.Eps, NoBias: m.NoNormBias}
}

// Params implements fsdp.Module.
func (m *Layer) Params() (params []fsdp.Param) {
	for _, s := range m.sublayers() {
		if s.name != "attn" || !m.NoAttnNorm {
			params = append(params, fsdp.Prefix(s.name+"_norm", m.norm())...)
		}
		params = append(params, fsdp.Prefix(s.name, s.module)...)
		if m.SandwichNorm {
			params = append(params, fsdp.Prefix(s.name+"_post_norm", m.norm())...)
		}
	}
	return params
}

// Build implements fsdp.Module.
func (m *Layer) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	list, want := m.sublayers(), 1
	for _, s := range list {
		want += s.more
	}
	if m.Cross != nil && len(in) == 1 {
		return b.Call("cross", m.Cross, in[0])
	}
	switch {
	case len(in) >= want+cached:
		list[0].more += cached
		want += cached
	case m.Cross == nil && len(in) == want+positioned:
		list[0].more += positioned
		want += positioned
	}
	if m.Cross != nil && len(in) == want+1 {
		list[1].more++
		want++
	}
	if err := arguments(in, want); err != nil {
		return nil, err
	}
	x, rest := in[0], in[1:]
	var kept gorgonia.Nodes
	for _, s := range list {
		y, err := m.residual(b, s, x, rest[:s.more], &kept)
		if err != nil {
			return nil, err
		}
		x, rest = y, rest[s.more:]
	}
	return append(gorgonia.Nodes{x}, kept...), nil
}

// residual adds the output of s for x and its other inputs to x, and its other results to kept.
func (m *Layer) residual(b *fsdp.Builder, s sublayer, x *gorgonia.Node, more []*gorgonia.Node, kept *gorgonia.Nodes) (*gorgonia.Node, error) {
	norm := part(b, s.name+"_norm", m.norm())
	module := keep(b, s.name, s.module, more, kept)
	add := func(y *gorgonia.Node) (*gorgonia.Node, error) { return gorgonia.Add(y, x) }
	switch {
	case m.NoAttnNorm && s.name == "attn":
		return chain(x, module, add)
	case m.PostNorm:
		return chain(x, module, add, norm)
	case m.SandwichNorm:
		return chain(x, norm, module, part(b, s.name+"_post_norm", m.norm()), add)
	}
	return chain(x, norm, module, add)
}

// always returns a function that returns the same layer for every index.
func always[M fsdp.Module](layer M) func(int) fsdp.Module {
	return func(int) fsdp.Module { return layer }
}

// layers calls n layers on the tape, each with its own parameters.
func layers(t *fsdp.Tape, prefix string, n int, layer func(i int) fsdp.Module, x fsdp.Ref, more ...fsdp.Ref) fsdp.Ref {
	for i := range n {
		x = t.Call(fmt.Sprintf("%slayers.%d", prefix, i), layer(i), append([]fsdp.Ref{x}, more...)...)
	}
	return x
}
