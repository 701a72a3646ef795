package state_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
	"github.com/gofsdp/gofsdp/internal/safetensors"
	"github.com/gofsdp/gofsdp/optim"
)

// TestReshard saves on N ranks and loads on N', in other layouts: the losses are those of one rank
// that was never interrupted.
func TestReshard(t *testing.T) {
	worlds := []int{1, 2, 3, 5, 8}
	const half, steps = 3, 6
	alone := kit.NewResharder(t, comm.Local(1)[0], 0, fsdp.Float64, 5, nil)
	want := alone.Train(t, t.Context(), 0, steps)
	require.Less(t, want[steps-1], 0.99*want[0], "it learns something")
	dirs := make([]string, len(worlds))
	for i, n := range worlds {
		dirs[i] = filepath.Join(t.TempDir(), "made", "by", "Save")
		kit.OnRanks(t, n, func(ctx context.Context, g comm.Group) {
			m := kit.NewResharder(t, g, i, fsdp.Float64, 5, nil)
			defer m.Close()
			require.InDeltaSlice(t, want[:half], m.Train(t, ctx, 0, half), 1e-12)
			require.NoError(t, m.Save(ctx, dirs[i], m.Opt, nil))
		})
	}
	for i, from := range worlds {
		for j, to := range worlds {
			kit.OnRanks(t, to, func(ctx context.Context, g comm.Group) {
				m := kit.NewResharder(t, g, i+j+1, fsdp.Float64, 77, nil)
				defer m.Close()
				c, err := m.Load(ctx, dirs[i], m.Opt, nil)
				require.NoError(t, err)
				require.Equal(t, []int{half, from, half}, []int{c.Step, c.World, m.Opt.Steps()})
				require.InDeltaSlice(t, want[half:], m.Train(t, ctx, half, steps), 1e-12, "from %d to %d ranks", from, to)
			})
		}
	}
}

// TestReshardPrecision loads float32 from float64, and the reverse.
func TestReshardPrecision(t *testing.T) {
	for _, types := range [][2]fsdp.DType{{fsdp.Float64, fsdp.Float32}, {fsdp.Float32, fsdp.Float64}} {
		dir := t.TempDir()
		var want []float64
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			m := kit.NewResharder(t, g, 0, types[0], 5, nil)
			m.Train(t, ctx, 0, 3)
			require.NoError(t, m.Save(ctx, dir, m.Opt, nil))
			if losses := m.Train(t, ctx, 3, 6); g.Rank() == 0 {
				want = losses
			}
			require.NoError(t, m.Close())
		})
		kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
			m := kit.NewResharder(t, g, 1, types[1], 77, nil)
			_, err := m.Load(ctx, dir, m.Opt, nil)
			require.NoError(t, err)
			require.InDeltaSlice(t, want, m.Train(t, ctx, 3, 6), 1e-5, "%v", types)
		})
	}
}

