package checkpoint

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"path"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// A Part is a rank's part of a tensor: elements from Offset on, little-endian. A Part without
// elements declares a tensor without elements.
type Part struct {
	Key
	DType  safetensors.DType
	Shape  []int // of the whole tensor
	Steps  int   // updates of the optimizer's entry
	Offset int   // elements
	Data   []byte
	Values Values

	// Write, if it is not nil, replaces Data that is not in memory: it writes Len elements, in
	// portions of any size.
	Write func(ctx context.Context, w io.Writer) error
	Len   int
}

// Values are the values that a tensor may have.
type Values uint8

const (
	Finite   Values = iota // neither NaN nor infinity
	Infinite               // no NaN, such as a mask in a buffer
	Any                    // all values
)

// Check returns an error that wraps [ErrNotFinite] if elements of type t have values that are not
// allowed. name is the name of the tensor, and offset the index of the first element.
func (v Values) Check(name string, offset int, t safetensors.DType, b []byte) error {
	if v == Any {
		return nil
	}
	n, first := safetensors.NotFinite(t, b, v == Infinite)
	if n == 0 {
		return nil
	}
	return notFinite(name, n, len(b)/t.Size(), offset+first, safetensors.Float(t, b[first*t.Size():]))
}

func notFinite(name string, n, of, first int, value float64) error {
	return fmt.Errorf("%s: values that are %w: %d of %d, the first is element %d, %v", name, ErrNotFinite, n, of, first, value)
}

// A Shard describes the data that one rank has written. The zero Shard is empty.
type Shard struct {
	File    File     `json:"file"`
	Special int      `json:"special,omitempty"` // values that are NaN or infinite
	Tensors []Tensor `json:"tensors,omitempty"` // in the order of their keys, pieces by Offset; File is 0
}

// WriteShard writes parts to a new file and returns once its content is on disk. The name comes
// from [FileName]; its directory in dir is made if need be. WriteShard goes through the data once,
// chunk by chunk. It calls wrote, which may be nil, with the bytes of data of each chunk, and stops
// between two chunks when ctx ends. Values that a part may not have are an error that wraps
// [ErrNotFinite]. If there is no data it makes no file, and the Shard's File is zero. The remains
// of a failed call are of no use.
func WriteShard(ctx context.Context, fsys FS, dir, name string, parts []Part, wrote func(bytes int)) (*Shard, error) {
	tensors, header, blocks, err := plan(parts)
	if err == nil && len(blocks) > 0 {
		if in := path.Dir(name); in != "." {
			err = fsys.Mkdir(filepath.Join(dir, in))
		}
		if err == nil || errors.Is(err, fs.ErrExist) { // another rank was first
			err = writeFile(ctx, fsys, filepath.Join(dir, name), header, blocks, wrote)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s := new(Shard)
	for _, b := range blocks {
		s.Special += b.special
		tensors[b.Key].add(b.piece)
		s.File = File{Name: name, Size: b.piece.At + int64(b.bytes()), Header: crc32.Checksum(header, castagnoli)}
	}
	s.Tensors = sorted(tensors)
	return s, nil
}

// Encode returns s as bytes for DecodeShard.
func (s *Shard) Encode() ([]byte, error) {
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("shard: %w", err)
	}
	return compact(s)
}

// DecodeShard is the reverse of Encode. Its result is as safe to use as a result of Decode, except
// that pieces need not cover their tensors and may overlap.
func DecodeShard(b []byte) (*Shard, error) {
	s := new(Shard)
	if err := strict(b, s); err != nil {
		return nil, fmt.Errorf("shard: %w", err)
	}
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("shard: %w", err)
	}
	return s, nil
}

// files returns the list of files of the pieces of s: one, or none.
func (s *Shard) files() []File {
	if s.File == (File{}) {
		return nil
	}
	return []File{s.File}
}

func (s *Shard) validate() error {
	if err := validateFiles(s.files()); err != nil {
		return err
	}
	return validateTensors(s.Tensors, s.files())
}

