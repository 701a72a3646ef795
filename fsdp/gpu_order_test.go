//go:build linux && cgo

package fsdp_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/optim"
)

// TestGPUZeroBetween drops the gradients between Forward and Backward: those of the pass are all that
// is left, wherever shards lie.
func TestGPUZeroBetween(t *testing.T) {
	fsdp.UseGPU()() // loads the doubles
	fsdp.CleanGPU(t)
	for _, offload := range []bool{false, true} {
		t.Run(fmt.Sprint("offload ", offload), func(t *testing.T) {
			onRanks(t, 2, func(ctx context.Context, g comm.Group) {
				dev, err := gpu.Open(g.Rank())
				require.NoError(t, err)
				m := wrap(t, tinyGPT(1), fsdp.Config{Group: g, Device: dev, Offload: offload, Wrap: blocks})
				batch := tinyBatch(0, g.Rank(), 2, tinyContext)
				forwardBackward(t, ctx, m, batch)
				want := gradBits(t, ctx, m)
				_, err = m.Forward(ctx, batch...)
				require.NoError(t, err)
				m.ZeroGrad()
				require.NoError(t, m.Backward(ctx))
				requireSameBits(t, want, gradBits(t, ctx, m))
				require.NoError(t, m.Close())
				require.NoError(t, dev.Close())
			})
		})
	}
}

// TestGPULeaves: what a rank has stays readable when others have closed their models.
func TestGPULeaves(t *testing.T) {
	fsdp.UseGPU()() // loads the doubles
	fsdp.CleanGPU(t)
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		dev, err := gpu.Open(g.Rank())
		require.NoError(t, err)
		m := wrap(t, tinyGPT(1), fsdp.Config{Group: g, Device: dev, Wrap: blocks})
		forwardBackward(t, ctx, m, tinyBatch(0, g.Rank(), 2, tinyContext))
		if g.Rank() == 1 {
			require.NoError(t, m.Close())
		}
		require.NoError(t, g.Barrier(ctx))
		if g.Rank() == 0 {
			p := m.Shards()[0]
			require.NoError(t, p.Value.Zero())
			require.NoError(t, p.Value.Read(optim.Host{F32: make([]float32, p.Value.Len())}))
			require.NoError(t, m.Close())
		}
		require.NoError(t, dev.Close())
	})
}

// crossed is a training whose passes cross each other: one is held while another changes its plan, some
// add gradients that are not reduced, one rank has fewer batches, and state is swapped in between.
func crossed(t *testing.T, cfg fsdp.Config) (losses [2][]float64, state bits) {
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		cfg := cfg
		cfg.Group = g
		m := wrap(t, tinyGPT(2), cfg)
		opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Shards())
		require.NoError(t, err)
		require.NoError(t, optim.EMA(opt, 0.9))
		batch := func(i int) []fsdp.Tensor { return tinyBatch(i, g.Rank(), 2, tinyContext) }
		for step := range 2 {
			_, err := m.Forward(ctx, batch(10*step)...)
			require.NoError(t, err)
			first := m.Hold()
			_, err = m.Eval(ctx, batch(10*step+1)...)
			require.NoError(t, err)
			require.NoError(t, m.NoSync(func() error { return trainStep(ctx, m, batch(10*step+2)) }))
			require.NoError(t, m.NoSync(func() error { return first.Backward(ctx) }))
			for b, err := range m.Join(ctx, batches(1+g.Rank(), func(i int) []fsdp.Tensor { return batch(10*step + 3 + i) })) {
				require.NoError(t, err)
				loss, err := m.Forward(ctx, b...)
				require.NoError(t, err)
				losses[g.Rank()] = append(losses[g.Rank()], loss)
				require.NoError(t, m.Backward(ctx))
			}
			_, err = m.ClipGradNorm(ctx, 0.5)
			require.NoError(t, err)
			require.NoError(t, opt.Step(1e-2))
			m.ZeroGrad()
			require.NoError(t, optim.Swap(opt))
			_, err = m.Eval(ctx, batch(10*step+7)...)
			require.NoError(t, err)
			require.NoError(t, optim.Swap(opt))
		}
		got := stateBits(t, ctx, m)
		if g.Rank() == 0 {
			state = got
		}
		require.NoError(t, m.Close())
	})
	return losses, state
}

// TestGPUDelays: no bit of a training depends on how late the streams are, on what is gathered ahead,
// or on what freed memory holds.
func TestGPUDelays(t *testing.T) {
	var losses [2][]float64
	var want bits
	onGPU(t, func() { losses, want = crossed(t, fsdp.Config{Wrap: blocks}) })
	onGPU(t, func() {
		cuda := fsdp.CleanGPU(t)
		cuda.Delay(100*time.Microsecond, 1)
		defer cuda.Delay(0, 0)
		late, got := crossed(t, fsdp.Config{Wrap: blocks, Prefetch: 3, Poison: true})
		require.Equal(t, losses, late)
		requireSameBits(t, want, got)
	})
}

// TestGPUStepAllocatesLittle holds the memory that the host takes for a step to the bounds of the host's
// own engine.
func TestGPUStepAllocatesLittle(t *testing.T) {
	onGPU(t, func() { stepAllocatesLittle(t, 1) })
}
