package data

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"unsafe"
)

// Tokens is an open file of tokens: their numbers, each a little-endian uint16 or uint32, one after
// another. nanoGPT and its descendants write such files as train.bin. A second file, with ".ends"
// after the name, can have the ends of documents: for each document a little-endian uint64, the
// number of tokens up to its end, including earlier documents.
//
//	train.bin        12 7 9 0 4 4 0      16 or 32 bits each
//	train.bin.ends   4 7                 64 bits each: two documents, of 4 and 3 tokens
//
// A file can be much larger than memory: tokens are read when they are needed. Goroutines may read
// at the same time.
type Tokens struct {
	in    *input
	width int // bytes of a token
	n     int
}

// OpenTokens opens a file of tokens of 16 or 32 bits. The file does not record the width, so
// OpenTokens checks it: if there is a second file, the last document must end with the last token.
// Otherwise it warns if the tokens probably have the other width.
func OpenTokens(path string, bits int) (*Tokens, error) {
	if err := checkBits(bits); err != nil {
		return nil, err
	}
	in, err := openInput(path)
	if err != nil {
		return nil, err
	}
	width := bits / 8
	if in.size%int64(width) != 0 {
		return nil, errors.Join(in.errorf("%d bytes are not a whole number of tokens of %d bytes: the file is truncated, or its tokens have another width", in.size, width), in.file.Close())
	}
	t := &Tokens{in, width, int(in.size / int64(width))}
	if err := t.checkWidth(); err != nil {
		return nil, errors.Join(err, in.file.Close())
	}
	return t, nil
}

// checkWidth compares the number of tokens with the second file. Without one it examines the first
// tokens.
func (t *Tokens) checkWidth() error {
	ends, err := openInput(t.in.path + endsSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return t.guessWidth()
	} else if err != nil {
		return err
	}
	defer ends.file.Close() // it was only read
	var last [8]byte
	if ends.size < 8 || ends.size%8 != 0 { // Documents returns an error
		return nil
	}
	if err := ends.read(last[:], ends.size-8); err != nil {
		return err
	}
	n, other := binary.LittleEndian.Uint64(last[:]), 6-t.width
	if uint64(t.n) != n && n == uint64(t.in.size)/uint64(other) {
		return t.in.errorf("the file has %d tokens of %d bits, but %s says %d: open it with %d bits", t.n, 8*t.width, ends.path, n, 8*other)
	}
	return nil
}

// guessWidth warns if the first tokens probably have the other width: read as 16 bits, tokens of 32
// have small numbers in every second place; read as 32 bits, two tokens of 16 are a large number.
func (t *Tokens) guessWidth() error {
	const (
		most   = 1 << 20 // tokens of real vocabularies are smaller
		fewest = 32      // number of words that is enough to judge
	)
	raw := make([]byte, min(t.in.size, 4096)&^3)
	if len(raw) < 4*fewest {
		return nil
	}
	if err := t.in.read(raw, 0); err != nil {
		return err
	}
	high, low := 0, 0 // number of words that are large, as two tokens of 16 bits are, and of words that vary
	for i := 0; i < len(raw); i += 4 {
		if binary.LittleEndian.Uint32(raw[i:]) >= most {
			high++
		}
		if binary.LittleEndian.Uint16(raw[i:]) >= most>>16 {
			low++
		}
	}
	words := len(raw) / 4
	if other := 6 - t.width; t.width == 2 && high == 0 && low > words/2 || t.width == 4 && high > words/2 {
		slog.Warn(fmt.Sprintf("data: %s: the first tokens look like %d-bit tokens, but it is opened with %d bits", t.in.path, 8*other, 8*t.width))
	}
	return nil
}

func checkBits(bits int) error {
	if bits != 16 && bits != 32 {
		return fmt.Errorf("data: tokens of %d bits, want 16 or 32", bits)
	}
	return nil
}

// Len returns the number of tokens.
func (t *Tokens) Len() int { return t.n }

