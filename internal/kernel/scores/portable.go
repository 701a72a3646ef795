package scores

import (
	"math"

	"github.com/gofsdp/gofsdp/internal/half"
)

func softmaxPortable(p []half.BFloat16, ldp int, s []float32, lds, cols int, spans []Span, stats *[MostRows][2]float32) {
	for r, span := range spans {
		to := p[r*ldp:][:cols]
		clear(to)
		most, sum := float32(math.Inf(-1)), float32(0)
		if span.Lo < span.Hi {
			row := s[r*lds:][span.Lo:span.Hi]
			for _, v := range row {
				most = max(most, v)
			}
			for i, v := range row {
				row[i] = exp(v - most)
				sum += row[i]
			}
			half.NarrowScaled(to[span.Lo:], row, 1/sum)
		}
		stats[r] = [2]float32{most, sum}
	}
}

func slopesPortable(p, ds []half.BFloat16, ld int, s, dp []float32, lds, cols int, spans []Span, lse, delta []float32) {
	for r, span := range spans {
		clear(p[r*ld:][:cols])
		clear(ds[r*ld:][:cols])
		for i := int(span.Lo); i < int(span.Hi); i++ {
			v := exp(s[r*lds+i] - lse[i])
			p[r*ld+i], ds[r*ld+i] = half.ToBFloat16(v), half.ToBFloat16(v*(dp[r*lds+i]-delta[i]))
		}
	}
}

func exp(x float32) float32 { return float32(math.Exp(float64(x))) }
