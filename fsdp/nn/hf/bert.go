package hf

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// A family is the encoders of one model_type, with all heads.
type family struct {
	kind, base, class string            // class is the beginning of the names of classes
	layers            rules             // of the parameters that all tasks have
	heads             map[nn.Task]rules // of the others
	copies            map[string]string // of nn.MaskedTokens
	keys              map[string]string // of config.json, by the names in BERT's, where they differ
	shape             string            // of the last layer's tensor that has hidden_size and intermediate_size
	open              func(c *config, m *nn.BERT)
	is                func(m *nn.BERT) bool
}

// suffixes of the names of classes.
var suffixes = map[nn.Task]string{
	nn.MaskedTokens: "ForMaskedLM", nn.Encode: "Model", nn.ClassifySequences: "ForSequenceClassification", nn.ClassifyTokens: "ForTokenClassification",
	nn.EmbedSequences: "Model",
}

var families = []*family{
	{
		kind: "bert", base: "bert.", class: "Bert", layers: bertLayers, is: func(m *nn.BERT) bool { return m.Kinds >= 0 && m.FirstPosition == 0 },
		heads: map[nn.Task]rules{
			nn.MaskedTokens: newRules(
				`transform\.fc\.(.*)`, `cls.predictions.transform.dense.$1`,
				`transform\.norm\.(.*)`, `cls.predictions.transform.LayerNorm.$1`,
				`head\.bias`, `cls.predictions.bias`),
			nn.Encode:            newRules(`pool\.(.*)`, `~pooler.dense.$1`),
			nn.ClassifySequences: newRules(`pool\.(.*)`, `~pooler.dense.$1`, `head\.(.*)`, `classifier.$1`),
			nn.ClassifyTokens:    newRules(`head\.(.*)`, `classifier.$1`),
		},
		copies: map[string]string{"cls.predictions.decoder.weight": "~embeddings.word_embeddings.weight", "cls.predictions.decoder.bias": "cls.predictions.bias"},
		shape:  "~encoder.layer.%d.output.dense.weight",
		open:   func(c *config, m *nn.BERT) { openBERT(c, m, 0) },
	},
	{
		kind: "roberta", base: "roberta.", class: "Roberta", layers: bertLayers, is: func(m *nn.BERT) bool { return m.Kinds >= 0 && m.FirstPosition > 0 },
		heads: map[nn.Task]rules{
			nn.MaskedTokens: newRules(
				`transform\.fc\.(.*)`, `lm_head.dense.$1`,
				`transform\.norm\.(.*)`, `lm_head.layer_norm.$1`,
				`head\.bias`, `lm_head.bias`),
			nn.Encode:            newRules(`pool\.(.*)`, `~pooler.dense.$1`),
			nn.ClassifySequences: newRules(`pool\.(.*)`, `classifier.dense.$1`, `head\.(.*)`, `classifier.out_proj.$1`),
			nn.ClassifyTokens:    newRules(`head\.(.*)`, `classifier.$1`),
		},
		copies: map[string]string{"lm_head.decoder.weight": "~embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"},
		shape:  "~encoder.layer.%d.output.dense.weight",
		open: func(c *config, m *nn.BERT) {
			pad := get(c, "pad_token_id", 1)
			if pad < 0 {
				c.fail("pad_token_id is %d, want at least 0: positions begin after it", pad)
			}
			openBERT(c, m, pad+1)
			if m.Task == nn.MaskedTokens && m.Act != nn.GELU {
				c.fail("hidden_act %q is not supported, only \"gelu\": the head of masked tokens has no other", nameOf(bertActivations, m.Act))
			}
		},
	},
	{
		kind: "distilbert", base: "distilbert.", class: "DistilBert", is: func(m *nn.BERT) bool { return m.Kinds < 0 },
		layers: newRules(
			`embed\.(.*)`, `~embeddings.word_embeddings.$1`,
			`positions\.(.*)`, `~embeddings.position_embeddings.$1`,
			`embed_norm\.(.*)`, `~embeddings.LayerNorm.$1`,
			`layers\.(\d+)\.attn_norm\.(.*)`, `~transformer.layer.$1.sa_layer_norm.$2`,
			`layers\.(\d+)\.mlp_norm\.(.*)`, `~transformer.layer.$1.output_layer_norm.$2`,
			`layers\.(\d+)\.attn\.qkv\.(.*)`, `~transformer.layer.$1.attention.q_lin.$2|~transformer.layer.$1.attention.k_lin.$2|~transformer.layer.$1.attention.v_lin.$2`,
			`layers\.(\d+)\.attn\.proj\.(.*)`, `~transformer.layer.$1.attention.out_lin.$2`,
			`layers\.(\d+)\.mlp\.fc\.(.*)`, `~transformer.layer.$1.ffn.lin1.$2`,
			`layers\.(\d+)\.mlp\.out\.(.*)`, `~transformer.layer.$1.ffn.lin2.$2`),
		heads: map[nn.Task]rules{
			nn.MaskedTokens: newRules(
				`transform\.fc\.(.*)`, `vocab_transform.$1`,
				`transform\.norm\.(.*)`, `vocab_layer_norm.$1`,
				`head\.bias`, `vocab_projector.bias`),
			nn.ClassifySequences: newRules(`pool\.(.*)`, `pre_classifier.$1`, `head\.(.*)`, `classifier.$1`),
			nn.ClassifyTokens:    newRules(`head\.(.*)`, `classifier.$1`),
		},
		copies: map[string]string{"vocab_projector.weight": "~embeddings.word_embeddings.weight"},
		shape:  "~transformer.layer.%d.ffn.lin2.weight",
		keys: map[string]string{
			"num_hidden_layers": "n_layers", "hidden_size": "dim", "num_attention_heads": "n_heads", "intermediate_size": "hidden_dim",
			"hidden_act": "activation", "hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout",
		},
		open: func(c *config, m *nn.BERT) {
			m.Kinds, m.PoolReLU, m.NoPooler = -1, m.Task == nn.ClassifySequences, m.Task == nn.Encode
			m.Context = c.size("max_position_embeddings", 512)
			only(c, "sinusoidal_pos_embds", false)
			c.training("seq_classif_dropout")
			c.ignore("qa_dropout", "tie_weights_")
		},
	},
}

