// Package provenance lets a loader of package data say where a batch comes from, so that Join of package
// fsdp can compare it between ranks. The two meet only in the caller's loop.
package provenance

import "sync"

// A Provenance is where batches come from.
type Provenance struct {
	Source string // the samples, their order, the position and the samples of a step, the same on all ranks
	Ranks  int    // that share out the samples
}

// known holds the Provenance of batches by the address of their first tensor.
var known sync.Map

// Set notes where a batch comes from until forget is called.
func Set[T any](batch []T, o Provenance) (forget func()) {
	if len(batch) == 0 {
		return func() {}
	}
	known.Store(&batch[0], o)
	return func() { known.Delete(&batch[0]) }
}

// Of returns where a batch comes from, or nothing.
func Of[T any](batch []T) (o Provenance) {
	if len(batch) > 0 {
		if v, ok := known.Load(&batch[0]); ok {
			o = v.(Provenance)
		}
	}
	return o
}
