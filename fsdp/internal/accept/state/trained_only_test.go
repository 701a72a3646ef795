package state_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim/vec"
)

// prefixed freezes parameters whose names begin with one of some prefixes.
func prefixed(prefixes ...string) func(string) bool {
	return func(name string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
	}
}

// namesIn lists the tensors of the last checkpoint in dir.
func namesIn(t require.TestingT, dir string) (names []string) {
	path, err := fsdp.LatestCheckpoint(dir)
	require.NoError(t, err)
	r, err := checkpoint.OpenReader(context.Background(), checkpoint.OS(), path)
	require.NoError(t, err)
	for _, x := range r.Manifest().Tensors {
		names = append(names, x.Name())
	}
	require.NoError(t, r.Close())
	return names
}

var trainedOnly = &fsdp.SaveOptions{TrainedOnly: true}

// TestTrainedOnly saves with and without frozen parameters on N ranks and loads both on N', in other
// layouts and types. A training continues from both with the same bits.
func TestTrainedOnly(t *testing.T) {
	worlds := []int{1, 2, 4}
	for i, from := range worlds {
		full, part := t.TempDir(), t.TempDir()
		kit.OnRanks(t, from, func(ctx context.Context, g comm.Group) {
			m := kit.NewResharder(t, g, i, fsdp.Float64, 5, prefixed("l0", "l1"))
			m.Train(t, ctx, 0, 3)
			require.NoError(t, m.Save(ctx, full, m.Opt, nil))
			require.NoError(t, m.Save(ctx, part, m.Opt, trainedOnly))
			require.NoError(t, m.Close())
		})
		trained := slices.DeleteFunc(namesIn(t, full), func(name string) bool { return name == "l0.w" || name == "l1.w" })
		require.Equal(t, trained, namesIn(t, part))
		for j, to := range worlds {
			for _, compute := range []fsdp.DType{fsdp.Float64, fsdp.Float32} {
				losses, states := make([][]float64, 2), make([]kit.Bits, 2)
				for k, dir := range []string{full, part} {
					kit.OnRanks(t, to, func(ctx context.Context, g comm.Group) {
						m := kit.NewResharder(t, g, i+j, compute, 5, prefixed("l0", "l1"))
						defer m.Close()
						c, err := m.Load(ctx, dir, m.Opt, nil)
						require.NoError(t, err)
						require.Equal(t, []int{3, from, 3}, []int{c.Step, c.World, m.Opt.Steps()})
						all := m.Train(t, ctx, 3, 6)
						if state := kit.StateBits(t, ctx, m.Sharded); g.Rank() == 0 {
							losses[k], states[k] = all, state
						}
					})
				}
				require.Equal(t, losses[0], losses[1])
				kit.RequireSameBits(t, states[0], states[1], fmt.Sprint(from, " to ", to))
			}
		}
	}
}

// TestTrainedOnlyState leaves out frozen parameters of every sort, in every layout: sharded, ignored,
// copied, tied, and of separate groups. Buffers are saved.
func TestTrainedOnlyState(t *testing.T) {
	frozen := prefixed("a", "experts", "d")
	for _, world := range []int{1, 2, 4} {
		for name, layout := range kit.StateLayouts(world) {
			t.Run(fmt.Sprint(world, " ", name), func(t *testing.T) {
				dir := t.TempDir()
				wrap := func(ctx context.Context, g comm.Group) *fsdp.Sharded {
					cfg := layout(t, ctx, g)
					cfg.Frozen, cfg.Seed = frozen, 3
					return kit.Wrap(t, kit.StateModel, cfg)
				}
				optimizer, self := kit.StateOptimizers["AdamW"], func(name string) string { return name }
				values, states := make([]kit.Bits, world), make([]kit.Bits, world)
				kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
					m := wrap(ctx, g)
					opt := kit.FiveUpdates(t, m.Params(), self, optimizer)
					require.NoError(t, m.Summon(ctx, []string{"bn.mean"}, func(params map[string]*tensor.Dense) error {
						params["bn.mean"].Float32s()[0] = 7
						return nil
					}, fsdp.WriteBack(0)))
					v, err := m.SaveAsync(ctx, dir, opt, trainedOnly)
					require.NoError(t, err)
					require.NoError(t, v.Wait(ctx))
					values[g.Rank()], states[g.Rank()] = kit.StateBits(t, ctx, m), kit.StateOfAll(t, ctx, m, opt)
				})
				require.False(t, slices.ContainsFunc(namesIn(t, dir), frozen))
				require.True(t, slices.ContainsFunc(namesIn(t, dir), prefixed("bn.mean")))
				kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
					m := wrap(ctx, g)
					opt, err := optimizer(m.Params())
					require.NoError(t, err)
					_, err = m.Load(ctx, dir, opt, nil)
					require.NoError(t, err)
					kit.RequireSameBits(t, values[g.Rank()], kit.StateBits(t, ctx, m))
					kit.RequireSameBits(t, states[g.Rank()], kit.StateOfAll(t, ctx, m, opt))
				})
			})
		}
	}
}

