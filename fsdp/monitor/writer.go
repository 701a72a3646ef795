package monitor

import "time"

// A Writer records the rows of a run, on rank 0: see [JSONLines], [CSV] and [TensorBoard]. Its
// methods are called by the goroutine of the Monitor.
type Writer interface {
	// Open begins. What an earlier part of the run has written of steps after this one goes, since
	// they are done again; after 0 that is everything.
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
	Step   int
	Time   time.Time
	Values []Value
}

// A Value is a number with a name.
type Value struct {
	Name  string
	Value float64
}
