package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"slices"
	"sync"

	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// A Reader reads the tensors of a checkpoint. It is safe for concurrent use until Close.
type Reader struct {
	manifest *Manifest
	sum      uint32
	files    []Handle // of manifest.Files
}

// scratch has memory for chunks that do not go straight to where they are wanted.
var scratch = sync.Pool{New: func() any { return new([ChunkBytes]byte) }}

// OpenReader opens the checkpoint in dir with all its files. The manifest is checked, and that the files are there and have
// the sizes that it says; their content is checked as it is read.
func OpenReader(fsys FS, dir string) (*Reader, error) {
	r := new(Reader)
	if err := r.open(fsys, dir); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", dir, err), r.Close())
	}
	return r, nil
}

func (r *Reader) open(fsys FS, dir string) error {
	if err := littleEndian(); err != nil {
		return err
	}
	b, err := readFile(fsys, filepath.Join(dir, ManifestName))
	if err != nil {
		return err
	}
	r.sum = crc32.Checksum(b, castagnoli)
	if r.manifest, err = Decode(b); err != nil {
		return err
	}
	for _, file := range r.manifest.Files {
		f, err := fsys.Open(filepath.Join(dir, file.Name))
		if err != nil {
			return err
		}
		r.files = append(r.files, f)
		size, err := f.Size()
		if err != nil {
			return err
		}
		if size != file.Size {
			return fmt.Errorf("%s: %w: it has %d bytes, %d were written", file.Name, ErrDamaged, size, file.Size)
		}
	}
	return nil
}

// readFile returns what is in a file.
func readFile(fsys FS, path string) (b []byte, err error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > maxManifest {
		return nil, fmt.Errorf("%s: %w: a manifest has no %d bytes", filepath.Base(path), ErrDamaged, size)
	}
	b = make([]byte, size)
	return b, readFull(f, b, 0)
}

// maxManifest is far beyond any real one, in bytes, and well inside memory.
const maxManifest = 1 << 30

// readFull reads len(b) bytes.
func readFull(f io.ReaderAt, b []byte, at int64) error {
	n, err := f.ReadAt(b, at)
	switch {
	case n == len(b):
		return nil
	case err == nil || err == io.EOF:
		return io.ErrUnexpectedEOF
	default:
		return err
	}
}

// Manifest returns the checkpoint's list of contents, which the caller leaves as it is.
func (r *Reader) Manifest() *Manifest { return r.manifest }

// Sum returns the CRC-32C of the manifest's file. It tells one checkpoint from another.
func (r *Reader) Sum() uint32 { return r.sum }

// Lookup finds a tensor by its key.
func (r *Reader) Lookup(k Key) (Tensor, bool) { return r.manifest.Lookup(k) }

// Close closes the files.
func (r *Reader) Close() error {
	var errs []error
	for _, f := range r.files {
		errs = append(errs, f.Close())
	}
	r.files = nil
	return errors.Join(errs...)
}

// Read reads the elements of a tensor from offset on, as many as there is room for in dst, as elements of type as. It reads
// the chunks that they lie in and no others, and checks their sums. After an error the content of dst is undefined.
func (r *Reader) Read(ctx context.Context, k Key, offset int, dst []byte, as safetensors.DType) error {
	t, ok := r.Lookup(k)
	if !ok {
		return fmt.Errorf("the checkpoint has no %s", k.Name())
	}
	size := as.Size()
	if size == 0 || len(dst)%size != 0 || offset < 0 || len(dst)/size > t.Len()-offset {
		return fmt.Errorf("%d bytes of type %q at element %d are no part of %s %v", len(dst), as, offset, k.Name(), t.Shape)
	}
	first, _ := slices.BinarySearchFunc(t.Pieces, offset, func(p Piece, offset int) int {
		if p.end() <= offset {
			return -1
		}
		return 1
	})
	for i := first; len(dst) > 0; i++ {
		p := &t.Pieces[i]
		part := dst[:min(len(dst), (p.end()-offset)*size)]
		if err := r.readPiece(ctx, &t, p, offset-p.Offset, part, as); err != nil {
			return err
		}
		dst, offset = dst[len(part):], p.end()
	}
	return nil
}

// readPiece is Read inside a piece: from is an element of it.
func (r *Reader) readPiece(ctx context.Context, t *Tensor, p *Piece, from int, dst []byte, as safetensors.DType) error {
	buffer := scratch.Get().(*[ChunkBytes]byte)
	defer scratch.Put(buffer)
	size := t.DType.Size() // divides ChunkBytes
	for len(dst) > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c := from / (ChunkBytes / size)
		at := from*size - c*ChunkBytes // bytes in the chunk
		bytes := chunkLen(t, p, c)
		n := min((bytes-at)/size, len(dst)/as.Size())
		part := dst[:n*as.Size()]
		whole := as == t.DType && n*size == bytes
		chunk := buffer[:bytes]
		if whole {
			chunk = part
		}
		if err := r.readChunk(t, p, c, chunk); err != nil {
			return err
		}
		if !whole {
			if err := safetensors.Convert(part, as, chunk[at:at+n*size], t.DType); err != nil {
				return fmt.Errorf("%s: %w", pieceName(t.Key, p.Offset+from, p.Offset+from+n), err)
			}
		}
		dst, from = dst[len(part):], from+n
	}
	return nil
}

// chunkLen returns the number of bytes of chunk c of p.
func chunkLen(t *Tensor, p *Piece, c int) int {
	return min(p.Len*t.DType.Size()-c*ChunkBytes, ChunkBytes)
}

// readChunk reads chunk c of p and checks its sum.
func (r *Reader) readChunk(t *Tensor, p *Piece, c int, chunk []byte) error {
	at := p.At + int64(c)*ChunkBytes
	err := readFull(r.files[p.File], chunk, at)
	if err == nil {
		if sum := crc32.Checksum(chunk, castagnoli); sum != p.Sums[c] {
			err = fmt.Errorf("%w: their CRC-32C is %08x, %08x was written", ErrDamaged, sum, p.Sums[c])
		}
	}
	if err == nil {
		return nil
	}
	first := p.Offset + c*(ChunkBytes/t.DType.Size())
	return fmt.Errorf("%s: %s in bytes [%d:%d]: %w", r.manifest.Files[p.File].Name,
		pieceName(t.Key, first, first+len(chunk)/t.DType.Size()), at, at+int64(len(chunk)), err)
}
