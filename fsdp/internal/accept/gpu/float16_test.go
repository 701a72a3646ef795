//go:build linux && cgo

package gpu_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// scaled is a training with a loss scale: its losses by rank, and the state at the end.
type scaled struct {
	losses  [][]float64
	skipped int // steps
	scale   float64
	state   kit.Bits
}

// trainScaled trains a small GPT on GPUs, or on the host if that is not set, until the given number
// of updates, with AdamW and clipping, and requires that all ranks leave out the same steps. l is
// the loss scale. A fused GPT has tied weights.
func trainScaled(t *testing.T, ranks, updates int, fused, onGPU bool, cfg fsdp.Config, l optim.LossScale) scaled {
	r := scaled{losses: make([][]float64, ranks)}
	skipped := make([]int, ranks)
	train := func(ctx context.Context, g comm.Group, cfg fsdp.Config) {
		cfg.Group, cfg.WrapPolicy = g, kit.Blocks
		model := kit.TinyGPT(2)
		model.FusedLoss, model.Tied = fused, fused
		if ranks == 1 {
			model.Dim = 16 // attention on tensor cores
		}
		m := kit.Wrap(t, model, cfg)
		update := kit.Updater(t, m, 0.5)
		scaler, err := l.New()
		require.NoError(t, err)
		for step := 0; step < updates; {
			loss := kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step, g.Rank(), 2, kit.TinyContext), fsdp.Scale(scaler.Scale()))
			finite, err := m.Unscale(ctx, scaler)
			require.NoError(t, err)
			if !finite {
				skipped[g.Rank()]++
				continue
			}
			r.losses[g.Rank()] = append(r.losses[g.Rank()], loss)
			update(ctx)
			step++
		}
		if b := kit.StateBits(t, ctx, m); g.Rank() == 0 {
			r.state, r.scale = b, scaler.Scale()
		}
		require.NoError(t, m.Close())
	}
	if onGPU {
		onDevices(t, ranks, func(ctx context.Context, g comm.Group, dev *gpu.Device) {
			cfg := cfg
			cfg.Device = dev
			train(ctx, g, cfg)
		})
	} else {
		kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) { train(ctx, g, cfg) })
	}
	for _, n := range skipped {
		require.Equal(t, skipped[0], n)
	}
	r.skipped = skipped[0]
	return r
}

// TestGPUFloat16 compares the losses of trainings in float16 with the losses of the host in
// float32. They differ by the roundings of float16.
func TestGPUFloat16(t *testing.T) {
	kit.CleanGPU(t)
	half := fsdp.Precision{Compute: fsdp.Float16}
	for _, v := range []struct {
		ranks int
		fused bool
		cfg   fsdp.Config
	}{
		{1, false, fsdp.Config{Precision: half}},
		{1, true, fsdp.Config{Precision: half, Activations: fsdp.Activations{Recompute: kit.Blocks}}},
		{2, true, fsdp.Config{Precision: half, Poison: true}},
		{2, false, fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float16, Reduce: fsdp.Float16}, Offload: fsdp.Offload{Pinned: true}}},
		{2, false, fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float16, Wide: kit.Blocks}, Strategy: fsdp.NoShard}},
		{4, true, fsdp.Config{Precision: half, Strategy: fsdp.HybridShard, ShardRanks: 2, Prefetch: 2}},
	} {
		t.Run(fmt.Sprint(v.ranks, v.fused, v.cfg), func(t *testing.T) {
			single := v.cfg
			single.Precision, single.Offload = fsdp.Precision{}, fsdp.Offload{}
			want := trainScaled(t, v.ranks, 3, v.fused, false, single, optim.LossScale{})
			got := trainScaled(t, v.ranks, 3, v.fused, true, v.cfg, optim.LossScale{})
			for r := range want.losses {
				require.InDeltaSlice(t, want.losses[r], got.losses[r], 1e-3, "rank %d", r)
			}
			require.NotEqual(t, want.losses, got.losses)
		})
	}
}

// TestGPUFloat16Overflow begins with scales that make gradients infinite. All ranks leave out the
// same steps, each of which halves the scale. Then the training has the bits of one that begins
// with the last scale.
func TestGPUFloat16Overflow(t *testing.T) {
	kit.CleanGPU(t)
	for _, reduce := range []fsdp.DType{fsdp.Float32, fsdp.Float16} {
		cfg := fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float16, Reduce: reduce}}
		const first = 1 << 30
		late := trainScaled(t, 2, 2, true, true, cfg, optim.LossScale{Init: first})
		require.Positive(t, late.skipped)
		require.Equal(t, math.Ldexp(first, -late.skipped), late.scale)
		same := trainScaled(t, 2, 2, true, true, cfg, optim.LossScale{Init: late.scale})
		require.Zero(t, same.skipped)
		require.Equal(t, same.losses, late.losses)
		kit.RequireSameBits(t, same.state, late.state)
	}
}

