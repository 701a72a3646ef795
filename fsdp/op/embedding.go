package op

import (
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/ops"
)

// Embedding returns the rows of table [rows, d] that index, ints of any shape [...], selects: [...,
// d]. An index outside of [0, rows) is an error of the pass.
func Embedding(table, index *gorgonia.Node) (*gorgonia.Node, error) {
	return ops.Embedding(table, index)
}

// AddPositions returns x [B, T, d] plus the first T rows of table [rows, d], T <= rows: [B, T, d].
func AddPositions(x, table *gorgonia.Node) (*gorgonia.Node, error) {
	return ops.AddPositions(x, table)
}
