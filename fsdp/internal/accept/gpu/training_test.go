//go:build linux && cgo

package gpu_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// onGPU runs f where models compute on the doubles of GPUs, at the end of which nothing of them is
// left and nothing was misused.
func onGPU(t *testing.T, f func()) {
	t.Helper()
	restore := kit.UseGPU()
	defer restore()
	cuda := kit.CleanGPU(t)
	before := cuda.Calls("cuLaunchKernel")
	f()
	require.Greater(t, cuda.Calls("cuLaunchKernel"), before, "nothing was computed there")
}

// onDevices runs f on ranks with a device each of their own, which CleanGPU has loaded the doubles
// for.
func onDevices(t *testing.T, ranks int, f func(ctx context.Context, g comm.Group, dev *gpu.Device)) {
	t.Helper()
	kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) {
		dev, err := gpu.Open(g.Rank())
		require.NoError(t, err)
		f(ctx, g, dev)
		require.NoError(t, dev.Close())
	})
}

// trainedLosses trains a small GPT with AdamW and clipping, and returns the losses of all ranks. A
// fused one has tied weights.
func trainedLosses(t *testing.T, ranks, steps int, fused bool, cfg fsdp.Config) [][]float64 {
	losses := make([][]float64, ranks)
	kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) {
		c := cfg
		c.Group = g
		model := kit.TinyGPT(2)
		model.FusedLoss, model.Tied = fused, fused
		m := kit.Wrap(t, model, c)
		update := kit.Updater(t, m, 0.5)
		for step := range steps {
			losses[g.Rank()] = append(losses[g.Rank()], kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step, g.Rank(), 2, kit.TinyContext)))
			update(ctx)
		}
		require.NoError(t, m.Close())
	})
	return losses
}

// in16 keeps parameters and gradients in 16 bits.
var in16 = fsdp.Precision{Compute: fsdp.BFloat16, Master: fsdp.BFloat16, Reduce: fsdp.BFloat16}

// TestGPUTrains compares the losses of a training on the doubles of GPUs with those of the host:
// within rounding they are the same, for one rank and several, whatever is cut and gathered ahead.
func TestGPUTrains(t *testing.T) {
	const steps = 3
	for _, v := range []struct {
		ranks int
		fused bool
		cfg   fsdp.Config
		tol   float64
	}{
		{1, false, fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float64}}, 1e-12},
		{1, true, fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float64}}, 1e-12},
		{1, false, fsdp.Config{}, 1e-5},
		{1, true, fsdp.Config{Precision: fsdp.BF16()}, 0.02},
		{1, false, fsdp.Config{Precision: in16, Poison: true}, 0.02},
		{2, true, fsdp.Config{Precision: in16, Poison: true}, 0.02},
		{2, false, fsdp.Config{Precision: in16, Strategy: fsdp.NoShard}, 0.02},
		{2, false, fsdp.Config{Poison: true}, 1e-5},
		{2, true, fsdp.Config{Poison: true}, 1e-5},
		{2, false, fsdp.Config{Strategy: fsdp.NoShard}, 1e-5},
		{4, false, fsdp.Config{Strategy: fsdp.HybridShard, ShardRanks: 2, Prefetch: 2}, 1e-5},
		{3, false, fsdp.Config{Unit: kit.CutAll(shard.Cut{Block: shard.Whole}), Poison: true}, 1e-5},
	} {
		v.cfg.WrapPolicy = kit.Blocks
		t.Run(fmt.Sprint(v.ranks, v.fused, v.cfg), func(t *testing.T) {
			want := trainedLosses(t, v.ranks, steps, v.fused, v.cfg)
			var got [][]float64
			onGPU(t, func() { got = trainedLosses(t, v.ranks, steps, v.fused, v.cfg) })
			for r := range want {
				for i, w := range want[r] {
					require.False(t, math.IsNaN(got[r][i]))
					require.InDelta(t, w, got[r][i], v.tol, "rank %d, step %d", r, i)
				}
			}
		})
	}
}