// A block is a part in its place in a file.
type block struct {
	Part
	name    string // in messages
	piece   Piece  // its Sums are to be filled in
	special int    // values that are NaN or infinite, likewise
}

// plan lays parts out in a file: a header and then the blocks. If no part has data, it returns no
// blocks. The tensors have no pieces yet.
func plan(parts []Part) (tensors map[Key]*joining, header []byte, blocks []block, err error) {
	if err := littleEndian(); err != nil {
		return nil, nil, nil, err
	}
	if tensors, err = byKey(parts); err != nil {
		return nil, nil, nil, err
	}
	data := slices.DeleteFunc(slices.Clone(parts), func(p Part) bool { return p.len() == 0 })
	// The format has no padding. With the largest elements first, all are aligned nonetheless.
	slices.SortStableFunc(data, func(p, q Part) int { return cmp.Compare(q.DType.Size(), p.DType.Size()) })
	list, err := headerOf(data)
	if err != nil {
		return nil, nil, nil, err
	}

	for i, p := range data {
		h := list.Tensors[i]
		sums := make(Sums, sumBytes*chunks(p.len(), p.DType.Size()))
		blocks = append(blocks, block{Part: p, name: h.Name, piece: Piece{Offset: p.Offset, Len: p.len(), At: h.Offset, Sums: sums}})
	}
	return tensors, list.Encode(), blocks, nil
}

// byKey returns the tensors of the parts, without their pieces.
func byKey(parts []Part) (map[Key]*joining, error) {
	tensors := make(map[Key]*joining)
	for i := range parts {
		p := &parts[i]
		if err := p.validate(); err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name(), err)
		}
		t := &joining{Tensor: Tensor{Key: p.Key, DType: p.DType, Shape: p.Shape, Steps: p.Steps}}
		if first, ok := tensors[p.Key]; !ok {
			tensors[p.Key] = t
		} else if !first.like(&t.Tensor) {
			return nil, fmt.Errorf("%s is both %s and %s", p.Name(), first.kind(), t.kind())
		}
	}
	return tensors, nil
}

// headerOf returns the header of a file with the data of parts, one after the other.
func headerOf(parts []Part) (*safetensors.Header, error) {
	tensors := make([]safetensors.Tensor, len(parts))
	for i, p := range parts {
		tensors[i] = safetensors.Tensor{
			Name: pieceName(p.Key, p.Offset, p.Offset+p.len()), DType: p.DType, Shape: []int{p.len()},
		}
	}
	return safetensors.NewHeader(tensors, nil)
}

// len returns the number of elements of p, and bytes their size.
func (p *Part) len() int {
	if p.Write != nil {
		return p.Len
	}
	return len(p.Data) / p.DType.Size()
}

func (p *Part) bytes() int { return p.len() * p.DType.Size() }

func (p *Part) validate() error {
	n, err := elements(p.DType, p.Shape)
	if err != nil {
		return err
	}
	switch {
	case p.Write == nil && len(p.Data)%p.DType.Size() != 0:
		return fmt.Errorf("%d bytes are not a whole number of %s", len(p.Data), p.DType)
	case p.Offset < 0 || p.len() < 0 || p.len() > n-p.Offset:
		return fmt.Errorf("%d elements from element %d on do not fit %s %v", p.len(), p.Offset, p.DType, p.Shape)
	}
	return nil
}

// write writes the elements to w. Data in memory is written chunk by chunk, until ctx ends.
func (p *Part) write(ctx context.Context, w io.Writer) error {
	if p.Write != nil {
		return p.Write(ctx, w)
	}
	for chunk := range slices.Chunk(p.Data, ChunkBytes) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, err := w.Write(chunk); err != nil {
			return err
		}
	}
	return nil
}

