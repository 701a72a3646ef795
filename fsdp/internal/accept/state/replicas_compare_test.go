package state_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
	"github.com/gofsdp/gofsdp/optim"
)

// flip adds 1 to this rank's first element of a parameter or, if entry is not empty, of this entry of the
// optimizer's state.
func flip(t require.TestingT, m *fsdp.Sharded, opt optim.Optimizer, param, entry string) {
	first := func(i int, x float64) float64 {
		if i == 0 {
			return x + 1
		}
		return x
	}
	for _, e := range opt.State() {
		if e.Param == param && e.Name == entry {
			kit.Edit(t, e.Data, first)
			return
		}
	}
	for _, p := range m.Params() {
		if p.Name == param && entry == "" {
			kit.Edit(t, p.Value, first)
			return
		}
	}
	require.Fail(t, "no such tensor", "%s of %s", entry, param)
}

// ownNumbers returns this rank's elements of the parameters and of the optimizer's state.
func ownNumbers(t require.TestingT, m *fsdp.Sharded, opt optim.Optimizer) (all [][]float64) {
	for _, p := range m.Params() {
		all = append(all, kit.Numbers(t, p.Value))
	}
	for _, e := range opt.State() {
		all = append(all, kit.Numbers(t, e.Data))
	}
	return all
}

// TestWritersCompareCopies damages parameters and optimizer state of one rank. If other ranks have replicas,
// Save, SaveAsync and Export return an error on every rank that names tensor and ranks, write nothing, and
// keep the good checkpoint. Loading it mends the replicas, and so do LoadStateDict and LoadOptimStateDict.
func TestWritersCompareCopies(t *testing.T) {
	for name, c := range map[string]struct {
		world        int
		cfg          fsdp.Config
		eight        bool // bits
		rank         int  // that is damaged
		param, entry string
		want         string // in the errors; "" if there are no copies
	}{
		"replicated parameter": {3, fsdp.Config{Strategy: fsdp.NoShard, WrapPolicy: fsdp.WrapEach()}, false, 1, "l1.w", "",
			"parameter l1.w differs between ranks 0,2 and rank 1;"},
		"replicated optimizer": {2, fsdp.Config{Strategy: fsdp.NoShard}, false, 0, "l3.w", "exp_avg",
			"exp_avg of parameter l3.w differs between rank 0 and rank 1;"},
		"in 8 bits": {2, fsdp.Config{Strategy: fsdp.NoShard, Precision: fsdp.Precision{Compute: fsdp.Float32}}, true, 1, "l0.w", "exp_avg",
			"exp_avg of parameter l0.w differs between rank 0 and rank 1;"},
		"hybrid": {4, fsdp.Config{Strategy: fsdp.HybridShard, ShardRanks: 2}, false, 3, "l3.w", "exp_avg_sq",
			"exp_avg_sq of parameter l3.w differs between rank 1 and rank 3;"},
		"a part": {4, fsdp.Config{Strategy: fsdp.HybridGradOp, ShardRanks: 2, WrapPolicy: fsdp.WrapEach()}, false, 0, "l0.w", "",
			"parameter l0.w[0:16] differs between rank 0 and rank 2;"},
		"ignored": {2, fsdp.Config{Ignored: func(name string) bool { return name == "l2.w" }}, false, 1, "l2.w", "",
			"parameter l2.w differs between rank 0 and rank 1;"},
		"virtual ranks": {2, fsdp.Config{Strategy: fsdp.NoShard, VirtualRanks: 4}, false, 1, "l0.w", "exp_avg",
			"exp_avg of parameter l0.w differs between rank 0 and rank 1;"},
		"sharded": {2, fsdp.Config{}, false, 0, "l0.w", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			disk := crashfs.New()
			kit.OnRanks(t, c.world, func(ctx context.Context, g comm.Group) {
				cfg := c.cfg
				cfg.Group = g
				if !c.eight {
					cfg.Precision = kit.Float64s
				}
				m := kit.Wrap(t, kit.Shapes["chain"], cfg)
				maker := optim.AdamW{}
				if c.eight {
					maker.Bits = 8
				}
				opt, err := maker.New(m.Params())
				require.NoError(t, err)
				step := func() {
					for range max(1, cfg.VirtualRanks/c.world) {
						batch := kit.BatchPart(0, g, cfg.Precision.Compute)
						kit.ForwardBackward(t, ctx, m, batch)
					}
					require.NoError(t, opt.Step(0.01))
					m.ZeroGrad()
				}
				step()
				writers := map[string]func() error{
					"Save": func() error { return m.Save(kit.OnFS(ctx, disk), kit.Ckpt, opt, &fsdp.SaveOptions{KeepLast: 1}) },
					"SaveAsync": func() error {
						v, err := m.SaveAsync(kit.OnFS(ctx, disk), kit.Ckpt, opt, &fsdp.SaveOptions{KeepLast: 1})
						if err != nil {
							return err
						}
						return v.Wait(ctx)
					},
					"Export": func() error {
						return m.Export(kit.OnFS(ctx, disk), kit.Ckpt+".safetensors", &fsdp.ExportOptions{Optimizer: opt})
					},
				}
				refused := func() {
					if g.Rank() == c.rank {
						flip(t, m, opt, c.param, c.entry)
					}
					for _, method := range []string{"Save", "SaveAsync", "Export"} {
						err := writers[method]()
						if c.want == "" {
							require.NoError(t, err)
							continue
						}
						require.ErrorContains(t, err, method[:4])
						for _, part := range []string{c.want, "nothing was written", "load the last checkpoint", "LoadOptimStateDict", "FullShard have no replicas"} {
							require.ErrorContains(t, err, part)
						}
					}
				}
				require.NoError(t, writers["Save"]())
				good := ownNumbers(t, m, opt)
				refused()
				if c.want == "" {
					require.NoError(t, m.Close())
					return
				}
				entries, err := checkpoint.List(ctx, disk, kit.Ckpt)
				require.NoError(t, err)
				require.Len(t, entries, 1)
				_, err = disk.Open(kit.Ckpt + ".safetensors")
				require.Error(t, err)
				_, err = m.Load(kit.OnFS(ctx, disk), kit.Ckpt, opt, nil)
				require.NoError(t, err)
				require.Equal(t, good, ownNumbers(t, m, opt))
				step()
				require.NoError(t, writers["Save"]())
				refused()
				params, err := m.StateDict(ctx, &fsdp.StateDictOptions{Rank: 1})
				require.NoError(t, err)
				state, err := m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{Rank: 1})
				require.NoError(t, err)
				require.NoError(t, m.LoadStateDict(ctx, 1, params))
				require.NoError(t, m.LoadOptimStateDict(ctx, 1, opt, state, nil))
				require.NoError(t, writers["Save"]())
				require.NoError(t, m.Close())
			})
		})
	}
}

