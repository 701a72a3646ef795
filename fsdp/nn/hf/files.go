package hf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// kept are the files that Save copies from the opened directory: files of tokenizers and of
// generation.
var kept = []string{
	"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt",
	"tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja", "chat_template.json", "generation_config.json", "preprocessor_config.json",
	"processor_config.json",
}

// keptSentences are the same files of sentence-transformers.
var keptSentences = append(sentenceFiles, "config_sentence_transformers.json")

// keep returns the paths of the files that Save copies.
func (m *Model) keep(root string) (paths []string, err error) {
	for _, name := range kept {
		paths = append(paths, filepath.Join(m.dir, name))
	}
	if m.head != nil && m.head.Task == nn.EmbedSequences {
		for _, name := range keptSentences {
			paths = append(paths, filepath.Join(root, name))
			if m.dir != root {
				paths = append(paths, filepath.Join(m.dir, name))
			}
		}
	}
	return slices.DeleteFunc(paths, func(path string) bool {
		_, failed := os.Stat(path)
		if failed != nil && !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
		return failed != nil
	}), err
}

// files are the weights in a directory.
type files struct {
	dir     string
	of      map[string]string                        // the file of a tensor
	headers map[string]map[string]safetensors.Tensor // of the files that were read
}

// weightsIn reads the names of the tensors in a directory.
func weightsIn(dir string) (*files, error) {
	path, err := weights(dir)
	if err == nil {
		err = oneTraining(dir)
	}
	if err != nil {
		return nil, err
	}
	f := &files{dir: dir, headers: make(map[string]map[string]safetensors.Tensor)}
	if !strings.HasSuffix(path, indexFile) {
		header, err := f.header(weightsFile)
		f.of = make(map[string]string, len(header))
		for name := range header {
			f.of[name] = weightsFile
		}
		return f, err
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &index)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", indexFile, err)
	}
	f.of = index.WeightMap
	return f, nil
}

// weights returns the path of the weights in a directory, or of their index.
func weights(dir string) (string, error) {
	for _, name := range []string{weightsFile, indexFile} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return path, err
		}
	}
	for _, name := range []string{"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return "", fmt.Errorf("the directory has neither %s nor %s, and %s is not read: convert it by save_pretrained of transformers", weightsFile, indexFile, name)
		}
	}
	return "", fmt.Errorf("the directory has neither %s nor %s: other formats are not supported", weightsFile, indexFile)
}

// The files of an adapter of PEFT.
const adapterConfig, adapterWeights = "adapter_config.json", "adapter_model.safetensors"

// noAdapter returns an error for a directory with an adapter, which Open would ignore.
func noAdapter(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, adapterConfig))
	if err != nil {
		return nil // there is none
	}
	var adapter struct {
		Base string `json:"base_model_name_or_path"`
	}
	if err := json.Unmarshal(text, &adapter); err != nil {
		return fmt.Errorf("%s: %w", adapterConfig, err)
	}
	if _, err := os.Stat(filepath.Join(dir, configFile)); err == nil {
		return fmt.Errorf("the directory has a model and %s, and the adapter may belong to another model: move the adapter's files to their own directory",
			adapterConfig)
	}
	return fmt.Errorf("it has an adapter of PEFT and no model: open the directory of its base model, %q, and call OpenAdapter before Wrap", adapter.Base)
}

