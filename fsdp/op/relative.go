package op

import (
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/ops"
)

// Relative configures the bias that [RelativeBias] gives a query and a key for their distance.
type Relative struct {
	// Queries and Keys are the lengths of the two sequences. The queries are at the last of the
	// keys.
	Queries, Keys int
	// MaxDistance is the distance from which on all distances share a bucket: 128 in T5.
	MaxDistance int
	// Causal gives keys after the query the bucket of distance 0. Otherwise these keys have half of
	// the buckets.
	Causal bool
}

// RelativeBias returns the relative positions of T5 (Raffel et al., 2020, arXiv:1910.10683) as a
// bias for [SDPA], [Heads, Queries, Keys]: the row of table [Buckets, Heads] for the distance.
// There are one or two directions. Half of the buckets of a direction are for one distance each,
// the others for ranges that grow exponentially up to MaxDistance. In passes in bfloat16 both are
// float32.
//
// Errors: fewer than 2 buckets, or for both directions fewer than 4 or an odd number; a MaxDistance
// that is no larger than the distances with their own buckets; more queries than keys.
func RelativeBias(table *gorgonia.Node, r Relative) (*gorgonia.Node, error) {
	return ops.RelativeBias(table, ops.Relative(r))
}
