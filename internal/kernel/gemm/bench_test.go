package gemm

import (
	"fmt"
	"testing"
)

// shape is a product as it occurs in training a small GPT (D = 384, 4D = 1536, B·T = 2048 and head
// size 64).
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

func BenchmarkGemm(b *testing.B) {
	best := active
	defer func() { active = best }()
	for _, s := range supported() {
		active = s
		for _, sh := range shapes {
			size := fmt.Sprintf("%s_%dx%dx%d", sh.name, sh.m, sh.n, sh.k)
			b.Run(s.name+"/float32/"+size, func(b *testing.B) { benchmark[float32](b, sh) })
			b.Run(s.name+"/float64/"+size, func(b *testing.B) { benchmark[float64](b, sh) })
		}
	}
}

func benchmark[T Float](b *testing.B, s shape) {
	ld := func(trans bool, rows, cols int) int {
		if trans {
			cols = rows
		}
		return max(s.ld, cols)
	}
	lda, ldb, ldc := ld(s.transA, s.m, s.k), ld(s.transB, s.k, s.n), ld(false, s.m, s.n)
	x, y, c := fill[T](1, lda*max(s.m, s.k)), fill[T](2, ldb*max(s.n, s.k)), make([]T, ldc*s.m)
	var w Workspace
	b.ReportAllocs()
	for b.Loop() {
		Gemm(&w, s.transA, s.transB, s.m, s.n, s.k, 1, x, lda, y, ldb, 0, c, ldc)
	}
	flops := 2 * float64(s.m) * float64(s.n) * float64(s.k) * float64(b.N)
	b.ReportMetric(flops/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}
