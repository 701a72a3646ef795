package data

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/internal/text"
)

// OpenCSV opens a file of comma-separated values as [encoding/csv] reads them, quoted line breaks
// included. The first record has the names of the columns. Every other record is a sample. OpenCSV
// returns an error if a record has another length.
//
// T is a struct. A field of numbers, text, or true and false holds the column with its name, or
// with the name in its tag. The tag of an array or a slice ends in a star: the field holds all
// columns whose names begin with the text before the star, in the order of the file. OpenCSV skips
// fields with the tag "-" and columns without a field, but returns an error for a field without a
// column. If a field cannot hold a value, such as text that is no number, At returns an error with
// line and column.
//
//	type digit struct {
//		Label  int         `data:"label"`
//		Pixels [64]float32 `data:"pixel*"` // pixel0, pixel1, …
//	}
//	digits, err := data.OpenCSV[digit]("digits.csv")
func OpenCSV[T any](path string) (*File[T], error) {
	in, err := openInput(path)
	if err != nil {
		return nil, err
	}
	header, starts, err := in.records()
	var holders []columns
	if err == nil {
		if holders, err = columnsOf(reflect.TypeFor[T](), header); err != nil {
			err = in.errorf("%w", separated(header, err))
		}
	}
	if err != nil {
		return nil, errors.Join(err, in.file.Close())
	}
	return newFile("CSV records", []*input{in}, len(starts)-1, func(i int, x T) (T, error) {
		b, err := in.readPart(starts, i)
		if err != nil {
			return x, err
		}
		r := csv.NewReader(bytes.NewReader(b))
		r.FieldsPerRecord = len(header)
		record, err := r.Read()
		if err != nil {
			return x, fmt.Errorf("data: %s: %w", in.line(starts[i], 1), err)
		}
		for _, c := range holders {
			if at, err := c.fill(reflect.ValueOf(&x).Elem(), record); err != nil {
				line, _ := r.FieldPos(at)
				return x, fmt.Errorf("data: %s: column %q: %w", in.line(starts[i], line), header[at], err)
			}
		}
		return x, nil
	}), nil
}

// records reads all records. It returns the first record and the offsets of the others, and then
// the size of the file.
func (in *input) records() (header []string, starts []int64, err error) {
	begin, err := in.textStart()
	if err != nil {
		return nil, nil, err
	}
	r := csv.NewReader(bufio.NewReaderSize(io.NewSectionReader(in.file, begin, in.size-begin), mib))
	r.ReuseRecord = true
	header, err = r.Read()
	if err == io.EOF {
		err = errors.New("the header line with the column names is missing")
	}
	if err != nil {
		return nil, nil, in.errorf("%w", err)
	}
	header = slices.Clone(header)
	progress, counted := in.reading(in.size-begin), int64(0)
	defer progress.End()
	for {
		read := r.InputOffset()
		starts = append(starts, begin+read)
		progress.Add(int(read/mib - counted/mib))
		counted = read
		switch _, err := r.Read(); {
		case err == io.EOF && len(starts) == 1:
			return nil, nil, in.errorf("no record follows the column names")
		case err == io.EOF:
			return header, append(starts[:len(starts)-1], in.size), nil
		case err != nil:
			return nil, nil, in.errorf("%w", separated(header, err))
		}
	}
}

// separated returns the cause of err if the columns of the file are probably separated by another
// character than a comma, and else err.
func separated(header []string, err error) error {
	if len(header) != 1 || !strings.ContainsAny(header[0], ";\t|") {
		return err
	}
	return fmt.Errorf("the header line %q has no comma: only commas separate columns, so save the file with commas", header[0])
}

// columns are the columns whose values a field holds.
type columns struct {
	field
	from []int
}

// columnsOf finds columns for every field of T.
func columnsOf(t reflect.Type, header []string) (list []columns, err error) {
	for i, name := range header {
		if slices.Contains(header[:i], name) {
			return nil, fmt.Errorf("two columns have the name %q", name)
		}
	}
	fields, err := fieldsOf(t)
	for _, f := range fields {
		c := columns{field: f}
		prefix, star := strings.CutSuffix(f.name, "*")
		for i, name := range header {
			if name == f.name || star && strings.HasPrefix(name, prefix) {
				c.from = append(c.from, i)
			}
		}
		switch {
		case star != f.list:
			return nil, fmt.Errorf("%v: the tag of an array or a slice must end in a star, and no other tag may", f)
		case len(c.from) == 0:
			meant := "the tag data:\"NAME\" of a field names its column"
			if near := text.Nearest(f.name, header); near != "" {
				meant = fmt.Sprintf("is %q meant? If so, give the field the tag `data:%q`", near, near)
			}
			return nil, fmt.Errorf("%v: no such column among %q: %s", f, header, meant)
		case !f.holds(len(c.from)):
			return nil, fmt.Errorf("%v: %d columns match, want 1", f, len(c.from))
		}
		if err := set(reflect.New(f.element).Elem(), "0"); err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, err
}

// fill sets the field of x, a struct, to values of a record. With an error it returns the column.
func (c columns) fill(x reflect.Value, record []string) (at int, err error) {
	v := c.value(x, len(c.from))
	for i, at := range c.from {
		one := v
		if c.list {
			one = v.Index(i)
		}
		if err := set(one, record[at]); err != nil {
			if number := (*strconv.NumError)(nil); errors.As(err, &number) {
				err = fmt.Errorf("%q is no %v (%w): correct the file, or give the field another type", record[at], one.Type(), number.Err)
			}
			return at, err
		}
	}
	return 0, nil
}

// set sets v to the value of a text.
func set(v reflect.Value, text string) error {
	number := strings.TrimSpace(text)
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
		return nil
	case reflect.Bool:
		x, err := strconv.ParseBool(number)
		v.SetBool(x)
		return err
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		x, err := strconv.ParseInt(number, 10, v.Type().Bits())
		v.SetInt(x)
		return err
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		x, err := strconv.ParseUint(number, 10, v.Type().Bits())
		v.SetUint(x)
		return err
	case reflect.Float32, reflect.Float64:
		x, err := strconv.ParseFloat(number, v.Type().Bits())
		v.SetFloat(x)
		return err
	}
	return fmt.Errorf("values of %v, want numbers, text, or true and false", v.Type())
}