// TestReshardFrozen loads what was saved with some parameters frozen, with the same ones frozen and
// with others: those start anew, or their state is left behind, if the user says so.
func TestReshardFrozen(t *testing.T) {
	freeze := func(name string) func(string) bool {
		return func(s string) bool { return strings.HasPrefix(s, name) }
	}
	dir := t.TempDir()
	var want []float64
	var saved kit.Bits
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := kit.NewResharder(t, g, 0, fsdp.Float64, 5, freeze("l0"))
		m.Train(t, ctx, 0, 3)
		require.NoError(t, m.Save(ctx, dir, m.Opt, nil))
		state := kit.StateBits(t, ctx, m.Sharded)
		if losses := m.Train(t, ctx, 3, 6); g.Rank() == 0 {
			want, saved = losses, state
		}
	})
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.NewResharder(t, g, 1, fsdp.Float64, 77, freeze("l0"))
		_, err := m.Load(ctx, dir, m.Opt, nil)
		require.NoError(t, err)
		require.InDeltaSlice(t, want, m.Train(t, ctx, 3, 6), 1e-12)
	})
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.NewResharder(t, g, 0, fsdp.Float64, 77, freeze("l3"))
		before := kit.StateBits(t, ctx, m.Sharded)
		_, err := m.Load(ctx, dir, m.Opt, nil)
		var unfit *fsdp.StateError
		require.ErrorAs(t, err, &unfit)
		require.Equal(t, []string{"exp_avg:l0.w", "exp_avg_sq:l0.w"}, unfit.Missing)
		require.Equal(t, []string{"exp_avg:l3.w", "exp_avg_sq:l3.w"}, unfit.Extra)
		kit.RequireSameBits(t, before, kit.StateBits(t, ctx, m.Sharded))
		_, err = m.Load(ctx, dir, m.Opt, &fsdp.LoadOptions{AllowMissing: func(name string) bool { return strings.HasSuffix(name, ":l0.w") }, AllowExtra: func(name string) bool { return strings.HasSuffix(name, ":l3.w") }})
		require.NoError(t, err)
		kit.RequireSameBits(t, saved, kit.StateBits(t, ctx, m.Sharded))
		for _, e := range m.Opt.State() {
			require.Equal(t, map[bool]int{true: 0, false: 3}[e.Param == "l0.w"], e.Steps, e.Param)
		}
		require.Equal(t, 3, m.Opt.Steps())
		m.Train(t, ctx, 3, 4)
		_, err = m.Load(ctx, dir, nil, nil) // parameters only
		require.NoError(t, err)
		kit.RequireSameBits(t, saved, kit.StateBits(t, ctx, m.Sharded))
		require.Equal(t, 4, m.Opt.Steps())
	})
}

// TestResumeBits resumes on as many ranks as were interrupted: every bit of what follows is that of
// the uninterrupted run, with dropout, loss scaling and a schedule.
func TestResumeBits(t *testing.T) {
	for _, c := range []struct {
		ranks int
		cfg   fsdp.Config
	}{
		{1, fsdp.Config{}},
		{3, fsdp.Config{WrapPolicy: kit.Blocks}},
		{4, fsdp.Config{WrapPolicy: kit.Blocks, Strategy: fsdp.HybridShard, ShardRanks: 2, Precision: fsdp.Precision{Gather: fsdp.BFloat16}}},
		{2, fsdp.Config{Strategy: fsdp.NoShard}},
	} {
		t.Run(fmt.Sprintf("%d ranks, %v", c.ranks, c.cfg.Strategy), func(t *testing.T) {
			dir := t.TempDir()
			wantLosses, wantState := make([][]float64, c.ranks), make([]kit.Bits, c.ranks)
			kit.OnRanks(t, c.ranks, func(ctx context.Context, g comm.Group) {
				r := newResumer(t, g, c.cfg)
				r.train(t, ctx, 7, func() {
					if r.Position == 4 {
						require.NoError(t, r.m.Save(ctx, dir, r.opt, &fsdp.SaveOptions{Extra: map[string]any{"training": r.resumed, "scaler": r.scaler.State()}, RankExtra: map[string]any{"seen": r.seen}}))
					}
				})
				wantLosses[g.Rank()], wantState[g.Rank()] = r.losses[4:], kit.StateBits(t, ctx, r.m)
			})
			kit.OnRanks(t, c.ranks, func(ctx context.Context, g comm.Group) {
				r := newResumer(t, g, c.cfg)
				var scaler optim.LossScaleState
				c, err := r.m.Load(ctx, dir, r.opt, nil)
				require.NoError(t, err)
				require.NoError(t, c.Extra("training", &r.resumed))
				require.NoError(t, c.Extra("scaler", &scaler))
				require.NoError(t, r.scaler.Restore(scaler))
				require.NoError(t, c.RankExtra("seen", g.Rank(), &r.seen))
				require.Equal(t, 4, r.Position)
				require.Equal(t, []int{0, 1, 2, 3}, r.seen)
				r.train(t, ctx, 7, func() {})
				require.Equal(t, wantLosses[g.Rank()], r.losses)
				kit.RequireSameBits(t, wantState[g.Rank()], kit.StateBits(t, ctx, r.m))
			})
		})
	}
}

