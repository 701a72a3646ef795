package main

import (
	"encoding/csv"
	"fmt"
	"go/build"
	"os"
	"path/filepath"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer"
)

// read returns pairs of a text and a label.
func read(path string) (texts [][]string, err error) {
	if path == "" {
		return comments("crypto/tls", "go/types", "math/big")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.FieldsPerRecord = 2
	if _, err := r.Read(); err != nil {
		return nil, fmt.Errorf("%s: its first row has no names of two columns: %w", path, err)
	}
	texts, err = r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return texts, nil
}

// comments returns the longer comments of packages of the standard library, labeled by package.
func comments(packages ...string) (texts [][]string, err error) {
	for _, path := range packages {
		p, err := build.Import(path, "", 0)
		if err != nil {
			return nil, fmt.Errorf("reading the source of the standard library: %w", err)
		}
		for _, name := range p.GoFiles {
			src, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				return nil, err
			}
			for line := range strings.Lines(string(src)) {
				if text, ok := strings.CutPrefix(strings.TrimSpace(line), "// "); ok && len(text) > 40 && !strings.Contains(text, "license") {
					texts = append(texts, []string{text, path})
				}
			}
		}
	}
	return texts, nil
}

// encoder returns the function that makes tokens of a text: with the tokenizer of the model, or one
// token for each byte.
func encoder(c config) (func(text string) []int, error) {
	if c.model == "" {
		return func(text string) (tokens []int) {
			for _, b := range []byte("^" + text)[:min(len(text)+1, c.limit)] {
				tokens = append(tokens, 1+int(b))
			}
			return tokens
		}, nil
	}
	words, err := tokenizer.Open(c.model)
	if err != nil {
		return nil, err
	}
	return func(text string) []int {
		tokens := words.Encode(text)
		return tokens[:min(len(tokens), c.limit)]
	}, nil
}

// batchOf returns rows as the model takes them, padded to the longest.
func batchOf(inputs []string, rows []row) []fsdp.Tensor {
	length := 1
	for _, r := range rows {
		length = max(length, len(r.tokens))
	}
	values := map[string][]int{"kinds": make([]int, len(rows)*length), "tokens": make([]int, len(rows)*length), "mask": make([]int, len(rows)*length)}
	for i, r := range rows {
		copy(values["tokens"][i*length:], r.tokens)
		for k := range r.tokens {
			values["mask"][i*length+k] = 1
		}
		values["targets"] = append(values["targets"], r.class)
	}
	var batch []fsdp.Tensor
	for _, name := range inputs {
		shape := tensor.WithShape(len(rows), length)
		if name == "targets" {
			shape = tensor.WithShape(len(rows))
		}
		batch = append(batch, tensor.New(shape, tensor.WithBacking(values[name])))
	}
	return batch
}
