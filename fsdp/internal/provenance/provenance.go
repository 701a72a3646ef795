// Package provenance lets a loader of package data say where a batch comes from, so that package
// fsdp can compare it between ranks. The two meet only in the caller's loop. The note travels with
// the batch, behind its last tensor in the capacity of the slice. A program that makes another
// slice loses it, and then nothing is compared.
package provenance

import "gorgonia.org/tensor"

// A Provenance is where batches come from.
type Provenance struct {
	Source string // the samples, their order, the position and the samples of a step, the same on all ranks
	Ranks  int    // that share out the samples
}

// note is a tensor only to fit into a batch.
type note struct {
	tensor.Tensor
	Provenance
}

// Set returns the batch with a note. An empty batch gets none.
func Set(batch []tensor.Tensor, p Provenance) []tensor.Tensor {
	if len(batch) == 0 {
		return batch
	}
	return append(batch, &note{Provenance: p})[:len(batch)]
}

// Of returns the note of a batch, or nothing.
func Of(batch []tensor.Tensor) (p Provenance) {
	if n := len(batch); n < cap(batch) {
		if note, ok := batch[:n+1][n].(*note); ok {
			p = note.Provenance
		}
	}
	return p
}
