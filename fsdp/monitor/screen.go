package monitor

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// A Screen prints lines, and below them a progress line. On a terminal that line is updated in
// place, at most ten times a second; elsewhere it becomes lines of a log: the first, one at each
// twentieth of the run, and one after ten minutes without. It may be used by any goroutine, such as
// those of a logger. Errors of the writer are dropped: a job does not end because nobody can watch
// it.
type Screen struct {
	w     io.Writer
	width func() int // columns of the terminal; nil if the writer is none
	relay bool       // the writer is a pipe to fsdprun, which overwrites lines that a carriage return ends
	color bool

	mu     sync.Mutex
	drawn  time.Time     // when the progress line was last drawn
	shown  bool          // it is on the screen now
	log    bool          // a line has been logged
	share  float64       // of the run that was over then
	logged time.Duration // that the run had taken then
}

// Redrawing more often than the eye follows would only slow the training down.
const redrawEvery = 100 * time.Millisecond

// A log has so many progress lines in a run, and no longer a time without any.
const (
	logLines = 20
	logEvery = 10 * time.Minute
)

// NewScreen returns a screen over w: live if that is a terminal, or standard output that fsdprun shows
// on one, unless plain asks for a log. Colours follow https://no-color.org.
func NewScreen(w io.Writer, plain bool) *Screen {
	file, ok := w.(*os.File)
	color := os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	switch columns := relayed(file); {
	case !ok || plain:
	case term.IsTerminal(int(file.Fd())):
		return newScreen(w, func() int { return columnsOf(file) }, color)
	case columns > 0:
		s := newScreen(w, func() int { return columns }, color)
		s.relay = true
		return s
	}
	return newScreen(w, nil, false)
}

// columnsOf returns the columns of a terminal.
func columnsOf(file *os.File) int {
	columns, _, err := term.GetSize(int(file.Fd()))
	if err != nil || columns < 1 {
		return 80
	}
	return columns
}

// relayed returns the columns of the terminal that fsdprun shows the file on, or 0.
func relayed(file *os.File) int {
	columns, err := strconv.Atoi(os.Getenv("FSDP_COLUMNS"))
	if err != nil || file != os.Stdout {
		return 0
	}
	info, err := file.Stat()
	if err != nil || info.Mode()&os.ModeNamedPipe == 0 { // it was sent elsewhere
		return 0
	}
	return columns
}

// newScreen returns a screen. width returns the columns of the terminal that w writes to and is
// asked before every drawing, as windows change; nil means that w is not a terminal. color allows
// colours.
func newScreen(w io.Writer, width func() int, color bool) *Screen {
	return &Screen{w: w, width: width, color: color}
}

// screenOf returns w if it is a screen, else one over it.
func screenOf(w io.Writer) *Screen {
	switch w := w.(type) {
	case nil:
		return newScreen(io.Discard, nil, false)
	case *Screen:
		return w
	}
	return NewScreen(w, false)
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
func (s *Screen) Printf(format string, args ...any) { fmt.Fprintf(s, format, args...) }

// Write prints b above the progress line. It returns no error.
func (s *Screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shown && !s.relay {
		fmt.Fprint(s.w, "\r", eraseRight)
	}
	s.shown = false
	s.w.Write(b)
	return len(b), nil
}

// due says whether the progress is to be drawn when the run has come to a share of itself and has
// taken so long.
func (s *Screen) due(done float64, elapsed time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == io.Discard {
		return false
	}
	if s.width != nil {
		return !s.shown || time.Since(s.drawn) >= redrawEvery
	}
	wait := logEvery
	if done == 0 { // nobody knows the end: ever fewer lines
		wait = min(wait, max(time.Second, s.logged/5))
	}
	if s.log && !crossed(s.share, done, logLines) && elapsed-s.logged < wait {
		return false
	}
	s.log, s.share, s.logged = true, done, elapsed
	return true
}

// draw shows p.
func (s *Screen) draw(p progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.width == nil {
		fmt.Fprintln(s.w, p.log())
		return
	}
	// The last column stays free: some terminals wrap when it is written.
	if line := paint(s.color, cyan, p.line(s.width()-1)); s.relay {
		fmt.Fprint(s.w, line, "\r")
	} else {
		fmt.Fprint(s.w, "\r", line, eraseRight)
	}
	s.drawn, s.shown = time.Now(), true
}

// Title returns text in bold, if the screen has colours.
func (s *Screen) Title(text string) string { return paint(s.color, bold, text) }

// crossed says whether a run that went from one share done to another has passed the end of one of
// n equal parts.
func crossed(from, to float64, n int) bool {
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

func paint(color bool, style, text string) string {
	if !color || strings.TrimSpace(text) == "" {
		return text
	}
	return style + text + reset
}
