package monitor

import (
	"fmt"
	"time"
)

// A Writer records the rows of a run, on rank 0: see [JSONLines], [CSV], [TensorBoard] and [SVG].
// The Monitor calls its methods on its own goroutine.
type Writer interface {
	// Open begins at a step. A resumed run repeats the steps after it: their old rows are moved to
	// earlier-1, earlier-2, … next to the file. Step 0 begins a new run: the files of an earlier
	// run are moved there, with a warning.
	Open(step int) error
	// Write records a row. It must not keep r.
	Write(r *Row) error
	// Close closes the files of Open.
	Close() error
}

// A Row is the record of a step, or of an evaluation after it, whose names begin with
// "validation/". Rows come in the order of their steps. The monitor's own numbers have names that
// begin with "run/":
//
//	run/seconds            the run has taken
//	run/units              so far, of all ranks: tokens or whatever Step counts
//	run/units_per_second   in the steps of this row
//	run/mfu                share of the ranks' peak, if Config has FLOPs and Peak
//	run/flops_per_second   of all ranks, if Config has FLOPs alone
//	run/memory             the most bytes that a rank has held, if Config has a Model
type Row struct {
	Step       int
	Time       time.Time
	Values     []Value
	Histograms []Histogram
}

// A Value is a number with a name.
type Value struct {
	Name  string
	Value float64
}

// A Histogram has the counts of numbers between ascending edges: Counts[i] numbers in [Edges[i-1],
// Edges[i]). The first and the last interval are open, so there is one more count than edges.
type Histogram struct {
	Name   string    `json:"-"`
	Edges  []float64 `json:"edges"`
	Counts []int     `json:"counts"`
}

// check returns an error if h is malformed.
func (h *Histogram) check() error {
	if err := legal(h.Name); err != nil {
		return err
	}
	if len(h.Edges) == 0 || len(h.Counts) != len(h.Edges)+1 {
		return fmt.Errorf("%s: %d edges and %d counts: want at least one edge, and one more count than edges", h.Name, len(h.Edges), len(h.Counts))
	}
	for i, e := range h.Edges {
		if !finite(e) || i > 0 && e <= h.Edges[i-1] {
			return fmt.Errorf("%s: edge %d is %v: edges must be finite and ascend", h.Name, i, e)
		}
	}
	for i, n := range h.Counts {
		if n < 0 {
			return fmt.Errorf("%s: count %d is %d: must not be negative", h.Name, i, n)
		}
	}
	return nil
}
