package bf16

import (
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// BenchmarkKernels runs every kernel and the one for float32 by turns, on a batch of a small GPT
// that no cache holds, and reports the best of each in picoseconds an element, and their ratio.
func BenchmarkKernels(b *testing.B) {
	const n, d = 8 << 10, 384
	x, y, dy := make([]half.BFloat16, n*d), make([]half.BFloat16, n*d), make([]half.BFloat16, n*d)
	wideX, wideY, wideDy := make([]float32, n*d), make([]float32, n*d), make([]float32, n*d)
	for i := range wideX {
		wideX[i], wideDy[i] = float32(i%97)/50-1, float32(i%89)/500
	}
	half.Narrow(x, wideX)
	half.Narrow(dy, wideDy)
	gain, bias, dgain, dbias, stats := make([]float32, d), make([]float32, d), make([]float32, d), make([]float32, d), make([]float32, 2*n)
	targets := make([]int, n)
	elements, rows, columns, classes := make([]float32, ElementScratch), make([]float32, NormScratch(d)), make([]float32, ColumnScratch(d)),
		make([]float32, CrossEntropyScratch(d))
	for _, k := range []struct {
		name       string
		bf16, wide func()
	}{
		{"add", func() { Add(y, x, dy, elements) }, func() { vec.Add(wideY, wideX, wideDy) }},
		{"gelu", func() { Unary(vec.GELUErfBFloat16, kernel.GELU[float32], y, x, elements) }, func() { kernel.GELU(wideY, wideX) }},
		{"gelu grad", func() { Binary(vec.GELUErfGradBFloat16, kernel.GELUGrad[float32], y, x, dy, elements) }, func() { kernel.GELUGrad(wideY, wideX, wideDy) }},
		{"layer norm", func() { LayerNorm(y, stats, x, gain, bias, n, d, 1e-5, rows) },
			func() { kernel.LayerNorm(wideY, stats, wideX, gain, bias, n, d, 1e-5) }},
		{"layer norm grad", func() { LayerNormGrad(y, dgain, dbias, x, gain, stats, dy, n, d, rows) },
			func() { kernel.LayerNormGrad(wideY, dgain, dbias, wideX, gain, stats, wideDy, n, d) }},
		{"linear grad b", func() { LinearGradB(dbias, dy, n, d, false, columns) }, func() { kernel.LinearGradB(dbias, wideDy, n, d, false) }},
		{"cross entropy grad", func() { CrossEntropyGrad(y, x, stats[:n], targets, n, d, -1, n, 1, classes) },
			func() { kernel.CrossEntropyGrad(wideY, wideX, stats[:n], targets, n, d, -1, n, 1) }},
	} {
		b.Run(k.name, func(b *testing.B) {
			best, reference := time.Duration(1<<62), time.Duration(1<<62)
			for b.Loop() {
				start := time.Now()
				k.bf16()
				middle := time.Now()
				k.wide()
				best, reference = min(best, middle.Sub(start)), min(reference, time.Since(middle))
			}
			b.ReportMetric(float64(best)*1e3/(n*d), "bfloat16-ps")
			b.ReportMetric(float64(reference)*1e3/(n*d), "float32-ps")
			b.ReportMetric(float64(reference)/float64(best), "faster")
		})
	}
}