// TestGPUFloat16OverflowOfOneRank: if the gradients of one rank overflow, all ranks leave out the
// step, and no parameter changes.
func TestGPUFloat16OverflowOfOneRank(t *testing.T) {
	kit.CleanGPU(t)
	onDevices(t, 2, func(ctx context.Context, g comm.Group, dev *gpu.Device) {
		m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, Device: dev, WrapPolicy: kit.Blocks, Precision: fsdp.Precision{Compute: fsdp.Float16}})
		before := kit.StateBits(t, ctx, m)
		scaler, err := optim.LossScale{}.New()
		require.NoError(t, err)
		scale := scaler.Scale()
		if g.Rank() == 1 {
			scale = 1 << 30
		}
		kit.ForwardBackward(t, ctx, m, kit.TinyBatch(0, g.Rank(), 2, kit.TinyContext), fsdp.Scale(scale))
		finite, err := m.Unscale(ctx, scaler)
		require.NoError(t, err)
		require.False(t, finite)
		require.Equal(t, 32768., scaler.Scale())
		kit.RequireSameBits(t, before, kit.StateBits(t, ctx, m))
		require.NoError(t, m.Close())
	})
}

// TestGPUFloat16VirtualRanks: with virtual ranks, the bits of a training in float16 do not depend
// on the number of GPUs.
func TestGPUFloat16VirtualRanks(t *testing.T) {
	kit.CleanGPU(t)
	open := func(rank int) *gpu.Device {
		dev, err := gpu.Open(rank)
		require.NoError(t, err)
		return dev
	}
	for _, reduce := range []fsdp.DType{fsdp.Float32, fsdp.Float16} {
		cfg := fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float16, Reduce: reduce}, Poison: true}
		want, losses := trainedBits(t, 4, 4, false, cfg, open)
		for ranks := 1; ranks <= 3; ranks++ {
			got, same := trainedBits(t, ranks, 4, false, cfg, open)
			kit.RequireSameBits(t, want, got, ranks, " ranks")
			require.Equal(t, losses, same)
		}
	}
}

// TestGPUFloat16Results: calls read parameters in float16, and results arrive as float32.
func TestGPUFloat16Results(t *testing.T) {
	kit.CleanGPU(t)
	model := kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		y := t.Call("fit", &nn.Linear{In: 1, Out: 7, NoBias: true, Std: 1}, in[0])
		return append(kit.Regress(t, in, y), y), nil
	})
	onDevices(t, 2, func(ctx context.Context, g comm.Group, dev *gpu.Device) {
		m := kit.Wrap(t, model, fsdp.Config{Group: g, Device: dev, Precision: fsdp.Precision{Compute: fsdp.Float16}})
		state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		one, zeros := kit.Filled(1, func(int) float32 { return 1 }), kit.Filled(7, func(int) float32 { return 0 })
		require.NoError(t, one.Reshape(1, 1))
		require.NoError(t, zeros.Reshape(1, 7))
		out, err := m.Eval(ctx, one, zeros)
		require.NoError(t, err)
		for i, w := range state["fit.weight"].Data().([]float32) {
			require.Equal(t, kit.Rounded(w, fsdp.Float16), out[2].Data().([]float32)[i])
		}
		require.NoError(t, m.Close())
	})
}

// TestGPUFloat16Errors: a setting that Float16 lacks, or cannot have, is an error with its name.
func TestGPUFloat16Errors(t *testing.T) {
	for text, cfg := range map[string]fsdp.Config{
		"Config.Precision.Compute is float16, which needs Config.Device":                  {Precision: fsdp.Precision{Compute: fsdp.Float16}},
		"Config.Precision.Master is bfloat16, but Compute is float16: want BFloat16":      {Precision: fsdp.Precision{Compute: fsdp.Float16, Master: fsdp.BFloat16}, Device: new(gpu.Device)},
		"Config.Precision.Reduce is bfloat16, which needs Compute to be Float32":          {Precision: fsdp.Precision{Compute: fsdp.Float16, Reduce: fsdp.BFloat16}, Device: new(gpu.Device)},
		"Config.Precision.Gather is bfloat16, which needs Compute to be Float32":          {Precision: fsdp.Precision{Compute: fsdp.Float16, Gather: fsdp.BFloat16}, Device: new(gpu.Device)},
		"Config.Device has no kernels of int8: want BFloat16, Float16 or the type of":     {Precision: fsdp.Precision{Compute: fsdp.Float16, Reduce: fsdp.Int8}, Device: new(gpu.Device)},
		"Config.GradAverage is ByWeights: with Config.VirtualRanks gradients are divided": {Precision: fsdp.Precision{Compute: fsdp.Float16, Reduce: fsdp.Float16}, Device: new(gpu.Device), VirtualRanks: 2, GradAverage: fsdp.ByWeights},
	} {
		_, err := fsdp.Wrap(kit.TinyGPT(1), cfg)
		require.ErrorContains(t, err, text)
	}
}