// TestGPUDry compares plans that were made without a GPU with those of wrapped models.
func TestGPUDry(t *testing.T) {
	kit.CleanGPU(t)
	rows, cols := 2, kit.TinyContext
	for _, cfg := range []fsdp.Config{
		{}, {WrapPolicy: kit.Blocks, Precision: in16}, {WrapPolicy: kit.Blocks, Precision: fsdp.BF16(), Activations: fsdp.Activations{Recompute: kit.Blocks}}, {WrapPolicy: kit.Blocks, Strategy: fsdp.ShardGradOp, Prefetch: 2, Offload: fsdp.Offload{Pinned: true}},
		{WrapPolicy: kit.Blocks, Precision: fsdp.Precision{Compute: fsdp.Float16, Reduce: fsdp.Float16}},
	} {
		onDevices(t, 2, func(ctx context.Context, g comm.Group, dev *gpu.Device) {
			cfg := cfg
			cfg.Group, cfg.Device = comm.World{Ranks: 2, Place: g.Rank()}, new(gpu.Device)
			dry, err := fsdp.Planner{Model: kit.TinyGPT(2), Config: cfg, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{fsdp.Ints(rows, cols), fsdp.Ints(rows, cols)}}.Plan()
			require.NoError(t, err)
			cfg.Group, cfg.Device = g, dev
			m := kit.Wrap(t, kit.TinyGPT(2), cfg)
			_, err = optim.AdamW{}.New(m.Params())
			require.NoError(t, err)
			plan, err := m.Plan(kit.TinyBatch(0, g.Rank(), rows, cols)...)
			require.NoError(t, err)
			require.Equal(t, plan, dry)
			if first := plan.Pass.Ops[0].Live; cfg.Offload.Pinned {
				require.Zero(t, first.Shard+first.State, "it is in memory of the host")
			} else {
				require.Equal(t, plan.ShardBytes, first.Shard)
			}
			require.NoError(t, m.Close())
		})
	}
}

// TestGPUFits advises Offload.Pinned, which takes what lasts from the GPU but what its calls read
// in place.
func TestGPUFits(t *testing.T) {
	cfg, shape := fsdp.Config{Device: new(gpu.Device), Group: comm.World{Ranks: 2}, WrapPolicy: kit.Blocks}, fsdp.Ints(2, kit.TinyContext)
	err := fsdp.Planner{Model: kit.TinyGPT(2), Config: cfg, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{shape, shape}}.Fits(1000)
	require.ErrorContains(t, err, "Offload.Pinned saves ")
	cfg.Offload.Pinned = true
	err = fsdp.Planner{Model: kit.TinyGPT(2), Config: cfg, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{shape, shape}}.Fits(1000)
	require.NotContains(t, err.Error(), "Offload")
	require.NotContains(t, err.Error(), "of this rank")
	cfg.Strategy = fsdp.NoShard
	whole, err := fsdp.Planner{Model: kit.TinyGPT(2), Config: cfg, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{shape, shape}}.Plan()
	require.NoError(t, err)
	require.Equal(t, plan.Memory{Shard: whole.ShardBytes / 2}, plan.Memory{Shard: whole.Pass.Ops[0].Live.Shard, State: whole.Pass.Ops[0].Live.State})
}

// TestConfigDevice trains on devices of the caller, which stay open, and says what they are not
// for.
func TestConfigDevice(t *testing.T) {
	kit.CleanGPU(t)
	onDevices(t, 2, func(ctx context.Context, g comm.Group, dev *gpu.Device) {
		m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, Device: dev, WrapPolicy: kit.Blocks})
		kit.ForwardBackward(t, ctx, m, kit.TinyBatch(0, g.Rank(), 2, kit.TinyContext))
		require.NoError(t, m.Close())
	})
	dev, err := gpu.Open(0)
	require.NoError(t, err)
	m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Device: dev, Precision: in16})
	matrices, _ := kit.HiddenMatrices(m.Params())
	_, err = optim.Muon{}.New(matrices)
	require.ErrorContains(t, err, "its value is bfloat16, which muon cannot update: use AdamW, Adam or SGD, or values in float32")
	require.NoError(t, m.Close())
	_, err = fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Device: dev, Threads: 2})
	require.ErrorContains(t, err, "Config.Threads is 2, but Config.Device computes: set only one of them")
	_, err = fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Device: dev, Offload: fsdp.Offload{Dir: "/tmp"}})
	require.ErrorContains(t, err, `Config.Offload.Dir is "/tmp", but memory of Config.Device cannot be in files: set Offload.Pinned instead`)
	_, err = fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Device: dev, Precision: fsdp.Precision{Gather: fsdp.Int8}})
	require.ErrorContains(t, err, "Config.Precision is {Gather: int8")
	require.ErrorContains(t, err, "Config.Device has no kernels of int8")
	_, err = fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Device: dev, Precision: fsdp.Precision{TypesOf: kit.TypesByName(fsdp.Int8, 0, nil)}})
	require.ErrorContains(t, err, "parameter wte.weight: Config.Precision.TypesOf returned int8 and float32: Config.Device has no kernels of int8")
	for _, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		cfg := fsdp.Config{Group: g}
		if g.Rank() == 0 {
			cfg.Device = dev
		}
		_, err := fsdp.Wrap(kit.TinyGPT(1), cfg)
		return err
	}) {
		require.ErrorContains(t, err, "Config.Device is set: ")
	}
	require.NoError(t, dev.Close())
}