// writeFile makes a file of blocks.
func writeFile(ctx context.Context, fsys FS, path string, header []byte, blocks []block, wrote func(bytes int)) (err error) {
	f, err := fsys.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := writeFull(f, header); err != nil {
		return fmt.Errorf("write header: %w", err)
	}
	for i := range blocks {
		b := &blocks[i]
		w := &summer{file: f, sums: b.piece.Sums, room: b.bytes(), wrote: wrote, special: specials{dtype: b.DType}}
		err := b.write(ctx, w)
		if err == nil && w.room > 0 {
			err = fmt.Errorf("%d of %d bytes are missing", w.room, b.bytes())
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", b.name, err)
		}
		b.special = w.special.nan + w.special.inf
		if err := w.special.check(b); err != nil {
			return err
		}
	}
	return f.Sync()
}

// A summer writes a block to a file. It sums a chunk right before it writes it, so that memory is
// read once.
type summer struct {
	file  io.Writer
	sums  Sums
	at    int // bytes written
	room  int // bytes that are to come
	wrote func(bytes int)

	special specials
}

// Write implements io.Writer.
func (s *summer) Write(p []byte) (n int, err error) {
	if len(p) > s.room {
		return 0, fmt.Errorf("there are %d extra bytes", len(p)-s.room)
	}
	for n < len(p) {
		part := p[n:min(len(p), n+ChunkBytes-s.at%ChunkBytes)]
		c := s.at / ChunkBytes
		s.sums.set(c, crc32.Update(s.sums.chunk(c), castagnoli, part))
		s.special.add(part)
		if err := writeFull(s.file, part); err != nil {
			return n, err
		}
		n, s.at, s.room = n+len(part), s.at+len(part), s.room-len(part)
		if s.wrote != nil {
			s.wrote(len(part))
		}
	}
	return n, nil
}

// specials counts the values of a block that are NaN or infinite.
type specials struct {
	dtype    safetensors.DType
	nan, inf int
	at       int    // elements so far
	rest     []byte // bytes of an element that are not complete

	firstNaN, first int // index of the first NaN, and of the first that is not finite
	value           float64
}

// add counts special values in the next bytes.
func (s *specials) add(p []byte) {
	size := s.dtype.Size()
	if len(s.rest) > 0 {
		n := min(size-len(s.rest), len(p))
		if s.rest = append(s.rest, p[:n]...); len(s.rest) < size {
			return
		}
		s.count(s.rest)
		s.rest, p = s.rest[:0], p[n:]
	}
	whole := len(p) / size * size
	s.count(p[:whole])
	s.rest = append(s.rest, p[whole:]...)
}

// count counts special values in whole elements.
func (s *specials) count(p []byte) {
	n, first := safetensors.NotFinite(s.dtype, p, false)
	if n > 0 {
		nan, firstNaN := safetensors.NotFinite(s.dtype, p, true)
		if s.nan == 0 {
			s.firstNaN = s.at + firstNaN
		}
		if s.nan+s.inf == 0 {
			s.first, s.value = s.at+first, safetensors.Float(s.dtype, p[first*s.dtype.Size():])
		}
		s.nan, s.inf = s.nan+nan, s.inf+n-nan
	}
	s.at += len(p) / s.dtype.Size()
}

// check returns an error if b may not have these values.
func (s *specials) check(b *block) error {
	switch {
	case b.Values == Infinite && s.nan > 0:
		return notFinite(b.Name(), s.nan, b.len(), b.Offset+s.firstNaN, math.NaN())
	case b.Values == Finite && s.nan+s.inf > 0:
		return notFinite(b.Name(), s.nan+s.inf, b.len(), b.Offset+s.first, s.value)
	}
	return nil
}

// writeFull writes all of b.
func writeFull(w io.Writer, b []byte) error {
	n, err := w.Write(b)
	if err == nil && n < len(b) {
		return io.ErrShortWrite
	}
	return err
}

// native is the order of bytes of this machine; tests pretend to be on another.
var native binary.ByteOrder = binary.NativeEndian

// littleEndian returns an error if elements in memory are not little-endian.
func littleEndian() error {
	if native.Uint16([]byte{1, 0}) != 1 {
		return errors.New("checkpoints are little-endian, but this machine is big-endian")
	}
	return nil
}