// TestWritersWarnOfBuffers: Save and Export say once each that buffers differ between ranks, and which, unless
// they do not.
func TestWritersWarnOfBuffers(t *testing.T) {
	for _, averaged := range []bool{false, true} {
		disk := crashfs.New()
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			var log bytes.Buffer
			m := kit.Wrap(t, kit.Twice, fsdp.Config{Group: g, Precision: kit.Float64s, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			_, err := m.Forward(ctx, runningBatch(0, g.Rank())...)
			require.NoError(t, err)
			if averaged {
				require.NoError(t, m.AverageBuffers(ctx))
			}
			log.Reset()
			for range 2 {
				require.NoError(t, m.Save(kit.OnFS(ctx, disk), kit.Ckpt, nil, nil))
				require.NoError(t, m.Export(kit.OnFS(ctx, disk), kit.Ckpt+".safetensors", nil))
			}
			if averaged {
				require.Empty(t, log.String())
			} else {
				require.Equal(t, 2, bytes.Count(log.Bytes(), []byte("\n")), log.String())
				require.Equal(t, 2, bytes.Count(log.Bytes(), []byte("AverageBuffers gives all ranks their mean\" rank=")), log.String())
				require.Equal(t, 2, bytes.Count(log.Bytes(), []byte("buffers=[r.mean]")), log.String())
				require.Contains(t, log.String(), "Save: buffers, such as running means, differ between ranks: each rank saves its own values.")
				require.Contains(t, log.String(), "Export: buffers, such as running means, differ between ranks: the values of rank 0 are written.")
			}
			require.NoError(t, m.Close())
		})
	}
}
