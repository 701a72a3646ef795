package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// A copier copies elements out of a checkpoint. It compares every chunk with its checksum, so it
// does not copy damaged data. It needs memory for one chunk.
type copier struct {
	reader   *checkpoint.Reader
	buffer   []byte
	progress *progress
}

func newCopier(r *checkpoint.Reader, p *progress) *copier {
	return &copier{reader: r, buffer: make([]byte, 4*checkpoint.ChunkBytes), progress: p}
}

// copy writes the elements of a tensor to w, converted to another type. It follows the chunks of
// the pieces, so it reads no chunk twice.
func (c *copier) copy(ctx context.Context, w io.Writer, t *checkpoint.Tensor, as safetensors.DType) error {
	chunk := checkpoint.ChunkBytes / t.DType.Size() // elements
	for p := range t.All() {
		for at := p.Offset; at < p.Offset+p.Len; {
			end := min(p.Offset+p.Len, at+chunk)
			part := c.buffer[:(end-at)*as.Size()] // no type is more than 4 times another
			if err := c.reader.Read(ctx, t.Key, at, part, as); err != nil {
				return err
			}
			if _, err := w.Write(part); err != nil {
				return fmt.Errorf("%s: %w", t.Name(), err)
			}
			c.progress.add((end - at) * t.DType.Size())
			at = end
		}
	}
	return nil
}

// tensorBytes returns the bytes of a tensor's elements.
func tensorBytes(t *checkpoint.Tensor) int64 { return int64(t.Len()) * int64(t.DType.Size()) }

// dataBytes returns the bytes of all elements of a checkpoint.
func dataBytes(m *checkpoint.Manifest) (n int64) {
	for i := range m.Tensors {
		n += tensorBytes(&m.Tensors[i])
	}
	return n
}

// writeFile creates a file, lets content write it, and returns when it is on disk.
func writeFile(fsys checkpoint.FS, path string, content func(w io.Writer) error) (err error) {
	f, err := fsys.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, checkpoint.ChunkBytes)
	if err := content(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Sync()
}
