package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer"
)

// heldOut is the share of the tokens that is held out: the last ones.
const heldOut = 0.05

// corpus is a text as tokens: one part to train on and one part to test on.
type corpus struct {
	words       *tokenizer.Tokenizer
	documents   int
	train, held []int
}

// load reads the files and the tokenizer.
func load(c config) (*corpus, error) {
	words, err := tokenizer.Open(c.from)
	if err != nil {
		return nil, err
	}
	d := &corpus{words: words}
	for _, path := range c.data {
		documents, err := read(path, c.field)
		if err != nil {
			return nil, err
		}
		for _, document := range documents {
			d.train = append(d.train, d.encode(document)...)
			if words.EOS >= 0 {
				d.train = append(d.train, words.EOS)
			}
		}
		d.documents += len(documents)
	}
	return d, nil
}

// encode returns the tokens of a text, with the tokens that the tokenizer puts first.
func (d *corpus) encode(text string) []int {
	ids := d.words.Encode(text)
	if n := len(ids); n > 0 && ids[n-1] == d.words.EOS {
		ids = ids[:n-1]
	}
	return ids
}

// split holds out enough tokens for a window of context tokens.
func (d *corpus) split(context int) error {
	n := max(int(heldOut*float64(len(d.train))), context+1)
	cut := len(d.train) - n
	if cut <= context {
		return fmt.Errorf("the data has %d tokens, want at least %d: training and test each need -context %d and one more token",
			len(d.train), 2*(context+1), context)
	}
	d.train, d.held = slices.Clip(d.train[:cut]), d.train[cut:]
	return nil
}

// read returns the documents of a file: each line's if it ends in .jsonl, else the file itself.
func read(path, field string) (documents []string, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(path, ".jsonl") {
		return []string{string(data)}, nil
	}
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		if strings.TrimSpace(line) == "" {
			continue
		}
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, number, err)
		}
		text, ok := object[field].(string)
		if !ok {
			return nil, fmt.Errorf("%s:%d: no string at key %q: see -field", path, number, field)
		}
		documents = append(documents, text)
	}
	return documents, nil
}
