// Package scores converts rows of attention scores to the bfloat16 operands of products:
// probabilities and, in the backward pass, the gradients of the scores.
//
// A row is read once or twice from the level-one cache, and no float32 result is stored. The
// exponential is a power of 2, by a polynomial of degree 6 for the fraction, within 2e-7 of the
// exact value. Results are rounded to nearest even, and subnormal results are zeros. The AVX-512
// kernel is used on processors with AVX512_BF16. The portable kernel computes the same up to the
// last digit of bfloat16.
package scores

import (
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/internal/half"
)

// A Span is the columns [Lo, Hi) that a row sees.
type Span struct{ Lo, Hi int32 }

// Unit divides the number of columns.
const Unit = 32

// Softmax writes the softmax of each row of s over its span to p, with zeros in all other of the
// cols columns, and its log-sum-exp to lse: -Inf for an empty span. There is one row for each span.
// Rows of p are ldp elements apart, and rows of s are lds elements apart. The contents of s are
// undefined afterwards.
func Softmax(p []half.BFloat16, ldp int, s []float32, lds, cols int, spans []Span, lse []float32) {
	check("Softmax", len(p), ldp, cols, spans)
	check("Softmax", len(s), lds, cols, spans)
	if len(lse) < len(spans) {
		panic(fmt.Sprintf("scores: Softmax: len(lse) is %d for %d rows", len(lse), len(spans)))
	}
	var stats [MostRows][2]float32
	softmax(p, ldp, s, lds, cols, spans, &stats)
	for r := range spans {
		lse[r] = stats[r][0] + float32(math.Log(float64(stats[r][1])))
	}
}

// MostRows is the largest number of rows that [Softmax] accepts.
const MostRows = 32

// Slopes writes exp(s - lse) to p and p·(dp - delta) to ds, element by element within the span of
// each row, and zeros in all other of the cols columns. lse and delta have an element for each
// column. Rows of p and ds are ld elements apart, and rows of s and dp are lds elements apart.
func Slopes(p, ds []half.BFloat16, ld int, s, dp []float32, lds, cols int, spans []Span, lse, delta []float32) {
	check("Slopes", min(len(p), len(ds)), ld, cols, spans)
	check("Slopes", min(len(s), len(dp)), lds, cols, spans)
	if min(len(lse), len(delta)) < cols {
		panic(fmt.Sprintf("scores: Slopes: lse and delta of %d and %d elements for %d columns", len(lse), len(delta), cols))
	}
	slopes(p, ds, ld, s, dp, lds, cols, spans, lse, delta)
}

// check panics unless the rows of a matrix are inside its slice, and the spans inside its columns.
func check(name string, length, ld, cols int, spans []Span) {
	if cols < 0 || cols%Unit != 0 || len(spans) > MostRows {
		panic(fmt.Sprintf("scores: %s: %d columns and %d rows", name, cols, len(spans)))
	}
	if len(spans) > 0 && (ld < cols || length < (len(spans)-1)*ld+cols) {
		panic(fmt.Sprintf("scores: %s: %d rows of %d columns, %d apart, do not fit %d elements", name, len(spans), cols, ld, length))
	}
	for _, s := range spans {
		if s.Lo < 0 || int(s.Hi) > cols {
			panic(fmt.Sprintf("scores: %s: span [%d, %d) of %d columns", name, s.Lo, s.Hi, cols))
		}
	}
}
