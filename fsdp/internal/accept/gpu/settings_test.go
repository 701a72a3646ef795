//go:build linux && cgo

package gpu_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
)

// TestGPUCollectiveSMs: with several ranks, NCCL gets the limit and products the other
// multiprocessors.
func TestGPUCollectiveSMs(t *testing.T) {
	kit.CleanGPU(t)
	libs := gpudouble.Build(t)
	lib, products := gpudouble.Open(t, libs.NCCL), gpudouble.Open(t, libs.CUBLASLT)
	for _, v := range []struct{ ranks, limit, blocks, each int }{{1, 16, 0, 0}, {2, 0, 0, 0}, {2, 16, 2 * 16, 132 - 16}} {
		blocks, sum, calls := lib.Live("CTAs"), products.Live("multiprocessors"), products.Calls("cublasLtMatmul")
		onDevices(t, v.ranks, func(ctx context.Context, g comm.Group, dev *gpu.Device) {
			dev.CollectiveSMs = v.limit
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, Device: dev})
			kit.ForwardBackward(t, ctx, m, kit.GoodBatch(0))
			require.NoError(t, m.Close())
		})
		require.Equal(t, v.blocks, lib.Live("CTAs")-blocks, "%+v", v)
		calls = products.Calls("cublasLtMatmul") - calls
		require.Positive(t, calls)
		require.Equal(t, calls*v.each, products.Live("multiprocessors")-sum, "%+v", v)
	}
}

// TestGPUTF32 changes products in float32, a little, and none in bfloat16.
func TestGPUTF32(t *testing.T) {
	kit.CleanGPU(t)
	for _, v := range []struct {
		precision fsdp.Precision
		changes   bool
	}{{fsdp.Precision{}, true}, {fsdp.BF16(), false}} {
		var losses [2]float64
		for i := range losses {
			onDevices(t, 1, func(ctx context.Context, g comm.Group, dev *gpu.Device) {
				dev.TF32 = i == 1
				m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, Device: dev, Precision: v.precision})
				losses[i] = kit.ForwardBackward(t, ctx, m, kit.GoodBatch(0))
				require.NoError(t, m.Close())
			})
		}
		require.Equal(t, v.changes, losses[0] != losses[1])
		require.InEpsilon(t, losses[0], losses[1], 1e-3)
	}
}

// TestGPUSettingsDiffer: ranks have the same settings, which fit their GPUs.
func TestGPUSettingsDiffer(t *testing.T) {
	kit.CleanGPU(t)
	for _, v := range []struct {
		set  func(dev *gpu.Device, rank int)
		want string
	}{
		{func(dev *gpu.Device, rank int) { dev.CollectiveSMs = 8 * rank }, "Config.Device: CollectiveSMs 0"},
		{func(dev *gpu.Device, rank int) { dev.TF32 = rank == 1 }, "TF32 true"},
		{func(dev *gpu.Device, _ int) { dev.Deterministic = true }, "Config.Device: nccl: NCCL is loaded already and may sum in switches of NVLink"},
		{func(dev *gpu.Device, _ int) { dev.CollectiveSMs = 132 }, "Double 0, has 132 multiprocessors, and CollectiveSMs is 132: products need some, too"},
	} {
		for _, err := range kit.ErrorsOf(t, 2, func(_ context.Context, g comm.Group) error {
			dev, err := gpu.Open(g.Rank())
			require.NoError(t, err)
			defer func() { require.NoError(t, dev.Close()) }()
			v.set(dev, g.Rank())
			_, err = fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Group: g, Device: dev})
			return err
		}) {
			require.ErrorContains(t, err, v.want)
		}
	}
}

// TestGPUDeterministic: a training has the same bits with every prefetch depth, whose reductions do
// not share launches.
func TestGPUDeterministic(t *testing.T) {
	t.Setenv("NCCL_ALGO", "^NVLS,NVLSTree")
	kit.CleanGPU(t)
	var want kit.Bits
	for _, ahead := range []int{fsdp.NoPrefetch, 3} {
		var got kit.Bits
		onDevices(t, 2, func(ctx context.Context, g comm.Group, dev *gpu.Device) {
			dev.Deterministic = true
			m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, Device: dev, WrapPolicy: kit.Blocks, Prefetch: ahead})
			update := kit.Updater(t, m, 0.5)
			for step := range 2 {
				kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step, g.Rank(), 2, kit.TinyContext))
				update(ctx)
			}
			if bits := kit.StateBits(t, ctx, m); g.Rank() == 0 {
				got = bits
			}
			require.NoError(t, m.Close())
		})
		if want != nil {
			kit.RequireSameBits(t, want, got)
		}
		want = got
	}
}
