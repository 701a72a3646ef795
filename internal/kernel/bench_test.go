package kernel

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
	"github.com/gofsdp/gofsdp/internal/rng"
)

// The shapes are those of a small GPT: 8 sequences of 256 tokens, width 384, 6 heads, 256 classes.
const (
	benchBatch, benchLen, benchHeads, benchDim = 8, 256, 6, 64
	benchRows, benchWidth                      = benchBatch * benchLen, benchHeads * benchDim
)

func random[T Float](n int) []T {
	x := make([]T, n)
	rng.FillNormal(x, rng.New(1, "benchmark"), 0, 0, 1)
	return x
}

// versus runs a kernel and a yardstick by turns and reports the best rate of the kernel, and its
// ratio to the best of the yardstick. Work is in flops or bytes per call.
func versus(b *testing.B, unit string, work float64, kernel func(), yardstickWork float64, yardstick func()) {
	best, reference := time.Duration(1<<62), time.Duration(1<<62)
	for b.Loop() {
		start := time.Now()
		kernel()
		middle := time.Now()
		yardstick()
		best, reference = min(best, middle.Sub(start)), min(reference, time.Since(middle))
	}
	rate, full := work/best.Seconds(), yardstickWork/reference.Seconds()
	b.ReportMetric(rate/1e9, unit)
	b.ReportMetric(rate/full, "of-yardstick")
}

// compute measures against the product of a linear layer [2048, 384]·[384, 384].
func compute(b *testing.B, flops float64, kernel func()) {
	const n, d = benchRows, benchWidth
	x, w, y := random[float32](n*d), random[float32](d*d), make([]float32, n*d)
	var ws gemm.Workspace
	versus(b, "GFLOP/s", flops, kernel, 2*n*d*d, func() { gemm.Gemm(&ws, false, true, n, d, d, 1, x, d, w, d, 0, y, d) })
}

// traffic measures against copying memory: 8 MiB from one place to another.
func traffic(b *testing.B, bytes float64, kernel func()) {
	from, to := random[float32](1<<21), make([]float32, 1<<21)
	versus(b, "GB/s", bytes, kernel, 2*float64(len(from)*4), func() { copy(to, from) })
}

func randomBFloat16(n int) []half.BFloat16 {
	x := make([]half.BFloat16, n)
	half.Narrow(x, random[float32](n))
	return x
}

func BenchmarkAttention(b *testing.B) {
	for _, causal := range []bool{true, false} {
		for _, length := range []int{64, benchLen, 1024} {
			const d = benchWidth
			a := Attention{Batch: benchRows / length, QLen: length, KLen: length, Heads: benchHeads, HeadDim: benchDim, Causal: causal,
				QStride: 3 * d, KStride: 3 * d, VStride: 3 * d, OutStride: d}
			name := fmt.Sprintf("causal=%v/T=%d", causal, length)
			benchmarkAttention(b, name, a, random[float32])
			benchmarkAttention(b, name+"/bfloat16", a, randomBFloat16)
		}
	}
}

func benchmarkAttention[E Element](b *testing.B, name string, a Attention, random func(n int) []E) {
	const d = benchWidth
	qkv, dqkv, out, dout := random(benchRows*3*d), make([]E, benchRows*3*d), make([]E, benchRows*d), random(benchRows*d)
	lse, scratch := make([]float32, a.Batch*benchHeads*a.QLen), make([]float32, AttentionBFloat16Scratch(a))
	var c Context
	forward := func() { AttentionForward(&c, a, out, lse, qkv, qkv[d:], qkv[2*d:], nil, nil, scratch) }
	backward := func() {
		AttentionBackward(&c, a, dqkv, dqkv[d:], dqkv[2*d:], nil, qkv, qkv[d:], qkv[2*d:], out, lse, dout, nil, nil, scratch)
	}
	forward() // backward reads what it saves
	// One of the two products of forward, and of the five of backward. If causal, only the visible
	// half counts as work.
	product := 2 * float64(benchRows) * float64(a.QLen) * d
	if a.Causal {
		product = product / 2 * (1 + 1/float64(a.QLen))
	}
	b.Run(name+"/forward", func(b *testing.B) { compute(b, 2*product, forward) })
	b.Run(name+"/backward", func(b *testing.B) { compute(b, 5*product, backward) })
}

