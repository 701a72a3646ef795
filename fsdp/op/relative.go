package op

import (
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/ops"
)

// Relative says which bias a query gives a key by the distance between them, in [RelativeBias].
type Relative struct {
	// Queries and Keys are the lengths of the two sequences. The queries are the last of the keys.
	Queries, Keys int
	// MaxDistance is the distance from which on all share a bucket: 128 in T5.
	MaxDistance int
	// Causal gives keys behind the query the bucket of distance 0. Otherwise they have half of the
	// buckets.
	Causal bool
}

// RelativeBias returns the relative positions of T5 (Raffel et al., 2020, arXiv:1910.10683) as a
// bias for [SDPA], [Heads, Queries, Keys]: the row of table [Buckets, Heads] for the distance. Half
// of the buckets of a direction, of which there are one or two, are for a distance each, the others
// for ranges that grow exponentially up to MaxDistance. In passes in bfloat16 both are float32.
//
// Errors: fewer than 2 buckets, or for both directions fewer than 4 or an odd number; a MaxDistance
// that is no larger than the distances that have buckets of their own; more queries than keys.
func RelativeBias(table *gorgonia.Node, r Relative) (*gorgonia.Node, error) {
	return ops.RelativeBias(table, ops.Relative(r))
}