var bertLayers = newRules(
	`embed\.(.*)`, `~embeddings.word_embeddings.$1`,
	`kinds\.(.*)`, `~embeddings.token_type_embeddings.$1`,
	`positions\.(.*)`, `~embeddings.position_embeddings.$1`,
	`embed_norm\.(.*)`, `~embeddings.LayerNorm.$1`,
	`layers\.(\d+)\.attn_norm\.(.*)`, `~encoder.layer.$1.attention.output.LayerNorm.$2`,
	`layers\.(\d+)\.mlp_norm\.(.*)`, `~encoder.layer.$1.output.LayerNorm.$2`,
	`layers\.(\d+)\.attn\.qkv\.(.*)`, `~encoder.layer.$1.attention.self.query.$2|~encoder.layer.$1.attention.self.key.$2|~encoder.layer.$1.attention.self.value.$2`,
	`layers\.(\d+)\.attn\.proj\.(.*)`, `~encoder.layer.$1.attention.output.dense.$2`,
	`layers\.(\d+)\.mlp\.fc\.(.*)`, `~encoder.layer.$1.intermediate.dense.$2`,
	`layers\.(\d+)\.mlp\.out\.(.*)`, `~encoder.layer.$1.output.dense.$2`,
)

var bertActivations = map[string]nn.Activation{
	"gelu": nn.GELU, "gelu_new": nn.GELUTanh, "gelu_pytorch_tanh": nn.GELUTanh, "relu": nn.ReLU, "silu": nn.SiLU, "tanh": nn.Tanh,
}