// resumer is a training with everything that has state.
type resumer struct {
	rank   int
	m      *fsdp.Sharded
	opt    optim.Optimizer
	scaler *optim.LossScaler
	seen   []int // batches of this rank
	losses []float64
	resumed
}

// resumed is where the data stands.
type resumed struct{ Position int }

func newResumer(t require.TestingT, g comm.Group, cfg fsdp.Config) *resumer {
	cfg.Group, cfg.Seed, cfg.Poison = g, 11, true
	m := kit.Wrap(t, kit.DropoutGPT(), cfg)
	opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Params())
	require.NoError(t, err)
	scaler, err := optim.LossScale{Init: 1 << 10, Interval: 3}.New()
	require.NoError(t, err)
	return &resumer{rank: g.Rank(), m: m, opt: opt, scaler: scaler}
}

// train trains up to a position of the data and calls between after every step.
func (r *resumer) train(t require.TestingT, ctx context.Context, to int, between func()) {
	schedule := optim.WarmupCosine(1e-2, 0, 3, 20)
	for r.Position < to {
		batch := kit.TinyBatch(r.Position, r.rank, 2, 5)
		r.losses = append(r.losses, kit.ForwardBackward(t, ctx, r.m, batch, fsdp.Scale(r.scaler.Scale())))
		finite, err := r.m.Unscale(ctx, r.scaler)
		require.NoError(t, err)
		require.True(t, finite)
		require.NoError(t, r.opt.Step(schedule(r.opt.Steps())))
		r.m.ZeroGrad()
		r.seen = append(r.seen, r.Position)
		r.Position++
		between()
	}
}

// TestLoadBuffers gives every rank its own statistics back, and one beyond those that saved the
// statistics of another.
func TestLoadBuffers(t *testing.T) {
	dir := t.TempDir()
	var saved [3]kit.Bits
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Statistics, fsdp.Config{Group: g, Precision: kit.Float64s})
		kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
		require.NoError(t, m.Save(ctx, dir, nil, &fsdp.SaveOptions{Step: 9}))
		saved[g.Rank()] = kit.StateBits(t, ctx, m)
	})
	require.NotEqual(t, saved[0]["bn.running_mean"], saved[2]["bn.running_mean"])
	for _, n := range []int{1, 2, 3, 4} {
		kit.OnRanks(t, n, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.Statistics, fsdp.Config{Group: g, Precision: kit.Float64s, WrapPolicy: fsdp.WrapEach(), Seed: 3})
			c, err := m.Load(ctx, dir, nil, nil)
			require.NoError(t, err)
			require.Equal(t, 9, c.Step)
			got := kit.StateBits(t, ctx, m)
			kit.RequireSameBits(t, saved[g.Rank()%3], got)
		})
	}
}

// TestAllowBuffers leaves the statistics of all ranks behind: they are asked for with the rank and
// without.
func TestAllowBuffers(t *testing.T) {
	dir := t.TempDir()
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Statistics, fsdp.Config{Group: g, Precision: kit.Float64s})
		require.NoError(t, m.Save(ctx, dir, nil, nil))
		require.NoError(t, m.Close())
		m = kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Group: g, Precision: kit.Float64s})
		for _, ranks := range []bool{false, true} {
			_, err := m.Load(ctx, dir, nil, &fsdp.LoadOptions{AllowExtra: func(name string) bool {
				return name == "l4.w" || strings.HasPrefix(name, "bn.") && (!strings.Contains(name, "running") || strings.Contains(name, "@") == ranks)
			}})
			require.NoError(t, err)
		}
		_, err := m.Load(ctx, dir, nil, &fsdp.LoadOptions{AllowExtra: func(name string) bool { return strings.HasSuffix(name, "@1") }})
		var unfit *fsdp.StateError
		require.ErrorAs(t, err, &unfit)
		require.Contains(t, unfit.Extra, "bn.running_mean@0")
		require.NotContains(t, unfit.Extra, "bn.running_mean@1")
	})
}

