package fsdp_test

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
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
	"github.com/gofsdp/gofsdp/internal/safetensors"
	"github.com/gofsdp/gofsdp/optim"
)

// spreads are ways to spread a model over n ranks.
var spreads = []struct {
	name   string
	config func(n int) fsdp.Config
}{
	{"full, each", func(int) fsdp.Config { return fsdp.Config{Wrap: fsdp.WrapEach()} }},
	{"hybrid, two units", func(n int) fsdp.Config {
		ranks := n
		if n%2 == 0 {
			ranks = n / 2
		}
		return fsdp.Config{Wrap: everyOther, Strategy: fsdp.HybridShard, ShardRanks: ranks}
	}},
	{"grad op, root", func(int) fsdp.Config { return fsdp.Config{Strategy: fsdp.ShardGradOp} }},
	{"replicated, ignored", func(int) fsdp.Config {
		return fsdp.Config{Wrap: fsdp.WrapEach(), Strategy: fsdp.NoShard, Ignored: func(name string) bool { return name == "l1.w" }}
	}},
}

// batchPart returns a rank's part of a batch that is the same for any number of ranks that divides
// 120.
func batchPart(step int, g comm.Group, compute fsdp.DType) []fsdp.Tensor {
	n := 120 / g.Size()
	var batch []fsdp.Tensor
	for k := range 2 {
		part := elements(floats(2*step+k+1, 120, shapeDim))[g.Rank()*n*shapeDim:][:n*shapeDim]
		if compute == fsdp.Float64 {
			batch = append(batch, tensor.New(tensor.WithShape(n, shapeDim), tensor.WithBacking(slices.Clone(part))))
			continue
		}
		narrow := make([]float32, len(part))
		for i, x := range part {
			narrow[i] = float32(x)
		}
		batch = append(batch, tensor.New(tensor.WithShape(n, shapeDim), tensor.WithBacking(narrow)))
	}
	return batch
}

// resharder is one rank of a training whose loss is the same for any number of ranks.
type resharder struct {
	*fsdp.Sharded
	group   comm.Group
	opt     optim.Optimizer
	compute fsdp.DType
}

// newResharder wraps a chain in the given layout, with an optimizer of two kinds.
func newResharder(t require.TestingT, g comm.Group, layout int, compute fsdp.DType, seed uint64, frozen func(string) bool) *resharder {
	cfg := spreads[layout%len(spreads)].config(g.Size())
	cfg.Group, cfg.Seed, cfg.Precision.Compute, cfg.Poison, cfg.Frozen = g, seed, compute, true, frozen
	m := wrap(t, shapes["chain"], cfg)
	return &resharder{m, g, adamAndMomentum(t, m), compute}
}

// adamAndMomentum updates l2 with momentum, and the rest with AdamW.
func adamAndMomentum(t require.TestingT, m *fsdp.Sharded) optim.Optimizer {
	var matrices, others []optim.Param
	for _, p := range m.Shards() {
		if strings.HasPrefix(p.Name, "l2.") {
			others = append(others, p)
		} else {
			matrices = append(matrices, p)
		}
	}
	adam, err := optim.AdamW{WeightDecay: 0.1}.New(matrices)
	require.NoError(t, err)
	sgd, err := optim.SGD{Momentum: 0.9}.New(others)
	require.NoError(t, err)
	both, err := optim.Compose(adam, sgd)
	require.NoError(t, err)
	return both
}

// train trains on steps [from, to) and returns the mean losses of all ranks.
func (r *resharder) train(t require.TestingT, ctx context.Context, from, to int) (losses []float64) {
	for step := from; step < to; step++ {
		loss := []float64{forwardBackward(t, ctx, r.Sharded, batchPart(step, r.group, r.compute))}
		require.NoError(t, r.opt.Step(0.02))
		r.ZeroGrad()
		require.NoError(t, r.group.AllReduce(comm.Of(loss), comm.Avg).Wait(ctx))
		losses = append(losses, loss[0])
	}
	return losses
}

