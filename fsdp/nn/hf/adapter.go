package hf

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// An adapter of PEFT has two matrices for each module of the model that it adapts. Modules that are
// one layer here, such as queries, keys and values, have one adapter here, which has one lora_a.
// The two ways compute the same:
//
//	from here to PEFT   every module gets the lora_a of the layer, and its own rows of lora_b
//	from PEFT to here   the layer's lora_a has the lora_A of all its modules, one below the other, and its
//	                    lora_b has the lora_B of each module in its rows and in the columns of its lora_A

// A module is a linear layer of transformers, as a part of a linear layer here.
type module struct {
	name        string // with the prefix of PEFT
	first, rows int    // rows of the layer's weight
}

// modules returns the modules of a linear layer whose weight has that many rows.
func (m *Model) modules(layer string, rows int) (list []module) {
	opts := m.arch.options(m.Model, m.arch.base)
	add := func(weight string, rows int) {
		first := 0
		if n := len(list); n > 0 {
			first = list[n-1].first + list[n-1].rows
		}
		list = append(list, module{"base_model.model." + strings.TrimSuffix(weight, ".weight"), first, rows})
	}
	if opts.Concat != nil {
		for _, p := range opts.Concat(layer + ".weight") {
			add(p.Name, p.Rows)
		}
	}
	if len(list) == 0 {
		add(opts.Rename(layer+".weight"), rows)
	}
	return list
}

// The names of the two matrices, after the name of their module.
const peftA, peftB = ".lora_A.weight", ".lora_B.weight"

// SaveAdapter writes the adapters of s, which is m.Model wrapped with LoRA, to a directory of PEFT:
// adapter_config.json and adapter_model.safetensors, in float32. Python's peft reads it, and so do
// programs that serve models with adapters. Every rank writes the files, so all hosts have them. It
// is an error if other parameters train as well, as the directory has no place for them, or if an
// adapter has a value that is NaN or infinite.
//
// If the process is killed, or after a power failure, the directory has the old adapter, the new
// one, or no adapter_config.json, without which no program reads an adapter.
func (m *Model) SaveAdapter(ctx context.Context, s *fsdp.Sharded, dir string) error {
	var names []string
	for layer := range m.adapters() {
		names = append(names, layer+loraA, layer+loraB)
	}
	if len(names) == 0 {
		return errors.New("hf: SaveAdapter: the model has no adapters: set its LoRA before Wrap")
	}
	if was, now, err := m.tokens(); err != nil {
		return fmt.Errorf("hf: SaveAdapter: %w", err)
	} else if was != now {
		return fmt.Errorf("hf: SaveAdapter: the base model in %s has %d tokens, and the model has %d: "+
			"call Save before the training, and open the new directory", m.dir, was, now)
	}
	for _, p := range s.Params() {
		if !nn.IsAdapter(p.Name) {
			return fmt.Errorf("hf: SaveAdapter: %s is trained too, but an adapter cannot contain it: "+
				"freeze it by Config.Frozen, or call Merge and Save", p.Name)
		}
	}
	return s.Summon(ctx, names, func(params map[string]*tensor.Dense) error {
		if err := m.writeAdapter(dir, params); err != nil {
			return fmt.Errorf("hf: SaveAdapter: %w", err)
		}
		return nil
	})
}

// writeAdapter writes the files of an adapter.
func (m *Model) writeAdapter(dir string, params map[string]*tensor.Dense) error {
	matrices, targets := make(map[string]matrix), make(map[string]bool)
	var lora nn.LoRA
	for layer, l := range m.adapters() {
		lora = l
		a, b := matrixOf(params[layer+loraA]), matrixOf(params[layer+loraB])
		if err := cmp.Or(a.finite(layer+loraA), b.finite(layer+loraB)); err != nil {
			return err
		}
		for _, part := range m.modules(layer, b.rows) {
			matrices[part.name+peftA] = a
			matrices[part.name+peftB] = matrix{part.rows, b.columns, b.values[part.first*b.columns:][:part.rows*b.columns]}
			targets[part.name[strings.LastIndexByte(part.name, '.')+1:]] = true
		}
	}
	base, _ := m.keys["_name_or_path"].(string)
	if text, ok := m.keys["_name_or_path"].(json.RawMessage); ok && json.Unmarshal(text, &base) != nil {
		base = ""
	}
	task := map[string]any{"t5": "SEQ_2_SEQ_LM", "bert": nil, "vit": nil}
	kind, ok := task[m.arch.kind]
	if !ok {
		kind = "CAUSAL_LM"
	}
	config, err := json.MarshalIndent(floats(map[string]any{
		"peft_type": "LORA", "task_type": kind, "base_model_name_or_path": cmp.Or(base, m.dir), "inference_mode": true,
		"r": lora.Rank, "lora_alpha": cmp.Or(lora.Alpha, float64(lora.Rank)), "lora_dropout": 0.0, "use_rslora": false, "bias": "none",
		"target_modules": slices.Sorted(maps.Keys(targets)), "fan_in_fan_out": m.arch.kind == gpt2.kind, "init_lora_weights": true,
	}), "", "  ")
	if err != nil {
		return err
	}
	weights, err := encode(matrices)
	if err != nil {
		return err
	}
	return replaceAdapter(checkpoint.OS(), dir, weights, append(config, '\n'))
}

