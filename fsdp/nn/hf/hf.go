package hf

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/phase"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

const (
	configFile  = "config.json"
	weightsFile = "model.safetensors"
	indexFile   = weightsFile + ".index.json"
)

// A Model is a model that transformers has, too. Methods of different Models may be called at the
// same time. Methods with a context are collective, like methods of [fsdp.Sharded].
type Model struct {
	// Model is the argument of fsdp.Wrap, such as a *nn.GPT. Some settings may be changed before
	// that: settings of training, Dropout and LoRA, settings for which Load needs no other tensors,
	// such as RopeBase, and Vocab, see NewRows. Save writes them.
	Model fsdp.Model

	// Ignored lists keys of config.json with an effect on training that Model does not have, with
	// their values.
	Ignored []string

	// Labels names the classes of a classification. Save writes them.
	Labels []string

	// Drawn lists the parameters of a new head, see OpenWithHead: Load leaves them as they are.
	Drawn []string

	// NewRows says how Load makes the rows of new tokens.
	NewRows NewRows

	// MaxTokens is the number of tokens that sentence-transformers keeps of a text, or 0. Model and
	// the tokenizer do not cut texts: the program does.
	MaxTokens int

	arch   *architecture
	labels []string       // of config.json
	keys   map[string]any // of config.json
	as     *architecture  // architecture of Model when it was made
	was    map[string]any // keys of config.json for Model when it was made
	prefix string         // of the names of tensors
	gamma  bool           // norms have the names of TensorFlow, as in the first files of BERT
	dtype  *fsdp.DType    // of the opened weights, or nil
	dir    string         // opened directory, or its directory of the encoder, or ""
	head   *Head          // of OpenWithHead or of sentence-transformers, or nil
	skip   []string       // patterns of keys and of tensors

	adapter map[string]matrix // of OpenAdapter, or nil
	kept    []string          // paths of files that Save copies
}

// An architecture is a kind of model, here and in transformers.
type architecture struct {
	kind, class string // model_type and architectures of config.json
	base        string // prefix of names in files of the class; files of the model without a head lack it

	pair     bool     // an encoder and a decoder
	task     *nn.Task // of an encoder with a choice of heads, or nil
	headless bool     // names have no prefix in files of the class

	open    func(c *config) fsdp.Model
	config  func(m fsdp.Model) (map[string]any, error)            // nil for a model of another kind
	options func(m fsdp.Model, prefix string) *fsdp.ExportOptions // how its parameters appear in transformers
	shapes  func(m fsdp.Model) []shape                            // of tensors in transformers
	copies  func(m fsdp.Model) map[string]string                  // further tensors that a file may have, and their originals
	untie   func(m fsdp.Model) bool                               // gives m its own head if config.json leaves that to the files; or nil
	extra   func(m fsdp.Model, name string) bool                  // whether a file may have a tensor that is no parameter; name is without prefix
	adapted func(m fsdp.Model) (lora *nn.LoRA, linear []string)   // the layers that LoRA adapts
}

var architectures = append([]*architecture{&gpt2, llama, mistral, qwen2, qwen3, gemma3, vit, t5}, append(encoders(), modernBERT()...)...)

// Open reads config.json and the names of the tensors in a directory. An error names the key, the
// file or the setting that is wrong or not supported. Open is not a collective; all ranks open the
// same directory.
//
// Open returns an error for unknown keys of config.json, and Load for tensors that the model lacks.
// Keys and tensors that match a pattern of skip are accepted and have no effect. Patterns have the
// syntax of [path.Match], such as "rope_scaling.note" for a key in an object, or "vision_tower.*".
func Open(dir string, skip ...string) (*Model, error) { return openAs(dir, nil, skip) }

// openAs opens a directory, with a new head unless it is nil.
func openAs(dir string, head *Head, skip []string) (*Model, error) {
	m, err := open(filepath.Clean(dir), head, skip)
	if err != nil {
		return nil, fmt.Errorf("hf: %s: %w", dir, err)
	}
	return m, nil
}