// TestReshard saves on N ranks and loads on N', in other layouts: the losses are those of one rank
// that was never interrupted.
func TestReshard(t *testing.T) {
	worlds := []int{1, 2, 3, 5, 8}
	const half, steps = 3, 6
	alone := newResharder(t, comm.Local(1)[0], 0, fsdp.Float64, 5, nil)
	want := alone.train(t, t.Context(), 0, steps)
	require.Less(t, want[steps-1], 0.99*want[0], "it learns something")
	dirs := make([]string, len(worlds))
	for i, n := range worlds {
		dirs[i] = filepath.Join(t.TempDir(), "made", "by", "Save")
		onRanks(t, n, func(ctx context.Context, g comm.Group) {
			m := newResharder(t, g, i, fsdp.Float64, 5, nil)
			defer m.Close()
			require.InDeltaSlice(t, want[:half], m.train(t, ctx, 0, half), 1e-12)
			require.NoError(t, m.Save(ctx, dirs[i], m.opt))
		})
	}
	for i, from := range worlds {
		for j, to := range worlds {
			onRanks(t, to, func(ctx context.Context, g comm.Group) {
				m := newResharder(t, g, i+j+1, fsdp.Float64, 77, nil)
				defer m.Close()
				c, err := m.Load(ctx, dirs[i], m.opt)
				require.NoError(t, err)
				require.Equal(t, []int{half, from, half}, []int{c.Step, c.World, m.opt.Steps()})
				require.InDeltaSlice(t, want[half:], m.train(t, ctx, half, steps), 1e-12, "from %d to %d ranks", from, to)
			})
		}
	}
}

