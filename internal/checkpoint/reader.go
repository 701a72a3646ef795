package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// A Reader reads the tensors of a checkpoint. It is safe for concurrent use until Close.
type Reader struct {
	fsys     FS
	dir      string
	manifest *Manifest
	sum      uint32

	mu    sync.Mutex
	files map[int]Handle // of manifest.Files, at most maxOpen, opened when they are first needed; nil after Close
	sound map[int]bool   // files whose headers agree with the manifest
	held  [][]held       // contents of files from the first on: see contents
	first int
}

// maxOpen is how many files a Reader keeps open. There is one for each rank that has saved, and a
// process may open only a limited number. Further files are opened each time.
const maxOpen = 64

// scratch has memory for chunks that are not read straight into their destination.
var scratch = sync.Pool{New: func() any { return new([ChunkBytes]byte) }}

// OpenReader opens the checkpoint in dir. It checks the manifest, and that all files exist with the
// sizes in the manifest; their contents are checked as they are read. It returns when ctx ends,
// even if the file system does not respond: see the package comment.
func OpenReader(ctx context.Context, fsys FS, dir string) (*Reader, error) {
	return within(ctx, dir, func() (*Reader, error) {
		r, err := open(ctx, fsys, dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		return r, nil
	}, func(*Reader) {})
}

// open is OpenReader without a limit of time. No file stays open.
func open(ctx context.Context, fsys FS, dir string) (*Reader, error) {
	if err := littleEndian(); err != nil {
		return nil, err
	}
	b, err := readFile(fsys, filepath.Join(dir, ManifestName))
	if err != nil {
		return nil, err
	}
	m, err := Decode(b)
	if err != nil {
		return nil, err
	}
	r := &Reader{
		fsys: fsys, dir: dir, manifest: m, sum: crc32.Checksum(b, castagnoli),
		files: make(map[int]Handle), sound: make(map[int]bool),
	}
	for i := range m.Files {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := r.checkSize(i); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// checkSize checks that a file is there and has its size.
func (r *Reader) checkSize(i int) (err error) {
	file := &r.manifest.Files[i]
	f, err := r.fsys.Open(filepath.Join(r.dir, file.Name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err == nil && size != file.Size {
		err = fmt.Errorf("%s: %w: the file has %d bytes, want %d", file.Name, ErrDamaged, size, file.Size)
	}
	return err
}

// with calls use with an open file.
func (r *Reader) with(ctx context.Context, i int, use func(f Handle) error) error {
	f, kept, err := r.file(ctx, i)
	switch {
	case err != nil:
		return err
	case kept:
		return use(f)
	default:
		return errors.Join(use(f), f.Close())
	}
}

// file returns a file, and whether it is kept open.
func (r *Reader) file(ctx context.Context, i int) (f Handle, kept bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f, kept = r.files[i]; kept {
		return f, true, nil
	}
	if r.files == nil {
		return nil, false, fs.ErrClosed
	}
	if f, err = openFile(ctx, r.fsys, filepath.Join(r.dir, r.manifest.Files[i].Name)); err != nil {
		return nil, false, err
	}
	if kept = len(r.files) < maxOpen; kept {
		r.files[i] = f
	}
	return f, kept, nil
}

// checkHeader checks that the header of a file agrees with the manifest, unless it has been
// checked.
func (r *Reader) checkHeader(ctx context.Context, i int) error {
	r.mu.Lock()
	sound := r.sound[i]
	r.mu.Unlock()
	if sound {
		return nil
	}
	if err := r.with(ctx, i, func(f Handle) error { return r.verifyHeader(f, i) }); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sound[i] = true
	return nil
}

// readFile returns the contents of a file.
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
		return nil, fmt.Errorf("%s: %w: the file has %d bytes, at most %d are read", filepath.Base(path), ErrDamaged, size, maxManifest)
	}
	b = make([]byte, size)
	return b, safetensors.ReadFull(f, b, 0)
}

// Manifest returns the checkpoint's list of contents, which the caller must not change.
func (r *Reader) Manifest() *Manifest { return r.manifest }

// Sum returns the CRC-32C of the manifest's file. It distinguishes checkpoints.
func (r *Reader) Sum() uint32 { return r.sum }

// Lookup finds a tensor by its key.
func (r *Reader) Lookup(k Key) (Tensor, bool) { return r.manifest.Lookup(k) }

// Hold opens the files that contain n elements of a tensor from offset on, up to the limit of open
// files, and checks their headers. They can then be read even if the checkpoint is removed, on file
// systems that keep open files.
func (r *Reader) Hold(ctx context.Context, k Key, offset, n int) error {
	t, _ := r.Lookup(k)
	for p := range t.within(offset, n) {
		if err := r.checkHeader(ctx, p.File); err != nil {
			return err
		}
	}
	return nil
}

// Check holds n elements of a tensor from offset on, and reads and checks their chunks and their
// values. It keeps no data.
func (r *Reader) Check(ctx context.Context, k Key, offset, n int, v Values) error {
	if err := r.Hold(ctx, k, offset, n); err != nil {
		return err
	}
	buffer := scratch.Get().(*[ChunkBytes]byte)
	defer scratch.Put(buffer)
	t, _ := r.Lookup(k)
	for p := range t.within(offset, n) {
		per := ChunkBytes / t.DType.Size()
		from, to := max(0, offset-p.Offset), min(p.Len, offset+n-p.Offset)
		for c := from / per; c*per < to; c++ {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			chunk := buffer[:chunkLen(&t, &p, c)]
			err := r.readChunk(ctx, &t, &p, c, chunk)
			if err == nil {
				err = v.Check(k.Name(), p.Offset+c*per, t.DType, chunk)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Close closes the files.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, f := range r.files {
		errs = append(errs, f.Close())
	}
	r.files = nil
	return errors.Join(errs...)
}

// Read reads the elements of a tensor from offset on, as many as fit in dst, as elements of type
// as. It reads only the chunks that contain them, and checks their sums, and the headers of files
// that were not held. After an error the content of dst is undefined.
func (r *Reader) Read(ctx context.Context, k Key, offset int, dst []byte, as safetensors.DType) error {
	t, ok := r.Lookup(k)
	if !ok {
		return fmt.Errorf("the checkpoint has no %s", k.Name())
	}
	size := as.Size()
	if size == 0 || len(dst)%size != 0 || offset < 0 || len(dst)/size > t.Len()-offset {
		return fmt.Errorf("%d bytes of type %q at element %d are not within %s %v", len(dst), as, offset, k.Name(), t.Shape)
	}
	for p := range t.within(offset, len(dst)/size) {
		if err := r.checkHeader(ctx, p.File); err != nil {
			return err
		}
		part := dst[:min(len(dst), (p.end()-offset)*size)]
		if err := r.readPiece(ctx, &t, &p, offset-p.Offset, part, as); err != nil {
			return err
		}
		dst, offset = dst[len(part):], p.end()
	}
	return nil
}

// readPiece is Read inside a piece: from is the index of an element in it.
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
		if err := r.readChunk(ctx, t, p, c, chunk); err != nil {
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
func (r *Reader) readChunk(ctx context.Context, t *Tensor, p *Piece, c int, chunk []byte) error {
	at := p.At + int64(c)*ChunkBytes
	err := r.with(ctx, p.File, func(f Handle) error { return safetensors.ReadFull(f, chunk, at) })
	if err == nil {
		if sum := crc32.Checksum(chunk, castagnoli); sum != p.Sums.chunk(c) {
			err = fmt.Errorf("%w: CRC-32C is %08x, want %08x", ErrDamaged, sum, p.Sums.chunk(c))
		}
	}
	if err == nil {
		return nil
	}
	first := p.Offset + c*(ChunkBytes/t.DType.Size())
	return fmt.Errorf("%s: %s in bytes [%d:%d]: %w", r.manifest.Files[p.File].Name,
		pieceName(t.Key, first, first+len(chunk)/t.DType.Size()), at, at+int64(len(chunk)), err)
}
