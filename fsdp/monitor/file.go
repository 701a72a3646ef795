package monitor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/internal/regular"
)

// A file is what a writer appends rows to.
type file struct {
	path string
	f    *os.File
	size int64 // of complete rows
}

// open opens the file, with its directories. kept returns where what is kept of it ends. Without a step
// this is another run: the file of an earlier one is put aside.
func (o *file) open(step int, kept func(r *bufio.Reader) (end int64, err error)) error {
	if err := os.MkdirAll(filepath.Dir(o.path), 0o777); err != nil {
		return err
	}
	if step == 0 {
		if err := o.putAside(); err != nil {
			return err
		}
	}
	f, err := regular.Open(o.path, os.O_RDWR|os.O_CREATE, 0o666)
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

// putAside moves the file of an earlier run, if there is one, to a directory of its own beside it, with a
// warning: whoever forgets Config.State loses nothing.
func (o *file) putAside() error {
	info, err := os.Lstat(o.path)
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return nil // what is wrong with it, Open says
	}
	for n := 1; ; n++ {
		to := filepath.Join(filepath.Dir(o.path), fmt.Sprintf("earlier-%d", n), filepath.Base(o.path))
		if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
			if err != nil {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
			return err
		}
		if err := os.Rename(o.path, to); err != nil {
			return err
		}
		slog.Warn("monitor: a file of an earlier run was moved, as this run begins at step 0: a run that goes on gives Config.State what Monitor.State has saved",
			"file", o.path, "bytes", info.Size(), "to", to)
		return nil
	}
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