// Read fills dst with tokens, beginning with token at. It allocates nothing.
func (t *Tokens) Read(dst []int, at int) error {
	if at < 0 || len(dst) > t.n-at {
		return t.in.errorf("%d tokens from %d on are out of range: there are %d", len(dst), at, t.n)
	}
	raw := tail(dst, t.width)
	if err := t.in.read(raw, int64(at)*int64(t.width)); err != nil {
		return err
	}
	if t.width == 2 {
		for i := range dst {
			dst[i] = int(binary.LittleEndian.Uint16(raw[2*i:]))
		}
		return nil
	}
	for i := range dst {
		dst[i] = int(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return nil
}

// tail returns the end of dst's memory, with room for as many elements of width bytes. A caller
// that reads the file into it and then sets the elements of dst from front to back overwrites no
// element before it has read it. If elements are wider in the file, tail returns new memory.
func tail[E any](dst []E, width int) []byte {
	n, size := len(dst), int(unsafe.Sizeof(*new(E)))
	if width > size {
		return make([]byte, n*width)
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), n*size)[n*(size-width):]
}

// Windows returns the windows of length tokens that begin at every step-th token, as [Windows] does
// for tokens in memory.
func (t *Tokens) Windows(length, step int) *File[[]int] {
	n, err := windows(t.n, length, step)
	f := t.file(fmt.Sprintf("windows of %d tokens with a step of %d", length, step), n, func(i int) (from, to int) {
		return i * step, i*step + length
	})
	if err != nil {
		f.n, f.err = 1, t.in.errorf("%w", err)
	}
	return f
}

// Documents returns the documents that the second file defines, and the number of tokens in each.
// It keeps 8 bytes for each document in memory.
func (t *Tokens) Documents() (docs *File[[]int], lengths Source[int], err error) {
	ends, err := readEnds(t.in.path+endsSuffix, t.n)
	if err != nil {
		return nil, nil, err
	}
	bounds := func(i int) (from, to int) { return ends[i], ends[i+1] }
	docs = t.file("documents", len(ends)-1, bounds)
	return docs, newFile("lengths of documents", docs.inputs, docs.n, func(i, _ int) (int, error) {
		from, to := bounds(i)
		return to - from, nil
	}), nil
}

// file returns samples of the tokens from one bound to the other.
func (t *Tokens) file(kind string, n int, bounds func(i int) (from, to int)) *File[[]int] {
	return newFile(kind, []*input{t.in}, n, func(i int, into []int) ([]int, error) {
		from, to := bounds(i)
		into = slices.Grow(into[:0], to-from)[:to-from]
		return into, t.Read(into, from)
	})
}

// Close closes the file, also for windows and documents.
func (t *Tokens) Close() error { return t.in.file.Close() }

// endsSuffix is the suffix of a file of documents, after the name of the file of tokens.
const endsSuffix = ".ends"

// readEnds reads the ends of the documents of a file of n tokens, and puts a 0 in front.
func readEnds(path string, n int) ([]int, error) {
	in, err := openInput(path)
	if err != nil {
		return nil, err
	}
	defer in.file.Close() // it was only read
	if in.size%8 != 0 {
		return nil, in.errorf("%d bytes are not a multiple of 8", in.size)
	}
	ends := make([]int, 1, 1+in.size/8)
	err = in.chunks(0, in.size, func(b []byte) { // in whole numbers
		for ; len(b) > 0; b = b[8:] {
			ends = append(ends, int(binary.LittleEndian.Uint64(b)))
		}
	})
	if err != nil {
		return nil, err
	}
	for i, end := range ends[1:] {
		if end <= ends[i] || end > n {
			return nil, in.errorf("document %d ends at token %d, but the document before ends at %d and the last token is %d", i, end, ends[i], n)
		}
	}
	if last := ends[len(ends)-1]; last != n {
		return nil, in.errorf("the last document ends at token %d, but there are %d tokens", last, n)
	}
	return ends, nil
}
