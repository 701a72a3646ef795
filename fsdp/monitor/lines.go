package monitor

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/gofsdp/gofsdp/internal/regular"
)

// JSONLines returns a writer of a file with one JSON object per line:
//
//	{"step":20,"time":"2026-11-23T05:10:30.123Z","loss":2.31,"lr":0.0003,"run/seconds":12.5}
//
// Each row is written immediately. A number that JSON lacks, NaN or an infinity, is null.
func JSONLines(path string) Writer {
	return &jsonLines{file: file{path: path}, names: make(map[string][]byte)}
}

type jsonLines struct {
	file
	names map[string][]byte // as JSON
	row   []byte
}

func (w *jsonLines) Open(step int) error {
	return w.open(step, func(r *bufio.Reader) (int64, int64, error) { return keptLines(r, step, 0, w.stepOf) })
}

func (w *jsonLines) stepOf(line []byte, _ int) (int, error) {
	var row struct {
		Step *int `json:"step"`
	}
	if err := json.Unmarshal(line, &row); err != nil {
		return 0, err
	}
	if row.Step == nil {
		return 0, errors.New("the step is missing")
	}
	return *row.Step, nil
}

func (w *jsonLines) Write(r *Row) error {
	b := strconv.AppendInt(append(w.row[:0], `{"step":`...), int64(r.Step), 10)
	b = append(appendTime(append(b, `,"time":"`...), r.Time), '"')
	for _, v := range r.Values {
		b = append(append(append(b, ','), w.name(v.Name)...), ':')
		if finite(v.Value) {
			b = strconv.AppendFloat(b, v.Value, 'g', -1, 64)
		} else {
			b = append(b, "null"...)
		}
	}
	for i := range r.Histograms {
		text, err := json.Marshal(&r.Histograms[i])
		if err != nil {
			return err
		}
		b = append(append(append(append(b, ','), w.name(r.Histograms[i].Name)...), ':'), text...)
	}
	w.row = append(b, '}', '\n')
	return w.append(w.row)
}

func (w *jsonLines) name(name string) []byte {
	text, ok := w.names[name]
	if !ok {
		text, _ = json.Marshal(name) // never fails for a string
		w.names[name] = text
	}
	return text
}

// appendTime appends a time to the millisecond, in UTC.
func appendTime(b []byte, t time.Time) []byte {
	return t.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z07:00")
}

// CSV returns a writer of a table: a line of names, beginning with step and time, then a line for
// each row (RFC 4180). A cell without a value is empty. A new name gets its own column at the end.
// The writer then writes a new file, which replaces the old one when it is complete. Each row is
// written immediately.
func CSV(path string) Writer { return &csvFile{file: file{path: path}} }

type csvFile struct {
	file
	columns map[string]int
	names   []string
	cells   []float64
	filled  []bool
	row     []byte
}

func (w *csvFile) Open(step int) error {
	w.columns, w.names = make(map[string]int), nil
	if err := w.open(step, func(r *bufio.Reader) (int64, int64, error) { return keptLines(r, step, 1, w.stepOf) }); err != nil {
		return err
	}
	if w.names == nil {
		w.add("step")
		w.add("time")
	}
	return nil
}

// stepOf returns the step of a line. It takes the names from the first line.
func (w *csvFile) stepOf(line []byte, number int) (int, error) {
	if number > 1 {
		cell, _, _ := bytes.Cut(line, []byte(","))
		return strconv.Atoi(string(cell))
	}
	names, err := csv.NewReader(bytes.NewReader(line)).Read()
	if err != nil {
		return 0, err
	}
	if len(names) < 2 || names[0] != "step" || names[1] != "time" {
		return 0, fmt.Errorf("the first columns must be step and time, the columns are %q", names)
	}
	for _, name := range names {
		w.add(name)
	}
	return 0, nil
}

func (w *csvFile) add(name string) {
	w.columns[name] = len(w.names)
	w.names = append(w.names, name)
}

func (w *csvFile) Write(r *Row) error {
	known := len(w.names)
	for _, v := range r.Values {
		if _, ok := w.columns[v.Name]; !ok {
			w.add(v.Name)
		}
	}
	if known < len(w.names) || w.size == 0 {
		if err := w.widen(len(w.names) - known); err != nil {
			for _, name := range w.names[known:] {
				delete(w.columns, name)
			}
			w.names = w.names[:known]
			return err
		}
	}
	w.cells, w.filled = slices.Grow(w.cells[:0], len(w.names))[:len(w.names)], slices.Grow(w.filled[:0], len(w.names))[:len(w.names)]
	clear(w.filled)
	for _, v := range r.Values {
		i := w.columns[v.Name]
		w.cells[i], w.filled[i] = v.Value, true
	}
	b := append(strconv.AppendInt(w.row[:0], int64(r.Step), 10), ',')
	b = appendTime(b, r.Time)
	for i := 2; i < len(w.names); i++ {
		b = append(b, ',')
		if w.filled[i] {
			b = strconv.AppendFloat(b, w.cells[i], 'g', -1, 64)
		}
	}
	w.row = append(b, '\n')
	return w.append(w.row)
}

// widen writes a new file with the names of all columns, the last more of which are new.
func (w *csvFile) widen(more int) error {
	next := file{path: w.path + ".new"}
	f, err := regular.Open(next.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	next.f = f
	size, err := w.copyTo(next.f, more)
	if err = errors.Join(err, next.f.Close()); err != nil {
		return errors.Join(err, os.Remove(next.path))
	}
	// Windows does not rename open files.
	if err := errors.Join(w.f.Close(), os.Rename(next.path, w.path)); err != nil {
		return err
	}
	w.f, err = os.OpenFile(w.path, os.O_RDWR, 0)
	w.size = size
	return err
}

// copyTo writes the names and the rows, with empty cells for more columns, and returns the size.
func (w *csvFile) copyTo(f *os.File, more int) (size int64, err error) {
	out := bufio.NewWriter(f)
	names := csv.NewWriter(out)
	names.Write(w.names) // Flush returns an error again
	names.Flush()
	rows := bufio.NewReader(io.NewSectionReader(w.f, 0, w.size))
	empty := bytes.Repeat([]byte{','}, more)
	for first := true; ; first = false {
		line, err := rows.ReadBytes('\n')
		switch {
		case err == io.EOF:
			if err := out.Flush(); err != nil {
				return 0, err
			}
			return f.Seek(0, io.SeekEnd)
		case err != nil:
			return 0, err
		case first: // the old names
			continue
		}
		out.Write(bytes.TrimRight(line, "\r\n"))
		out.Write(empty)
		out.WriteByte('\n')
	}
}
