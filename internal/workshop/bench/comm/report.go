package comm

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/gofsdp/gofsdp/internal/workshop/bench/stats"
)

const column = 11 // characters of a column

// table prints the medians of a world as they arrive, one table per operation.
type table struct {
	w     io.Writer
	names []string
	// text behind the names of candidates that were not measured properly
	marks map[string]string
	shown []string // columns of the current operation
}

func newTable(w io.Writer, sessions []*session, plainLoopback bool) *table {
	t := &table{w: w, marks: map[string]string{}}
	for _, s := range sessions {
		t.names = append(t.names, s.name)
		if s.tcp && plainLoopback {
			t.marks[s.name] = "*"
		}
	}
	return t
}

// title begins the table of an operation, with the candidates that have it.
func (t *table) title(world int, op string) {
	unit := "GB/s of the full tensor; us below 64K"
	if op == "barrier" || op == "flag" {
		unit = "us"
	}
	fmt.Fprintf(t.w, "\n%s, world %d  [%s]\n%-6s", op, world, unit, "")
	t.shown = t.shown[:0]
	for _, c := range candidates {
		for _, name := range t.names {
			if name == c.name && len(c.calls(op)) > 0 {
				t.shown = append(t.shown, name)
				fmt.Fprintf(t.w, "%*s", column, name+t.marks[name])
			}
		}
	}
	fmt.Fprintln(t.w)
}

// row prints the medians of a cell, given the seconds of all rounds by candidate.
func (t *table) row(c cell, times map[string][]float64) {
	size := sizeName(c.Bytes)
	if c.Op == "barrier" {
		size = ""
	}
	fmt.Fprintf(t.w, "%-6s", size)
	for _, name := range t.shown {
		switch rounds := times[name]; {
		case len(rounds) == 0:
			fmt.Fprintf(t.w, "%*s", column, "-")
		case c.Bytes < 64<<10:
			fmt.Fprintf(t.w, "%*.2f", column, stats.Median(rounds)*1e6)
		default:
			fmt.Fprintf(t.w, "%*.2f", column, float64(c.Bytes)/stats.Median(rounds)/1e9)
		}
	}
	fmt.Fprintln(t.w)
}

// sizeName formats bytes as 4K or 64M.
func sizeName(bytes int) string {
	switch {
	case bytes >= 1<<20 && bytes%(1<<20) == 0:
		return fmt.Sprintf("%dM", bytes>>20)
	case bytes >= 1<<10 && bytes%(1<<10) == 0:
		return fmt.Sprintf("%dK", bytes>>10)
	}
	return fmt.Sprintf("%dB", bytes)
}

// verdicts prints the ratios of a world and their targets.
func (t *table) verdicts(world int, list []verdict) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(t.w, "\ntimes as fast as, world %d  [geometric mean over sizes of their time / our time: of medians, of best rounds]\n", world)
	met, set := 0, 0
	for _, v := range list {
		goal := ""
		if v.Target > 0 {
			set++
			goal = fmt.Sprintf("target %.2f", v.Target)
		}
		if v.String() == "PASS" {
			met++
		}
		fmt.Fprintf(t.w, "%-11s %-24s %-15s %7.2f %7.2f   %-12s %s\n", v.Candidate+t.marks[v.Candidate], v.Against, v.Op, v.Ratio, v.Best, goal, v)
	}
	fmt.Fprintf(t.w, "%d of %d targets met\n", met, set)
}

// record is a run in its file format.
type record struct {
	Machine  string    `json:"machine"`
	Cores    int       `json:"cores"`
	Go       string    `json:"go"`
	Rounds   int       `json:"rounds"`
	Cells    []sample  `json:"cells"`
	Verdicts []verdict `json:"verdicts"`
}

// sample is all measurements of a cell.
type sample struct {
	cell
	Seconds map[string][]float64 `json:"seconds"` // of one operation, by candidate and round
}

func newRecord(opts options) *record {
	return &record{Machine: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version(), Rounds: opts.rounds}
}

func (r *record) add(c cell, times map[string][]float64) { r.Cells = append(r.Cells, sample{c, times}) }

func (r *record) write(path string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
