// Package provenance lets a loader of package data record the origin of a batch, so that Join of
// package fsdp can compare it between ranks. The two packages meet only in the caller's loop.
package provenance

import "gorgonia.org/tensor"

// A Provenance is the origin of batches.
type Provenance struct {
	Source string // the samples, their order, the position and the samples of a step, the same on all ranks
	Ranks  int    // number of ranks that share the samples
}

// known holds the Provenance of batches by the address of their first tensor.
var known sync.Map

// Set records the origin of a batch until forget is called.
func Set[T any](batch []T, o Provenance) (forget func()) {
	if len(batch) == 0 {
		return func() {}
	}
	known.Store(&batch[0], o)
	return func() { known.Delete(&batch[0]) }
}

// Of returns the origin of a batch, or the zero value.
func Of[T any](batch []T) (o Provenance) {
	if len(batch) > 0 {
		if v, ok := known.Load(&batch[0]); ok {
			o = v.(Provenance)
		}
	}
	return p
}
