package monitor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/internal/regular"
)

// A file is the file that a writer appends rows to.
type file struct {
	path string
	f    *os.File
	size int64 // size of the complete rows
}

// open opens the file and creates its directories. kept returns the ends of the head, which has no
// steps, and of the rows up to step. If step is 0, this is a new run: open moves the file of an
// earlier run aside, with a warning, in case Config.State was forgotten.
func (o *file) open(step int, kept func(r *bufio.Reader) (head, end int64, err error)) error {
	if err := os.MkdirAll(filepath.Dir(o.path), 0o777); err != nil {
		return err
	}
	if step == 0 {
		to, bytes, err := regular.PutAside(o.path)
		if err != nil {
			return err
		}
		if to != "" {
			slog.Warn("monitor: a file of an earlier run was moved, because this run begins at step 0: to continue a run, set Config.State to the saved result of Monitor.State",
				"file", o.path, "bytes", bytes, "to", to)
		}
	}
	f, err := regular.Open(o.path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	o.f, o.size = f, 0
	if step > 0 {
		head, end, err := kept(bufio.NewReader(f))
		if err == nil {
			err = o.cut(head, end, step)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", o.path, err), f.Close())
		}
	}
	return nil
}

// cut removes the rows after end. It keeps a copy of the head and these rows in a directory next to
// the file.
func (o *file) cut(head, end int64, step int) error {
	info, err := o.f.Stat()
	o.size = end
	if err != nil || info.Size() == end {
		return err
	}
	to, err := regular.Earlier(o.path)
	if err != nil {
		return err
	}
	f, err := regular.Open(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, io.MultiReader(io.NewSectionReader(o.f, 0, min(head, end)), io.NewSectionReader(o.f, end, info.Size()-end)))
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(to))
	}
	slog.Info("monitor: rows after the step from which this run continues were moved, because it repeats these steps",
		"file", o.path, "step", step, "bytes", info.Size()-end, "to", to)
	return o.f.Truncate(end)
}

// append appends a row. If it fails, it restores the file as far as the system lets it.
func (o *file) append(row []byte) error {
	if _, err := o.f.WriteAt(row, o.size); err != nil {
		return errors.Join(err, o.f.Truncate(o.size))
	}
	o.size += int64(len(row))
	return nil
}

// Close implements Writer.
func (o *file) Close() error { return o.f.Close() }

// keptLines returns the ends of the head and of the lines before the first one of a later step.
// stepOf returns the step of a line; the first heads lines have none. It drops an incomplete last
// line, whose writer was killed.
func keptLines(r *bufio.Reader, step, heads int, stepOf func(line []byte, number int) (int, error)) (head, end int64, err error) {
	for number := 1; ; number++ {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return head, end, nil
		}
		if err != nil {
			return 0, 0, err
		}
		at, err := stepOf(bytes.TrimRight(line, "\r\n"), number)
		if err != nil {
			return 0, 0, fmt.Errorf("line %d is not a row of a monitor: %w", number, err)
		}
		if at > step {
			return head, end, nil
		}
		end += int64(len(line))
		if number == heads {
			head = end
		}
	}
}
