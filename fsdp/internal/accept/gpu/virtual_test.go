//go:build linux && cgo

package gpu_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
)

// trainedBits trains on four micro-batches a step, and returns the parameters and the losses by
// micro-batch. If own is nil, the device of the kit computes.
func trainedBits(t *testing.T, ranks, virtual int, noSync bool, cfg fsdp.Config, own func(rank int) *gpu.Device) (bits kit.Bits, losses [4]float64) {
	kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) {
		c := cfg
		c.Group, c.VirtualRanks, c.WrapPolicy = g, virtual, kit.Blocks
		if own != nil {
			dev := own(g.Rank())
			c.Device = dev
			defer func() { require.NoError(t, dev.Close()) }()
		}
		model := kit.TinyGPT(1)
		model.Dropout = 0.1
		m := kit.Wrap(t, model, c)
		update := kit.Updater(t, m, 0.5)
		for step := range 2 {
			passes := (4 + ranks - 1) / ranks
			for k := range passes {
				leaf := k*ranks + g.Rank()
				if noSync {
					leaf = g.Rank()*passes + k
				}
				run := func() error {
					if leaf > 3 {
						kit.ForwardBackward(t, ctx, m, nil)
						return nil
					}
					losses[leaf] = kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step, leaf, 2, kit.TinyContext))
					return nil
				}
				if noSync && k < passes-1 {
					require.NoError(t, m.NoSync(run))
				} else {
					require.NoError(t, run())
				}
			}
			update(ctx)
		}
		if b := kit.StateBits(t, ctx, m); g.Rank() == 0 {
			bits = b
		}
		require.NoError(t, m.Close())
	})
	return bits, losses
}

// TestGPUVirtualRanks: with virtual ranks, one GPU and two to four train to the same bits, near the
// host's. NCCL's sums have other bits than the tree: without virtual ranks they reach the
// parameters.
func TestGPUVirtualRanks(t *testing.T) {
	t.Setenv("FSDP_DOUBLE_NCCL_TREE", "") // so that it is restored
	os.Unsetenv("FSDP_DOUBLE_NCCL_TREE")
	kit.CleanGPU(t)
	open := func(rank int) *gpu.Device {
		dev, err := gpu.Open(rank)
		require.NoError(t, err)
		dev.CollectiveSMs = 16 // products use as many multiprocessors on one rank
		return dev
	}
	for name, c := range map[string]struct {
		cfg fsdp.Config
		tol float64
	}{
		"float32":  {fsdp.Config{}, 1e-5},
		"bfloat16": {fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.BFloat16, Reduce: fsdp.BFloat16}, Poison: true}, 0.02},
		"no shard": {fsdp.Config{Strategy: fsdp.NoShard, Precision: fsdp.Precision{Reduce: fsdp.Float16}}, 1e-4},
		"hybrid":   {fsdp.Config{Strategy: fsdp.HybridShard, ShardRanks: 1}, 1e-5},
	} {
		t.Run(name, func(t *testing.T) {
			want, losses := trainedBits(t, 4, 4, false, c.cfg, open)
			for ranks := 1; ranks <= 3; ranks++ {
				for _, noSync := range []bool{false, true}[:2-ranks/3] {
					got, same := trainedBits(t, ranks, 4, noSync, c.cfg, open)
					kit.RequireSameBits(t, want, got, ranks, " ranks, NoSync ", noSync)
					require.Equal(t, losses, same)
				}
			}
			_, host := trainedBits(t, 4, 4, false, c.cfg, nil)
			require.InDeltaSlice(t, host[:], losses[:], c.tol)
			if name == "float32" {
				other, _ := trainedBits(t, 4, 0, false, c.cfg, open)
				require.NotEqual(t, fmt.Sprint(want), fmt.Sprint(other))
			}
		})
	}
}
