package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"golang.org/x/term"

	"github.com/gofsdp/gofsdp/internal/text"
)

// sizeText returns a readable number of bytes: "512 B", "1.5 KiB", "12.0 GiB".
func sizeText(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	x, unit := float64(n)/(1<<10), 0
	for x >= 1023.95 && unit < 5 { // would be printed as 1024.0
		x, unit = x/(1<<10), unit+1
	}
	return fmt.Sprintf("%.1f %ciB", x, "KMGTPE"[unit])
}

// countText returns n with a comma before every three digits.
func countText(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// plural returns "1 file" or "3 files".
func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return countText(n) + " " + noun
}

// table prints rows of cells separated by tabs, in columns. No line ends with spaces. Lines of more
// than 80 columns are broken.
func table(w io.Writer, rows []string) error {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(t, row)
	}
	t.Flush() // into memory
	for line := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(w, text.Fill(strings.TrimRight(line, " \n"), 80, "    ")); err != nil {
			return err
		}
	}
	return nil
}

// progress shows on a terminal how much of a task is done. It prints when the percentage changes.
type progress struct {
	w           io.Writer // nil: not a terminal
	verb        string
	done, total int64 // bytes
	shown       int64 // per cent
}

func newProgress(w io.Writer, verb string, total int64) *progress {
	p := &progress{verb: verb, total: total, shown: -1}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.w = w
	}
	return p
}

// add adds bytes to the finished part.
func (p *progress) add(bytes int) {
	p.done += int64(bytes)
	percent := int64(100)
	if p.total > 0 {
		percent = int64(float64(p.done) / float64(p.total) * 100)
	}
	if p.w != nil && percent != p.shown {
		p.shown = percent
		fmt.Fprintf(p.w, "%s %d%% of %s\x1b[K\r", p.verb, percent, sizeText(p.total))
	}
}

// end wipes the line.
func (p *progress) end() {
	if p.w != nil {
		fmt.Fprint(p.w, "\x1b[K")
	}
}
