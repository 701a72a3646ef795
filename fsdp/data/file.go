package data

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/internal/phase"
)

// A File is the [Source] of one or several open files. It keeps the offsets of samples in memory, 8
// bytes for each, and reads a sample from the file when it is needed. Goroutines may call At and
// Into at the same time.
//
// [OpenLines], [OpenJSON] and [OpenCSV] read the whole file once, and [OpenDir] lists its
// directory. If that takes longer than a second, rank 0 logs the progress to [slog.Default].
//
// Errors of a file contain its path. Opening fails if the file is missing, empty, cut short or
// compressed. Reading fails if a record is malformed, or if the file has become shorter since. If a
// program writes to the file while it is open, samples may have the old or the new content.
type File[T any] struct {
	kind   string // kind of the samples: "lines", "windows of 7 tokens"
	inputs []*input
	n      int
	into   func(i int, into T) (T, error)
	err    error // error of the arguments: it is then the only sample
}

func newFile[T any](kind string, inputs []*input, n int, into func(i int, into T) (T, error)) *File[T] {
	return &File[T]{kind: kind, inputs: inputs, n: n, into: into}
}

// Len returns the number of samples, at least 1.
func (f *File[T]) Len() int { return f.n }

// At reads sample i. It belongs to the caller.
func (f *File[T]) At(i int) (T, error) {
	var none T
	return f.Into(i, none)
}

// Into reads sample i into the memory of another sample, such as the caller's last one, if that is
// large enough. Otherwise it does the same as At. Text is always new.
func (f *File[T]) Into(i int, into T) (T, error) {
	var none T
	if f.err != nil {
		return none, f.err
	}
	if i < 0 || i >= f.n {
		return none, fmt.Errorf("data: sample %d is out of range: %v has %d", i, f, f.n)
	}
	return f.into(i, into)
}

// String names the files without their directories, and returns the number and the kind of samples.
func (f *File[T]) String() string {
	var names []string
	for _, in := range f.inputs {
		names = append(names, filepath.Base(in.path))
	}
	return clip(fmt.Sprintf("%s(%d %s)", strings.Join(names, ", "), f.n, f.kind))
}

func (f *File[T]) refused() error { return f.err }

// Close closes the files. Samples that were read stay as they are; At is an error.
func (f *File[T]) Close() error { return closeAll(f.inputs) }

// An input is an open file that any number of goroutines can read at any offset at the same time.
// It is read and not mapped: access to a mapped file that has become shorter ends the process.
type input struct {
	file interface { // an [os.File]
		io.ReaderAt
		io.Closer
	}
	path string
	size int64
}

func closeAll(inputs []*input) error {
	var failed error
	for _, in := range inputs {
		if in.file != nil { // a directory is read file by file
			failed = errors.Join(failed, in.file.Close())
		}
	}
	return failed
}

// compressed has the name extensions of files that cannot be read from the middle.
var compressed = []string{".gz", ".bz2", ".xz", ".zst", ".zip"}

// kindOf names the kind of something that is no regular file.
func kindOf(mode fs.FileMode) string {
	if mode.IsDir() {
		return "a directory"
	}
	return "a device, pipe or socket"
}

// openInput opens a file. It returns an error if the file is empty.
func openInput(path string) (*input, error) {
	if slices.Contains(compressed, strings.ToLower(filepath.Ext(path))) {
		return nil, fmt.Errorf("data: %s is compressed and cannot be read from the middle: decompress it first", path)
	}
	info, err := os.Stat(path) // before Open, which would block at a pipe
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("data: %s is not a regular file, but %v: give the path of a file with samples", path, kindOf(info.Mode()))
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	if info, err = file.Stat(); err == nil && info.Size() == 0 {
		err = errors.New(path + " is empty")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("data: %w", err), file.Close())
	}
	return &input{file, path, info.Size()}, nil
}

// errorf returns an error with the path.
func (in *input) errorf(format string, args ...any) error {
	return fmt.Errorf("data: %s: %w", in.path, fmt.Errorf(format, args...))
}

// read fills b from an offset of the file.
func (in *input) read(b []byte, at int64) error {
	n, err := in.file.ReadAt(b, at)
	switch {
	case n == len(b):
		return nil
	case errors.Is(err, io.EOF):
		return in.errorf("byte %d is missing: the file had %d bytes when it was opened", at+int64(n), in.size)
	}
	return fmt.Errorf("data: %w", err)
}

// bom is the byte order mark that some programs write before text.
var bom = []byte("\ufeff")

// textStart returns the offset of the text in a file.
func (in *input) textStart() (int64, error) {
	first := make([]byte, min(int64(len(bom)), in.size))
	if err := in.read(first, 0); err != nil {
		return 0, err
	}
	switch {
	case bytes.HasPrefix(first, []byte{0xff, 0xfe}), bytes.HasPrefix(first, []byte{0xfe, 0xff}):
		return 0, in.errorf("UTF-16, want UTF-8")
	case bytes.Equal(first, bom):
		return int64(len(bom)), nil
	}
	return 0, nil
}

// mib is the unit in which the progress of reading a file is logged.
const mib = 1 << 20

// reading begins a phase that counts the MiB of the next n bytes.
func (in *input) reading(n int64) *phase.Phase {
	return phase.Begin("data: reading "+in.path+", MiB", int(n/mib))
}

// chunks calls f with the bytes from begin to end, in order and in parts.
func (in *input) chunks(begin, end int64, f func(b []byte)) error {
	progress := in.reading(end - begin)
	defer progress.End()
	buf := make([]byte, min(mib, end-begin))
	for at := begin; at < end; {
		b := buf[:min(int64(len(buf)), end-at)]
		if err := in.read(b, at); err != nil {
			return err
		}
		f(b)
		at += int64(len(b))
		progress.Add(len(b) / mib)
	}
	return nil
}

// line returns the place of line n, if line 1 begins at an offset: "train.jsonl:17".
func (in *input) line(at int64, n int) string {
	if err := in.chunks(0, at, func(b []byte) { n += bytes.Count(b, []byte{'\n'}) }); err != nil {
		return fmt.Sprintf("%s, byte %d", in.path, at)
	}
	return fmt.Sprintf("%s:%d", in.path, n)
}
