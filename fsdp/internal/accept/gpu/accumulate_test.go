//go:build linux && cgo

package gpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
)

// TestGPUAccumulates: whole gradients of NoSync use the memory of the accumulation before, whether
// the last pass, SyncGrads or ZeroGrad ends it. Steps without NoSync give the memory back.
func TestGPUAccumulates(t *testing.T) {
	cuda := kit.CleanGPU(t)
	dev, err := gpu.Open(0)
	require.NoError(t, err)
	m := kit.Wrap(t, kit.TinyGPT(3), fsdp.Config{Device: dev, WrapPolicy: kit.Blocks})
	ctx := t.Context()
	pass := func() { kit.ForwardBackward(t, ctx, m, kit.GoodBatch(0)) }
	accumulate := func() {
		require.NoError(t, m.NoSync(func() error { pass(); pass(); return nil }))
	}
	ends := []func(){pass, func() { require.NoError(t, m.SyncGrads(ctx)) }, m.ZeroGrad}
	for _, end := range ends {
		accumulate()
		end()
	}
	calls, held := cuda.Calls("cuMemAlloc")+cuda.Calls("cuMemFree"), m.Memory()
	for _, end := range ends {
		accumulate()
		require.Equal(t, held.Reserved, m.Memory().Reserved)
		require.Greater(t, m.Memory().Live, held.Live, "whole gradients")
		end()
		require.Equal(t, held.Live, m.Memory().Live)
		require.Equal(t, held.Reserved, m.Memory().Reserved, "kept blocks are counted")
	}
	require.Equal(t, calls, cuda.Calls("cuMemAlloc")+cuda.Calls("cuMemFree"))
	bytes, freed := cuda.Live("bytes"), cuda.Calls("cuMemFree")
	for range 3 {
		pass()
	}
	given := held.Reserved - m.Memory().Reserved
	require.Positive(t, given)
	require.Equal(t, given, bytes-cuda.Live("bytes"))
	require.GreaterOrEqual(t, cuda.Calls("cuMemFree")-freed, 4, "the blocks of all units")
	require.NoError(t, m.Close())
	require.NoError(t, dev.Close())
}

// TestGPUWritesGradients: where no other rank has gradients, calls write them into shards that are
// to be cleared. That takes a kernel less for each unit than adding them to shards that are zero,
// and the gradients are the same, with weights, too.
func TestGPUWritesGradients(t *testing.T) {
	cuda := kit.CleanGPU(t)
	ctx := t.Context()
	for _, c := range []struct {
		cfg    fsdp.Config
		weight float64
		saved  int // kernels
	}{
		{fsdp.Config{Poison: true}, 0, 4},
		{fsdp.Config{Precision: fsdp.BF16()}, 0, 8}, // units have a group for norms
		{fsdp.Config{GradAverage: fsdp.ByWeights}, 3, 4},
		{fsdp.Config{Precision: fsdp.Precision{Reduce: fsdp.BFloat16}}, 0, 4}, // of norms
		{fsdp.Config{Precision: in16}, 0, 8},
	} {
		dev, err := gpu.Open(0)
		require.NoError(t, err)
		c.cfg.Device, c.cfg.WrapPolicy = dev, kit.Blocks
		m := kit.Wrap(t, kit.TinyGPT(3), c.cfg)
		var opts []fsdp.BackwardOption
		if c.weight > 0 {
			opts = append(opts, fsdp.Weight(c.weight))
		}
		launches := func() int {
			before := cuda.Calls("cuLaunchKernel")
			kit.ForwardBackward(t, ctx, m, kit.GoodBatch(0), opts...)
			return cuda.Calls("cuLaunchKernel") - before
		}
		launches()
		m.ZeroGrad()
		written := launches()
		want := kit.GradBits(t, ctx, m)
		m.ZeroGrad()
		for _, p := range m.Params() { // reads zeros, which the pass then adds to
			require.NotNil(t, kit.CopyOf(t, p.Grad))
		}
		added := launches()
		require.Equal(t, c.saved, added-written, "%v", c.cfg)
		kit.RequireSameBits(t, want, kit.GradBits(t, ctx, m))
		sum := kit.GradBits(t, ctx, m)
		launches() // without ZeroGrad: it adds
		require.NotEqual(t, sum, kit.GradBits(t, ctx, m))
		require.NoError(t, m.Close())
		require.NoError(t, dev.Close())
	}
}
