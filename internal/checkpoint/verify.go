package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// maxFaults is how many faults Verify lists before it only counts.
const maxFaults = 20

// Verify reads every byte of every file and checks it: chunks against their sums, and the files'
// headers against the manifest. It calls read, which may be nil, with the bytes of data of each
// chunk. The error joins all faults, up to a number of them; only the end of ctx stops it before.
func (r *Reader) Verify(ctx context.Context, read func(bytes int)) error {
	var faults []error
	more := 0
	fault := func(err error) {
		switch {
		case err == nil:
		case len(faults) < maxFaults:
			faults = append(faults, err)
		default:
			more++
		}
	}
	buffer := scratch.Get().(*[ChunkBytes]byte)
	defer scratch.Put(buffer)
	for i := range r.manifest.Files {
		fault(r.with(ctx, i, func(f Handle) error { return r.verifyHeader(f, i) }))
		for _, h := range r.contents(i) {
			for c := range h.piece.Sums.count() {
				if ctx.Err() != nil {
					return errors.Join(append(faults, context.Cause(ctx))...)
				}
				chunk := buffer[:chunkLen(h.tensor, &h.piece, c)]
				fault(r.readChunk(ctx, h.tensor, &h.piece, c, chunk))
				if read != nil {
					read(len(chunk))
				}
			}
		}
	}
	if more > 0 {
		faults = append(faults, fmt.Errorf("and %d more faults", more))
	}
	return errors.Join(faults...)
}

// held is a piece that a file holds.
type held struct {
	tensor *Tensor
	piece  Piece
}

// contents lists the pieces of file i in their order in the file. A caller that asks for one file
// soon asks for the next ones, and there may be millions of pieces to search, so a Reader searches
// for the pieces of some files at once.
func (r *Reader) contents(i int) []held {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first := i - i%maxOpen; r.held == nil || r.first != first {
		r.held, r.first = r.manifest.contents(first, min(first+maxOpen, len(r.manifest.Files))), first
	}
	return r.held[i-r.first]
}

// contents lists the pieces of files [from, to), each in their order in the file.
func (m *Manifest) contents(from, to int) [][]held {
	files := make([][]held, to-from)
	for i := range m.Tensors {
		t := &m.Tensors[i]
		for p := range t.All() {
			if p.File >= from && p.File < to {
				files[p.File-from] = append(files[p.File-from], held{t, p})
			}
		}
	}
	for _, list := range files {
		slices.SortStableFunc(list, func(a, b held) int { return cmp.Compare(a.piece.At, b.piece.At) })
	}
	return files
}

// verifyHeader checks that the header of a file is unchanged and agrees with the manifest.
func (r *Reader) verifyHeader(f Handle, i int) error {
	file, pieces := &r.manifest.Files[i], r.contents(i)
	if err := matchHeader(f, file, pieces); err != nil {
		return fmt.Errorf("%s: header: %w", file.Name, err)
	}
	return nil
}

func matchHeader(f Handle, file *File, pieces []held) error {
	start := file.Size
	if len(pieces) > 0 {
		start = pieces[0].piece.At
	}
	sum := crc32.New(castagnoli)
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, start)); err != nil {
		return err
	}
	if sum.Sum32() != file.Header {
		return fmt.Errorf("%w: CRC-32C is %08x, want %08x", ErrDamaged, sum.Sum32(), file.Header)
	}
	h, err := safetensors.ReadHeader(f, file.Size)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if len(h.Tensors) != len(pieces) {
		return fmt.Errorf("%w: the file has %d pieces, the manifest lists %d", ErrDamaged, len(h.Tensors), len(pieces))
	}
	for j, p := range pieces {
		name := pieceName(p.tensor.Key, p.piece.Offset, p.piece.end())
		t := h.Tensors[j]
		if t.Name != name || t.DType != p.tensor.DType || !slices.Equal(t.Shape, []int{p.piece.Len}) || t.Offset != p.piece.At {
			return fmt.Errorf("%w: the file has %s %s %v at byte %d, the manifest lists %s %s [%d] at byte %d", ErrDamaged,
				t.Name, t.DType, t.Shape, t.Offset, name, p.tensor.DType, p.piece.Len, p.piece.At)
		}
	}
	return nil
}
