package hf

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

var modernLayers = newRules(
	`embed\.(.*)`, `~embeddings.tok_embeddings.$1`,
	`embed_norm\.(.*)`, `~embeddings.norm.$1`,
	`norm\.(.*)`, `~final_norm.$1`,
	`layers\.(\d+)\.(attn_norm|mlp_norm)\.(.*)`, `~layers.$1.$2.$3`,
	`layers\.(\d+)\.attn\.qkv\.(.*)`, `~layers.$1.attn.Wqkv.$2`,
	`layers\.(\d+)\.attn\.proj\.(.*)`, `~layers.$1.attn.Wo.$2`,
	`layers\.(\d+)\.mlp\.fc\.(.*)`, `~layers.$1.mlp.Wi.$2`,
	`layers\.(\d+)\.mlp\.out\.(.*)`, `~layers.$1.mlp.Wo.$2`,
	`transform\.fc\.(.*)`, `head.dense.$1`,
	`transform\.norm\.(.*)`, `head.norm.$1`,
)

// modernBERT returns the architectures of nn.ModernBERT.
func modernBERT() (all []*architecture) {
	for task := nn.MaskedTokens; task <= nn.EmbedSequences; task++ {
		head := "classifier.$1"
		if task == nn.MaskedTokens {
			head = "decoder.$1"
		}
		headless := task == nn.Encode || task == nn.EmbedSequences
		names := slices.Concat(modernLayers, newRules(`head\.(.*)`, head))
		all = append(all, &architecture{
			kind: "modernbert", class: "ModernBert" + suffixes[task], base: "model.", task: &task, headless: headless,
			open: func(c *config) fsdp.Model { return openModern(c, task) },
			config: func(model fsdp.Model) (map[string]any, error) {
				if m, ok := model.(*nn.ModernBERT); ok && m.Task == task {
					return configModern(m)
				}
				return nil, nil
			},
			options: func(_ fsdp.Model, prefix string) *fsdp.ExportOptions { return names.options(prefix, sizes{}) },
			shapes:  func(model fsdp.Model) []shape { return shapesModern(model.(*nn.ModernBERT)) },
			copies: func(fsdp.Model) map[string]string {
				return map[string]string{"decoder.weight": "~embeddings.tok_embeddings.weight"}
			},
			extra: func(_ fsdp.Model, name string) bool { // heads that the model lacks
				return headless && (strings.HasPrefix(name, "head.") || strings.HasPrefix(name, "decoder."))
			},
			adapted: func(model fsdp.Model) (*nn.LoRA, []string) {
				m := model.(*nn.ModernBERT)
				return &m.LoRA, layers("layers", m.Layers, "attn.qkv", "attn.proj", "mlp.fc", "mlp.out")
			},
		})
	}
	return all
}

// shapesModern lists the shapes that check the sizes in config.json.
func shapesModern(m *nn.ModernBERT) []shape {
	width, layers := dim{"hidden_size", m.Dim}, dim{"num_hidden_layers", m.Layers}
	list := []shape{
		{"~embeddings.tok_embeddings.weight", []dim{{"vocab_size", m.Vocab}, width}, dim{}},
		{fmt.Sprintf("~layers.%d.mlp.Wo.weight", m.Layers-1), []dim{width, {"intermediate_size", m.Hidden}}, layers},
	}
	if m.Classes > 0 {
		list = append(list, shape{"classifier.weight", []dim{{"id2label", m.Classes}, width}, dim{}})
	}
	return list
}