// TestLoadExperts saves units with process groups of their own: every group gets its own back, and
// other groups do not fit.
func TestLoadExperts(t *testing.T) {
	const world = 4
	for _, ranks := range []int{1, 2} {
		dir := t.TempDir()
		var saved [world]kit.Bits
		train := func(ctx context.Context, g comm.Group, ranks int, strategy fsdp.Strategy, seed uint64) (*fsdp.Sharded, optim.Optimizer) {
			cfg := kit.GroupedBy(t, ctx, g, "l1", ranks)
			cfg.Strategy, cfg.Seed = strategy, seed
			m := kit.Wrap(t, kit.Shapes["chain"], cfg)
			opt, err := optim.AdamW{}.New(m.Params())
			require.NoError(t, err)
			return m, opt
		}
		step := func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, rank int) {
			kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(rank))
			require.NoError(t, opt.Step(0.01))
			m.ZeroGrad()
		}
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m, opt := train(ctx, g, ranks, fsdp.FullShard, 5)
			step(ctx, m, opt, g.Rank())
			require.NoError(t, m.Save(ctx, dir, opt, nil))
			step(ctx, m, opt, g.Rank())
			saved[g.Rank()] = kit.StateBits(t, ctx, m)
		})
		require.NotEqual(t, saved[0]["l1.w@0"], saved[0]["l1.w@2"])
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m, opt := train(ctx, g, ranks, fsdp.ShardGradOp, 78)
			_, err := m.Load(ctx, dir, opt, nil)
			require.NoError(t, err)
			step(ctx, m, opt, g.Rank())
			kit.RequireSameBits(t, saved[g.Rank()], kit.StateBits(t, ctx, m))
		})
		for _, err := range kit.ErrorsOf(t, world, func(ctx context.Context, g comm.Group) error {
			m, opt := train(ctx, g, 3-ranks, fsdp.FullShard, 5)
			_, err := m.Load(ctx, dir, opt, nil)
			return err
		}) {
			var unfit *fsdp.StateError
			require.ErrorAs(t, err, &unfit)
			names := unfit.Extra
			if ranks == 2 {
				names = unfit.Missing
			}
			require.ElementsMatch(t, []string{"l1.w@1", "l1.w@3", "exp_avg:l1.w@1", "exp_avg:l1.w@3", "exp_avg_sq:l1.w@1", "exp_avg_sq:l1.w@3"}, names)
		}
	}
}

// chainNamed is a chain with other names, or another width.
func chainNamed(prefix string, dim int) kit.Model {
	return func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := in[0]
		for i := range 4 {
			x = t.Call(fmt.Sprint(prefix, i), &kit.Dense{Dim: dim}, x)
		}
		return kit.Regress(t, in, x), nil
	}
}

