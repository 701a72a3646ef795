package calibrate

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/internal/peak"
	"github.com/gofsdp/gofsdp/optim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestFitFindsTheTerms fits times that follow a rate, and finds it.
func TestFitFindsTheTerms(t *testing.T) {
	want := [terms]float64{2e-6, 1e-11, 3e-10, 0, 1e-6, 5e-12, 1e-10, 0}
	var points []point
	for _, kept := range []float64{0, 0.3, 1} {
		for _, s := range []sample{{flops: 1e6, bytes: 1e5}, {flops: 1e8, bytes: 1e6}, {flops: 1e9, bytes: 2e6}, {flops: 1e7, bytes: 4e6}, {flops: 2e4, bytes: 1e4}} {
			p := point{sample: s, kept: kept}
			for i, f := range p.features() {
				p.seconds += want[i] * f
			}
			points = append(points, p)
		}
	}
	for i, v := range fit(points) {
		require.InDelta(t, want[i], v, 1e-3*want[i]+1e-20)
	}
	for i := range points { // what would need a negative term has none
		points[i].seconds -= 1.9e-6 * float64(i%2)
	}
	for _, v := range fit(points) {
		require.GreaterOrEqual(t, v, 0.0)
	}
	for _, v := range fit([]point{{sample: sample{bytes: 1}}, {sample: sample{bytes: 9}, seconds: 1e-6}}) {
		require.False(t, math.IsNaN(v) || math.IsInf(v, 0), "%v", v)
	}
	require.InDelta(t, 2.5, middle([]float64{100, 1, 2, 3}, 0.25), 0)
}

// TestRatesOfCaches finds the rate in a cache and that beyond it, and one for all where nothing
// tells them apart.
func TestRatesOfCaches(t *testing.T) {
	c := &plan.Cluster{Cores: 2, Device: plan.Device{Cache: &plan.Cache{Bytes: 100, Cores: 2}}}
	samples := make(map[sample][]float64)
	for bytes := 10; bytes <= 1e4; bytes *= 10 {
		kept := min(1, 50/float64(bytes)) // on each of two ranks
		samples[sample{op: "update", ranks: 2, threads: 1, bytes: bytes, touched: bytes}] = []float64{float64(bytes) * (1 + 2*(1-kept))}
		samples[sample{op: "add", ranks: 1, threads: 2, bytes: bytes}] = []float64{float64(bytes)}
	}
	got := rates(samples, c)
	require.Len(t, got, 3)
	for i, want := range []plan.Rate{{Op: "add", Ranks: 1, Threads: 2, Byte: 1}, {Op: "update", Ranks: 2, Byte: 3}, {Op: "update", Ranks: 2, Cached: true, Byte: 1}} {
		require.InDelta(t, want.Byte, got[i].Byte, 1e-3)
		require.InDelta(t, 0, got[i].Fixed, 1e-1)
		want.Byte, want.Fixed = got[i].Byte, got[i].Fixed
		require.Equal(t, want, got[i])
	}
}

// TestCalibrate trains small models over every transport, and times a step on the cluster that it
// makes, as it was and as its file says.
func TestCalibrate(t *testing.T) {
	shape := fsdp.Ints(2, 32)
	for name := range Transports {
		c := New(2, name)
		c.subjects = subjects[:1]
		require.NoError(t, c.Round(t.Context()))
		require.NoError(t, c.Round(t.Context()))
		made := c.Cluster("here", 1<<30)
		of := make(map[plan.Rate]bool)
		for _, r := range made.Rates {
			of[plan.Rate{Op: r.Op, Wide: r.Wide, Ranks: r.Ranks}] = true
		}
		for _, ranks := range []int{1, 2} {
			for _, op := range []string{"linear", "linear dx", "linear dw", "attention", "layer norm", "update", "pass", "reduce"} {
				require.True(t, of[plan.Rate{Op: op, Wide: true, Ranks: ranks}], "%s on %d ranks over %s", op, ranks, name)
			}
			require.True(t, of[plan.Rate{Op: "linear", Ranks: ranks}], "bfloat16")
		}
		require.True(t, of[plan.Rate{Op: "wait", Wide: true, Ranks: 2}])
		require.True(t, of[plan.Rate{Op: "wait" + plan.AtOnce, Wide: true, Ranks: 2}])
		read, err := plan.Parse(made.JSON())
		require.NoError(t, err)
		p, err := fsdp.Planner{Model: subjects[0].model,
			Config:       fsdp.Config{Group: comm.World{Ranks: 2}, WrapPolicy: subjects[0].blocks()},
			NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{shape, shape}}.Plan()
		require.NoError(t, err)
		require.InEpsilon(t, p.Pass.Time(made, 1).Total, p.Pass.Time(read, 1).Total, 1e-3)
		require.Equal(t, made.Sources, read.Sources)
		for _, k := range peak.Kernels() {
			require.Contains(t, strings.Join(made.Sources, "\n"), k.Name)
		}
	}
}