// replaceAdapter writes the files of an adapter. The settings give the weights their meaning, so a
// directory must never have the settings of one adapter and the weights of another, also after a
// power failure. If the settings change, their file is missing until the new weights have replaced
// the old ones on disk.
func replaceAdapter(fsys checkpoint.FS, dir string, weights, config []byte) (err error) {
	if err := checkpoint.MakeDir(fsys, dir); err != nil {
		return err
	}
	weightsPath, configPath := filepath.Join(dir, adapterWeights), filepath.Join(dir, adapterConfig)
	newWeights, err := writeBeside(fsys, weightsPath, weights)
	if err != nil {
		return err
	}
	newConfig, err := writeBeside(fsys, configPath, config)
	defer func() {
		for _, name := range []string{newWeights, newConfig} {
			if err != nil && name != "" {
				err = errors.Join(err, fsys.RemoveAll(name)) // it is missing if it has been renamed
			}
		}
	}()
	if err != nil {
		return err
	}
	if newConfig != "" {
		if err := fsys.RemoveAll(configPath); err != nil {
			return err
		}
		if err := fsys.SyncDir(dir); err != nil {
			return err
		}
	}
	if newWeights != "" {
		if err := fsys.Rename(newWeights, weightsPath); err != nil {
			return err
		}
	}
	if newConfig != "" {
		if err := fsys.SyncDir(dir); err != nil {
			return err
		}
		if err := fsys.Rename(newConfig, configPath); err != nil {
			return err
		}
	}
	return fsys.SyncDir(dir)
}

// writeBeside writes a file next to path that can replace path, and returns its name. It returns ""
// if path has the text already, for example because another rank has written it.
func writeBeside(fsys checkpoint.FS, path string, text []byte) (name string, err error) {
	same, err := hasText(fsys, path, text)
	if same || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	name = fmt.Sprintf("%s.%08x.tmp", path, rand.Uint32())
	if err := checkpoint.WriteFile(fsys, name, text); err != nil {
		return "", errors.Join(err, fsys.RemoveAll(name))
	}
	return name, nil
}

// hasText reports whether a file has a text.
func hasText(fsys checkpoint.FS, path string, text []byte) (is bool, err error) {
	f, err := fsys.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil || size != int64(len(text)) {
		return false, err
	}
	there := make([]byte, size)
	err = safetensors.ReadFull(f, there, 0)
	return err == nil && bytes.Equal(there, text), err
}

// A matrix is row-major.
type matrix struct {
	rows, columns int
	values        []float64
}

func matrixOf(t *tensor.Dense) matrix {
	m := matrix{t.Shape()[0], t.Shape()[1], nil}
	if t.Dtype() == tensor.Float64 {
		m.values = t.Float64s()
		return m
	}
	for _, x := range t.Float32s() {
		m.values = append(m.values, float64(x))
	}
	return m
}

// finite returns an error if an element is NaN or infinite as float32.
func (m matrix) finite(name string) error {
	for i, v := range m.values {
		if x := float64(float32(v)); math.IsNaN(x) || math.IsInf(x, 0) {
			return fmt.Errorf("element %d of parameter %s is %v: load an earlier checkpoint", i, name, v)
		}
	}
	return nil
}

// copyTo writes the matrix to the memory of a tensor.
func (m matrix) copyTo(t *tensor.Dense) {
	if t.Dtype() == tensor.Float64 {
		copy(t.Float64s(), m.values)
		return
	}
	to := t.Float32s()
	for i, x := range m.values {
		to[i] = float32(x)
	}
}