// TestLoadNames loads under other names, and what is missing or too much. Errors are the same on
// every rank, and change nothing.
func TestLoadNames(t *testing.T) {
	dir := t.TempDir()
	var saved kit.Bits
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, chainNamed("l", kit.ShapeDim), fsdp.Config{Group: g, Precision: kit.Float64s, WrapPolicy: fsdp.WrapEach()})
		opt, err := optim.SGD{Momentum: 0.5}.New(m.Params())
		require.NoError(t, err)
		require.NoError(t, m.Save(ctx, dir, opt, nil))
		if b := kit.StateBits(t, ctx, m); g.Rank() == 0 {
			saved = b
		}
	})
	toL := &fsdp.LoadOptions{Rename: func(name string) string { return "l" + strings.TrimPrefix(name, "layer.") }}
	all := func(string) bool { return true }
	for name, c := range map[string]struct {
		model   kit.Model
		plain   bool // SGD without momentum
		none    bool // no optimizer
		opts    *fsdp.LoadOptions
		want    *fsdp.StateError
		message string
	}{
		"renamed":              {model: chainNamed("layer.", kit.ShapeDim), opts: toL},
		"renamed, alone":       {model: chainNamed("layer.", kit.ShapeDim), opts: toL, none: true},
		"without an optimizer": {model: chainNamed("l", kit.ShapeDim), none: true},
		"not renamed": {model: chainNamed("layer.", kit.ShapeDim), none: true, want: &fsdp.StateError{
			Missing: []string{"layer.0.w", "layer.1.w", "layer.2.w", "layer.3.w"}, Extra: []string{"l0.w", "l1.w", "l2.w", "l3.w"}}},
		"another width": {model: chainNamed("l", kit.ShapeDim+1), none: true, want: &fsdp.StateError{
			Reshaped: []string{"l0.w [5 5] -> [6 6]", "l1.w [5 5] -> [6 6]", "l2.w [5 5] -> [6 6]", "l3.w [5 5] -> [6 6]"}}},
		"another optimizer": {model: chainNamed("l", kit.ShapeDim), plain: true, want: &fsdp.StateError{
			Extra: []string{"momentum_buffer:l0.w", "momentum_buffer:l1.w", "momentum_buffer:l2.w", "momentum_buffer:l3.w"}}},
		"all is allowed": {model: chainNamed("other", kit.ShapeDim+1), opts: &fsdp.LoadOptions{AllowMissing: all, AllowExtra: all}},
		"two of one name": {model: chainNamed("l", kit.ShapeDim), opts: &fsdp.LoadOptions{Rename: func(string) string { return "l0.w" }},
			message: `Rename gives both l0.w and l1.w the name "l0.w"`},
		"a panic": {model: chainNamed("l", kit.ShapeDim), opts: &fsdp.LoadOptions{Rename: func(string) string { panic("no idea") }}, message: "no idea"},
	} {
		t.Run(name, func(t *testing.T) {
			kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, c.model, fsdp.Config{Group: g, Precision: kit.Float64s, Seed: 6})
				var opt optim.Optimizer
				var err error
				if !c.none {
					momentum := 0.5
					if c.plain {
						momentum = 0
					}
					opt, err = optim.SGD{Momentum: momentum}.New(m.Params())
					require.NoError(t, err)
				}
				before := kit.StateBits(t, ctx, m)
				_, err = m.Load(ctx, dir, opt, c.opts)
				var unfit *fsdp.StateError
				switch {
				case c.want != nil:
					require.ErrorAs(t, err, &unfit)
					require.Contains(t, unfit.Where, dir)
					require.Equal(t, []any{c.want.Missing, c.want.Extra, c.want.Reshaped}, []any{unfit.Missing, unfit.Extra, unfit.Reshaped})
				case c.message != "":
					require.ErrorContains(t, err, c.message)
				default:
					require.NoError(t, err)
				}
				after := kit.StateBits(t, ctx, m)
				if err != nil || name == "all is allowed" {
					kit.RequireSameBits(t, before, after)
					return
				}
				for i := range 4 {
					for name := range after {
						if strings.HasSuffix(name, fmt.Sprint(i, ".w")) {
							require.Equal(t, saved[fmt.Sprintf("l%d.w", i)], after[name])
						}
					}
				}
			})
		})
	}
}