func open(dir string, head *Head, skip []string) (*Model, error) {
	for _, pattern := range skip {
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, fmt.Errorf("pattern %q: %w", pattern, err)
		}
	}
	m := &Model{dir: dir, head: head, skip: skip}
	root := dir
	if err := m.readModules(); err != nil {
		return nil, err
	}
	dir = m.dir
	if err := noAdapter(dir); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, configFile))
	if err != nil {
		return nil, err
	}
	if err := m.parse(text); err != nil {
		return nil, fmt.Errorf("%s: %w", configFile, err)
	}
	weights, err := weightsIn(dir)
	if err != nil {
		return nil, err
	}
	for name := range weights.of {
		if strings.HasPrefix(name, m.arch.base) {
			m.prefix = m.arch.base
		}
		m.gamma = m.gamma || strings.HasSuffix(name, "LayerNorm.gamma")
	}
	if err := m.pooler(weights); err != nil {
		return nil, err
	}
	shapes := slices.DeleteFunc(m.arch.shapes(m.Model), func(s shape) bool { return m.head != nil && !strings.HasPrefix(s.tensor, "~") })
	if err := weights.check(m.prefix, shapes); err != nil {
		return nil, err
	}
	first, _, err := weights.tensor(strings.ReplaceAll(shapes[0].tensor, "~", m.prefix))
	if err != nil {
		return nil, err
	}
	if dtype, ok := dtypes[first.DType]; ok {
		m.dtype = &dtype
	}
	embedding := m.arch.copies(m.Model)[headWeight]
	if other, err := weights.differ(m.prefix, headWeight, embedding); err != nil {
		return nil, err
	} else if other && m.arch.untie != nil && m.arch.untie(m.Model) {
		if m.as, m.was, err = describe(m.Model); err != nil {
			return nil, err
		}
	}
	if err := weights.checkCopies(m.prefix, m.arch.copies(m.Model)); err != nil {
		return nil, err
	}
	m.kept, err = m.keep(root)
	return m, err
}

// dtypes are the types of weights that Save can write.
var dtypes = map[safetensors.DType]fsdp.DType{
	safetensors.F32: fsdp.Float32, safetensors.F64: fsdp.Float64, safetensors.BF16: fsdp.BFloat16, safetensors.F16: fsdp.Float16,
}

// parse makes the model that config.json describes.
func (m *Model) parse(text []byte) error {
	c, err := parseConfig(text)
	if err != nil {
		return err
	}
	c.skip = m.skip
	kinds := make(map[string][]*architecture)
	for _, a := range architectures {
		kinds[a.kind] = append(kinds[a.kind], a)
	}
	found := choose(c, "model_type", "", kinds)
	if c.err != nil {
		return c.err
	}
	class, classes := get(c, "architectures", []string{found[0].class}), []string(nil)
	for _, a := range found {
		if a.task != nil && *a.task == nn.EmbedSequences { // config.json does not say
			continue
		}
		classes = append(classes, a.class)
		if len(class) == 1 && class[0] == a.class {
			m.arch = a
		}
	}
	if m.arch == nil {
		return fmt.Errorf("architectures %q is not supported, only %q", class, classes)
	}
	if m.head != nil {
		if err := m.replaceHead(c); err != nil {
			return err
		}
	}
	only(c, "is_encoder_decoder", m.arch.pair)
	only(c, "tie_encoder_decoder", false)
	only(c, "pruned_heads", map[string]any{})
	c.ignore("chunk_size_feed_forward", "tf_legacy_loss", "use_bfloat16")
	c.ignore(common...)
	c.training("neftune_noise_alpha")
	m.Model = m.arch.open(c)
	if m.head != nil {
		m.head.set(m.Model)
	}
	c.ignore("is_decoder") // it has no meaning for models that have not asked
	m.Ignored = c.ignored
	if c.end() != nil {
		return fmt.Errorf("%w (model_type %s)", c.err, m.arch.kind)
	}
	if m.as, m.was, err = describe(m.Model); err != nil {
		return err
	}
	m.Labels, m.labels = c.labels, slices.Clone(c.labels)
	m.keys = make(map[string]any)
	for key, value := range c.keys { // as text: 1.0 must stay a float
		m.keys[key] = value
	}
	if m.head != nil {
		m.keys["architectures"] = []string{m.arch.class}
		if problem, ok := m.was["problem_type"]; ok {
			m.keys["problem_type"] = problem
		}
		m.Labels, m.labels = slices.Clone(m.head.Labels), nil
	}
	return nil
}

// ReadConfig returns the model that the text of a config.json describes. It needs no weights:
// an [fsdp.Planner] can plan the model. It accepts keys that match a pattern of skip, see [Open].
func ReadConfig(text []byte, skip ...string) (fsdp.Model, error) {
	m := &Model{skip: skip}
	if err := m.parse(text); err != nil {
		return nil, fmt.Errorf("hf: %s: %w", configFile, err)
	}
	return m.Model, nil
}

