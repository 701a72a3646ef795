package hf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// The files of sentence-transformers.
const (
	modulesFile = "modules.json"
	poolingDir  = "1_Pooling"
)

// sentenceFiles are the names that the configuration of a Transformer module may have.
var sentenceFiles = []string{
	"sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json", "sentence_xlm-roberta_config.json",
}

// transformers are the types of the first module. Version 0 had one for each model_type.
var transformers = []string{"Transformer", "BERT", "RoBERTa", "DistilBERT", "XLMRoBERTa"}

// A sentenceModule is an entry of modules.json.
type sentenceModule struct{ Path, Type string }

// name returns the type without the package, whose name has changed between versions.
func (s sentenceModule) name() string {
	if !strings.HasPrefix(s.Type, "sentence_transformers.") {
		return s.Type
	}
	return s.Type[strings.LastIndexByte(s.Type, '.')+1:]
}

// readModules reads modules.json, if the directory has one. It sets the directory of the encoder
// and, unless OpenWithHead replaces it, the head.
func (m *Model) readModules() error {
	var modules []sentenceModule
	root := m.dir
	text, err := os.ReadFile(filepath.Join(root, modulesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &modules)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", modulesFile, err)
	}
	var names []string
	for i, s := range modules {
		if names = append(names, s.name()); s.Path != "" && !filepath.IsLocal(s.Path) {
			return fmt.Errorf("%s: module %d has path %q, want a directory within this one", modulesFile, i, s.Path)
		}
	}
	if len(names) > 0 && slices.Contains(transformers, names[0]) {
		names[0], m.dir = "Transformer", filepath.Join(root, modules[0].Path)
	}
	if m.head != nil {
		return nil
	}
	if list := strings.Join(names, " "); list != "Transformer Pooling" && list != "Transformer Pooling Normalize" {
		return fmt.Errorf("%s: modules %q are not supported, only Transformer, Pooling and perhaps Normalize: "+
			"hf.OpenWithHead opens the encoder with another head", modulesFile, names)
	}
	if err := m.readLimit(); err != nil {
		return err
	}
	m.head = &Head{Task: nn.EmbedSequences, Normalize: len(names) == 3}
	return m.readObject(filepath.Join(root, modules[1].Path), configFile, m.readPooling)
}

// readObject reads a file of the directory dir, if there is one.
func (m *Model) readObject(dir, name string, read func(c *config)) error {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var c *config
	if err == nil {
		c, err = parseConfig(text)
	}
	if err == nil {
		c.skip = m.skip
		read(c)
		err = c.end()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(filepath.Base(dir), name), err)
	}
	return nil
}

// readPooling reads the configuration of a Pooling module. Old ones have a key for each mode.
func (m *Model) readPooling(c *config) {
	var modes []string
	switch mode := get[any](c, "pooling_mode", nil).(type) {
	case nil:
	case []any:
		for _, name := range mode {
			modes = append(modes, fmt.Sprint(name))
		}
	default:
		modes = append(modes, fmt.Sprint(mode))
	}
	for _, mode := range []string{"cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"} {
		if get(c, "pooling_mode_"+mode, false) {
			modes = append(modes, strings.TrimSuffix(strings.TrimSuffix(mode, "_tokens"), "_token"))
		}
	}
	if len(modes) == 0 {
		modes = []string{"mean"}
	}
	if len(modes) > 1 || modes[0] != "mean" && modes[0] != "cls" {
		c.fail(`pooling_mode %q is not supported, only one of "cls" and "mean"`, modes)
	}
	m.head.MeanPool = modes[0] == "mean"
	only(c, "include_prompt", true)
	c.ignore("word_embedding_dimension", "embedding_dimension") // hidden_size
}

// readLimit reads the configuration of the Transformer module, and the number of tokens of a text.
func (m *Model) readLimit() error {
	limit := 0.0
	for _, name := range sentenceFiles {
		err := m.readObject(m.dir, name, func(c *config) {
			limit = cmp.Or(limit, get(c, "max_seq_length", 0.0))
			only(c, "transformer_task", "feature-extraction")
			only(c, "module_output_name", "token_embeddings")
			only(c, "modality_config", map[string]any{"text": map[string]any{"method": "forward", "method_output_name": "last_hidden_state"}})
			c.ignore("unpad_inputs") // it saves time
		})
		if err != nil {
			return err
		}
	}
	var settings struct {
		Limit float64 `json:"model_max_length"` // 1e30 means none
	}
	text, err := os.ReadFile(filepath.Join(m.dir, "tokenizer_config.json"))
	if err == nil {
		err = json.Unmarshal(text, &settings)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("tokenizer_config.json: %w", err)
	}
	if limit = cmp.Or(limit, settings.Limit); limit < math.MaxInt32 {
		m.MaxTokens = int(limit)
	}
	return nil
}

// moduleFiles returns the files of sentence-transformers for an encoder with nn.EmbedSequences, in
// the layout that all versions from 2 on read.
func moduleFiles(model fsdp.Model) (map[string][]byte, error) {
	var task nn.Task
	var mean, normalize bool
	dim := 0
	switch e := model.(type) {
	case *nn.BERT:
		task, dim, mean, normalize = e.Task, e.Dim, e.MeanPool, e.Normalize
	case *nn.ModernBERT:
		task, dim, mean, normalize = e.Task, e.Dim, e.MeanPool, e.Normalize
	}
	if task != nn.EmbedSequences {
		return nil, nil
	}
	names := []string{"Transformer", "Pooling"}
	if normalize {
		names = append(names, "Normalize")
	}
	var modules []map[string]any
	for i, name := range names {
		path := ""
		if i > 0 {
			path = fmt.Sprintf("%d_%s", i, name)
		}
		modules = append(modules, map[string]any{"idx": i, "name": fmt.Sprint(i), "path": path, "type": "sentence_transformers.models." + name})
	}
	list, err1 := json.MarshalIndent(modules, "", "  ")
	pooling, err2 := json.MarshalIndent(map[string]any{
		"word_embedding_dimension": dim, "pooling_mode_cls_token": !mean, "pooling_mode_mean_tokens": mean,
		"pooling_mode_max_tokens": false, "pooling_mode_mean_sqrt_len_tokens": false,
	}, "", "  ")
	return map[string][]byte{modulesFile: append(list, '\n'), poolingDir + "/" + configFile: append(pooling, '\n')}, errors.Join(err1, err2)
}
