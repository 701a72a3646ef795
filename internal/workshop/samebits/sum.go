package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// sums are the results of a training, as hashes of 12 hexadecimal digits.
type sums struct {
	weights string
	state   string // the optimizer's state, with its counts and the parameters
}

// counts is the key of the optimizer's number of updates in the metadata of a file.
const counts = "gofsdp.optimizer"

// sum returns a hash of the tensors of a safetensors file, and of the optimizer's counts. It
// depends neither on the order of the tensors nor on other metadata, the optimizer's settings
// included.
func sum(path string) (hash string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	header, err := safetensors.ReadHeader(f, info.Size())
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	tensors := slices.Clone(header.Tensors)
	slices.SortFunc(tensors, func(a, b safetensors.Tensor) int { return strings.Compare(a.Name, b.Name) })
	h := sha256.New()
	for _, t := range tensors {
		fmt.Fprintf(h, "%q %s %v\n", t.Name, t.DType, t.Shape)
		if _, err := io.Copy(h, io.NewSectionReader(f, t.Offset, t.Size)); err != nil {
			return "", err
		}
	}
	if text := header.Metadata[counts]; text != "" {
		var of struct {
			Steps   int
			Updates map[string]int
		}
		if err := json.Unmarshal([]byte(text), &of); err != nil {
			return "", fmt.Errorf("%s: %s: %w", path, counts, err)
		}
		fmt.Fprintln(h, of)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}