// New returns a Model for a model that was made here, such as a *nn.GPT, for Save. It returns an
// error if transformers has no such model.
func New(model fsdp.Model) (*Model, error) {
	if v := reflect.ValueOf(model); v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, fmt.Errorf("hf: the %T is nil", model)
	}
	a, was, err := describe(model)
	if err != nil {
		return nil, fmt.Errorf("hf: %w", err)
	}
	keys := maps.Clone(was)
	maps.Copy(keys, map[string]any{"model_type": a.kind, "architectures": []string{a.class}})
	m := &Model{Model: model, arch: a, keys: keys, as: a, was: was, prefix: a.prefix()}
	if labels, ok := was["id2label"].(map[string]any); ok {
		m.Labels, m.labels = classNames(len(labels)), classNames(len(labels))
	}
	return m, nil
}

// prefix returns the prefix of names in files of the class.
func (a *architecture) prefix() string {
	if a.headless {
		return ""
	}
	return a.base
}

// describe returns the architecture of a model, and its keys of config.json.
func describe(model fsdp.Model) (*architecture, map[string]any, error) {
	for _, a := range architectures {
		if keys, err := a.config(model); err != nil || keys != nil {
			return a, floats(keys).(map[string]any), err
		}
	}
	return nil, nil, fmt.Errorf("%T has no counterpart in transformers", model)
}

// floats returns keys whose floats are written as floats: transformers does not accept 1 for 1.0.
func floats(v any) any {
	switch v := v.(type) {
	case map[string]any:
		all := make(map[string]any, len(v))
		for key, value := range v {
			all[key] = floats(value)
		}
		return all
	case float64:
		text := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(text, ".e") {
			text += ".0"
		}
		return json.RawMessage(text)
	}
	return v
}

// Load loads the weights in the opened directory into s, which is m.Model wrapped. Every rank reads
// its own shard, as [fsdp.Sharded.Import] does, whose errors it returns. Adapters get the values of
// OpenAdapter, or keep their initial values, which change nothing.
func (m *Model) Load(ctx context.Context, s *fsdp.Sharded) error {
	defer phase.Begin("hf: loading the weights of "+m.dir, 0).End()
	file, err := "", errors.New("hf: Load: the model was made by New, so there is no directory to load: use Open")
	if m.dir != "" {
		file, err = weights(m.dir)
	}
	copies := make(map[string]bool)
	for name := range m.arch.copies(m.Model) {
		copies[strings.ReplaceAll(name, "~", m.prefix)] = true
	}
	names := m.options()
	names.Rename = m.renameDrawn(names.Rename)
	with := ctx
	if err == nil {
		with, err = m.grow(ctx, names)
	}
	err = s.Import(state.WithError(with, err), file, &fsdp.ImportOptions{
		Rename: names.Rename, Transpose: names.Transpose, Concat: names.Concat,
		AllowMissing: func(name string) bool {
			return nn.IsAdapter(name) || strings.HasPrefix(name, newHead) || strings.HasPrefix(name, newRows)
		},
		AllowExtra: func(name string) bool {
			return copies[name] || m.head != nil && oldHead(strings.TrimPrefix(name, m.prefix)) || matches(m.skip, name) || m.arch.extra(m.Model, strings.TrimPrefix(name, m.prefix))
		},
	})
	if wrong := (*fsdp.StateError)(nil); errors.As(err, &wrong) && len(wrong.Extra) > 0 {
		return fmt.Errorf("hf: Load: %w: if a tensor does not belong to the model, skip it by hf.Open(dir, %q)", err, wrong.Extra[0])
	}
	if err != nil || m.adapter == nil {
		return m.larger(err)
	}
	return m.loadAdapter(ctx, s)
}

// toGamma renames norms as in TensorFlow.
var toGamma = strings.NewReplacer("LayerNorm.weight", "LayerNorm.gamma", "LayerNorm.bias", "LayerNorm.beta")

// options returns how parameters appear in the files.
func (m *Model) options() *fsdp.ExportOptions {
	return m.optionsWith(m.prefix)
}

// optionsWith is options for files with a prefix.
func (m *Model) optionsWith(prefix string) *fsdp.ExportOptions {
	opts := m.arch.options(m.Model, prefix)
	rename := opts.Rename
	if m.gamma {
		opts.Rename = func(name string) string { return toGamma.Replace(rename(name)) }
	}
	return opts
}

