package hf

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// t5 is nn.T5.
var t5 = &architecture{
	kind: "t5", class: "T5ForConditionalGeneration", pair: true, open: openT5, config: configT5,
	options: func(model fsdp.Model, prefix string) *fsdp.ExportOptions {
		m := model.(*nn.T5)
		width := m.Heads * cmp.Or(m.HeadDim, m.Dim/m.Heads)
		list := t5Rules
		if m.Gated {
			list = append(slices.Clone(t5Gated), list...)
		}
		return list.options(prefix, sizes{width, width, m.Hidden})
	},
	shapes: func(model fsdp.Model) []shape {
		m := model.(*nn.T5)
		width, inner, heads := dim{"d_model", m.Dim}, dim{"num_heads and d_kv", m.Heads * m.HeadDim}, dim{"num_heads", m.Heads}
		hidden, of := dim{"d_ff", m.Hidden}, []dim{{"num_layers", m.Encoder}, {"num_decoder_layers", m.Decoder}}
		list := []shape{{"shared.weight", []dim{{"vocab_size", m.Vocab}, width}, dim{}}}
		for i, coder := range []string{"encoder", "decoder"} {
			last := fmt.Sprintf("%s.block.%d.layer.", coder, of[i].n-1)
			list = append(list,
				shape{fmt.Sprintf("%s%d.DenseReluDense.wo.weight", last, i+1), []dim{width, hidden}, of[i]},
				shape{last + "0.SelfAttention.q.weight", []dim{inner, width}, of[i]},
				shape{coder + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight",
					[]dim{{"relative_attention_num_buckets", m.Buckets}, heads}, dim{}})
		}
		return list
	},
	untie: func(model fsdp.Model) bool {
		m := model.(*nn.T5)
		if !m.NoScale {
			return false
		}
		m.Tied, m.NoScale = false, false
		return true
	},
	copies: func(m fsdp.Model) map[string]string {
		copies := tied(m.(*nn.T5).Tied, "shared.weight")
		copies["encoder.embed_tokens.weight"], copies["decoder.embed_tokens.weight"] = "shared.weight", "shared.weight"
		return copies
	},
	extra: func(_ fsdp.Model, name string) bool {
		return name == "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight" // old files have it, and nothing reads it
	},
	adapted: func(model fsdp.Model) (*nn.LoRA, []string) {
		m := model.(*nn.T5)
		parts := []string{"attn.qkv", "attn.proj", "mlp.fc", "mlp.out"}
		cross := []string{"cross.q", "cross.k", "cross.v", "cross.proj"}
		return &m.LoRA, append(layers("encoder.layers", m.Encoder, parts...), layers("decoder.layers", m.Decoder, append(cross, parts...)...)...)
	},
}

var (
	t5Rules = newRules(
		`embed\.(.*)`, `shared.$1`,
		`head\.(.*)`, `lm_head.$1`,
		`(..coder)\.positions\.(.*)`, `$1.block.0.layer.0.SelfAttention.relative_attention_bias.$2`,
		`(..coder)\.norm\.(.*)`, `$1.final_layer_norm.$2`,
		`(..coder)\.layers\.(\d+)\.attn_norm\.(.*)`, `$1.block.$2.layer.0.layer_norm.$3`,
		`(..coder)\.layers\.(\d+)\.cross_norm\.(.*)`, `$1.block.$2.layer.1.layer_norm.$3`,
		`encoder\.layers\.(\d+)\.mlp_norm\.(.*)`, `encoder.block.$1.layer.1.layer_norm.$2`,
		`decoder\.layers\.(\d+)\.mlp_norm\.(.*)`, `decoder.block.$1.layer.2.layer_norm.$2`,
		`(..coder)\.layers\.(\d+)\.attn\.qkv\.(.*)`, `$1.block.$2.layer.0.SelfAttention.q.$3|$1.block.$2.layer.0.SelfAttention.k.$3|$1.block.$2.layer.0.SelfAttention.v.$3`,
		`(..coder)\.layers\.(\d+)\.attn\.proj\.(.*)`, `$1.block.$2.layer.0.SelfAttention.o.$3`,
		`(..coder)\.layers\.(\d+)\.cross\.([qkv])\.(.*)`, `$1.block.$2.layer.1.EncDecAttention.$3.$4`,
		`(..coder)\.layers\.(\d+)\.cross\.proj\.(.*)`, `$1.block.$2.layer.1.EncDecAttention.o.$3`,
		`encoder\.layers\.(\d+)\.mlp\.fc\.(.*)`, `encoder.block.$1.layer.1.DenseReluDense.wi.$2`,
		`decoder\.layers\.(\d+)\.mlp\.fc\.(.*)`, `decoder.block.$1.layer.2.DenseReluDense.wi.$2`,
		`encoder\.layers\.(\d+)\.mlp\.out\.(.*)`, `encoder.block.$1.layer.1.DenseReluDense.wo.$2`,
		`decoder\.layers\.(\d+)\.mlp\.out\.(.*)`, `decoder.block.$1.layer.2.DenseReluDense.wo.$2`,
	)
	t5Gated = newRules(
		`encoder\.layers\.(\d+)\.mlp\.fc\.(.*)`, `encoder.block.$1.layer.1.DenseReluDense.wi_0.$2|encoder.block.$1.layer.1.DenseReluDense.wi_1.$2`,
		`decoder\.layers\.(\d+)\.mlp\.fc\.(.*)`, `decoder.block.$1.layer.2.DenseReluDense.wi_0.$2|decoder.block.$1.layer.2.DenseReluDense.wi_1.$2`,
	)
)

