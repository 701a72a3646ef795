package hf

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// llama, mistral, qwen2 and qwen3 are settings of nn.Llama.
var (
	llama   = newLlama("llama", "LlamaForCausalLM", llamaRules)
	mistral = newLlama("mistral", "MistralForCausalLM", llamaRules)
	qwen2   = newLlama("qwen2", "Qwen2ForCausalLM", llamaRules)
	qwen3   = newLlama("qwen3", "Qwen3ForCausalLM", llamaRules)
)

func newLlama(kind, class string, names rules) *architecture {
	return &architecture{
		kind: kind, class: class, base: "model.",
		open:   func(c *config) fsdp.Model { return openLlama(c, kind) },
		config: func(m fsdp.Model) (map[string]any, error) { return configLlama(m, kind) },
		options: func(model fsdp.Model, prefix string) *fsdp.ExportOptions {
			m := model.(*nn.Llama)
			head := cmp.Or(m.HeadDim, m.Dim/m.Heads)
			return names.options(prefix, sizes{m.Heads * head, cmp.Or(m.KVHeads, m.Heads) * head, m.Hidden})
		},
		shapes: func(model fsdp.Model) []shape {
			m := model.(*nn.Llama)
			width, layers, last := dim{"hidden_size", m.Dim}, dim{"num_hidden_layers", m.Layers}, fmt.Sprintf("~layers.%d.", m.Layers-1)
			return []shape{
				{"~embed_tokens.weight", []dim{{"vocab_size", m.Vocab}, width}, dim{}},
				{last + "mlp.down_proj.weight", []dim{width, {"intermediate_size", m.Hidden}}, layers},
				{last + "self_attn.q_proj.weight", []dim{{"num_attention_heads and head_dim", m.Heads * m.HeadDim}, width}, layers},
				{last + "self_attn.k_proj.weight", []dim{{"num_key_value_heads and head_dim", m.KVHeads * m.HeadDim}, width}, layers},
			}
		},
		copies: func(m fsdp.Model) map[string]string { return tied(m.(*nn.Llama).Tied, "~embed_tokens.weight") },
		extra:  func(_ fsdp.Model, name string) bool { return llamaAngles.MatchString(name) },
		adapted: func(model fsdp.Model) (*nn.LoRA, []string) {
			m := model.(*nn.Llama)
			parts := []string{"attn.qkv", "attn.proj", "mlp.fc", "mlp.out"}
			if m.QKNorm {
				parts = []string{"attn.q", "attn.k", "attn.v", "attn.proj", "mlp.fc", "mlp.out"}
			}
			return &m.LoRA, layers("layers", m.Layers, parts...)
		},
	}
}

var llamaRules = newRules(
	`embed\.(.*)`, `~embed_tokens.$1`,
	`norm\.(.*)`, `~norm.$1`,
	`head\.(.*)`, `lm_head.$1`,
	`layers\.(\d+)\.attn_norm\.(.*)`, `~layers.$1.input_layernorm.$2`,
	`layers\.(\d+)\.mlp_norm\.(.*)`, `~layers.$1.post_attention_layernorm.$2`,
	`layers\.(\d+)\.attn\.qkv\.(.*)`, `~layers.$1.self_attn.q_proj.$2|~layers.$1.self_attn.k_proj.$2|~layers.$1.self_attn.v_proj.$2`,
	`layers\.(\d+)\.attn\.proj\.(.*)`, `~layers.$1.self_attn.o_proj.$2`,
	`layers\.(\d+)\.attn\.([qkv])\.(.*)`, `~layers.$1.self_attn.${2}_proj.$3`,
	`layers\.(\d+)\.attn\.([qk]_norm)\.(.*)`, `~layers.$1.self_attn.$2.$3`,
	`layers\.(\d+)\.mlp\.fc\.(.*)`, `~layers.$1.mlp.gate_proj.$2|~layers.$1.mlp.up_proj.$2`,
	`layers\.(\d+)\.mlp\.out\.(.*)`, `~layers.$1.mlp.down_proj.$2`,
)

// llamaAngles matches the angles of rotary positions, which old files have.
var llamaAngles = newRules(`layers\.\d+\.self_attn\.rotary_emb\.inv_freq`, "")[0].here

func openLlama(c *config, kind string) fsdp.Model {
	m := &nn.Llama{
		Vocab: c.size("vocab_size", 0), Layers: c.size("num_hidden_layers", 0), Dim: c.size("hidden_size", 0),
		Heads: c.size("num_attention_heads", 0), Hidden: c.size("intermediate_size", 0),
		QKVBias: kind == "qwen2", QKNorm: kind == "qwen3",
		Tied: get(c, "tie_word_embeddings", kind == gemma), Eps: c.positive("rms_norm_eps", 1e-6),
	}
	heads, head := m.Heads, m.Dim/max(m.Heads, 1)
	if kind == "qwen3" {
		head = 128
	} else if kind == gemma {
		heads, head = 4, 256
	} else if !c.has("head_dim") {
		c.heads("hidden_size", m.Dim, "num_attention_heads", m.Heads)
	}
	m.KVHeads, m.HeadDim = c.size("num_key_value_heads", heads), c.size("head_dim", head)
	only(c, "attention_bias", false)
	only(c, "mlp_bias", false)
	only(c, "rope_interleaved", false)
	only(c, "use_mrope", false)
	if kind == gemma {
		openGemma(c, m)
	} else {
		only(c, "hidden_act", "silu")
		openRope(c, m)
		openWindow(c, m, kind)
	}
	c.training("attention_dropout")
	longest := map[string]int{"llama": 2048, "mistral": 131072, gemma: 131072}
	m.Context = c.size("max_position_embeddings", cmp.Or(longest[kind], 32768))
	c.ignore("pretraining_tp", "is_llama_config")
	return m
}

