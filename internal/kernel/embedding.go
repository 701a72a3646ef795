package kernel

import (
	"fmt"

	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Embedding copies rows of a table [rows, d]: y[i, :] = table[idx[i], :], y [len(idx), d]. An index
// outside [0, rows) is an error that names its position and value; y is then untouched.
func Embedding[T Element](y, table []T, idx []int, rows, d int) error {
	check("Embedding", "y", len(y), len(idx)*d)
	check("Embedding", "table", len(table), rows*d)
	if err := CheckIndices(idx, rows); err != nil {
		return err
	}
	for i, r := range idx {
		copy(y[i*d:(i+1)*d], table[r*d:(r+1)*d])
	}
	return nil
}

// CheckIndices returns the error that [Embedding] returns for invalid indices.
func CheckIndices(idx []int, rows int) error {
	for i, r := range idx {
		if r < 0 || r >= rows {
			return fmt.Errorf("index %d at position %d is outside the table of %d rows, 0 to %d: tokens need a model with the Vocab of their tokenizer, positions one with a longer Context",
				r, i, rows, rows-1)
		}
	}
	return nil
}

// EmbeddingGrad is the gradient of [Embedding] with respect to the table: dtable[idx[i], :] +=
// dy[i, :], in the order of idx. It panics for indices that Embedding refuses.
func EmbeddingGrad[T Float](dtable, dy []T, idx []int, rows, d int, acc bool) {
	check("EmbeddingGrad", "dy", len(dy), len(idx)*d)
	check("EmbeddingGrad", "dtable", len(dtable), rows*d)
	if !acc {
		clear(dtable)
	}
	for i, r := range idx {
		vec.Accumulate(dtable[r*d:(r+1)*d], dy[i*d:(i+1)*d])
	}
}