func BenchmarkLinear(b *testing.B) {
	const n, in, out = benchRows, benchWidth, 4 * benchWidth
	x, w, bias, dy := random[float32](n*in), random[float32](out*in), random[float32](out), random[float32](n*out)
	y, dx, dw := make([]float32, n*out), make([]float32, n*in), make([]float32, out*in)
	var c Context
	b.Run("forward", func(b *testing.B) {
		compute(b, 2*n*in*out, func() { Linear(&c, y, x, w, bias, n, in, out) })
	})
	b.Run("gradX", func(b *testing.B) {
		compute(b, 2*n*in*out, func() { LinearGradX(&c, dx, dy, w, n, in, out) })
	})
	b.Run("gradW", func(b *testing.B) {
		compute(b, 2*n*in*out, func() { LinearGradW(&c, dw, dy, x, n, in, out, false) })
	})
	b.Run("gradB", func(b *testing.B) {
		traffic(b, 4*n*out, func() { LinearGradB(bias, dy, n, out, false) })
	})
}

func BenchmarkNorm(b *testing.B) {
	const n, d, bytes = benchRows, benchWidth, 4 * benchRows * benchWidth
	x, dy, gain, bias := random[float32](n*d), random[float32](n*d), random[float32](d), random[float32](d)
	y, stats := make([]float32, n*d), make([]float32, 2*n)
	dgain, dbias := make([]float32, d), make([]float32, d)
	b.Run("LayerNorm", func(b *testing.B) {
		traffic(b, 2*bytes, func() { LayerNorm(y, stats, x, gain, bias, n, d, 1e-5) })
	})
	b.Run("LayerNormGrad", func(b *testing.B) {
		traffic(b, 3*bytes, func() { LayerNormGrad(y, dgain, dbias, x, gain, stats, dy, n, d) })
	})
	b.Run("RMSNorm", func(b *testing.B) {
		traffic(b, 2*bytes, func() { RMSNorm(y, stats[:n], x, gain, n, d, 1e-5) })
	})
	b.Run("RMSNormGrad", func(b *testing.B) {
		traffic(b, 3*bytes, func() { RMSNormGrad(y, dgain, x, gain, stats[:n], dy, n, d) })
	})
}

func BenchmarkCrossEntropy(b *testing.B) {
	for _, classes := range []int{256, 50257} {
		n := (1 << 21) / classes
		logits, d, lse, targets := random[float32](n*classes), make([]float32, n*classes), make([]float32, n), make([]int, n)
		scratch, bytes := make([]float32, CrossEntropyScratch(classes)), 4*float64(n*classes)
		b.Run(fmt.Sprintf("classes=%d/forward", classes), func(b *testing.B) {
			traffic(b, bytes, func() {
				_, _, err := CrossEntropy(lse, logits, targets, n, classes, -100, scratch)
				require.NoError(b, err)
			})
		})
		b.Run(fmt.Sprintf("classes=%d/gradient", classes), func(b *testing.B) {
			traffic(b, 2*bytes, func() { CrossEntropyGrad(d, logits, lse, targets, n, classes, -100, n, 1) })
		})
	}
}

func BenchmarkEmbedding(b *testing.B) {
	const rows, d = 50257, benchWidth
	table, y, idx := random[float32](rows*d), make([]float32, benchRows*d), make([]int, benchRows)
	for i := range idx {
		idx[i] = i * 31 % rows
	}
	b.Run("forward", func(b *testing.B) {
		traffic(b, 2*4*benchRows*d, func() { require.NoError(b, Embedding(y, table, idx, rows, d)) })
	})
	b.Run("gradient", func(b *testing.B) {
		traffic(b, 3*4*benchRows*d, func() { EmbeddingGrad(table, y, idx, rows, d, true) })
	})
}