// openRope reads the settings of rotary positions. Transformers has moved the keys to
// rope_parameters.
func openRope(c *config, m *nn.Llama) {
	m.RopeBase = c.positive("rope_theta", 10000)
	only(c, "partial_rotary_factor", 1.0)
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		rotary := op.Rotary{Base: m.RopeBase, Scaling: m.RopeScaling}
		c.nested(key, func(r *config) { r.rope(&rotary) })
		m.RopeBase, m.RopeScaling = rotary.Base, rotary.Scaling
	}
}

// rope reads an object with settings of rotary positions.
func (c *config) rope(r *op.Rotary) {
	r.Base = c.positive("rope_theta", r.Base)
	only(c, "partial_rotary_factor", 1.0)
	kind := get(c, "type", "default")
	name := "type"
	if c.has("rope_type") {
		name, kind = "rope_type", get(c, "rope_type", kind)
	}
	switch kind {
	case "default":
	case "linear":
		r.Scaling = op.RopeScaling{Factor: c.positive("factor", 1)}
	case "llama3":
		r.Scaling = op.RopeScaling{
			Factor: c.positive("factor", 1), LowFreq: get(c, "low_freq_factor", 1.0), HighFreq: get(c, "high_freq_factor", 4.0),
			Original: c.size("original_max_position_embeddings", 0),
		}
	default:
		c.fail("%s %q is not supported", name, kind)
	}
}

// openWindow reads the window of attention, which must be the same in all layers.
func openWindow(c *config, m *nn.Llama, kind string) {
	window := 4096 // the meaning of a missing key; null means none
	if _, ok := c.keys["sliding_window"]; ok {
		window = get(c, "sliding_window", 0)
	}
	full := get(c, "max_window_layers", 28) // layers without a window
	if kind == "mistral" {
		m.Window = window
	} else if get(c, "use_sliding_window", false) {
		if m.Window = window; full > 0 && full < m.Layers {
			c.fail("max_window_layers %d of %d layers is not supported: all layers have the same window", full, m.Layers)
		}
		if full >= m.Layers {
			m.Window = 0
		}
	}
	want := "full_attention"
	if m.Window > 0 {
		want = "sliding_attention"
	}
	for i, layer := range get(c, "layer_types", []string{}) {
		if layer != want {
			c.fail("layer_types %q of layer %d is not supported: all layers must be %q", layer, i, want)
		}
	}
	if m.Window < 0 {
		c.fail("sliding_window is %d", m.Window)
	}
}

func configLlama(model fsdp.Model, kind string) (map[string]any, error) {
	m, ok := model.(*nn.Llama)
	if !ok {
		return nil, nil
	}
	is := "llama"
	switch {
	case m.Heads < 1:
		return nil, fmt.Errorf("nn.Llama has %d heads", m.Heads)
	case m.Gemma:
		is = gemma
	case m.Scale != 0 || m.FullEvery > 0 || m.LocalRopeBase != 0:
		return nil, fmt.Errorf("nn.Llama without Gemma has no counterpart in transformers with Scale %v, FullEvery %d and LocalRopeBase %v: want 0",
			m.Scale, m.FullEvery, m.LocalRopeBase)
	case m.QKNorm && m.QKVBias:
		return nil, errors.New("nn.Llama with QKNorm and QKVBias has no counterpart in transformers")
	case m.QKNorm:
		is = "qwen3"
	case m.QKVBias:
		is = "qwen2"
	case m.Window > 0:
		is = "mistral"
	}
	if is != kind {
		return nil, nil
	}
	rope := ropeKeys(op.Rotary{Base: m.RopeBase, Scaling: m.RopeScaling})
	keys := map[string]any{
		"vocab_size": m.Vocab, "num_hidden_layers": m.Layers, "hidden_size": m.Dim, "intermediate_size": m.Hidden,
		"num_attention_heads": m.Heads, "num_key_value_heads": cmp.Or(m.KVHeads, m.Heads), "head_dim": cmp.Or(m.HeadDim, m.Dim/m.Heads),
		"max_position_embeddings": m.Cache().Context, "rms_norm_eps": cmp.Or(m.Eps, 1e-6), "tie_word_embeddings": m.Tied, "hidden_act": "silu",
		"rope_parameters": rope, "rope_theta": rope["rope_theta"], "rope_scaling": rope, // later and earlier versions
		"bos_token_id": nil, "eos_token_id": nil,
	}
	switch {
	case kind == gemma:
		return keys, configGemma(m, keys)
	case kind == "mistral":
		keys["sliding_window"] = m.Window
	case m.Window > 0:
		keys["use_sliding_window"], keys["sliding_window"], keys["max_window_layers"] = true, m.Window, 0
	}
	return keys, nil
}