// TestLoadWithoutState asks for an optimizer that was not saved: its steps are missing, too, where
// it has no more than that.
func TestLoadWithoutState(t *testing.T) {
	dir := t.TempDir()
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.NewResharder(t, g, 0, fsdp.Float64, 1, nil)
		plain, err := optim.SGD{}.New(m.Params())
		require.NoError(t, err)
		require.NoError(t, m.Save(ctx, dir, nil, &fsdp.SaveOptions{Step: 2}))
		_, err = m.Load(ctx, dir, plain, nil)
		require.ErrorContains(t, err, "missing optimizer")
		_, err = m.Load(ctx, dir, m.Opt, nil)
		require.ErrorContains(t, err, "missing exp_avg:l0.w, exp_avg_sq:l0.w")
		m.Train(t, ctx, 0, 1)
		_, err = m.Load(ctx, dir, m.Opt, &fsdp.LoadOptions{AllowMissing: func(string) bool { return true }})
		require.NoError(t, err)
		require.Equal(t, 1, m.Opt.Steps())
		require.NoError(t, plain.Step(0.1))
		require.NoError(t, m.Save(ctx, dir, plain, nil))
		again, err := optim.SGD{}.New(m.Params())
		require.NoError(t, err)
		_, err = m.Load(ctx, dir, again, nil)
		require.NoError(t, err)
		require.Equal(t, 1, again.Steps())
	})
}

// TestLoadDropsGradients loads between a Forward and its Backward, with gradients in the shards and
// beside them.
func TestLoadDropsGradients(t *testing.T) {
	dir := t.TempDir()
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.NewResharder(t, g, 0, fsdp.Float64, 1, nil)
		batch := kit.BatchPart(0, g, fsdp.Float64)
		require.NoError(t, m.Save(ctx, dir, m.Opt, nil))
		kit.ForwardBackward(t, ctx, m.Sharded, batch)
		require.NoError(t, m.NoSync(func() error { kit.ForwardBackward(t, ctx, m.Sharded, batch); return nil }))
		_, err := m.Forward(ctx, batch...)
		require.NoError(t, err)
		held := m.Hold()
		_, err = m.Load(ctx, dir, m.Opt, nil)
		require.ErrorContains(t, err, "1 passes put aside by Hold are waiting for their Backward")
		require.NoError(t, held.Discard(ctx))
		_, err = m.Forward(ctx, batch...)
		require.NoError(t, err)
		_, err = m.Load(ctx, dir, m.Opt, nil)
		require.NoError(t, err)
		require.ErrorContains(t, m.Backward(ctx), "Backward has no pending Forward")
		require.Empty(t, kit.GradsOf(t, ctx, m.Sharded))
		kit.RequireIdle(t, ctx, m.Sharded, batch)
		want := kit.NewResharder(t, comm.Local(1)[0], 0, fsdp.Float64, 1, nil).Train(t, ctx, 0, 2)
		require.InDeltaSlice(t, want, m.Train(t, ctx, 0, 2), 1e-12)
	})
}

// TestNoCheckpoint looks for one where there is none: every rank can tell, and begin anew.
func TestNoCheckpoint(t *testing.T) {
	dir := t.TempDir()
	for _, dir := range []string{dir, filepath.Join(dir, "missing")} {
		for _, err := range kit.ErrorsOf(t, 3, func(ctx context.Context, g comm.Group) error {
			_, err := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Group: g, Precision: kit.Float64s}).Load(ctx, dir, nil, nil)
			return err
		}) {
			require.ErrorIs(t, err, fsdp.ErrNoCheckpoint)
			require.ErrorIs(t, err, fs.ErrNotExist)
			require.ErrorContains(t, err, dir)
		}
		_, err := fsdp.LatestCheckpoint(dir)
		require.ErrorIs(t, err, fsdp.ErrNoCheckpoint)
	}
}

// remake changes the manifest of the only checkpoint in dir, and the headers of its files alike.
func remake(t *testing.T, dir string, change func(m *checkpoint.Manifest)) {
	path, err := fsdp.LatestCheckpoint(dir)
	require.NoError(t, err)
	file := filepath.Join(path, checkpoint.ManifestName)
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	m, err := checkpoint.Decode(b)
	require.NoError(t, err)
	change(m)
	for i := range m.Files {
		reheader(t, filepath.Join(path, m.Files[i].Name), m, i)
	}
	b, err = m.Encode()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, b, 0o600))
}

