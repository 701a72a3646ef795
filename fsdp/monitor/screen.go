package monitor

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// A Screen prints lines, and below them a progress line. On a terminal that line is updated in
// place; elsewhere it becomes log lines, about twenty in a run. It is for one goroutine. Errors of
// the writer are dropped: a job does not end because nobody can watch it.
type Screen struct {
	w     io.Writer
	width func() int // columns of the terminal; nil if the writer is none
	color bool
	now   func() time.Time

	drawn  time.Time // when the progress line was last drawn
	shown  bool      // it is on the screen now
	logged float64   // Progress.Done of the last log line; negative before the first
}

// Redrawing more often than the eye follows would only slow the training down.
const redrawEvery = 100 * time.Millisecond

// logLines is the number of progress lines in the log of a run.
const logLines = 20

// NewScreen returns a screen. width returns the columns of the terminal that w writes to and is
// asked before every drawing, as windows change; nil means that w is not a terminal. color allows
// colours.
func NewScreen(w io.Writer, width func() int, color bool) *Screen {
	return &Screen{w: w, width: width, color: color, now: time.Now, logged: -1}
}

// LogColumns are the columns of what is no terminal: 80 with what fsdprun puts before each line.
const LogColumns = 76

// Width returns the columns to fill: those of the terminal, or LogColumns.
func (s *Screen) Width() int {
	if s.width == nil {
		return LogColumns
	}
	return s.width()
}

// Printf prints text, which should end a line, above the progress line.
func (s *Screen) Printf(format string, args ...any) {
	s.erase()
	fmt.Fprintf(s.w, format, args...)
}

// Write prints b above the progress line.
func (s *Screen) Write(b []byte) (int, error) {
	s.erase()
	return s.w.Write(b)
}

// Progress shows p: on a terminal if the last time is long enough ago, in a log at the first step
// and whenever another twentieth of the run is over.
func (s *Screen) Progress(p Progress) {
	if s.width == nil {
		if s.logged < 0 || Crossed(s.logged, p.Done, logLines) {
			s.logged = p.Done
			fmt.Fprintln(s.w, p.Log())
		}
		return
	}
	now := s.now()
	if s.shown && now.Sub(s.drawn) < redrawEvery {
		return
	}
	// The last column stays free: some terminals wrap when it is written.
	fmt.Fprint(s.w, "\r", s.paint(cyan, p.Line(s.width()-1)), eraseRight)
	s.drawn, s.shown = now, true
}

// erase takes the progress line away.
func (s *Screen) erase() {
	if s.shown {
		fmt.Fprint(s.w, "\r", eraseRight)
		s.shown = false
	}
}

// Title returns text in bold, if the screen has colours.
func (s *Screen) Title(text string) string { return s.paint(bold, text) }

// Color says whether colours may be used.
func (s *Screen) Color() bool { return s.color }

// Crossed says whether a run that went from one share done to another has passed the end of one of
// n equal parts.
func Crossed(from, to float64, n int) bool {
	const rounding = 1e-9 // 3*0.1 is not 0.3
	return int(from*float64(n)+rounding) < int(to*float64(n)+rounding)
}

// Control sequences (ECMA-48).
const (
	eraseRight = "\x1b[K"
	reset      = "\x1b[0m"
	bold       = "\x1b[1m"
	cyan       = "\x1b[36m"
	yellow     = "\x1b[33m"
)

func (s *Screen) paint(style, text string) string { return paint(s.color, style, text) }

func paint(color bool, style, text string) string {
	if !color || strings.TrimSpace(text) == "" {
		return text
	}
	return style + text + reset
}