// encode returns a file with matrices, in float32.
func encode(matrices map[string]matrix) ([]byte, error) {
	var list []safetensors.Tensor
	for _, name := range slices.Sorted(maps.Keys(matrices)) {
		list = append(list, safetensors.Tensor{Name: name, DType: safetensors.F32, Shape: []int{matrices[name].rows, matrices[name].columns}})
	}
	h, err := safetensors.NewHeader(list, map[string]string{"format": "pt"})
	if err != nil {
		return nil, err
	}
	file := h.Encode()
	for _, t := range h.Tensors { // without gaps
		for _, x := range matrices[t.Name].values {
			file = binary.LittleEndian.AppendUint32(file, math.Float32bits(float32(x)))
		}
	}
	return file, nil
}

// OpenAdapter reads the adapter of PEFT in a directory: it sets the LoRA of Model, so it comes
// before Wrap, and Load gives the adapters their values. Adapters of all linear layers of the
// layers are read, or of some of them. Other methods of PEFT than LoRA are errors that name them.
//
// Modules that are one layer here, such as queries, keys and values, have different matrices lora_A
// in PEFT. So the Rank of the model is the r of the adapter times the largest number of such
// modules: 3 for Llama. The model computes the same. A further training may use the whole Rank.
func (m *Model) OpenAdapter(dir string) error {
	if err := m.openAdapter(dir, decode); err != nil {
		return fmt.Errorf("hf: %s: %w", dir, err)
	}
	return nil
}