// reheader writes the header of file i of a manifest anew. It must not become longer.
func reheader(t *testing.T, path string, m *checkpoint.Manifest, i int) {
	at := make(map[string]int64)
	var list []safetensors.Tensor
	for _, tensor := range m.Tensors {
		for p := range tensor.All() {
			if p.File == i {
				name := fmt.Sprintf("%s[%d:%d]", tensor.Name(), p.Offset, p.Offset+p.Len)
				at[name] = p.At
				list = append(list, safetensors.Tensor{Name: name, DType: tensor.DType, Shape: []int{p.Len}})
			}
		}
	}
	slices.SortFunc(list, func(a, b safetensors.Tensor) int { return cmp.Compare(at[a.Name], at[b.Name]) })
	h, err := safetensors.NewHeader(list, nil)
	require.NoError(t, err)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, at[list[0].Name], h.DataStart)
	copy(b, h.Encode())
	require.NoError(t, os.WriteFile(path, b, 0o600))
	m.Files[i].Header = crc32.Checksum(b[:h.DataStart], crc32.MakeTable(crc32.Castagnoli))
}

// TestLoadStrangeManifests loads what this package would not have written.
func TestLoadStrangeManifests(t *testing.T) {
	all := func(string) bool { return true }
	for name, c := range map[string]struct {
		change func(m *checkpoint.Manifest)
		opts   *fsdp.LoadOptions
		want   string
	}{
		"half of a state": {func(m *checkpoint.Manifest) {
			for i := range m.Tensors {
				if m.Tensors[i].Param == "l1.w" && m.Tensors[i].Entry == "exp_avg_sq" {
					m.Tensors[i].Entry = "exp_avg_xx"
				}
			}
		}, &fsdp.LoadOptions{AllowMissing: all, AllowExtra: all}, "missing exp_avg_sq:l1.w"},
		"integers": {func(m *checkpoint.Manifest) {
			for i := range m.Tensors {
				if m.Tensors[i].Param == "l3.w" && m.Tensors[i].Entry == "" {
					m.Tensors[i].DType = "I64"
				}
			}
		}, nil, "reshaped l3.w I64 -> float64"},
		"steps that differ": {func(m *checkpoint.Manifest) {
			for i := range m.Tensors {
				if m.Tensors[i].Entry == "exp_avg" {
					m.Tensors[i].Steps++
				}
			}
		}, nil, "other elements of this piece have made 2"},
		"no passes": {func(m *checkpoint.Manifest) { m.Meta["forwards"] = []byte("-1") }, nil, "a negative number of passes"},
		"no steps":  {func(m *checkpoint.Manifest) { m.Meta["optimizer_steps"] = []byte("-1") }, nil, "a negative number of passes or steps"},
		"a word":    {func(m *checkpoint.Manifest) { m.Meta["seed"] = []byte(`"x"`) }, nil, "the manifest's record of the training is invalid"},
		"a rank more": {func(m *checkpoint.Manifest) { m.Meta["rank_extra"] = []byte(`[{},{},{}]`) }, nil,
			"the manifest has RankExtra values of 3 ranks, but 2 ranks wrote the checkpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				f := kit.NewFiller(t, ctx, g)
				require.NoError(t, f.SaveStep(ctx, dir, 1))
			})
			remake(t, dir, c.change)
			for _, err := range kit.ErrorsOf(t, 3, func(ctx context.Context, g comm.Group) error {
				f := kit.NewFiller(t, ctx, g)
				_, err := f.Load(ctx, dir, f.Opt, c.opts)
				return err
			}) {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}

// TestLoadFormat1 loads what three ranks have saved with a version before format 2, every byte of
// which is still sound.
func TestLoadFormat1(t *testing.T) {
	const dir = "testdata/format1"
	text, err := os.ReadFile(filepath.Join(dir, checkpoint.ManifestName))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(text), `{"format":1,`))
	r, err := checkpoint.OpenReader(t.Context(), checkpoint.OS(), dir)
	require.NoError(t, err)
	require.NoError(t, errors.Join(r.Verify(t.Context(), nil), r.Close()))
	require.Equal(t, 1, requireLatest(t, checkpoint.OS(), dir))
}

