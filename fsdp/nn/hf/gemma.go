package hf

import (
	"cmp"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// gemma is the model_type of the text model of Gemma 3.
const gemma = "gemma3_text"

// gemma3 is a setting of nn.Llama.
var gemma3 = newLlama(gemma, "Gemma3ForCausalLM", append(newRules(
	`layers\.(\d+)\.attn_post_norm\.(.*)`, `~layers.$1.post_attention_layernorm.$2`,
	`layers\.(\d+)\.mlp_norm\.(.*)`, `~layers.$1.pre_feedforward_layernorm.$2`,
	`layers\.(\d+)\.mlp_post_norm\.(.*)`, `~layers.$1.post_feedforward_layernorm.$2`,
), llamaRules...))

// The types of layers in layer_types and, for Gemma and ModernBERT, in rope_parameters.
const fullLayer, localLayer = "full_attention", "sliding_attention"

// openGemma reads the keys that other settings of nn.Llama lack.
func openGemma(c *config, m *nn.Llama) {
	m.Gemma, m.QKNorm = true, true
	only(c, "hidden_activation", "gelu_pytorch_tanh")
	only(c, "use_bidirectional_attention", false)
	for _, key := range []string{"attn_logit_softcapping", "final_logit_softcapping"} {
		if c.has(key) {
			c.fail("%s %s is not supported, only null", key, short(c.keys[key]))
		}
	}
	if scalar := c.positive("query_pre_attn_scalar", 256); scalar != float64(m.HeadDim) {
		m.Scale = 1 / math.Sqrt(scalar)
	}
	m.Window = get(c, "sliding_window", 4096)
	pattern := c.size("sliding_window_pattern", 6)
	c.ignore("_sliding_window_pattern")
	m.FullEvery = c.fullEvery(pattern, 1, m.Layers)
	if _, ok := c.keys["sliding_window"]; m.FullEvery == 1 || ok && !c.has("sliding_window") {
		m.Window, m.FullEvery = 0, 0
	}
	if m.Window < 0 {
		c.fail("sliding_window is %d", m.Window)
	}
	full, local := c.layerRopes("rope_theta", 1e6, "rope_local_base_freq", true)
	if m.RopeBase, m.RopeScaling = full.Base, full.Scaling; m.Window > 0 {
		m.LocalRopeBase = local.Base
	}
}

// fullEvery returns n so that in each n-th layer attention has no window, by layer_types or,
// without them, the default. The first of these is layer n-1 if first is 1, and layer 0 if first is
// 0. It is 0 if all layers have a window.
func (c *config) fullEvery(otherwise, first, layers int) int {
	types := get(c, "layer_types", []string{})
	if len(types) == 0 {
		return otherwise
	}
	if len(types) != layers {
		c.fail("layer_types has %d layers, but the model has %d", len(types), layers)
		return 0
	}
	n := 0
	for i := len(types) - 1; i >= 0; i-- {
		if types[i] == fullLayer && i+first > 0 {
			n = i + first
		}
	}
	if n == 0 && types[0] == fullLayer { // only the first layer
		n = layers
	}
	for i, layer := range types {
		if want := typeOf(n > 0 && (i+first)%n == 0); layer != want {
			c.fail("layer_types %q of layer %d is not supported, only %q: each n-th layer must have full attention, and all other layers a window", layer, i, want)
		}
	}
	return n
}

// typeOf returns the type of a layer.
func typeOf(full bool) string {
	if full {
		return fullLayer
	}
	return localLayer
}

// layerTypes returns layer_types.
func layerTypes(layers int, full func(i int) bool) (types []string) {
	for i := range layers {
		types = append(types, typeOf(full(i)))
	}
	return types
}

// layerRopes reads the rotary positions of layers without a window and with one. rope_parameters
// has both. Without it the keys fullKey and localKey have the bases, and rope_scaling belongs to
// the layers without a window.
func (c *config) layerRopes(fullKey string, fullBase float64, localKey string, scaled bool) (full, local op.Rotary) {
	full.Base, local.Base = c.positive(fullKey, fullBase), c.positive(localKey, 10000)
	if scaled {
		c.nested("rope_scaling", func(r *config) { r.rope(&full) })
	}
	c.nested("rope_parameters", func(r *config) {
		r.nested(fullLayer, func(r *config) { r.rope(&full) })
		r.nested(localLayer, func(r *config) { r.rope(&local) })
	})
	if local.Scaling != (op.RopeScaling{}) || !scaled && full.Scaling != (op.RopeScaling{}) {
		c.fail("rope_parameters with scaled positions are not supported in these layers, only rope_type \"default\"")
	}
	return full, local
}

// ropeKeys returns the object of rotary positions.
func ropeKeys(r op.Rotary) map[string]any {
	keys := map[string]any{"rope_type": "default", "rope_theta": cmp.Or(r.Base, 10000.0)}
	if s := r.Scaling; s.Original > 0 {
		keys["rope_type"], keys["factor"], keys["low_freq_factor"] = "llama3", cmp.Or(s.Factor, 1), s.LowFreq
		keys["high_freq_factor"], keys["original_max_position_embeddings"] = s.HighFreq, s.Original
	} else if s.Factor > 0 {
		keys["rope_type"], keys["factor"] = "linear", s.Factor
	}
	return keys
}

// configGemma changes the keys of nn.Llama to the keys of Gemma.
func configGemma(m *nn.Llama, keys map[string]any) error {
	scalar := float64(keys["head_dim"].(int))
	if m.Scale != 0 {
		scalar = math.Round(1 / (m.Scale * m.Scale))
		if scalar < 1 || scalar > math.MaxInt32 || 1/math.Sqrt(scalar) != m.Scale {
			return fmt.Errorf("nn.Llama with Gemma and Scale %v has no counterpart in transformers: want 1/√n for a whole number n", m.Scale)
		}
	}
	if !m.QKNorm || m.QKVBias || m.Window > 0 && m.LocalRopeBase == 0 {
		return fmt.Errorf("nn.Llama with Gemma has no counterpart in transformers with QKNorm %v, QKVBias %v, Window %d and LocalRopeBase %v: want QKNorm, no QKVBias, and LocalRopeBase with a Window",
			m.QKNorm, m.QKVBias, m.Window, m.LocalRopeBase)
	}
	full := ropeKeys(op.Rotary{Base: m.RopeBase, Scaling: m.RopeScaling})
	local := ropeKeys(op.Rotary{Base: m.LocalRopeBase})
	delete(keys, "hidden_act")
	keys["hidden_activation"], keys["query_pre_attn_scalar"] = "gelu_pytorch_tanh", int(scalar)
	keys["rope_parameters"], keys["rope_local_base_freq"] = map[string]any{fullLayer: full, localLayer: local}, local["rope_theta"]
	keys["rope_scaling"] = nil
	if full["rope_type"] != "default" {
		keys["rope_scaling"] = full
	}
	keys["sliding_window"] = m.Window
	if m.Window == 0 {
		keys["sliding_window"] = nil
	}
	keys["layer_types"] = layerTypes(m.Layers, func(i int) bool { return m.Window == 0 || m.FullEvery > 0 && (i+1)%m.FullEvery == 0 })
	return nil
}