// TestGPUModelsInTurns trains two models in turns on one device of each rank: both get what they
// get alone.
func TestGPUModelsInTurns(t *testing.T) {
	cuda := kit.CleanGPU(t)
	cuda.Delay(200*time.Microsecond, 7)
	defer cuda.Delay(0, 0)
	const models, steps = 2, 3
	train := func(together bool) (states [models]kit.Bits) {
		onDevices(t, 2, func(ctx context.Context, g comm.Group, dev *gpu.Device) {
			var all [models]*fsdp.Sharded
			begin := func(i int) {
				all[i] = kit.Wrap(t, kit.TinyGPT(1+i), fsdp.Config{Group: g, Device: dev, WrapPolicy: kit.Blocks})
			}
			forward := func(i, step int) {
				_, err := all[i].Forward(ctx, kit.TinyBatch(step, g.Rank(), 2, kit.TinyContext)...)
				require.NoError(t, err)
			}
			backward := func(i int) { require.NoError(t, all[i].Backward(ctx)) }
			end := func(i int) {
				if got := kit.GradBits(t, ctx, all[i]); g.Rank() == 0 {
					states[i] = got
				}
				require.NoError(t, all[i].Close())
			}
			if together {
				begin(0)
				begin(1)
				for step := range steps {
					forward(0, step)
					forward(1, step)
					backward(0)
					backward(1)
				}
				end(0)
				end(1)
			}
			for i := 0; i < models && !together; i++ {
				begin(i)
				for step := range steps {
					forward(i, step)
					backward(i)
				}
				end(i)
			}
		})
		return states
	}
	alone, together := train(false), train(true)
	for i := range models {
		kit.RequireSameBits(t, alone[i], together[i], i)
	}
}

// TestGPUFaultsLater has the device fail in the backward of a pass, which is noticed afterwards: in
// another method, or in the next pass. Both say when it was, as far as that is known.
func TestGPUFaultsLater(t *testing.T) {
	cuda := kit.CleanGPU(t)
	for name, notice := range map[string]func(ctx context.Context, m *fsdp.Sharded) error{
		"FullGrads": func(ctx context.Context, m *fsdp.Sharded) error { _, err := m.FullGrads(ctx); return err },
		"Forward": func(ctx context.Context, m *fsdp.Sharded) error {
			_, err := m.Forward(ctx, kit.TinyBatch(1, 0, 2, kit.TinyContext)...)
			return err
		},
	} {
		restore := kit.UseGPU()
		ctx, m := t.Context(), kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{WrapPolicy: kit.Blocks})
		restore()
		kit.ForwardBackward(t, ctx, m, kit.TinyBatch(0, 0, 2, kit.TinyContext))
		const illegalAddress = 700
		cuda.Fail("cuEventQuery", 1, illegalAddress)
		require.ErrorContains(t, notice(ctx, m), "pass 1: drain root: this or an earlier operation failed: device 0: cuEventQuery: ", name)
		_ = m.Close() // which says it again
	}
}

// TestGPUFails fails calls of the driver, one in each training: it returns the error, no rank
// hangs, and Close leaves nothing.
func TestGPUFails(t *testing.T) {
	cuda := kit.CleanGPU(t)
	training := func() error {
		restore := kit.UseGPU()
		defer restore()
		m, err := fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{WrapPolicy: kit.Blocks, Precision: fsdp.BF16()})
		if err != nil {
			return err
		}
		opt, err := optim.AdamW{}.New(m.Params())
		for step := 0; step < 2 && err == nil; step++ {
			if _, err = m.Forward(context.Background(), kit.TinyBatch(step, 0, 1, 2)...); err == nil {
				err = m.Backward(context.Background())
			}
			if err == nil {
				err = opt.Step(1e-3)
			}
		}
		_ = m.Close() // which says again what has failed
		return err
	}
	calls := []string{
		"cuLaunchKernel", "cuMemAlloc", "cuMemAllocHost", "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuMemcpyHtoDAsync",
		"cuMemcpyDtoHAsync", "cuMemsetD8Async",
	}
	number := make(map[string]int)
	for _, call := range calls {
		number[call] -= cuda.Calls(call)
	}
	require.NoError(t, training())
	for _, call := range calls {
		number[call] += cuda.Calls(call)
	}
	for _, call := range calls {
		n := number[call]
		require.Positive(t, n, call)
		for _, nth := range []int{1, n/2 + 1, n} {
			cuda.Fail(call, nth, 2)
			require.ErrorContains(t, training(), call, "number %d of %d", nth, n)
		}
	}
}

