//go:build !amd64 || purego

package scores

import "github.com/gofsdp/gofsdp/internal/half"

func softmax(p []half.BFloat16, ldp int, s []float32, lds, cols int, spans []Span, stats *[MostRows][2]float32) {
	softmaxPortable(p, ldp, s, lds, cols, spans, stats)
}

func slopes(p, ds []half.BFloat16, ld int, s, dp []float32, lds, cols int, spans []Span, lse, delta []float32) {
	slopesPortable(p, ds, ld, s, dp, lds, cols, spans, lse, delta)
}