// TestTrainedOnlyRefuses loads checkpoints without frozen parameters into models that they do not fit. Errors
// are the same on every rank, and change nothing.
func TestTrainedOnlyRefuses(t *testing.T) {
	dir := t.TempDir()
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.NewResharder(t, g, 0, fsdp.Float64, 5, prefixed("l0", "l1"))
		m.Train(t, ctx, 0, 2)
		require.NoError(t, m.Save(ctx, dir, m.Opt, trainedOnly))
	})
	for name, c := range map[string]struct {
		seed   uint64
		frozen func(string) bool
		opts   *fsdp.LoadOptions
		want   fsdp.StateError
		text   string
	}{
		"another base": {6, prefixed("l0", "l1"), nil, fsdp.StateError{Changed: []string{"l0.w", "l1.w"}},
			"another base: l0.w, l1.w: these parameters are frozen, and their values differ from the values at Save, which the checkpoint does " +
				"not have (SaveOptions.TrainedOnly): load the same base model before, or accept this one by AllowMissing"},
		"accepted in part": {6, prefixed("l0", "l1"), &fsdp.LoadOptions{AllowMissing: prefixed("l1")}, fsdp.StateError{Changed: []string{"l0.w"}}, "another base: l0.w: "},
		"trained now": {5, prefixed("l0"), nil, fsdp.StateError{Missing: []string{"l1.w", "exp_avg:l1.w", "exp_avg_sq:l1.w"}},
			"missing l1.w, exp_avg:l1.w, exp_avg_sq:l1.w: it has only the parameters that were trained (SaveOptions.TrainedOnly), so freeze the others, or see AllowMissing"},
		"other names": {5, prefixed("l0", "l1"), &fsdp.LoadOptions{Rename: func(name string) string { return strings.Replace(name, "l0", "k0", 1) }},
			fsdp.StateError{Missing: []string{"k0.w"}, Extra: []string{"l0.w"}}, "missing k0.w, see AllowMissing; extra l0.w, see AllowExtra"},
	} {
		t.Run(name, func(t *testing.T) {
			kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
				m := kit.NewResharder(t, g, 1, fsdp.Float64, c.seed, c.frozen)
				before := kit.StateBits(t, ctx, m.Sharded)
				_, err := m.Load(ctx, dir, m.Opt, c.opts)
				require.ErrorContains(t, err, c.text)
				var unfit *fsdp.StateError
				require.ErrorAs(t, err, &unfit)
				require.Equal(t, [][]string{c.want.Missing, c.want.Extra, c.want.Changed}, [][]string{unfit.Missing, unfit.Extra, unfit.Changed})
				kit.RequireSameBits(t, before, kit.StateBits(t, ctx, m.Sharded))
				_, err = m.Load(ctx, dir, m.Opt, &fsdp.LoadOptions{Rename: func(name string) string { return name }, AllowMissing: prefixed("l0", "l1", "exp_avg:l1", "exp_avg_sq:l1")})
				require.NoError(t, err)
				after := kit.StateBits(t, ctx, m.Sharded)
				for _, kept := range []string{"l0.w", "l1.w"} {
					require.Equal(t, before[kept], after[kept])
				}
				require.NotEqual(t, before["l3.w"], after["l3.w"])
			})
		})
	}
	t.Run("held as well", func(t *testing.T) {
		remake(t, dir, func(m *checkpoint.Manifest) {
			m.Meta["base"] = []byte(`[{"param":"l3.w","owner":-1,"shape":[1],"crc32":0}]`)
		})
		m := kit.NewResharder(t, comm.Local(1)[0], 0, fsdp.Float64, 5, prefixed("l0", "l1"))
		_, err := m.Load(t.Context(), dir, m.Opt, nil)
		require.ErrorContains(t, err, "the manifest lists l3.w both as saved and as frozen and not saved")
	})
}

