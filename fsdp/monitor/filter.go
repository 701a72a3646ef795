package monitor

import (
	"io"
	"unicode"
	"unicode/utf8"
)

// A Filter passes text on to a writer and replaces everything that could control a terminal by '·':
// control characters other than newline and tab, and bytes that are not UTF-8. A model of bytes can
// produce all of these. A character may be written in pieces.
type Filter struct {
	W       io.Writer
	pending []byte // the beginning of a character
}

// Write implements io.Writer.
func (f *Filter) Write(b []byte) (int, error) {
	f.pending = append(f.pending, b...)
	var out []byte
	for utf8.FullRune(f.pending) {
		r, size := utf8.DecodeRune(f.pending)
		if r == utf8.RuneError && size == 1 || unicode.Is(unicode.C, r) && r != '\n' && r != '\t' {
			r = '·'
		}
		out = utf8.AppendRune(out, r)
		f.pending = f.pending[size:]
	}
	if len(out) > 0 {
		if _, err := f.W.Write(out); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}