// oneTraining returns an error if a directory has weights and an index of other weights, as it is
// unknown which of them belong to the model. Newer weights in another format are a warning.
func oneTraining(dir string) error {
	single, err := os.Stat(filepath.Join(dir, weightsFile))
	if err != nil {
		return nil // weights returns the error, if it matters
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	text, err := os.ReadFile(filepath.Join(dir, indexFile))
	if err == nil && json.Unmarshal(text, &index) == nil {
		for _, tensor := range slices.Sorted(maps.Keys(index.WeightMap)) {
			if file := index.WeightMap[tensor]; file != weightsFile {
				return fmt.Errorf("the directory has both %s and %s, which has tensor %s in %s: they may be from two trainings, so remove one of them",
					weightsFile, indexFile, tensor, file)
			}
		}
	}
	for _, name := range []string{"pytorch_model.bin", "pytorch_model.bin.index.json"} {
		if other, err := os.Stat(filepath.Join(dir, name)); err == nil && other.ModTime().After(single.ModTime()) {
			slog.Warn(fmt.Sprintf("hf: %s: %s is newer than %s, which is read: if they are from two trainings, convert the newer one, or remove it",
				dir, name, weightsFile))
		}
	}
	return nil
}

// header returns the tensors of a file.
func (f *files) header(name string) (map[string]safetensors.Tensor, error) {
	if header, ok := f.headers[name]; ok {
		return header, nil
	}
	if !filepath.IsLocal(name) {
		return nil, fmt.Errorf("%s: %q is not the name of a file in the same directory", indexFile, name)
	}
	file, err := os.Open(filepath.Join(f.dir, name))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	const pointer = "version https://git-lfs"
	var first [len(pointer)]byte
	if _, err := file.ReadAt(first[:], 0); err == nil && string(first[:]) == pointer {
		return nil, fmt.Errorf("%s is a pointer of Git LFS in place of the file: git lfs pull fetches it", name)
	}
	h, err := safetensors.ReadHeader(file, info.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	header := make(map[string]safetensors.Tensor, len(h.Tensors))
	for _, t := range h.Tensors {
		header[t.Name] = t
	}
	f.headers[name] = header
	return header, nil
}

// A located tensor is a tensor and its file.
type located struct {
	safetensors.Tensor
	file string
}

// tensor finds a tensor by name.
func (f *files) tensor(name string) (t located, ok bool, err error) {
	if t.file, ok = f.of[name]; !ok {
		return t, false, nil
	}
	header, err := f.header(t.file)
	if err != nil {
		return t, false, err
	}
	if t.Tensor, ok = header[name]; !ok {
		return t, false, fmt.Errorf("%s: tensor %s is not in %s", indexFile, name, t.file)
	}
	return t, true, nil
}

// A shape is the shape of a tensor by config.json. Every size that makes a model large is in one of
// the shapes that an architecture lists.
type shape struct {
	tensor string // "~" stands for the prefix
	dims   []dim
	layers dim // number of layers, of which the last has this tensor; or none
}

// A dim is a size and its key.
type dim struct {
	key string
	n   int
}

// check compares shapes with the tensors in the files.
func (f *files) check(prefix string, shapes []shape) error {
	for _, s := range shapes {
		if s.layers.n > len(f.of) {
			return fmt.Errorf("%s: %s is %d, but the files have only %d tensors", configFile, s.layers.key, s.layers.n, len(f.of))
		}
		name := strings.ReplaceAll(s.tensor, "~", prefix)
		t, ok, err := f.tensor(name)
		if err != nil {
			return err
		}
		wrong, want := cmp.Or(s.layers.key, s.dims[0].key), make([]int, len(s.dims))
		for i, d := range s.dims {
			want[i] = d.n
		}
		if !ok {
			return fmt.Errorf("%s: %s requires tensor %s of shape %v, but the files do not have it", configFile, wrong, name, want)
		}
		if slices.Equal(t.Shape, want) {
			continue
		}
		for i, d := range s.dims {
			if i < len(t.Shape) && t.Shape[i] != d.n {
				wrong = d.key
				break
			}
		}
		return fmt.Errorf("%s: %s requires tensor %s with shape %v, but the shape is %v in %s", configFile, wrong, name, want, t.Shape, t.file)
	}
	return nil
}

// checkCopies compares tensors that the files have twice, and the model once. copies has the name
// of the original by the name of the copy, which may be missing.
func (f *files) checkCopies(prefix string, copies map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(copies)) {
		if other, err := f.differ(prefix, name, copies[name]); err != nil {
			return err
		} else if other {
			name, of := strings.ReplaceAll(name, "~", prefix), strings.ReplaceAll(copies[name], "~", prefix)
			return fmt.Errorf("%s: tensor %s differs from %s, but the model ties them: if they should differ, set tie_word_embeddings to false in %s", f.of[name], name, of, configFile)
		}
	}
	return nil
}

// differ reports whether the files have two tensors that are not the same.
func (f *files) differ(prefix, name, of string) (bool, error) {
	a, ok1, err1 := f.tensor(strings.ReplaceAll(name, "~", prefix))
	b, ok2, err2 := f.tensor(strings.ReplaceAll(of, "~", prefix))
	if err := errors.Join(err1, err2); err != nil || !ok1 || !ok2 {
		return false, err
	}
	same, err := f.equal(a, b)
	return !same, err
}

// equal compares two tensors.
func (f *files) equal(a, b located) (bool, error) {
	if a.DType != b.DType || !slices.Equal(a.Shape, b.Shape) {
		return false, nil
	}
	var from [2]*os.File
	for i, t := range []located{a, b} {
		file, err := os.Open(filepath.Join(f.dir, t.file))
		if err != nil {
			return false, err
		}
		defer file.Close()
		from[i] = file
	}
	var x, y [1 << 16]byte
	for at := int64(0); at < a.Size; at += int64(len(x)) {
		n := min(int64(len(x)), a.Size-at)
		err1 := safetensors.ReadFull(from[0], x[:n], a.Offset+at)
		err2 := safetensors.ReadFull(from[1], y[:n], b.Offset+at)
		if err := errors.Join(err1, err2); err != nil || !bytes.Equal(x[:n], y[:n]) {
			return false, err
		}
	}
	return true, nil
}
