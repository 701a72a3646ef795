package hf

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// vit is nn.ViT.
var vit = &architecture{
	kind: "vit", class: "ViTForImageClassification", base: "vit.", open: openViT, config: configViT,
	options: func(model fsdp.Model, prefix string) *fsdp.ExportOptions {
		m := model.(*nn.ViT)
		return vitRules.options(prefix, sizes{q: m.Dim, kv: m.Dim})
	},
	shapes: func(model fsdp.Model) []shape {
		m := model.(*nn.ViT)
		width, layers := dim{"hidden_size", m.Dim}, dim{"num_hidden_layers", m.Layers}
		patch, places := dim{"patch_size", m.Patch}, m.Height/m.Patch*(m.Width/m.Patch)+1
		return []shape{
			{"~embeddings.position_embeddings", []dim{{"image_size", 1}, {"image_size and patch_size", places}, width}, dim{}},
			{"~embeddings.patch_embeddings.projection.weight", []dim{width, {"num_channels", m.Channels}, patch, patch}, dim{}},
			{fmt.Sprintf("~encoder.layer.%d.output.dense.weight", m.Layers-1), []dim{width, {"intermediate_size", m.Hidden}}, layers},
		}
	},
	copies: func(fsdp.Model) map[string]string { return nil },
	extra:  func(_ fsdp.Model, name string) bool { return strings.HasPrefix(name, "pooler.") },
	adapted: func(model fsdp.Model) (*nn.LoRA, []string) {
		m := model.(*nn.ViT)
		return &m.LoRA, layers("layers", m.Layers, "attn.qkv", "attn.proj", "mlp.fc", "mlp.out")
	},
}

var vitRules = newRules(
	`patches\.class`, `~embeddings.cls_token`,
	`patches\.positions`, `~embeddings.position_embeddings`,
	`patches\.(.*)`, `~embeddings.patch_embeddings.projection.$1`,
	`norm\.(.*)`, `~layernorm.$1`,
	`head\.(.*)`, `classifier.$1`,
	`layers\.(\d+)\.attn_norm\.(.*)`, `~encoder.layer.$1.layernorm_before.$2`,
	`layers\.(\d+)\.mlp_norm\.(.*)`, `~encoder.layer.$1.layernorm_after.$2`,
	`layers\.(\d+)\.attn\.qkv\.(.*)`, `~encoder.layer.$1.attention.attention.query.$2|~encoder.layer.$1.attention.attention.key.$2|~encoder.layer.$1.attention.attention.value.$2`,
	`layers\.(\d+)\.attn\.proj\.(.*)`, `~encoder.layer.$1.attention.output.dense.$2`,
	`layers\.(\d+)\.mlp\.fc\.(.*)`, `~encoder.layer.$1.intermediate.dense.$2`,
	`layers\.(\d+)\.mlp\.out\.(.*)`, `~encoder.layer.$1.output.dense.$2`,
)

func openViT(c *config) fsdp.Model {
	m := &nn.ViT{
		Channels: c.size("num_channels", 3), Classes: len(c.classes()),
		Layers: c.size("num_hidden_layers", 0), Dim: c.size("hidden_size", 0), Heads: c.size("num_attention_heads", 0),
		Hidden: c.size("intermediate_size", 0), Act: choose(c, "hidden_act", "gelu", bertActivations), Eps: c.positive("layer_norm_eps", 1e-12),
	}
	m.Height, m.Width = c.pair("image_size", 224)
	patch, other := c.pair("patch_size", 16)
	m.Patch = patch
	if patch != other {
		c.fail("patch_size %d·%d is not supported, only squares", patch, other)
	}
	c.heads("hidden_size", m.Dim, "num_attention_heads", m.Heads)
	only(c, "qkv_bias", true)
	c.training("hidden_dropout_prob", "attention_probs_dropout_prob")
	c.ignore("encoder_stride", "pooler_act", "pooler_output_size")
	return m
}

// pair returns a size that is a number or two.
func (c *config) pair(key string, otherwise int) (a, b int) {
	if !c.has(key) || strings.HasPrefix(string(c.keys[key]), "[") {
		v := get(c, key, []int{otherwise, otherwise})
		if len(v) != 2 || min(v[0], v[1]) < 1 || max(v[0], v[1]) > math.MaxInt32 {
			c.fail("%s %v is not two positive numbers of 31 bits", key, v)
			return 1, 1
		}
		return v[0], v[1]
	}
	a = c.size(key, otherwise)
	return a, a
}

func configViT(model fsdp.Model) (map[string]any, error) {
	m, ok := model.(*nn.ViT)
	if !ok {
		return nil, nil
	}
	keys := map[string]any{"image_size": []int{m.Height, m.Width}}
	if m.Height == m.Width {
		keys["image_size"] = m.Height
	}
	maps.Copy(keys, labelKeys(classNames(m.Classes)))
	maps.Copy(keys, map[string]any{
		"patch_size": m.Patch, "num_channels": cmp.Or(m.Channels, 3),
		"num_hidden_layers": m.Layers, "hidden_size": m.Dim, "num_attention_heads": m.Heads, "intermediate_size": m.Hidden,
		"hidden_act": nameOf(bertActivations, m.Act), "layer_norm_eps": cmp.Or(m.Eps, 1e-12), "qkv_bias": true,
		"hidden_dropout_prob": m.Dropout, "attention_probs_dropout_prob": 0.0,
	})
	return keys, nil
}