// Save writes s, which is m.Model wrapped, to a directory, which rank 0 creates with its parents:
// config.json, the weights, and the files of the tokenizer and of generation from the opened
// directory. It takes these options of [fsdp.Sharded.Export] and sets the others:
//
//	DType            the type of the weights; nil means the type in the opened directory or, for a
//	                 model of New, the type of the masters
//	MaxFileSize      bytes of a file, from which on there are several and an index
//	Metadata         text in the header
//	AllowNotFinite   tensors with values that are NaN or infinite
//
// Each file takes its place when all are on disk. Save does not write the adapters of LoRA. It
// refuses trained adapters until Merge has added them to the weights.
func (m *Model) Save(ctx context.Context, s *fsdp.Sharded, dir string, opts *fsdp.ExportOptions) error {
	defer phase.Begin("hf: saving the weights to "+dir, 0).End()
	for name := range m.adapters() {
		up := name + loraB
		err := s.Summon(ctx, []string{up}, func(params map[string]*tensor.Dense) error {
			if !zero(params[up]) {
				return fmt.Errorf("hf: the adapter of %s is trained: call Merge first, which adds it to the weight", name)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if opts == nil {
		opts = &fsdp.ExportOptions{}
	}
	dtype := cmp.Or(opts.DType, m.dtype)
	files, err := m.smallFiles(dtype)
	if opts.Rename != nil || opts.Transpose != nil || opts.Concat != nil || opts.Exclude != nil || opts.ExtraFiles != nil || opts.Optimizer != nil {
		err = errors.New("hf: Save sets Rename, Transpose, Concat, Exclude and ExtraFiles itself, and writes no Optimizer: call Export to choose them")
	}
	to := m.options()
	if m.head != nil { // files of the old class may have had another prefix
		to = m.optionsWith(m.arch.prefix())
	}
	to.DType, to.Metadata, to.AllowNotFinite, to.Exclude, to.ExtraFiles = dtype, opts.Metadata, opts.AllowNotFinite, nn.IsAdapter, files
	to.MaxFileSize = cmp.Or(opts.MaxFileSize, 1<<62) // an existing index must not stay
	return s.Export(state.WithError(ctx, err), filepath.Join(dir, weightsFile), to)
}

// smallFiles returns the small files for a directory.
func (m *Model) smallFiles(dtype *fsdp.DType) (map[string][]byte, error) {
	files := make(map[string][]byte)
	for _, path := range m.kept {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("hf: Save: %w", err)
		}
		files[filepath.Base(path)] = text
	}
	modules, err := moduleFiles(m.Model)
	if err != nil {
		return nil, fmt.Errorf("hf: Save: %w", err)
	}
	maps.Copy(files, modules)
	keys, err := m.keysNow()
	if err != nil {
		return nil, fmt.Errorf("hf: Save: %w", err)
	}
	delete(keys, "torch_dtype") // the old name of dtype
	delete(keys, "dtype")
	if dtype != nil {
		keys["dtype"] = dtype.String()
	}
	text, err := json.MarshalIndent(keys, "", "  ")
	files[configFile] = append(text, '\n')
	return files, err
}

// keysNow returns the keys of config.json, with the changes in Model.
func (m *Model) keysNow() (map[string]any, error) {
	as, now, err := describe(m.Model)
	if err != nil {
		return nil, err
	}
	if as != m.as {
		return nil, fmt.Errorf("the model has changed since it was opened: it is %s, and was %s", as.kind, m.as.kind)
	}
	keys := maps.Clone(m.keys)
	for key := range m.was {
		if _, ok := now[key]; !ok {
			delete(keys, key)
		}
	}
	for key, value := range now {
		if !reflect.DeepEqual(value, m.was[key]) {
			keys[key] = value
		}
	}
	if err := m.setLabels(keys, now); err != nil {
		return nil, err
	}
	if _, ok := now["layer_types"]; !ok && !reflect.DeepEqual(now["sliding_window"], m.was["sliding_window"]) {
		delete(keys, "layer_types") // it says the same
	}
	return keys, nil
}

// layers lists parts of the layers of a model: "blocks.0.qkv".
func layers(name string, n int, parts ...string) (all []string) {
	for i := range n {
		for _, part := range parts {
			all = append(all, fmt.Sprintf("%s.%d.%s", name, i, part))
		}
	}
	return all
}

// nameOf returns the first name of a value.
func nameOf[V comparable](of map[string]V, value V) string {
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if of[name] == value {
			return name
		}
	}
	return ""
}
