package optim_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
	"github.com/gofsdp/gofsdp/optim"
)

// BenchmarkMuon steps the matrices of a block of a GPT by Muon and by AdamW, and multiplies matrices of the
// same width, in turns on one core. "of-its-FLOPs" is what Muon takes beyond AdamW, over what its FLOPs
// take at the rate of the product:
//
//	GOMAXPROCS=1 go test ./optim -run '^$' -bench Muon
func BenchmarkMuon(b *testing.B) {
	for _, dim := range []int{384, 768} {
		for _, heads := range []int{1, dim / 64} {
			b.Run(fmt.Sprintf("dim=%d/heads=%d", dim, heads), func(b *testing.B) { benchmarkMuon(b, dim, heads) })
		}
	}
}

func benchmarkMuon(b *testing.B, dim, heads int) {
	var params []optim.Param
	for i, shape := range [][]int{{3 * dim, dim}, {dim, dim}, {4 * dim, dim}, {dim, 4 * dim}} {
		n := shape[0] * shape[1]
		p := optim.Param{Name: fmt.Sprint("m", i), Shape: shape, Value: hostOf(make([]float32, n)), Grad: hostOf(make([]float32, n))}
		for k := range n {
			p.Grad.(optim.Host).F32[k] = float32((k*7919)%2003)/1000 - 1
		}
		params = append(params, p)
	}
	config := optim.Muon{Blocks: func(p optim.Param) int {
		if p.Name == "m0" && heads > 1 {
			return 3 * heads
		}
		return 1
	}}
	plan, err := config.Plan(params)
	require.NoError(b, err)
	muon, err := config.New(params)
	require.NoError(b, err)
	adamw, err := optim.AdamW{}.New(params)
	require.NoError(b, err)
	var w gemm.Workspace
	x, y, z := make([]float32, dim*dim), make([]float32, dim*dim), make([]float32, dim*dim)
	product := func() error {
		gemm.Gemm(&w, false, false, dim, dim, dim, 1, x, dim, y, dim, 0, z, dim)
		return nil
	}
	var times [3][]time.Duration
	for b.Loop() {
		for i, run := range []func() error{func() error { return muon.Step(1e-3) }, func() error { return adamw.Step(1e-3) }, product} {
			begin := time.Now()
			require.NoError(b, run())
			times[i] = append(times[i], time.Since(begin))
		}
	}
	best := func(i int) float64 { return slices.Min(times[i]).Seconds() }
	rate := 2 * float64(dim) * float64(dim) * float64(dim) / best(2)
	b.ReportMetric((best(0)-best(1))*rate/plan.FLOPs, "of-its-FLOPs")
	b.ReportMetric(rate/1e9, "GFLOP/s-product")
	b.ReportMetric(best(0)*1e3, "ms-muon")
	b.ReportMetric(best(1)*1e3, "ms-adamw")
	b.ReportMetric(0, "ns/op")
}
