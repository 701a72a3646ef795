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

// A Screen prints lines and, below them, a progress line. On a terminal it updates this line in
// place, at most ten times a second. Elsewhere it logs lines: the first, one at each twentieth of
// the run, and one after ten minutes without any. Any goroutine may use it, such as a logger's.
// Errors of the writer are dropped: a job does not end because its output is gone.
type Screen struct {
	w     io.Writer
	width func() int // columns of the terminal; nil if the writer is not a terminal
	relay bool       // the writer is a pipe to fsdprun, which overwrites lines that end in a carriage return
	color bool

	mu     sync.Mutex
	drawn  time.Time     // when the progress line was last drawn
	shown  bool          // whether it is on the screen now
	log    bool          // whether a line has been logged
	share  float64       // of the run that was over when the last line was logged
	logged time.Duration // time that the run had taken then
}

// More redraws than the eye can follow would only slow down the training.
const redrawEvery = 100 * time.Millisecond

// A log has logLines progress lines in a run, and one after logEvery without any.
const (
	logLines = 20
	logEvery = 10 * time.Minute
)

// NewScreen returns a screen on w. The progress line is live if w is a terminal, or standard output
// that fsdprun shows on one, unless plain asks for a log. Colours follow https://no-color.org.
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

// columnsOf returns the number of columns of a terminal.
func columnsOf(file *os.File) int {
	columns, _, err := term.GetSize(int(file.Fd()))
	if err != nil || columns < 1 {
		return 80
	}
	return columns
}

// relayed returns the number of columns of the terminal on which fsdprun shows the file, or 0.
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

// newScreen returns a screen. width returns the number of columns of w's terminal and is called
// before every drawing, as windows change; nil means that w is not a terminal. color allows
// colours.
func newScreen(w io.Writer, width func() int, color bool) *Screen {
	return &Screen{w: w, width: width, color: color}
}

// screenOf returns w if it is a screen, otherwise a new screen on it.
func screenOf(w io.Writer) *Screen {
	switch w := w.(type) {
	case nil:
		return newScreen(io.Discard, nil, false)
	case *Screen:
		return w
	}
	return NewScreen(w, false)
}

// LogColumns is the width of logs without a terminal: 80 with fsdprun's prefix of each line.
const LogColumns = 76

// Width returns the number of columns to fill: the width of the terminal, or LogColumns.
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

// due reports whether to draw the progress, at a share of the run and after an elapsed time.
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
	if done == 0 { // unknown end: fewer and fewer lines
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
	line := paint(s.color, cyan, p.line(s.width()-1))
	if s.relay {
		fmt.Fprint(s.w, line, "\r")
	} else {
		fmt.Fprint(s.w, "\r", line, eraseRight)
	}
	s.drawn, s.shown = time.Now(), true
}

// Title returns text in bold, if the screen has colours.
func (s *Screen) Title(text string) string { return paint(s.color, bold, text) }

// crossed reports whether a run that went from one completed share to another has passed the end of
// one of n equal parts.
func crossed(from, to float64, n int) bool {
	const rounding = 1e-9 // 3*0.1 is not 0.3
	return int(from*float64(n)+rounding) < int(to*float64(n)+rounding)
}

// Control sequences (ECMA-48).
const (
	eraseRight = "\x1b[K"
	reset      = "\x1b[0m"
	bold       = "\x1b[1m"
	dim        = "\x1b[2m"
	cyan       = "\x1b[36m"
	yellow     = "\x1b[33m"
)

func paint(color bool, style, text string) string {
	if !color || strings.TrimSpace(text) == "" {
		return text
	}
	return style + text + reset
}
