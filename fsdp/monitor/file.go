package monitor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// A file is what a writer appends rows to.
type file struct {
	path string
	f    *os.File
	size int64 // of complete rows
}

// open opens the file, with its directories. kept returns where what is kept of it ends, unless all
// goes.
func (o *file) open(step int, kept func(r *bufio.Reader) (end int64, err error)) error {
	if err := os.MkdirAll(filepath.Dir(o.path), 0o777); err != nil {
		return err
	}
	f, err := os.OpenFile(o.path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	o.f, o.size = f, 0
	if step > 0 {
		if o.size, err = kept(bufio.NewReader(f)); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", o.path, err), f.Close())
		}
	}
	if err := f.Truncate(o.size); err != nil {
		return errors.Join(err, f.Close())
	}
	return nil
}

// append appends a row. If that fails the file stays as it was, as far as the system lets it.
func (o *file) append(row []byte) error {
	if _, err := o.f.WriteAt(row, o.size); err != nil {
		return errors.Join(err, o.f.Truncate(o.size))
	}
	o.size += int64(len(row))
	return nil
}

// Close implements Writer.
func (o *file) Close() error { return o.f.Close() }

// keptLines returns the end of the lines up to the first one of a later step. stepOf returns the step
// of a line. A last line that does not end goes too: who wrote it was killed.
func keptLines(r *bufio.Reader, step int, stepOf func(line []byte, number int) (int, error)) (end int64, err error) {
	for number := 1; ; number++ {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return end, nil
		}
		if err != nil {
			return 0, err
		}
		at, err := stepOf(bytes.TrimRight(line, "\r\n"), number)
		if err != nil {
			return 0, fmt.Errorf("line %d is no row of a monitor: %w", number, err)
		}
		if at > step {
			return end, nil
		}
		end += int64(len(line))
	}
}
