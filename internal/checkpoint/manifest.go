package checkpoint

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// Format is the version of the format that this package writes. It also reads earlier versions.
const Format = 2

// ManifestName is the name of the manifest's file in the directory of a checkpoint.
const ManifestName = "manifest.json"

// ChunkBytes is the size of the part of a piece that one checksum covers. Reading part of a piece
// reads whole chunks around its ends.
const ChunkBytes = 1 << 20

// maxManifest is the largest size of a manifest that is written or read, in bytes: enough for about
// 40,000 ranks that save a GPT of 175e9 parameters with Adam. Tests have a smaller one.
var maxManifest int64 = 128 << 20

// filesPerDir is the largest number of rank files in one directory: directories of many thousands
// are slow on file systems that hosts share. Tests have a smaller one.
var filesPerDir = 1000

// FileName returns the name of file i of n in the directory of a checkpoint, for [WriteShard]. All
// n have the same kind: "rank-00001-of-00002.safetensors" is of kind "rank". If there are more than
// 1,000 files, each 1,000 have a directory: "00012/rank-12345-of-20000.safetensors".
func FileName(kind string, i, n int) string {
	name := fmt.Sprintf("%s-%05d-of-%05d.safetensors", kind, i, n)
	if n > filesPerDir {
		name = fmt.Sprintf("%05d/%s", i/filesPerDir, name)
	}
	return name
}

// A Manifest lists the contents of a checkpoint. Its file is written last: a checkpoint without it
// does not count.
type Manifest struct {
	Step    int                        `json:"step"`           // of the training
	World   int                        `json:"world"`          // number of ranks that wrote it
	Meta    map[string]json.RawMessage `json:"meta,omitempty"` // the writer's, without white space
	Files   []File                     `json:"files,omitempty"`
	Tensors []Tensor                   `json:"tensors,omitempty"` // in the order of their keys
}

// File is a file of a checkpoint, in its directory or in a subdirectory.
type File struct {
	Name   string `json:"name"`   // with a slash after the name of a directory: see [FileName]
	Size   int64  `json:"size"`   // bytes
	Header uint32 `json:"header"` // CRC-32C of the bytes before the data of the first tensor
}

// Tensor is a tensor of a checkpoint and the places of its pieces.
type Tensor struct {
	Key
	DType  safetensors.DType `json:"dtype"`
	Shape  []int             `json:"shape,omitempty"`
	Steps  int               `json:"steps,omitempty"`  // updates of the optimizer's entry
	Pieces Pieces            `json:"pieces,omitempty"` // none empty; cover it once
}

// Lookup finds a tensor by its key.
func (m *Manifest) Lookup(k Key) (Tensor, bool) {
	i, ok := slices.BinarySearchFunc(m.Tensors, k, func(t Tensor, k Key) int { return t.Compare(k) })
	if !ok {
		return Tensor{}, false
	}
	return m.Tensors[i], true
}

// Len returns the number of elements of t.
func (t *Tensor) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// like reports whether pieces of t and of u can belong to one tensor.
func (t *Tensor) like(u *Tensor) bool {
	return t.DType == u.DType && t.Steps == u.Steps && slices.Equal(t.Shape, u.Shape)
}

// kind describes the properties that like compares, for messages.
func (t *Tensor) kind() string { return fmt.Sprintf("%s %v after %d steps", t.DType, t.Shape, t.Steps) }

// pieceName returns the name of an interval of a tensor, in the headers of files and in messages.
func pieceName(k Key, from, to int) string { return fmt.Sprintf("%s[%d:%d]", k.Name(), from, to) }