// TestTrainedOnlyFindsOneBit changes one bit of a frozen parameter between Save and Load.
func TestTrainedOnlyFindsOneBit(t *testing.T) {
	dir := t.TempDir()
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := kit.NewResharder(t, g, 0, fsdp.Float32, 5, prefixed("l2"))
		defer m.Close()
		require.NoError(t, m.Save(ctx, dir, m.Opt, trainedOnly))
		flip := func(i int) {
			require.NoError(t, m.Summon(ctx, []string{"l2.w"}, func(params map[string]*tensor.Dense) error {
				x := params["l2.w"].Float32s()
				i = (i + len(x)) % len(x)
				x[i] = math.Float32frombits(math.Float32bits(x[i]) ^ 1)
				return nil
			}, fsdp.WriteBack(0)))
		}
		for _, i := range []int{0, 7, -1} {
			flip(i)
			_, err := m.Load(ctx, dir, m.Opt, nil)
			require.ErrorContains(t, err, "another base: l2.w: ")
			flip(i)
			_, err = m.Load(ctx, dir, m.Opt, nil)
			require.NoError(t, err)
		}
	})
}

// TestTrainedOnlyOfChanged refuses a second checkpoint without a frozen parameter that has changed since the first
// one, by the memory of FrozenParams on one rank, or by Summon. Without the option the model is saved, and
// so it is after values were loaded.
func TestTrainedOnlyOfChanged(t *testing.T) {
	for name, change := range map[string]func(ctx context.Context, rank int, m *fsdp.Sharded) error{
		"FrozenParams": func(_ context.Context, rank int, m *fsdp.Sharded) error {
			for _, p := range m.FrozenParams() {
				if rank == 1 && p.Value.Len() > 0 {
					v := vec.Host{F64: make([]float64, p.Value.Len())}
					if err := p.Value.Read(v); err != nil {
						return err
					}
					v.F64[0]++
					if err := p.Value.Write(v); err != nil {
						return err
					}
				}
			}
			return nil
		},
		"Summon": func(ctx context.Context, _ int, m *fsdp.Sharded) error {
			return m.Summon(ctx, []string{"l1.w"}, func(params map[string]*tensor.Dense) error {
				params["l1.w"].Float64s()[0]++
				return nil
			}, fsdp.WriteBack(0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, whole := t.TempDir(), t.TempDir()
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				m := kit.Chain64(t, g, func(c *fsdp.Config) { c.Frozen = func(name string) bool { return name == "l1.w" } })
				save := func(step int, only bool) error {
					return m.Save(ctx, dir, nil, &fsdp.SaveOptions{TrainedOnly: only, Step: step})
				}
				require.NoError(t, save(1, true))
				require.NoError(t, save(2, true))
				require.NoError(t, change(ctx, g.Rank(), m))
				require.ErrorContains(t, save(3, true), "option TrainedOnly: the frozen parameter l1.w has changed since the last save with this option, "+
					"and the checkpoint would lack it: leave out the option")
				require.NoError(t, save(3, false))
				require.NoError(t, m.Save(ctx, whole, nil, &fsdp.SaveOptions{Step: 3}))
				require.ErrorContains(t, save(4, true), "has changed since the last save")
				values, err := m.StateDict(ctx, nil)
				require.NoError(t, err)
				require.NoError(t, m.LoadStateDict(ctx, 0, values))
				require.NoError(t, save(4, true))
				require.NoError(t, change(ctx, g.Rank(), m))
				require.Error(t, save(5, true))
				_, err = m.Load(ctx, whole, nil, nil)
				require.NoError(t, err)
				require.NoError(t, save(5, true))
			})
		})
	}
}

// TestTrainedOnlyOfNothing refuses a checkpoint without parameters.
func TestTrainedOnlyOfNothing(t *testing.T) {
	m := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Frozen: func(string) bool { return true }})
	require.ErrorContains(t, m.Save(t.Context(), t.TempDir(), nil, trainedOnly),
		"option TrainedOnly: all parameters are frozen, so the checkpoint would have none")
}