// problems are the values of problem_type.
var problems = map[string]nn.Targets{
	"single_label_classification": nn.OneClass, "multi_label_classification": nn.ManyClasses, "regression": nn.Numbers,
}

// encoders are the architectures of all families. XLM-RoBERTa is RoBERTa with another vocabulary,
// so New makes a RoBERTa.
func encoders() (all []*architecture) {
	xlm := *families[slices.IndexFunc(families, func(f *family) bool { return f.kind == "roberta" })]
	xlm.kind, xlm.class, xlm.is = "xlm-roberta", "XLMRoberta", func(*nn.BERT) bool { return false }
	for _, f := range append(families, &xlm) {
		for task := nn.MaskedTokens; task <= nn.EmbedSequences; task++ {
			all = append(all, f.architecture(task))
		}
	}
	return all
}

// architecture returns the encoder with the head of a task.
func (f *family) architecture(task nn.Task) *architecture {
	names := slices.Concat(f.layers, f.heads[task])
	a := &architecture{
		kind: f.kind, class: f.class + suffixes[task], base: f.base, task: &task, headless: task == nn.Encode || task == nn.EmbedSequences,
		open: func(c *config) fsdp.Model { return f.read(c, task) },
		config: func(model fsdp.Model) (map[string]any, error) {
			if m, ok := model.(*nn.BERT); ok && f.is(m) && m.Task == task {
				return f.config(m)
			}
			return nil, nil
		},
		options: func(model fsdp.Model, prefix string) *fsdp.ExportOptions {
			m := model.(*nn.BERT)
			return names.options(prefix, sizes{q: m.Dim, kv: m.Dim})
		},
		shapes: func(model fsdp.Model) []shape { return f.shapes(model.(*nn.BERT), names) },
		copies: func(fsdp.Model) map[string]string { return nil },
		extra: func(model fsdp.Model, name string) bool { // heads that the model lacks
			unused := strings.HasPrefix(name, "pooler.") && task != nn.Encode && task != nn.ClassifySequences
			return unused || strings.HasPrefix(name, "cls.seq_relationship.") && task == nn.MaskedTokens || name == "embeddings.position_ids"
		},
		adapted: func(model fsdp.Model) (*nn.LoRA, []string) {
			m := model.(*nn.BERT)
			return &m.LoRA, layers("layers", m.Layers, "attn.qkv", "attn.proj", "mlp.fc", "mlp.out")
		},
	}
	if task == nn.MaskedTokens {
		a.copies = func(fsdp.Model) map[string]string { return f.copies }
	}
	return a
}

// key returns the name of a key of BERT's in the files of the family.
func (f *family) key(name string) string { return cmp.Or(f.keys[name], name) }

// shapes lists the shapes that check the sizes in config.json.
func (f *family) shapes(m *nn.BERT, names rules) []shape {
	width, layers := dim{f.key("hidden_size"), m.Dim}, dim{f.key("num_hidden_layers"), m.Layers}
	list := []shape{
		{"~embeddings.word_embeddings.weight", []dim{{"vocab_size", m.Vocab}, width}, dim{}},
		{"~embeddings.position_embeddings.weight", []dim{{"max_position_embeddings", m.FirstPosition + m.Context}, width}, dim{}},
		{fmt.Sprintf(f.shape, m.Layers-1), []dim{width, {f.key("intermediate_size"), m.Hidden}}, layers},
	}
	if m.Kinds > 0 {
		list = append(list, shape{"~embeddings.token_type_embeddings.weight", []dim{{"type_vocab_size", m.Kinds}, width}, dim{}})
	}
	if m.Classes > 0 {
		list = append(list, shape{names.names("~", "head.weight")[0], []dim{{"id2label", m.Classes}, width}, dim{}})
	}
	return list
}