func openModern(c *config, task nn.Task) fsdp.Model {
	m := &nn.ModernBERT{
		Vocab: c.size("vocab_size", 50368), Context: c.size("max_position_embeddings", 8192), Layers: c.size("num_hidden_layers", 22),
		Dim: c.size("hidden_size", 768), Heads: c.size("num_attention_heads", 12), Hidden: c.size("intermediate_size", 1152),
		Act: choose(c, "hidden_activation", "gelu", bertActivations), Eps: c.positive("norm_eps", 1e-5), Task: task,
	}
	c.heads("hidden_size", m.Dim, "num_attention_heads", m.Heads)
	if m.Act == nn.Tanh {
		c.fail("hidden_activation %q is not supported: no gated unit has it", "tanh")
	}
	m.Window = c.size("local_attention", 128)/2 + 1
	if m.FullEvery = c.fullEvery(c.size("global_attn_every_n_layers", 3), 0, m.Layers); m.FullEvery == 1 {
		m.Window, m.FullEvery = 0, 0
	}
	full, local := c.layerRopes("global_rope_theta", 160000, "local_rope_theta", false)
	if m.RopeBase = full.Base; m.Window > 0 {
		m.LocalRopeBase = local.Base
	}
	for _, key := range []string{"attention_bias", "mlp_bias", "norm_bias", "classifier_bias"} {
		only(c, key, false)
	}
	if task == nn.MaskedTokens {
		only(c, "decoder_bias", true)
		only(c, "tie_word_embeddings", true)
	}
	if task != nn.Encode && task != nn.EmbedSequences {
		if act := choose(c, "classifier_activation", "gelu", bertActivations); act != m.Act {
			c.fail("classifier_activation %q is not supported, only hidden_activation, %q", nameOf(bertActivations, act), nameOf(bertActivations, m.Act))
		}
	}
	if task == nn.ClassifySequences {
		m.MeanPool = choose(c, "classifier_pooling", "cls", map[string]bool{"cls": false, "mean": true})
		m.Classes, m.Targets = c.sequenceClasses()
	} else if task == nn.ClassifyTokens {
		m.Classes = len(c.classes())
	}
	c.training("attention_dropout", "embedding_dropout", "mlp_dropout", "classifier_dropout")
	c.ignore("decoder_bias", "tie_word_embeddings", "classifier_activation", "classifier_pooling", "initializer_cutoff_factor", "layer_norm_eps",
		"position_embedding_type", "reference_compile", "repad_logits_with_grad", "sparse_prediction", "sparse_pred_ignore_index",
		"deterministic_flash_attn")
	return m
}

func configModern(m *nn.ModernBERT) (map[string]any, error) {
	if m.Window == 1 || m.Window > 0 && m.LocalRopeBase == 0 || m.Window == 0 && m.LocalRopeBase != 0 {
		return nil, fmt.Errorf("nn.ModernBERT has no counterpart in transformers with Window %d and LocalRopeBase %v: want a Window of at least 2 with LocalRopeBase, or 0 for both",
			m.Window, m.LocalRopeBase)
	}
	act := nameOf(bertActivations, m.Act)
	full, local := ropeKeys(op.Rotary{Base: m.RopeBase}), ropeKeys(op.Rotary{Base: m.LocalRopeBase})
	keys := map[string]any{
		"vocab_size": m.Vocab, "max_position_embeddings": cmp.Or(m.Context, 8192), "num_hidden_layers": m.Layers, "hidden_size": m.Dim,
		"num_attention_heads": m.Heads, "intermediate_size": m.Hidden, "hidden_activation": act, "classifier_activation": act,
		"norm_eps": cmp.Or(m.Eps, 1e-5), "rope_parameters": map[string]any{fullLayer: full, localLayer: local},
		"global_rope_theta": full["rope_theta"], "local_rope_theta": local["rope_theta"],
		"layer_types":  layerTypes(m.Layers, func(i int) bool { return m.Window == 0 || m.FullEvery > 0 && i%m.FullEvery == 0 }),
		"bos_token_id": nil, "eos_token_id": nil, "pad_token_id": nil, "cls_token_id": nil, "sep_token_id": nil,
	}
	if m.Window > 0 {
		keys["local_attention"] = 2 * (m.Window - 1)
	}
	if m.Task == nn.ClassifySequences {
		keys["problem_type"], keys["classifier_pooling"] = nameOf(problems, m.Targets), "cls"
		if m.MeanPool {
			keys["classifier_pooling"] = "mean"
		}
	}
	if m.Classes > 0 {
		maps.Copy(keys, labelKeys(classNames(m.Classes)))
	}
	return keys, nil
}