func (m *Model) openAdapter(dir string, decode func(path string) (map[string]matrix, error)) error {
	text, err := os.ReadFile(filepath.Join(dir, adapterConfig))
	if err != nil {
		return err
	}
	c, err := parseConfig(text)
	if err != nil {
		return fmt.Errorf("%s: %w", adapterConfig, err)
	}
	c.adapter = true
	rank, scale := c.lora()
	if err := c.end(); err != nil {
		return fmt.Errorf("%s: %w", adapterConfig, err)
	}
	matrices, err := decode(filepath.Join(dir, adapterWeights))
	if err != nil {
		return fmt.Errorf("%s: %w", adapterWeights, err)
	}
	if now, err := os.ReadFile(filepath.Join(dir, adapterConfig)); err != nil || !bytes.Equal(now, text) {
		return fmt.Errorf("%s changed while the adapter was read: another program replaces the adapter, so open it again", adapterConfig)
	}
	most, known := 1, make(map[string]bool)
	lora, linear := m.arch.adapted(m.Model)
	for _, layer := range linear {
		parts := m.modules(layer, 0)
		for _, part := range parts {
			a, okA := matrices[part.name+peftA]
			b, okB := matrices[part.name+peftB]
			switch {
			case okA != okB:
				return fmt.Errorf("%s has only one of %s%s and %s", adapterWeights, part.name, peftA, peftB)
			case !okA:
				continue
			case a.rows != rank || b.columns != rank || len(parts) > 1 && b.rows != part.rows:
				return fmt.Errorf("%s: the matrices [%d %d] and [%d %d] of %s do not fit r %d and the model",
					adapterWeights, a.rows, a.columns, b.rows, b.columns, part.name, rank)
			}
			most = max(most, len(parts))
			known[part.name+peftA], known[part.name+peftB] = true, true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(matrices)) {
		if !known[name] {
			return fmt.Errorf("%s: %s belongs to none of the linear layers that are adapted here", adapterWeights, name)
		}
	}
	if len(known) == 0 {
		return fmt.Errorf("%s has no adapter", adapterWeights)
	}
	*lora = nn.LoRA{Rank: rank * most, Alpha: scale * float64(rank*most)}
	m.adapter = matrices
	return nil
}

// lora reads the settings of an adapter: r, and the factor of its output.
func (c *config) lora() (rank int, scale float64) {
	only(c, "peft_type", "LORA")
	rank = c.size("r", 8)
	alpha := c.positive("lora_alpha", 8)
	only(c, "bias", "none")
	for _, key := range []string{"rank_pattern", "alpha_pattern", "loftq_config"} {
		only(c, key, map[string]any{})
	}
	if init := string(c.keys["init_lora_weights"]); c.has("init_lora_weights") && !slices.Contains([]string{"true", "false", `"gaussian"`, `"orthogonal"`}, init) {
		c.fail("init_lora_weights %s is not supported: it changes the weights of the base model", init)
	}
	c.ignore("auto_mapping", "base_model_name_or_path", "revision", "peft_version", "task_type", "inference_mode", "target_modules",
		"exclude_modules", "fan_in_fan_out", "lora_dropout", "megatron_core", "qalora_group_size", "layers_to_transform", "layers_pattern")
	if get(c, "use_rslora", false) {
		return rank, alpha / math.Sqrt(float64(max(rank, 1)))
	}
	return rank, alpha / float64(max(rank, 1))
}

// decode reads all tensors of a file, which are matrices.
func decode(path string) (map[string]matrix, error) {
	f := &files{dir: filepath.Dir(path), headers: make(map[string]map[string]safetensors.Tensor)}
	header, err := f.header(filepath.Base(path))
	if err != nil {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	all := make(map[string]matrix)
	for name, t := range header {
		if len(t.Shape) != 2 || !t.DType.IsFloat() {
			return nil, fmt.Errorf("tensor %s is %s %v, want a matrix of floats", name, t.DType, t.Shape)
		}
		m := matrix{t.Shape[0], t.Shape[1], make([]float64, t.Shape[0]*t.Shape[1])}
		raw, wide := make([]byte, t.Size), make([]byte, 8*len(m.values))
		if err := safetensors.ReadFull(file, raw, t.Offset); err != nil {
			return nil, err
		}
		if err := safetensors.Convert(wide, safetensors.F64, raw, t.DType); err != nil {
			return nil, fmt.Errorf("tensor %s: %w", name, err)
		}
		for i := range m.values {
			m.values[i] = math.Float64frombits(binary.LittleEndian.Uint64(wide[8*i:]))
		}
		all[name] = m
	}
	return all, nil
}

// loadAdapter gives the adapters the values of the opened one. Layers without one get zeros, which
// compute nothing and do not train.
func (m *Model) loadAdapter(ctx context.Context, s *fsdp.Sharded) error {
	var names []string
	for layer := range m.adapters() {
		names = append(names, layer+loraA, layer+loraB)
	}
	err := s.Summon(ctx, names, func(params map[string]*tensor.Dense) error {
		for layer := range m.adapters() {
			a, b := matrixOf(params[layer+loraA]), matrixOf(params[layer+loraB])
			clear(a.values)
			clear(b.values)
			for k, part := range m.modules(layer, b.rows) {
				from, ok := matrices(m.adapter, part)
				if !ok {
					continue
				}
				if from[0].columns != a.columns || part.rows != from[1].rows {
					return fmt.Errorf("hf: the matrices [%d %d] and [%d %d] of %s do not fit the layer, which is [%d %d]",
						from[0].rows, from[0].columns, from[1].rows, from[1].columns, part.name, part.rows, a.columns)
				}
				rank := from[0].rows
				copy(a.values[k*rank*a.columns:], from[0].values)
				for i := range part.rows {
					copy(b.values[(part.first+i)*b.columns+k*rank:], from[1].values[i*rank:][:rank])
				}
			}
			a.copyTo(params[layer+loraA])
			b.copyTo(params[layer+loraB])
		}
		return nil
	}, fsdp.WriteBack(0))
	return err
}

// matrices returns lora_A and lora_B of a module.
func matrices(all map[string]matrix, part module) (pair [2]matrix, ok bool) {
	pair[0], ok = all[part.name+peftA]
	pair[1] = all[part.name+peftB]
	return pair, ok
}

// Merge adds the adapters of s, which is m.Model wrapped, to the weights that they adapt, layer by
// layer, and resets the adapters to no effect: s computes the same as before, except for rounding.
// Training may continue.
func (m *Model) Merge(ctx context.Context, s *fsdp.Sharded) error {
	for name, lora := range m.adapters() {
		down, up := name+loraA, name+loraB
		err := s.Summon(ctx, []string{name + ".weight", down, up}, func(params map[string]*tensor.Dense) error {
			a, b := params[down], params[up]
			if err := lora.Merge(params); err != nil {
				return err
			}
			b.Zero()
			params[down], params[up] = a, b
			return nil
		}, fsdp.WriteBack(0))
		if err != nil {
			return err
		}
	}
	return nil
}

// The parameters of an adapter, after the name of its layer.
const loraA, loraB = ".lora_a", ".lora_b"

// adapters iterates over the linear layers with an adapter.
func (m *Model) adapters() iter.Seq2[string, nn.LoRA] {
	return func(yield func(string, nn.LoRA) bool) {
		lora, linear := m.arch.adapted(m.Model)
		for _, name := range linear {
			if lora.Rank == 0 || !yield(name, *lora) {
				return
			}
		}
	}
}

// zero reports whether all elements are zero.
func zero(t *tensor.Dense) bool {
	if t.Dtype() == tensor.Float64 {
		return !slices.ContainsFunc(t.Float64s(), func(x float64) bool { return x != 0 })
	}
	return !slices.ContainsFunc(t.Float32s(), func(x float32) bool { return x != 0 })
}
