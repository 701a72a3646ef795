package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// The tensors of one model may be in several files. An index, whose name ends in indexSuffix, maps
// tensors to files. It is the index of Hugging Face, and its files are in the same directory:
//
//	{"metadata": {"total_size": 32}, "weight_map": {"wte.weight": "model-00001-of-00002.safetensors", …}}
const (
	indexSuffix = ".index.json"
	maxIndex    = 100_000_000 // bytes
)

// A tensorIndex is the content of an index.
type tensorIndex struct {
	Metadata  map[string]any    `json:"metadata"`
	WeightMap map[string]string `json:"weight_map"`
}

// tensorFiles are a file, or the files of an index, that are open for reading.
type tensorFiles struct {
	fs      checkpoint.FS
	paths   []string
	handles []checkpoint.Handle
	headers []*safetensors.Header
}

// open opens path, or the files of the index at path, and reads the headers.
func (f *tensorFiles) open(ctx context.Context, path string) error {
	if path == "" {
		return errNoFile
	}
	if !strings.HasSuffix(path, indexSuffix) {
		err := f.add(ctx, path)
		if errors.Is(err, checkpoint.ErrDamaged) {
			if _, lerr := checkpoint.Latest(ctx, f.fs, path); lerr == nil {
				err = fmt.Errorf("%s is a directory of checkpoints, not a file of Export: use Load", path)
			}
		}
		return err
	}
	index, err := readIndex(f.fs, path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	names := slices.Compact(slices.Sorted(maps.Values(index.WeightMap)))
	left := maps.Clone(index.WeightMap)
	for i, name := range names {
		if err := f.add(ctx, filepath.Join(filepath.Dir(path), name)); err != nil {
			return err
		}
		for _, t := range f.headers[i].Tensors {
			if at := index.WeightMap[t.Name]; at != name {
				return fmt.Errorf("%s: tensor %q is in %s, but the index has it in %q", path, t.Name, name, at)
			}
			delete(left, t.Name)
		}
	}
	if len(left) > 0 {
		name := slices.Min(slices.Collect(maps.Keys(left)))
		return fmt.Errorf("%s: the index has tensor %q in %s, but that file does not contain it", path, name, left[name])
	}
	return nil
}

// readIndex reads an index.
func readIndex(fs checkpoint.FS, path string) (*tensorIndex, error) {
	file, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	size, err := file.Size()
	if err != nil {
		return nil, err
	}
	if size > maxIndex {
		return nil, fmt.Errorf("the index has %d bytes, at most %d are allowed", size, maxIndex)
	}
	index := new(tensorIndex)
	if err := json.NewDecoder(io.NewSectionReader(file, 0, size)).Decode(index); err != nil {
		return nil, err
	}
	for tensor, name := range index.WeightMap {
		if !plain(name) {
			return nil, fmt.Errorf("tensor %q is in %q, which is not a file name next to the index", tensor, name)
		}
	}
	if len(index.WeightMap) == 0 {
		return nil, errors.New("the index has no weight_map")
	}
	return index, nil
}

// plain reports whether a name is the name of a file, without a directory.
func plain(name string) bool {
	return name == filepath.Base(name) && filepath.IsLocal(name) && name != "."
}

// add opens one file and reads its header.
func (f *tensorFiles) add(ctx context.Context, path string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	file, err := f.fs.Open(path)
	if err != nil {
		return err
	}
	f.paths, f.handles = append(f.paths, path), append(f.handles, file)
	size, err := file.Size()
	if err != nil {
		return err
	}
	h, err := safetensors.ReadHeader(file, size)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	f.headers = append(f.headers, h)
	return nil
}

// hash returns a hash of all headers.
func (f *tensorFiles) hash() uint64 {
	texts := make([]string, len(f.headers))
	for i, h := range f.headers {
		texts[i] = string(h.Encode())
	}
	return Hash(texts...)
}

// Close closes the files.
func (f *tensorFiles) Close() error {
	var all error
	for _, file := range f.handles {
		all = errors.Join(all, file.Close())
	}
	f.handles = nil
	return all
}
