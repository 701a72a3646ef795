package checkpoint

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// Format is the version of the format that this package writes and reads.
const Format = 1

// ManifestName is the name of the manifest's file in the directory of a checkpoint.
const ManifestName = "manifest.json"

// ChunkBytes is how much of a piece one checksum is about: to read a part of it, this much is read
// around its ends.
const ChunkBytes = 1 << 20

// maxManifest is the size up to which a manifest is written and read, in bytes: room for the pieces
// of a training of 400e9 parameters on 1,024 ranks, twice. Tests have a smaller one.
var maxManifest int64 = 128 << 20

// A Manifest lists what is in a checkpoint. Its file is the last to be written: a checkpoint
// without one does not count.
type Manifest struct {
	Step    int                        `json:"step"`           // of the training
	World   int                        `json:"world"`          // number of ranks that wrote it
	Meta    map[string]json.RawMessage `json:"meta,omitempty"` // the writer's, without white space
	Files   []File                     `json:"files,omitempty"`
	Tensors []Tensor                   `json:"tensors,omitempty"` // in the order of their keys
}

// File is a file of a checkpoint, in its directory.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`   // bytes
	Header uint32 `json:"header"` // CRC-32C of what is before the data of the first tensor
}

// Tensor is a tensor of a checkpoint and where its pieces lie.
type Tensor struct {
	Key
	DType  safetensors.DType `json:"dtype"`
	Shape  []int             `json:"shape,omitempty"`
	Steps  int               `json:"steps,omitempty"`  // updates that the entry of an optimizer has had
	Pieces []Piece           `json:"pieces,omitempty"` // by Offset, none empty; cover it once
}

// Piece is an interval of a tensor in a file.
type Piece struct {
	Offset int   `json:"offset"` // elements
	Len    int   `json:"len"`    // elements
	File   int   `json:"file"`   // index in Manifest.Files
	At     int64 `json:"at"`     // bytes from the start of the file
	Sums   Sums  `json:"sums"`   // CRC-32C of each ChunkBytes of it; the last may be shorter
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

// like reports whether pieces of t and of u can be of one tensor.
func (t *Tensor) like(u *Tensor) bool {
	return t.DType == u.DType && t.Steps == u.Steps && slices.Equal(t.Shape, u.Shape)
}

// kind is what like compares, for messages.
func (t *Tensor) kind() string { return fmt.Sprintf("%s %v after %d steps", t.DType, t.Shape, t.Steps) }

// end returns the offset behind the last element of p.
func (p *Piece) end() int { return p.Offset + p.Len }

// pieceName returns the name of an interval of a tensor, in the headers of files and in messages.
func pieceName(k Key, from, to int) string { return fmt.Sprintf("%s[%d:%d]", k.Name(), from, to) }

// chunks returns how many checksums a piece of so many bytes has.
func chunks(bytes int) int { return (bytes-1)/ChunkBytes + 1 }