// read makes the model of config.json.
func (f *family) read(c *config, task nn.Task) fsdp.Model {
	m := &nn.BERT{
		Vocab: c.size("vocab_size", 0), Layers: c.size(f.key("num_hidden_layers"), 0), Dim: c.size(f.key("hidden_size"), 0),
		Heads: c.size(f.key("num_attention_heads"), 0), Hidden: c.size(f.key("intermediate_size"), 0),
		Act: choose(c, f.key("hidden_act"), "gelu", bertActivations), Task: task,
	}
	c.heads(f.key("hidden_size"), m.Dim, f.key("num_attention_heads"), m.Heads)
	only(c, "tie_word_embeddings", true)
	c.training(f.key("hidden_dropout_prob"), f.key("attention_probs_dropout_prob"))
	switch task {
	case nn.ClassifySequences:
		m.Classes, m.Targets = c.sequenceClasses()
	case nn.ClassifyTokens:
		m.Classes = len(c.classes())
	}
	f.open(c, m)
	return m
}

// sequenceClasses returns the number of classes of sequences, and their targets.
func (c *config) sequenceClasses() (int, nn.Targets) {
	n, problem := len(c.classes()), "single_label_classification"
	if n == 1 { // as transformers chooses
		problem = "regression"
	}
	return n, choose(c, "problem_type", problem, problems)
}

// openBERT reads the keys that DistilBERT lacks.
func openBERT(c *config, m *nn.BERT, first int) {
	m.Kinds, m.Eps, m.FirstPosition = c.size("type_vocab_size", 2), c.positive("layer_norm_eps", 1e-12), first
	rows := c.size("max_position_embeddings", 512)
	if m.Context = rows - first; m.Context < 1 {
		c.fail("max_position_embeddings is %d, but positions begin at %d", rows, first)
	}
	only(c, "position_embedding_type", "absolute")
	only(c, "add_cross_attention", false)
	only(c, "is_decoder", false)
	c.training("classifier_dropout")
	c.ignore("gradient_checkpointing", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
		"pooler_size_per_head", "pooler_type", "directionality")
}

// config returns the keys of a model.
func (f *family) config(m *nn.BERT) (map[string]any, error) {
	if m.Task == nn.Encode && !m.NoPooler && f.heads[nn.Encode] == nil {
		return nil, fmt.Errorf("nn.BERT without kinds of tokens has no pooler in transformers: set NoPooler")
	}
	if relu := f.kind == "distilbert"; m.Task == nn.ClassifySequences && m.PoolReLU != relu {
		return nil, fmt.Errorf("nn.BERT with PoolReLU %v has no counterpart in transformers: %s has %v", m.PoolReLU, f.kind, relu)
	}
	keys := map[string]any{
		"vocab_size": m.Vocab, "max_position_embeddings": m.FirstPosition + m.Context, f.key("num_hidden_layers"): m.Layers,
		f.key("hidden_size"): m.Dim, f.key("num_attention_heads"): m.Heads, f.key("intermediate_size"): m.Hidden,
		f.key("hidden_act"): nameOf(bertActivations, m.Act), f.key("hidden_dropout_prob"): m.Dropout, f.key("attention_probs_dropout_prob"): 0.0,
	}
	if f.kind == "distilbert" {
		if cmp.Or(m.Eps, 1e-12) != 1e-12 || m.FirstPosition != 0 {
			return nil, fmt.Errorf("nn.BERT without kinds of tokens has no counterpart in transformers with Eps %v and FirstPosition %d: want 1e-12 and 0", m.Eps, m.FirstPosition)
		}
		keys["sinusoidal_pos_embds"] = false
	} else {
		keys["type_vocab_size"], keys["layer_norm_eps"] = cmp.Or(m.Kinds, 2), cmp.Or(m.Eps, 1e-12)
	}
	if f.kind == "roberta" {
		keys["pad_token_id"] = m.FirstPosition - 1
	}
	if m.Task == nn.ClassifySequences {
		keys["problem_type"] = nameOf(problems, m.Targets)
	}
	if m.Classes > 0 {
		maps.Copy(keys, labelKeys(classNames(m.Classes)))
	}
	return keys, nil
}
