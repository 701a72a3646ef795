package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// The two output streams of a process.
const (
	stdout = iota
	stderr
)

// screen prints lines of many ranks, one at a time.
type screen struct {
	mu       sync.Mutex
	out      [2]io.Writer
	terminal [2]bool
	colour   bool
	progress bool // the terminal shows a line that the next one overwrites
}

func newScreen(out, err io.Writer, environ []string) *screen {
	return &screen{
		out: [2]io.Writer{out, err}, terminal: [2]bool{isTerminal(out), isTerminal(err)},
		colour: lookup(environ, "NO_COLOR") == "",
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// columns returns the number of columns that a rank may fill in a line of standard output, after
// the prefix of print: 0 if it is not a terminal.
func (s *screen) columns() int {
	f, ok := s.out[stdout].(*os.File)
	if !ok || !s.terminal[stdout] {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return max(0, width-len("[999] "))
}

// print prints a line of a rank. A progress line is shown only on a terminal, and is overwritten.
func (s *screen) print(stream, rank int, line []byte, progress bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if progress && !s.terminal[stream] {
		return
	}
	var b bytes.Buffer
	s.clear(&b, stream)
	if s.terminal[stream] && s.colour {
		fmt.Fprintf(&b, "\x1b[%dm[%d]\x1b[0m ", 31+rank%6, rank)
	} else {
		fmt.Fprintf(&b, "[%d] ", rank)
	}
	b.Write(line)
	if progress {
		b.WriteByte('\r')
		s.progress = true
	} else {
		b.WriteByte('\n')
	}
	s.out[stream].Write(b.Bytes()) // nowhere to report an error
}

// clear wipes a progress line from the terminal.
func (s *screen) clear(b *bytes.Buffer, stream int) {
	if s.progress && s.terminal[stream] {
		b.WriteString("\x1b[K")
		s.progress = false
	}
}

// say prints lines of fsdprun itself.
func (s *screen) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b bytes.Buffer
	s.clear(&b, stderr)
	for line := range strings.SplitSeq(strings.TrimRight(fmt.Sprintf(format, args...), "\n"), "\n") {
		b.WriteString("fsdprun: " + line + "\n")
	}
	s.out[stderr].Write(b.Bytes())
}

// maxLine is the length beyond which a line is printed in pieces.
const maxLine = 1 << 20

// splitter cuts a stream into lines. A line ends with a line feed. A carriage return before it does
// not belong to the line. Text that ends with a carriage return is progress, at once. If a line
// feed follows, it is a line, too.
type splitter struct {
	emit func(line []byte, progress bool)

	line     []byte // so far
	returned bool   // line was ended by a carriage return, the next byte decides whether it is more than progress
}

func (s *splitter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if s.returned && p[0] != '\n' && p[0] != '\r' {
			s.line, s.returned = s.line[:0], false
		}
		i := bytes.IndexAny(p, "\r\n")
		if i < 0 {
			i = len(p)
		}
		for len(s.line)+i >= maxLine {
			k := maxLine - len(s.line)
			s.line = append(s.line, p[:k]...)
			s.end()
			p, i = p[k:], i-k
		}
		s.line = append(s.line, p[:i]...)
		if i == len(p) {
			break
		}
		if p[i] == '\n' {
			s.end()
		} else if !s.returned {
			s.emit(s.line, true)
			s.returned = true
		}
		p = p[i+1:]
	}
	return n, nil
}

// end emits the line.
func (s *splitter) end() {
	s.emit(s.line, false)
	s.line, s.returned = s.line[:0], false
}

// flush emits a last line without end.
func (s *splitter) flush() {
	if len(s.line) > 0 {
		s.end()
	}
}

// tail keeps the last lines, cut to a readable length.
type tail struct {
	mu    sync.Mutex
	lines []string
}

const (
	tailLines  = 10
	tailLength = 1000 // bytes
)

func (t *tail) add(line []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := string(line[:min(len(line), tailLength)])
	if len(line) > tailLength {
		text += "…"
	}
	if len(t.lines) == tailLines {
		t.lines = append(t.lines[:0], t.lines[1:]...)
	}
	t.lines = append(t.lines, text)
}

func (t *tail) last() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.lines...)
}