// A t5Act is the activation of an MLP. name is its value of dense_act_fn.
type t5Act struct {
	nn.Activation
	gated bool
	name  string
}

var t5Activations = map[string]t5Act{
	"relu": {nn.ReLU, false, "relu"}, "gelu": {nn.GELU, false, "gelu"}, "gelu_new": {nn.GELUTanh, false, "gelu_new"},
	"gated-gelu": {nn.GELUTanh, true, "gelu_new"}, "gated-relu": {nn.ReLU, true, "relu"}, "gated-silu": {nn.SiLU, true, "silu"},
}

func openT5(c *config) fsdp.Model {
	act := choose(c, "feed_forward_proj", "relu", t5Activations)
	m := &nn.T5{
		Vocab: c.size("vocab_size", 0), Encoder: c.size("num_layers", 0), Dim: c.size("d_model", 0), Heads: c.size("num_heads", 0),
		Hidden: c.size("d_ff", 0), HeadDim: c.size("d_kv", 0), Buckets: c.size("relative_attention_num_buckets", 32),
		MaxDistance: c.size("relative_attention_max_distance", 128), Act: act.Activation, Gated: act.gated,
		Tied: get(c, "tie_word_embeddings", true), Eps: c.positive("layer_norm_epsilon", 1e-6),
	}
	m.Decoder = c.size("num_decoder_layers", m.Encoder)
	only(c, "is_gated_act", act.gated)
	only(c, "dense_act_fn", act.name)
	if m.Tied { // transformers 5 sets it for all versions: the scale distinguishes them, and the files have a head or not
		m.NoScale = !get(c, "scale_decoder_outputs", true)
	} else {
		only(c, "scale_decoder_outputs", false)
	}
	c.training("dropout_rate", "classifier_dropout")
	c.ignore("initializer_factor", "n_positions", "output_past")
	return m
}

func configT5(model fsdp.Model) (map[string]any, error) {
	m, ok := model.(*nn.T5)
	if !ok {
		return nil, nil
	}
	if m.Heads < 1 {
		return nil, fmt.Errorf("nn.T5 has %d heads", m.Heads)
	}
	act := ""
	for _, name := range slices.Sorted(maps.Keys(t5Activations)) {
		if a := t5Activations[name]; a.Activation == m.Act && a.gated == m.Gated {
			act = name
		}
	}
	if act == "" {
		return nil, fmt.Errorf("nn.T5 with activation %d, gated %t, has no counterpart in transformers", m.Act, m.Gated)
	}
	return map[string]any{
		"vocab_size": m.Vocab, "num_layers": m.Encoder, "num_decoder_layers": m.Decoder, "d_model": m.Dim, "num_heads": m.Heads, "d_ff": m.Hidden,
		"d_kv": cmp.Or(m.HeadDim, m.Dim/m.Heads), "relative_attention_num_buckets": cmp.Or(m.Buckets, 32),
		"relative_attention_max_distance": cmp.Or(m.MaxDistance, 128), "feed_forward_proj": act, "tie_word_embeddings": m.Tied,
		"scale_decoder_outputs": m.Tied && !m.NoScale, "layer_norm_epsilon": cmp.Or(m.Eps, 1e-6), "dropout_rate": m.Dropout,
		"is_encoder_decoder": true, "decoder_start_token_id": 0,
	}, nil
}
