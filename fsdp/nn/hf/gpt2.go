package hf

import (
	"cmp"
	"fmt"
	"regexp"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// gpt2 is nn.GPT in transformers.
var gpt2 = architecture{
	kind: "gpt2", class: "GPT2LMHeadModel", base: "transformer.",
	open: openGPT2, config: configGPT2,
	options: func(_ fsdp.Model, prefix string) *fsdp.ExportOptions { return nn.ToGPT2(prefix) },
	shapes: func(model fsdp.Model) []shape {
		m := model.(*nn.GPT)
		vocab, dim1, layers := dim{"vocab_size", m.Vocab}, dim{"n_embd", m.Dim}, dim{"n_layer", m.Layers}
		return []shape{
			{"~wte.weight", []dim{vocab, dim1}, dim{}},
			{"~wpe.weight", []dim{{"n_positions", m.Context}, dim1}, dim{}},
			{fmt.Sprintf("~h.%d.mlp.c_fc.weight", m.Layers-1), []dim{dim1, {"n_embd", 4 * m.Dim}}, layers},
		}
	},
	copies: func(m fsdp.Model) map[string]string { return tied(m.(*nn.GPT).Tied, "~wte.weight") },
	extra:  func(_ fsdp.Model, name string) bool { return gpt2Mask.MatchString(name) },
	adapted: func(m fsdp.Model) (*nn.LoRA, []string) {
		gpt := m.(*nn.GPT)
		return &gpt.LoRA, layers("blocks", gpt.Layers, "qkv", "proj", "fc", "out")
	},
}

var gpt2Activations = map[string]nn.Activation{
	"gelu_new": nn.GELUTanh, "gelu_pytorch_tanh": nn.GELUTanh, "gelu": nn.GELU, "relu": nn.ReLU,
}

// gpt2Mask matches the causal masks that old files hold as tensors.
var gpt2Mask = regexp.MustCompile(`^h\.\d+\.attn\.(masked_)?bias$`)

func openGPT2(c *config) fsdp.Model {
	m := &nn.GPT{
		Vocab: c.size("vocab_size", 50257), Context: c.size("n_positions", 1024),
		Layers: c.size("n_layer", 12), Dim: c.size("n_embd", 768), Heads: c.size("n_head", 12),
		Act: choose(c, "activation_function", "gelu_new", gpt2Activations),
		Eps: c.positive("layer_norm_epsilon", 1e-5), Tied: get(c, "tie_word_embeddings", true),
	}
	c.heads("n_embd", m.Dim, "n_head", m.Heads)
	only(c, "n_ctx", m.Context)
	only(c, "n_inner", 4*m.Dim)
	only(c, "scale_attn_weights", true)
	only(c, "scale_attn_by_inverse_layer_idx", false)
	only(c, "reorder_and_upcast_attn", false)
	only(c, "add_cross_attention", false)
	c.training("resid_pdrop", "embd_pdrop", "attn_pdrop")
	c.ignore("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
		"n_special", "predict_special_tokens")
	return m
}

func configGPT2(model fsdp.Model) (map[string]any, error) {
	m, ok := model.(*nn.GPT)
	if !ok {
		return nil, nil
	}
	if m.NoBias {
		return nil, fmt.Errorf("nn.GPT without biases has no counterpart in transformers")
	}
	return map[string]any{
		"vocab_size": m.Vocab, "n_positions": m.Context, "n_layer": m.Layers, "n_embd": m.Dim, "n_head": m.Heads,
		"activation_function": nameOf(gpt2Activations, m.Act), "layer_norm_epsilon": cmp.Or(m.Eps, 1e-5),
		"tie_word_embeddings": m.Tied, "resid_pdrop": m.Dropout, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
		"bos_token_id": nil, "eos_token_id": nil,
	}, nil
}
