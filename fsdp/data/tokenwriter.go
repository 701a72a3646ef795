package data

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"

	"github.com/gofsdp/gofsdp/internal/phase"
)

// A TokenWriter writes the files of [Tokens]. It keeps 8 bytes for each document in memory, and the
// tokens in a file with another name until Close. After the first error all later calls return this
// error, so it is enough to check the error of Close. If the tokens take longer than a second, it
// logs its progress until Close or Abort. A TokenWriter is not safe for concurrent use.
type TokenWriter struct {
	path  string
	bits  int
	file  *os.File
	buf   *bufio.Writer
	n     int   // tokens
	ends  []int // number of tokens up to each end
	err   error // the first one
	ended bool

	progress *phase.Phase
}

// CreateTokens begins a file of tokens of 16 or 32 bits.
//
//	w, err := data.CreateTokens("train.bin", 16)
//	...
//	defer w.Abort() // does nothing behind Close
//	for _, text := range texts {
//		w.Write(words.Encode(text))
//		w.EndDocument()
//	}
//	err = w.Close()
func CreateTokens(path string, bits int) (*TokenWriter, error) {
	if err := checkBits(bits); err != nil {
		return nil, err
	}
	file, err := createBeside(path)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	return &TokenWriter{
		path: path, bits: bits, file: file, buf: bufio.NewWriterSize(file, 1<<20),
		progress: phase.Begin("data: writing tokens to "+path, 0),
	}, nil
}

// createBeside creates a file in the directory of path that can replace path.
func createBeside(path string) (*os.File, error) {
	return os.OpenFile(fmt.Sprintf("%s.%08x.partial", path, rand.Uint32()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
}

// Write adds tokens to the current document. If the bits cannot hold a token, Write returns an
// error after adding the tokens before it.
func (w *TokenWriter) Write(tokens []int) error {
	if w.ended {
		return w.fail(os.ErrClosed)
	}
	w.progress.Add(len(tokens))
	for _, token := range tokens {
		if w.err != nil {
			break
		}
		if uint64(token) >= 1<<w.bits {
			return w.fail(fmt.Errorf("token %d does not fit %d bits", token, w.bits))
		}
		b := binary.LittleEndian.AppendUint32(w.buf.AvailableBuffer(), uint32(token))
		_, err := w.buf.Write(b[:w.bits/8])
		w.fail(err)
		w.n++
	}
	return w.err
}

// EndDocument ends the current document, if it has tokens. If it is never called, the file has no
// documents. Otherwise Close ends the last document.
func (w *TokenWriter) EndDocument() {
	if k := len(w.ends); k == 0 && w.n > 0 || k > 0 && w.n > w.ends[k-1] {
		w.ends = append(w.ends, w.n)
	}
}

// fail keeps the first error and returns it.
func (w *TokenWriter) fail(err error) error {
	if w.err == nil && err != nil {
		w.err = fmt.Errorf("data: writing %s: %w", w.path, err)
	}
	return w.err
}

// Close writes the files to the disk and renames them, replacing existing files. If writing fails,
// Close leaves nothing behind, and existing files stay. If renaming fails, the old or the new file
// of tokens stays, and the file of documents may be missing. A killed process may leave files whose
// names end in ".partial". At any time, the file of documents either matches the file of tokens or
// is missing.
func (w *TokenWriter) Close() error {
	if w.ended {
		return w.err
	}
	if w.n == 0 {
		w.fail(errors.New("no tokens were written"))
	}
	if w.err != nil {
		w.Abort()
		return w.err
	}
	w.ended = true
	defer w.progress.End()
	if len(w.ends) > 0 {
		w.EndDocument()
	}
	return w.fail(w.commit())
}

// commit renames the files.
func (w *TokenWriter) commit() error {
	tokens, ends := w.file.Name(), ""
	err := finish(w.file, w.buf)
	if err == nil && len(w.ends) > 0 {
		ends, err = w.writeEnds()
	}
	if err == nil {
		err = w.rename(tokens, ends)
	}
	if err != nil {
		os.Remove(tokens) // fails if it has been renamed
		os.Remove(ends)
	}
	return err
}

// finish writes buf to the disk and closes the file.
func finish(file *os.File, buf *bufio.Writer) error {
	return cmp.Or(buf.Flush(), file.Sync(), file.Close())
}

// writeEnds writes the file of documents under another name.
func (w *TokenWriter) writeEnds() (name string, err error) {
	file, err := createBeside(w.path + endsSuffix)
	if err != nil {
		return "", err
	}
	buf := bufio.NewWriter(file)
	for _, end := range w.ends {
		if _, err = buf.Write(binary.LittleEndian.AppendUint64(buf.AvailableBuffer(), uint64(end))); err != nil {
			break // Flush returns the error again
		}
	}
	return file.Name(), finish(file, buf)
}

// rename moves the files into place. It first removes an existing file of documents, as it does not
// match the new tokens.
func (w *TokenWriter) rename(tokens, ends string) error {
	if err := os.Remove(w.path + endsSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(tokens, w.path); err != nil || ends == "" {
		return err
	}
	return os.Rename(ends, w.path+endsSuffix)
}

// Abort ends the writer and removes its files. After Close or Abort it does nothing.
func (w *TokenWriter) Abort() {
	if w.ended {
		return
	}
	w.ended = true
	w.progress.End()
	w.file.Close()
	os.Remove(w.file.Name())
}
