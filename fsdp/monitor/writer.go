package monitor

import (
	"fmt"
	"time"
)

// A Writer records the rows of a run, on rank 0: see [JSONLines], [CSV] and [TensorBoard]. Its
// methods are called by the goroutine of the Monitor.
type Writer interface {
	// Open begins. Rows that an earlier part of the run has written of steps after this one are moved to
	// earlier-1, earlier-2, … beside the file, since these steps are done again. At step 0 another run
	// begins: the files of an earlier one are moved there, with a warning.
	Open(step int) error
	// Write records a row. It may not keep r.
	Write(r *Row) error
	// Close ends what Open has begun.
	Close() error
}

// A Row is what is recorded of a step, or of an evaluation after it: then the names begin with
// "validation/". Rows come in the order of their steps. What the monitor knows itself has names that
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

// A Histogram says how many numbers lie between edges, which ascend: Counts[i] of them in
// [Edges[i-1], Edges[i]). The first and the last interval have no end, so there is a count more than
// there are edges.
type Histogram struct {
	Name   string    `json:"-"`
	Edges  []float64 `json:"edges"`
	Counts []int     `json:"counts"`
}

// check returns what is wrong with h.
func (h *Histogram) check() error {
	if err := legal(h.Name); err != nil {
		return err
	}
	if len(h.Edges) == 0 || len(h.Counts) != len(h.Edges)+1 {
		return fmt.Errorf("%s: %d edges and %d counts: want an edge or more, and a count more than edges", h.Name, len(h.Edges), len(h.Counts))
	}
	for i, e := range h.Edges {
		if !finite(e) || i > 0 && e <= h.Edges[i-1] {
			return fmt.Errorf("%s: edge %d is %v: edges are finite and ascend", h.Name, i, e)
		}
	}
	for i, n := range h.Counts {
		if n < 0 {
			return fmt.Errorf("%s: count %d is %d", h.Name, i, n)
		}
	}
	return nil
}
