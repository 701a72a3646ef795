package gemm

import (
	"fmt"
	"testing"

	"github.com/gofsdp/gofsdp/internal/half"
)

// shape is a product as it occurs in training a GPT: D = 384, 4D = 1536, B·T = 2048 and head size 64,
// and a few of D = 128 and D = 768.
type shape struct {
	name           string
	transA, transB bool
	m, n, k        int
	ld             int // leading dimension of all operands; 0 = their row
}

var shapes = []shape{
	{"forward", false, true, 2048, 1152, 384, 0},
	{"forward", false, true, 2048, 384, 384, 0},
	{"forward", false, true, 2048, 1536, 384, 0},
	{"forward", false, true, 2048, 384, 1536, 0},
	{"forward", false, true, 2048, 256, 384, 0},
	{"forward", false, true, 512, 384, 128, 0},
	{"forward", false, true, 512, 512, 128, 0},
	{"forward", false, true, 1024, 2304, 768, 0},
	{"forward", false, true, 1024, 768, 3072, 0},
	{"dX", false, false, 1024, 768, 3072, 0},
	{"dW", true, false, 3072, 768, 1024, 0},
	{"dX", false, false, 2048, 384, 1152, 0},
	{"dX", false, false, 2048, 384, 384, 0},
	{"dX", false, false, 2048, 384, 1536, 0},
	{"dX", false, false, 2048, 1536, 384, 0},
	{"dX", false, false, 512, 128, 384, 0},
	{"dW", true, false, 1152, 384, 2048, 0},
	{"dW", true, false, 1536, 384, 2048, 0},
	{"dW", true, false, 384, 1536, 2048, 0},
	{"dW", true, false, 384, 128, 512, 0},
	{"QKt", false, true, 256, 256, 64, 1152},
	{"PV", false, false, 256, 64, 256, 1152},
	{"PtdY", true, false, 256, 64, 256, 1152},
	{"QKt", false, true, 64, 64, 32, 384},
	{"PV", false, false, 64, 32, 64, 384},
	{"PtdY", true, false, 64, 32, 64, 384},
	{"odd", false, true, 37, 45, 61, 0},
	{"square", false, false, 1024, 1024, 1024, 0},
}

// BenchmarkGemm has, for every shape, all types side by side: a ratio counts, a single figure does
// not.
func BenchmarkGemm(b *testing.B) {
	best := active
	defer func() { active = best }()
	for _, s := range supported() {
		active = s
		b.Run(s.name+"/float32/tile", func(b *testing.B) { benchmarkTile(b, s.f32.mul, s.f32.mr, s.f32.nr, 1) })
		b.Run(s.name+"/bfloat16/tile", func(b *testing.B) {
			benchmarkTile(b, s.bf16.mul, s.bf16.mr, s.bf16.nr, s.bf16.pair/s.bf16.steps)
		})
		for _, sh := range shapes {
			size := fmt.Sprintf("%s_%dx%dx%d", sh.name, sh.m, sh.n, sh.k)
			b.Run(s.name+"/float32/"+size, func(b *testing.B) { benchmark(b, sh, fill[float32], make([]float32, sh.elements())) })
			b.Run(s.name+"/bfloat16/"+size, func(b *testing.B) {
				benchmark(b, sh, draws["ordinary"].fill, make([]float32, sh.elements()))
			})
			b.Run(s.name+"/bfloat16rounded/"+size, func(b *testing.B) {
				benchmark(b, sh, draws["ordinary"].fill, make([]half.BFloat16, sh.elements()))
			})
			b.Run(s.name+"/float64/"+size, func(b *testing.B) { benchmark(b, sh, fill[float64], make([]float64, sh.elements())) })
		}
	}
}

// benchmarkTile computes a tile over and over, all of it in registers and L1: the most that a
// product can reach.
func benchmarkTile(b *testing.B, mul func(*tile[float32]), mr, nr, terms int) {
	const k, turns = 128, 100
	x, y, c := fill[float32](1, k*mr), fill[float32](2, k*nr), make([]float32, mr*nr)
	t := &tile[float32]{rows: mr, cols: nr, k: k, a: x, aline: 1, astep: mr, b: y, bstep: nr, bpanel: k * nr, out: c, ldout: nr, alpha: 1, scratch: make([]float32, mr*nr)}
	for b.Loop() {
		for range turns {
			mul(t)
		}
	}
	report(b, turns*mr, nr, k*terms)
}

// elements returns how many elements C has in memory.
func (s shape) elements() int { return max(s.ld, s.n) * s.m }

func benchmark[T, C Element](b *testing.B, s shape, fill func(seed uint64, n int) []T, c []C) {
	ld := func(trans bool, rows, cols int) int {
		if trans {
			cols = rows
		}
		return max(s.ld, cols)
	}
	lda, ldb, ldc := ld(s.transA, s.m, s.k), ld(s.transB, s.k, s.n), ld(false, s.m, s.n)
	x, y := fill(1, lda*max(s.m, s.k)), fill(2, ldb*max(s.n, s.k))
	var w Workspace
	b.ReportAllocs()
	for b.Loop() {
		Gemm(&w, s.transA, s.transB, s.m, s.n, s.k, 1, x, lda, y, ldb, 0, c, ldc)
	}
	report(b, s.m, s.n, s.k)
}

func report(b *testing.B, m, n, k int) {
	flops := 2 * float64(m) * float64(n) * float64(k) * float64(b.N)
	b.ReportMetric(flops/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}
