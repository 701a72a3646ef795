//go:build linux && cgo

package gpu_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
	"github.com/gofsdp/gofsdp/optim"
)

// trainedMuon trains the matrices of a GPT's blocks by Muon, and returns them.
func trainedMuon(t *testing.T, ranks, virtual int, muon optim.Muon, p fsdp.Precision, onGPU bool) map[string][]float32 {
	var got map[string][]float32
	muon.Blocks = func(p optim.Param) int {
		if strings.Contains(p.Name, "qkv") {
			return 6
		}
		return 1
	}
	kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) {
		cfg := fsdp.Config{Group: g, VirtualRanks: virtual, WrapPolicy: kit.Blocks, Precision: p, Seed: 3}
		if onGPU {
			dev, err := gpu.Open(g.Rank())
			require.NoError(t, err)
			defer func() { require.NoError(t, dev.Close()) }()
			cfg.Device = dev
		}
		m := kit.Wrap(t, kit.TinyGPT(1), cfg)
		hidden, _ := kit.HiddenMatrices(m.Params())
		opt, err := muon.New(hidden)
		require.NoError(t, err)
		for step := range 2 {
			for k := range max(1, virtual/ranks) {
				kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step, k*ranks+g.Rank(), 2, kit.TinyContext))
			}
			_, err := m.ClipGradNorm(ctx, 0.5)
			require.NoError(t, err)
			require.NoError(t, opt.Step(0.02))
			m.ZeroGrad()
		}
		state, err := m.StateDict(ctx, nil)
		require.NoError(t, err)
		if g.Rank() == 0 {
			got = make(map[string][]float32)
			for _, p := range hidden {
				if list, ok := state[p.Name].Data().([]float32); ok {
					got[p.Name] = list
				} else {
					for _, x := range state[p.Name].Data().([]float64) {
						got[p.Name] = append(got[p.Name], float32(x))
					}
				}
			}
		}
		require.NoError(t, m.Close())
	})
	require.NotEmpty(t, got)
	return got
}

// TestGPUMuon: Muon on a GPU is near Muon on the processor, for matrices of all shapes, an even
// number of steps and an odd one. With virtual ranks one GPU and several have the same bits.
func TestGPUMuon(t *testing.T) {
	kit.CleanGPU(t)
	for _, c := range []struct {
		muon    optim.Muon
		p       fsdp.Precision
		ranks   []int
		virtual int
		tol     float64
	}{
		{optim.Muon{WeightDecay: 0.1}, fsdp.Precision{Compute: fsdp.Float64}, []int{1, 2}, 2, 1e-6},
		{optim.Muon{Steps: 4, NoNesterov: true}, fsdp.Precision{}, []int{1, 2}, 2, 1e-4},
		{optim.Muon{Method: optim.Gather}, fsdp.Precision{}, []int{2}, 0, 1e-4},
	} {
		want := trainedMuon(t, 2, c.virtual, c.muon, c.p, false)
		var first map[string][]float32
		for _, ranks := range c.ranks {
			got := trainedMuon(t, ranks, c.virtual, c.muon, c.p, true)
			for name := range want {
				require.InDeltaSlice(t, want[name], got[name], c.tol, "%s on %d ranks", name, ranks)
			}
			if first == nil {
				first = got
			}
			require.Equal(t, first, got, "%d ranks", ranks)
		}
	}
}

// TestGPUMuonPlan: a plan counts the memory in which a GPU works on matrices, as the training does.
// Gram is refused.
func TestGPUMuonPlan(t *testing.T) {
	kit.CleanGPU(t)
	dev, err := gpu.Open(0)
	require.NoError(t, err)
	newMuon := func(params []optim.Param) (optim.Optimizer, error) {
		hidden, _ := kit.HiddenMatrices(params)
		return optim.Muon{}.New(hidden)
	}
	m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Device: dev})
	_, err = newMuon(m.Params())
	require.NoError(t, err)
	planned, err := m.Plan(kit.GoodBatch(0)...)
	require.NoError(t, err)
	dry, err := fsdp.Planner{Model: kit.TinyGPT(1), Config: fsdp.Config{Device: new(gpu.Device)}, NewOptimizer: newMuon,
		Batch: []fsdp.Shape{fsdp.Ints(2, kit.TinyContext), fsdp.Ints(2, kit.TinyContext)}}.Plan()
	require.NoError(t, err)
	require.Positive(t, dry.StateBytes)
	require.Equal(t, dry.StateBytes, planned.StateBytes)
	hidden, _ := kit.HiddenMatrices(m.Params())
	_, err = optim.Muon{Method: optim.Gram}.New(hidden)
	require.ErrorContains(t, err, "Method is gram, which a device does not have")
	require.NoError(t, m.Close())
	require.NoError(t, dev.Close())
}

// TestGPUMuonFails: if a GPU cannot multiply, the rank that owns the matrix fails, and so do the
// ranks that wait for it.
func TestGPUMuonFails(t *testing.T) {
	kit.CleanGPU(t)
	products := gpudouble.Open(t, gpudouble.Build(t).CUBLASLT)
	for _, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		dev, err := gpu.Open(g.Rank())
		require.NoError(t, err)
		defer func() { require.NoError(t, dev.Close()) }()
		m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, Device: dev})
		defer m.Close()
		hidden, _ := kit.HiddenMatrices(m.Params())
		opt, err := optim.Muon{Method: optim.Owner}.New(hidden)
		require.NoError(t, err)
		kit.ForwardBackward(t, ctx, m, kit.TinyBatch(0, g.Rank(), 2, kit.TinyContext))
		_, err = m.ClipGradNorm(ctx, 1) // all products of the pass have run
		require.NoError(t, err)
		require.NoError(t, g.Barrier(ctx))
		if g.Rank() == 0 {
			products.Fail("cublasLtMatmul", 1, 14)
		}
		require.NoError(t, g.Barrier(ctx))
		return opt.Step(0.1)
	}) {
		require.ErrorContains(t, err, "cublasLtMatmul")
	}
}
