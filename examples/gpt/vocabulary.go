package main

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer"
)

// vocabulary is how text becomes tokens: by a tokenizer, or each byte is one.
type vocabulary struct {
	tokenizer *tokenizer.Tokenizer // nil for bytes
	sum       uint32               // CRC-32 of its file
}

// endOfFile ends each file in a corpus of bytes. It does not occur in text.
const endOfFile = 0

// openVocabulary reads the tokenizer in a directory, or in the file tokenizer.json of one. It must
// have a token that ends a file.
func openVocabulary(path string) (v vocabulary, err error) {
	if filepath.Base(path) == "tokenizer.json" {
		path = filepath.Dir(path)
	}
	if v.tokenizer, err = tokenizer.Open(path); err != nil {
		return v, err
	}
	if v.tokenizer.EOS < 0 {
		return v, fmt.Errorf("no token ends a text: want eos_token in %s", filepath.Join(path, "tokenizer_config.json"))
	}
	var text []byte
	for _, name := range []string{"tokenizer.json", "tokenizer.model", "spiece.model"} { // the first is what Open has read
		if text, err = os.ReadFile(filepath.Join(path, name)); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	v.sum = crc32.ChecksumIEEE(text)
	return v, err
}

// String names v, so that others have other names.
func (v vocabulary) String() string {
	if v.tokenizer == nil {
		return "bytes"
	}
	return fmt.Sprintf("%d tokens with checksum %08x", v.tokenizer.Size, v.sum)
}

// unit names a token.
func (v vocabulary) unit() string {
	if v.tokenizer == nil {
		return "byte"
	}
	return "token"
}

// size is one more than the largest token.
func (v vocabulary) size() int {
	if v.tokenizer == nil {
		return 256
	}
	return v.tokenizer.Size
}

// end is the token after each file.
func (v vocabulary) end() int {
	if v.tokenizer == nil {
		return endOfFile
	}
	return v.tokenizer.EOS
}

func (v vocabulary) encode(text string) []int {
	if v.tokenizer != nil {
		return v.tokenizer.EncodePlain(text)
	}
	tokens := make([]int, len(text))
	for i, b := range []byte(text) {
		tokens[i] = int(b)
	}
	return tokens
}

func (v vocabulary) decode(tokens []int) string {
	if v.tokenizer != nil {
		return v.tokenizer.Decode(tokens)
	}
	text := make([]byte, len(tokens))
	for i, b := range tokens {
		text[i] = byte(b)
	}
	return string(text)
}
