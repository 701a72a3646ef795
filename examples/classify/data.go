package main

import (
	"fmt"
	"go/build"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer"
)

// A row is a text and its label.
type row struct {
	Text  string `data:"text"`
	Label string `data:"label"`
}

// A sample is a row as tokens, with the number of its label.
type sample struct {
	tokens []int
	class  int
}

// read returns the rows of a CSV file.
func read(path string) (rows []row, err error) {
	if path == "" {
		return comments("crypto/tls", "go/types", "math/big")
	}
	f, err := data.OpenCSV[row](path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows = make([]row, f.Len())
	for i := range rows {
		if rows[i], err = f.At(i); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// comments returns the longer comments of packages of the standard library, labeled by package.
func comments(packages ...string) (rows []row, err error) {
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
					rows = append(rows, row{text, path})
				}
			}
		}
	}
	return rows, nil
}

// labelsOf returns the labels of rows in order.
func labelsOf(rows []row) (labels []string) {
	for _, r := range rows {
		labels = append(labels, r.Label)
	}
	slices.Sort(labels)
	return slices.Compact(labels)
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

// collate returns the function that makes batches for m: tokens padded to the longest text, their
// kinds unless m has none, the mask, and the classes.
func collate(m *nn.BERT) data.Collate[sample] {
	return func(b *data.Batch, samples []sample) error {
		width, err := data.Pad(b, samples, func(s sample) []int { return s.tokens }, nil, 0)
		if err != nil {
			return err
		}
		if m.Kinds >= 0 {
			data.Tensor[int](b, len(samples), width)
		}
		data.Mask[int](b, samples, func(s sample) int { return len(s.tokens) }, width)
		data.Column(b, samples, func(s sample) int { return s.class })
		return nil
	}
}
