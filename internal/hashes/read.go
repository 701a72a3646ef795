package hashes

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// A Pass is a rank's record of a pass.
type Pass struct {
	Head
	Entries []Entry
}

// A Reader reads the record of one rank.
type Reader struct {
	Rank, Ranks int

	// Cut is true at the end of a record that ends in the middle of a pass or of a line.
	Cut bool

	s    *bufio.Scanner
	line int
	open map[int]*Pass // by number
}

// longest is the greatest length of a line of a record, in bytes.
const longest = 1 << 20

// NewReader reads the first line of a record.
func NewReader(r io.Reader) (*Reader, error) {
	f := &Reader{s: bufio.NewScanner(r), open: make(map[int]*Pass)}
	f.s.Buffer(nil, longest)
	line, err := f.next()
	if err != nil {
		return nil, errors.Join(errors.New("no record of hashes"), f.s.Err())
	}
	if _, err := fmt.Sscanf(line, strings.TrimSuffix(title, "\n"), &f.Rank, &f.Ranks); err != nil || f.Rank < 0 || f.Rank >= f.Ranks {
		return nil, fmt.Errorf("no record of hashes: it begins with %q", line)
	}
	return f, nil
}

// next returns the next line, or io.EOF.
func (r *Reader) next() (string, error) {
	if !r.s.Scan() {
		if err := r.s.Err(); err != nil {
			return "", fmt.Errorf("line %d: %w", r.line+1, err)
		}
		return "", io.EOF
	}
	r.line++
	return r.s.Text(), nil
}

// Next returns the next complete pass, or io.EOF.
func (r *Reader) Next() (*Pass, error) {
	var p *Pass
	for {
		line, err := r.next()
		if err != nil {
			r.Cut = r.Cut || err == io.EOF && p != nil
			return nil, err
		}
		switch {
		case line+"\n" == end && p != nil:
			delete(r.open, p.Number)
			return p, nil
		case strings.HasPrefix(line, "pass "):
			p, err = r.pass(line)
		case p == nil:
			err = errors.New("outside of a pass")
		default:
			var e Entry
			e, err = parseEntry(line)
			p.Entries = append(p.Entries, e)
		}
		if err != nil {
			return nil, r.wrong(line, err)
		}
	}
}

// pass returns the pass that a line begins or continues.
func (r *Reader) pass(line string) (*Pass, error) {
	var h Head
	if _, err := fmt.Sscanf(line+"\n", pass, &h.Number, &h.Step, &h.Virtual); err != nil {
		return nil, err
	}
	p := r.open[h.Number]
	switch {
	case p == nil:
		p = &Pass{Head: h}
		r.open[h.Number] = p
	case p.Head != h:
		return nil, fmt.Errorf("two lines of pass %d contradict each other: the earlier line has step %d and virtual rank %d", h.Number, p.Step, p.Virtual)
	}
	return p, nil
}

// wrong returns the error for the line just read. The last line may have lost its end.
func (r *Reader) wrong(line string, err error) error {
	at := r.line
	if _, last := r.next(); last != nil {
		r.Cut = true
		return last
	}
	return fmt.Errorf("line %d: %q: %w", at, line, err)
}

func parseEntry(line string) (e Entry, err error) {
	fields := strings.SplitN(line, " ", 6)
	if len(fields) < 6 {
		return e, fmt.Errorf("%d fields, want 6", len(fields))
	}
	for e.Kind = Param; e.Kind.String() != fields[0]; {
		if e.Kind++; e.Kind == kinds {
			return e, fmt.Errorf("no kind %q", fields[0])
		}
	}
	for i, n := range []*int{&e.From, &e.To, &e.Bytes} {
		if *n, err = strconv.Atoi(fields[1+i]); err != nil {
			return e, err
		}
		if *n < 0 {
			return e, fmt.Errorf("%d is negative", *n)
		}
	}
	sum, err := strconv.ParseUint(fields[4], 16, 32)
	if err != nil {
		return e, err
	}
	e.Sum = uint32(sum)
	e.Name, err = strconv.Unquote(fields[5])
	return e, err
}