// TestReshardPrecision loads float32 from float64, and the reverse.
func TestReshardPrecision(t *testing.T) {
	for _, types := range [][2]fsdp.DType{{fsdp.Float64, fsdp.Float32}, {fsdp.Float32, fsdp.Float64}} {
		dir := t.TempDir()
		var want []float64
		onRanks(t, 2, func(ctx context.Context, g comm.Group) {
			m := newResharder(t, g, 0, types[0], 5, nil)
			m.train(t, ctx, 0, 3)
			require.NoError(t, m.Save(ctx, dir, m.opt))
			if losses := m.train(t, ctx, 3, 6); g.Rank() == 0 {
				want = losses
			}
			require.NoError(t, m.Close())
		})
		onRanks(t, 3, func(ctx context.Context, g comm.Group) {
			m := newResharder(t, g, 1, types[1], 77, nil)
			_, err := m.Load(ctx, dir, m.opt)
			require.NoError(t, err)
			require.InDeltaSlice(t, want, m.train(t, ctx, 3, 6), 1e-5, "%v", types)
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
	var saved bits
	onRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := newResharder(t, g, 0, fsdp.Float64, 5, freeze("l0"))
		m.train(t, ctx, 0, 3)
		require.NoError(t, m.Save(ctx, dir, m.opt))
		state := stateBits(t, ctx, m.Sharded)
		if losses := m.train(t, ctx, 3, 6); g.Rank() == 0 {
			want, saved = losses, state
		}
	})
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := newResharder(t, g, 1, fsdp.Float64, 77, freeze("l0"))
		_, err := m.Load(ctx, dir, m.opt)
		require.NoError(t, err)
		require.InDeltaSlice(t, want, m.train(t, ctx, 3, 6), 1e-12)
	})
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := newResharder(t, g, 0, fsdp.Float64, 77, freeze("l3"))
		before := stateBits(t, ctx, m.Sharded)
		_, err := m.Load(ctx, dir, m.opt)
		var unfit *fsdp.StateError
		require.ErrorAs(t, err, &unfit)
		require.Equal(t, []string{"exp_avg:l0.w", "exp_avg_sq:l0.w"}, unfit.Missing)
		require.Equal(t, []string{"exp_avg:l3.w", "exp_avg_sq:l3.w"}, unfit.Extra)
		requireSameBits(t, before, stateBits(t, ctx, m.Sharded))
		_, err = m.Load(ctx, dir, m.opt, fsdp.AllowMissing(func(name string) bool { return strings.HasSuffix(name, ":l0.w") }),
			fsdp.AllowExtra(func(name string) bool { return strings.HasSuffix(name, ":l3.w") }))
		require.NoError(t, err)
		requireSameBits(t, saved, stateBits(t, ctx, m.Sharded))
		for _, e := range m.opt.State() {
			require.Equal(t, map[bool]int{true: 0, false: 3}[e.Param == "l0.w"], e.Steps, e.Param)
		}
		require.Equal(t, 3, m.opt.Steps())
		m.train(t, ctx, 3, 4)
		_, err = m.Load(ctx, dir, nil) // parameters only
		require.NoError(t, err)
		requireSameBits(t, saved, stateBits(t, ctx, m.Sharded))
		require.Equal(t, 4, m.opt.Steps())
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
		{3, fsdp.Config{Wrap: blocks}},
		{4, fsdp.Config{Wrap: blocks, Strategy: fsdp.HybridShard, ShardRanks: 2, Precision: fsdp.Precision{Gather: fsdp.BFloat16}}},
		{2, fsdp.Config{Strategy: fsdp.NoShard}},
	} {
		t.Run(fmt.Sprintf("%d ranks, %v", c.ranks, c.cfg.Strategy), func(t *testing.T) {
			dir := t.TempDir()
			wantLosses, wantState := make([][]float64, c.ranks), make([]bits, c.ranks)
			onRanks(t, c.ranks, func(ctx context.Context, g comm.Group) {
				r := newResumer(t, g, c.cfg)
				r.train(t, ctx, 7, func() {
					if r.Position == 4 {
						require.NoError(t, r.m.Save(ctx, dir, r.opt, fsdp.Extra("training", r.resumed), fsdp.Extra("scaler", r.scaler.State()),
							fsdp.RankExtra("seen", r.seen)))
					}
				})
				wantLosses[g.Rank()], wantState[g.Rank()] = r.losses[4:], stateBits(t, ctx, r.m)
			})
			onRanks(t, c.ranks, func(ctx context.Context, g comm.Group) {
				r := newResumer(t, g, c.cfg)
				var scaler optim.LossScaleState
				c, err := r.m.Load(ctx, dir, r.opt)
				require.NoError(t, err)
				require.NoError(t, c.Extra("training", &r.resumed))
				require.NoError(t, c.Extra("scaler", &scaler))
				require.NoError(t, r.scaler.Restore(scaler))
				require.NoError(t, c.RankExtra("seen", g.Rank(), &r.seen))
				require.Equal(t, 4, r.Position)
				require.Equal(t, []int{0, 1, 2, 3}, r.seen)
				r.train(t, ctx, 7, func() {})
				require.Equal(t, wantLosses[g.Rank()], r.losses)
				requireSameBits(t, wantState[g.Rank()], stateBits(t, ctx, r.m))
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
	m := wrap(t, dropoutGPT(), cfg)
	opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Shards())
	require.NoError(t, err)
	scaler, err := optim.LossScale{Init: 1 << 10, Interval: 3}.New()
	require.NoError(t, err)
	return &resumer{rank: g.Rank(), m: m, opt: opt, scaler: scaler}
}

// train trains up to a position of the data and calls between after every step.
func (r *resumer) train(t require.TestingT, ctx context.Context, to int, between func()) {
	schedule := optim.WarmupCosine(1e-2, 0, 3, 20)
	for r.Position < to {
		batch := tinyBatch(r.Position, r.rank, 2, 5)
		r.losses = append(r.losses, forwardBackward(t, ctx, r.m, batch, fsdp.Scale(r.scaler.Scale())))
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
	var saved [3]bits
	onRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := wrap(t, statistics, fsdp.Config{Group: g, Precision: float64s})
		forwardBackward(t, ctx, m, shapeBatch(g.Rank()))
		require.NoError(t, m.Save(ctx, dir, nil, fsdp.AtStep(9)))
		saved[g.Rank()] = stateBits(t, ctx, m)
	})
	require.NotEqual(t, saved[0]["bn.running_mean"], saved[2]["bn.running_mean"])
	for _, n := range []int{1, 2, 3, 4} {
		onRanks(t, n, func(ctx context.Context, g comm.Group) {
			m := wrap(t, statistics, fsdp.Config{Group: g, Precision: float64s, Wrap: fsdp.WrapEach(), Seed: 3})
			c, err := m.Load(ctx, dir, nil)
			require.NoError(t, err)
			require.Equal(t, 9, c.Step)
			got := stateBits(t, ctx, m)
			requireSameBits(t, saved[g.Rank()%3], got)
		})
	}
}

// TestAllowBuffers leaves the statistics of all ranks behind: they are asked for with the rank and
// without.
func TestAllowBuffers(t *testing.T) {
	dir := t.TempDir()
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := wrap(t, statistics, fsdp.Config{Group: g, Precision: float64s})
		require.NoError(t, m.Save(ctx, dir, nil))
		require.NoError(t, m.Close())
		m = wrap(t, shapes["chain"], fsdp.Config{Group: g, Precision: float64s})
		for _, ranks := range []bool{false, true} {
			_, err := m.Load(ctx, dir, nil, fsdp.AllowExtra(func(name string) bool {
				return name == "l4.w" || strings.HasPrefix(name, "bn.") && (!strings.Contains(name, "running") || strings.Contains(name, "@") == ranks)
			}))
			require.NoError(t, err)
		}
		_, err := m.Load(ctx, dir, nil, fsdp.AllowExtra(func(name string) bool { return strings.HasSuffix(name, "@1") }))
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
		var saved [world]bits
		train := func(ctx context.Context, g comm.Group, ranks int, strategy fsdp.Strategy, seed uint64) (*fsdp.Sharded, optim.Optimizer) {
			cfg := groupedBy(t, ctx, g, "l1", ranks)
			cfg.Strategy, cfg.Seed = strategy, seed
			m := wrap(t, shapes["chain"], cfg)
			opt, err := optim.AdamW{}.New(m.Shards())
			require.NoError(t, err)
			return m, opt
		}
		step := func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, rank int) {
			forwardBackward(t, ctx, m, shapeBatch(rank))
			require.NoError(t, opt.Step(0.01))
			m.ZeroGrad()
		}
		onRanks(t, world, func(ctx context.Context, g comm.Group) {
			m, opt := train(ctx, g, ranks, fsdp.FullShard, 5)
			step(ctx, m, opt, g.Rank())
			require.NoError(t, m.Save(ctx, dir, opt))
			step(ctx, m, opt, g.Rank())
			saved[g.Rank()] = stateBits(t, ctx, m)
		})
		require.NotEqual(t, saved[0]["l1.w@0"], saved[0]["l1.w@2"])
		onRanks(t, world, func(ctx context.Context, g comm.Group) {
			m, opt := train(ctx, g, ranks, fsdp.ShardGradOp, 78)
			_, err := m.Load(ctx, dir, opt)
			require.NoError(t, err)
			step(ctx, m, opt, g.Rank())
			requireSameBits(t, saved[g.Rank()], stateBits(t, ctx, m))
		})
		for _, err := range errorsOf(t, world, func(ctx context.Context, g comm.Group) error {
			m, opt := train(ctx, g, 3-ranks, fsdp.FullShard, 5)
			_, err := m.Load(ctx, dir, opt)
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
func chainNamed(prefix string, dim int) model {
	return func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := in[0]
		for i := range 4 {
			x = t.Call(fmt.Sprint(prefix, i), &dense{dim: dim}, x)
		}
		return regress(t, in, x), nil
	}
}

// TestLoadNames loads under other names, and what is missing or too much. Errors are the same on
// every rank, and change nothing.
func TestLoadNames(t *testing.T) {
	dir := t.TempDir()
	var saved bits
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := wrap(t, chainNamed("l", shapeDim), fsdp.Config{Group: g, Precision: float64s, Wrap: fsdp.WrapEach()})
		opt, err := optim.SGD{Momentum: 0.5}.New(m.Shards())
		require.NoError(t, err)
		require.NoError(t, m.Save(ctx, dir, opt))
		if b := stateBits(t, ctx, m); g.Rank() == 0 {
			saved = b
		}
	})
	toL := fsdp.Rename(func(name string) string { return "l" + strings.TrimPrefix(name, "layer.") })
	all := func(string) bool { return true }
	for name, c := range map[string]struct {
		model   model
		plain   bool // SGD without momentum
		none    bool // no optimizer
		opts    []fsdp.StateOption
		want    *fsdp.StateError
		message string
	}{
		"renamed":              {model: chainNamed("layer.", shapeDim), opts: []fsdp.StateOption{toL}},
		"renamed, alone":       {model: chainNamed("layer.", shapeDim), opts: []fsdp.StateOption{toL}, none: true},
		"without an optimizer": {model: chainNamed("l", shapeDim), none: true},
		"not renamed": {model: chainNamed("layer.", shapeDim), none: true, want: &fsdp.StateError{
			Missing: []string{"layer.0.w", "layer.1.w", "layer.2.w", "layer.3.w"}, Extra: []string{"l0.w", "l1.w", "l2.w", "l3.w"}}},
		"another width": {model: chainNamed("l", shapeDim+1), none: true, want: &fsdp.StateError{
			Reshaped: []string{"l0.w [5 5] -> [6 6]", "l1.w [5 5] -> [6 6]", "l2.w [5 5] -> [6 6]", "l3.w [5 5] -> [6 6]"}}},
		"another optimizer": {model: chainNamed("l", shapeDim), plain: true, want: &fsdp.StateError{
			Extra: []string{"momentum_buffer:l0.w", "momentum_buffer:l1.w", "momentum_buffer:l2.w", "momentum_buffer:l3.w"}}},
		"all is allowed": {model: chainNamed("other", shapeDim+1), opts: []fsdp.StateOption{fsdp.AllowMissing(all), fsdp.AllowExtra(all)}},
		"two of one name": {model: chainNamed("l", shapeDim), opts: []fsdp.StateOption{fsdp.Rename(func(string) string { return "l0.w" })},
			message: `Rename gives both l0.w and l1.w the name "l0.w"`},
		"a panic": {model: chainNamed("l", shapeDim), opts: []fsdp.StateOption{fsdp.Rename(func(string) string { panic("no idea") })}, message: "no idea"},
		"another method's option": {model: chainNamed("l", shapeDim), opts: []fsdp.StateOption{fsdp.KeepLast(3)},
			message: "option KeepLast is not for this method, which takes [Rename AllowMissing AllowExtra AllowNotFinite AllowOlder TakeSettings]"},
	} {
		t.Run(name, func(t *testing.T) {
			onRanks(t, 3, func(ctx context.Context, g comm.Group) {
				m := wrap(t, c.model, fsdp.Config{Group: g, Precision: float64s, Seed: 6})
				var opt optim.Optimizer
				var err error
				if !c.none {
					momentum := 0.5
					if c.plain {
						momentum = 0
					}
					opt, err = optim.SGD{Momentum: momentum}.New(m.Shards())
					require.NoError(t, err)
				}
				before := stateBits(t, ctx, m)
				_, err = m.Load(ctx, dir, opt, c.opts...)
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
				after := stateBits(t, ctx, m)
				if err != nil || name == "all is allowed" {
					requireSameBits(t, before, after)
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
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := newResharder(t, g, 0, fsdp.Float64, 1, nil)
		plain, err := optim.SGD{}.New(m.Shards())
		require.NoError(t, err)
		require.NoError(t, m.Save(ctx, dir, nil, fsdp.AtStep(2)))
		_, err = m.Load(ctx, dir, plain)
		require.ErrorContains(t, err, "missing optimizer")
		_, err = m.Load(ctx, dir, m.opt)
		require.ErrorContains(t, err, "missing exp_avg:l0.w, exp_avg_sq:l0.w")
		m.train(t, ctx, 0, 1)
		_, err = m.Load(ctx, dir, m.opt, fsdp.AllowMissing(func(string) bool { return true }))
		require.NoError(t, err)
		require.Equal(t, 1, m.opt.Steps())
		require.NoError(t, plain.Step(0.1))
		require.NoError(t, m.Save(ctx, dir, plain))
		again, err := optim.SGD{}.New(m.Shards())
		require.NoError(t, err)
		_, err = m.Load(ctx, dir, again)
		require.NoError(t, err)
		require.Equal(t, 1, again.Steps())
	})
}

// TestLoadDropsGradients loads between a Forward and its Backward, with gradients in the shards and
// beside them.
func TestLoadDropsGradients(t *testing.T) {
	dir := t.TempDir()
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := newResharder(t, g, 0, fsdp.Float64, 1, nil)
		batch := batchPart(0, g, fsdp.Float64)
		require.NoError(t, m.Save(ctx, dir, m.opt))
		forwardBackward(t, ctx, m.Sharded, batch)
		require.NoError(t, m.NoSync(func() error { forwardBackward(t, ctx, m.Sharded, batch); return nil }))
		_, err := m.Forward(ctx, batch...)
		require.NoError(t, err)
		held := m.Hold()
		_, err = m.Load(ctx, dir, m.opt)
		require.ErrorContains(t, err, "1 passes put aside by Hold are waiting for their Backward")
		require.NoError(t, held.Discard(ctx))
		_, err = m.Forward(ctx, batch...)
		require.NoError(t, err)
		_, err = m.Load(ctx, dir, m.opt)
		require.NoError(t, err)
		require.ErrorContains(t, m.Backward(ctx), "Backward without a Forward")
		require.Empty(t, gradsOf(t, ctx, m.Sharded))
		requireIdle(t, ctx, m.Sharded, batch)
		want := newResharder(t, comm.Local(1)[0], 0, fsdp.Float64, 1, nil).train(t, ctx, 0, 2)
		require.InDeltaSlice(t, want, m.train(t, ctx, 0, 2), 1e-12)
	})
}

// TestNoCheckpoint looks for one where there is none: every rank can tell, and begin anew.
func TestNoCheckpoint(t *testing.T) {
	dir := t.TempDir()
	for _, dir := range []string{dir, filepath.Join(dir, "missing")} {
		for _, err := range errorsOf(t, 3, func(ctx context.Context, g comm.Group) error {
			_, err := wrap(t, shapes["chain"], fsdp.Config{Group: g, Precision: float64s}).Load(ctx, dir, nil)
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
		opts   []fsdp.StateOption
		want   string
	}{
		"half of a state": {func(m *checkpoint.Manifest) {
			for i := range m.Tensors {
				if m.Tensors[i].Param == "l1.w" && m.Tensors[i].Entry == "exp_avg_sq" {
					m.Tensors[i].Entry = "exp_avg_xx"
				}
			}
		}, []fsdp.StateOption{fsdp.AllowMissing(all), fsdp.AllowExtra(all)}, "missing exp_avg_sq:l1.w"},
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
		}, nil, "others of this piece 2"},
		"no passes": {func(m *checkpoint.Manifest) { m.Meta["forwards"] = []byte("-1") }, nil, "fewer than no passes"},
		"no steps":  {func(m *checkpoint.Manifest) { m.Meta["optimizer_steps"] = []byte("-1") }, nil, "fewer than no passes or steps"},
		"a word":    {func(m *checkpoint.Manifest) { m.Meta["seed"] = []byte(`"x"`) }, nil, "what the manifest says about the training"},
		"a rank more": {func(m *checkpoint.Manifest) { m.Meta["rank_extra"] = []byte(`[{},{},{}]`) }, nil,
			"the manifest has the RankExtra of 3 ranks, of 2"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			onRanks(t, 2, func(ctx context.Context, g comm.Group) {
				f := newFiller(t, ctx, g)
				require.NoError(t, f.saveStep(ctx, dir, 1))
			})
			remake(t, dir, c.change)
			for _, err := range errorsOf(t, 3, func(ctx context.Context, g comm.Group) error {
				f := newFiller(t, ctx, g)
				_, err := f.Load(ctx, dir, f.opt, c.opts...)
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
	require.Equal(t, 1, requireLatest(t, dir))
}

// TestLoadArguments gives ranks arguments that do not agree, and disks with other checkpoints.
func TestLoadArguments(t *testing.T) {
	disks := []*crashfs.FS{crashfs.New(), crashfs.New()}
	for i, disk := range disks {
		f := newFiller(t, t.Context(), comm.Local(1)[0])
		require.NoError(t, f.saveStep(t.Context(), ckpt, 1, kit.OnFS(disk), fsdp.Extra("disk", i)))
		require.NoError(t, f.Close())
	}
	for name, c := range map[string]struct {
		load func(ctx context.Context, f *filler, rank int) error
		want string
	}{
		"disks": {func(ctx context.Context, f *filler, rank int) error {
			_, err := f.Load(ctx, ckpt, f.opt, kit.OnFS(disks[rank]))
			return err
		}, "ranks disagree about the manifest in " + filepath.Join(ckpt, "000001-step-1")},
		"not on all disks": {func(ctx context.Context, f *filler, rank int) error {
			_, err := f.Load(ctx, ckpt, f.opt, kit.OnFS([]*crashfs.FS{disks[0], crashfs.New()}[rank]))
			return err
		}, "rank 1: "},
		"no directory": {func(ctx context.Context, f *filler, rank int) error {
			_, err := f.Load(ctx, "", f.opt, kit.OnFS(disks[0]))
			return err
		}, "no directory is named"},
		"directory": {func(ctx context.Context, f *filler, rank int) error {
			_, err := f.Load(ctx, []string{ckpt, ckpt + "2"}[rank], f.opt, kit.OnFS(disks[0]))
			return err
		}, "ranks disagree about the arguments of Load: rank 0 has \"directory "},
		"optimizer": {func(ctx context.Context, f *filler, rank int) error {
			opt := f.opt
			if rank == 1 {
				opt = nil
			}
			_, err := f.Load(ctx, ckpt, opt, kit.OnFS(disks[0]))
			return err
		}, `rank 0 has "an optimizer", rank 1 has "no optimizer"`},
		"names": {func(ctx context.Context, f *filler, rank int) error {
			_, err := f.Load(ctx, ckpt, f.opt, kit.OnFS(disks[0]), fsdp.Rename(func(name string) string { return name[rank:] }))
			return err
		}, "ranks disagree about the arguments of Load"},
		"what may be missing": {func(ctx context.Context, f *filler, rank int) error {
			_, err := f.Load(ctx, ckpt, f.opt, kit.OnFS(disks[0]), fsdp.Rename(func(name string) string { return "x" + name }),
				fsdp.AllowMissing(func(string) bool { return true }), fsdp.AllowExtra(func(string) bool { return rank == 0 }))
			return err
		}, "does not fit the model: extra l0.w, exp_avg:l0.w"},
	} {
		t.Run(name, func(t *testing.T) {
			onRanks(t, 2, func(ctx context.Context, g comm.Group) {
				f := newFiller(t, ctx, g)
				f.fill(3)
				require.ErrorContains(t, c.load(ctx, f, g.Rank()), c.want)
				f.require(t, 3)
				forwardBackward(t, ctx, f.Sharded, shapeBatch(g.Rank()))
			})
		})
	}
}