// TestLoadArguments gives ranks arguments that do not agree, and disks with other checkpoints.
func TestLoadArguments(t *testing.T) {
	disks := []*crashfs.FS{crashfs.New(), crashfs.New()}
	for i, disk := range disks {
		f := kit.NewFiller(t, t.Context(), comm.Local(1)[0])
		require.NoError(t, f.SaveStep(kit.OnFS(t.Context(), disk), kit.Ckpt, 1, fsdp.SaveOptions{Extra: map[string]any{"disk": i}}))
		require.NoError(t, f.Close())
	}
	for name, c := range map[string]struct {
		load func(ctx context.Context, f *kit.Filler, rank int) error
		want string
	}{
		"disks": {func(ctx context.Context, f *kit.Filler, rank int) error {
			_, err := f.Load(kit.OnFS(ctx, disks[rank]), kit.Ckpt, f.Opt, nil)
			return err
		}, "ranks disagree about the manifest in " + filepath.Join(kit.Ckpt, "000001-step-1")},
		"not on all disks": {func(ctx context.Context, f *kit.Filler, rank int) error {
			_, err := f.Load(kit.OnFS(ctx, []*crashfs.FS{disks[0], crashfs.New()}[rank]), kit.Ckpt, f.Opt, nil)
			return err
		}, "rank 1: "},
		"no directory": {func(ctx context.Context, f *kit.Filler, rank int) error {
			_, err := f.Load(kit.OnFS(ctx, disks[0]), "", f.Opt, nil)
			return err
		}, "the directory is empty: give the directory of the checkpoints"},
		"directory": {func(ctx context.Context, f *kit.Filler, rank int) error {
			_, err := f.Load(kit.OnFS(ctx, disks[0]), []string{kit.Ckpt, kit.Ckpt + "2"}[rank], f.Opt, nil)
			return err
		}, "ranks disagree about the arguments of Load: rank 0 has \"directory "},
		"optimizer": {func(ctx context.Context, f *kit.Filler, rank int) error {
			opt := f.Opt
			if rank == 1 {
				opt = nil
			}
			_, err := f.Load(kit.OnFS(ctx, disks[0]), kit.Ckpt, opt, nil)
			return err
		}, `rank 0 has "an optimizer", rank 1 has "no optimizer"`},
		"names": {func(ctx context.Context, f *kit.Filler, rank int) error {
			_, err := f.Load(kit.OnFS(ctx, disks[0]), kit.Ckpt, f.Opt, &fsdp.LoadOptions{Rename: func(name string) string { return name[rank:] }})
			return err
		}, "ranks disagree about the arguments of Load"},
		"what may be missing": {func(ctx context.Context, f *kit.Filler, rank int) error {
			_, err := f.Load(kit.OnFS(ctx, disks[0]), kit.Ckpt, f.Opt, &fsdp.LoadOptions{Rename: func(name string) string { return "x" + name }, AllowMissing: func(string) bool { return true }, AllowExtra: func(string) bool { return rank == 0 }})
			return err
		}, "does not fit the model: extra l0.w, exp_avg:l0.w"},
	} {
		t.Run(name, func(t *testing.T) {
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				f := kit.NewFiller(t, ctx, g)
				f.Fill(3)
				require.ErrorContains(t, c.load(ctx, f, g.Rank()), c.want)
				f.Require(t, 3)
				kit.ForwardBackward(t, ctx, f.Sharded, kit.ShapeBatch(g.Rank()))
			})
		})
	}
}