// TestGPUZeroBetween drops the gradients between Forward and Backward: those of the pass are all
// that is left, wherever shards lie.
func TestGPUZeroBetween(t *testing.T) {
	kit.CleanGPU(t)
	for _, offload := range []bool{false, true} {
		t.Run(fmt.Sprint("offload ", offload), func(t *testing.T) {
			onDevices(t, 2, func(ctx context.Context, g comm.Group, dev *gpu.Device) {
				m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, Device: dev, Offload: fsdp.Offload{Pinned: offload}, WrapPolicy: kit.Blocks})
				batch := kit.TinyBatch(0, g.Rank(), 2, kit.TinyContext)
				kit.ForwardBackward(t, ctx, m, batch)
				want := kit.GradBits(t, ctx, m)
				_, err := m.Forward(ctx, batch...)
				require.NoError(t, err)
				m.ZeroGrad()
				require.NoError(t, m.Backward(ctx))
				kit.RequireSameBits(t, want, kit.GradBits(t, ctx, m))
				require.NoError(t, m.Close())
			})
		})
	}
}

// TestGPULeaves: what a rank has stays readable when others have closed their models.
func TestGPULeaves(t *testing.T) {
	kit.CleanGPU(t)
	onDevices(t, 2, func(ctx context.Context, g comm.Group, dev *gpu.Device) {
		m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, Device: dev, WrapPolicy: kit.Blocks})
		kit.ForwardBackward(t, ctx, m, kit.TinyBatch(0, g.Rank(), 2, kit.TinyContext))
		if g.Rank() == 1 {
			require.NoError(t, m.Close())
		}
		require.NoError(t, g.Barrier(ctx))
		if g.Rank() == 0 {
			p := m.Params()[0]
			require.NoError(t, p.Value.Zero())
			require.NoError(t, p.Value.Read(optim.Host{F32: make([]float32, p.Value.Len())}))
			require.NoError(t, m.Close())
		}
	})
}

// crossed is a training whose passes cross each other: one is held while another changes its plan,
// some add gradients that are not reduced, one rank has fewer batches, and state is swapped in
// between.
func crossed(t *testing.T, cfg fsdp.Config) (losses [2][]float64, state kit.Bits) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		cfg := cfg
		cfg.Group = g
		m := kit.Wrap(t, kit.TinyGPT(2), cfg)
		opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Params())
		require.NoError(t, err)
		require.NoError(t, optim.EMA(opt, 0.9))
		batch := func(i int) []fsdp.Tensor { return kit.TinyBatch(i, g.Rank(), 2, kit.TinyContext) }
		for step := range 2 {
			_, err := m.Forward(ctx, batch(10*step)...)
			require.NoError(t, err)
			first := m.Hold()
			_, err = m.Eval(ctx, batch(10*step+1)...)
			require.NoError(t, err)
			require.NoError(t, m.NoSync(func() error { return kit.TrainStep(ctx, m, batch(10*step+2)) }))
			require.NoError(t, m.NoSync(func() error { return first.Backward(ctx) }))
			for b, err := range m.Join(ctx, kit.Batches(1+g.Rank(), func(i int) []fsdp.Tensor { return batch(10*step + 3 + i) })) {
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
		got := kit.StateBits(t, ctx, m)
		if g.Rank() == 0 {
			state = got
		}
		require.NoError(t, m.Close())
	})
	return losses, state
}

// TestGPUDelays: no bit of a training depends on how late the streams are, on what is gathered
// ahead, or on what freed memory holds.
func TestGPUDelays(t *testing.T) {
	var losses [2][]float64
	var want kit.Bits
	onGPU(t, func() { losses, want = crossed(t, fsdp.Config{WrapPolicy: kit.Blocks}) })
	onGPU(t, func() {
		cuda := kit.CleanGPU(t)
		cuda.Delay(100*time.Microsecond, 1)
		defer cuda.Delay(0, 0)
		late, got := crossed(t, fsdp.Config{WrapPolicy: kit.Blocks, Prefetch: 3, Poison: true})
		require.Equal(t, losses, late)
		kit.RequireSameBits(t, want, got)
	})
}

// TestGPUStepAllocatesLittle holds the memory that the host takes for a step to the bounds of the
// host's own engine.
func TestGPUStepAllocatesLittle(t *testing.T) {
	onGPU(t, func() { kit.StepAllocatesLittle(t, 1) })
}
