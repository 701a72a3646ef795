package parity_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// everything calls every collective method, passes put aside and left waiting included, and returns
// the state at the end.
func everything(t require.TestingT, ctx context.Context, g comm.Group, cfg fsdp.Config) kit.Bits {
	cfg.Group = g
	m := kit.Wrap(t, kit.Statistics, cfg)
	make := optim.AdamW{WeightDecay: 0.1}.New
	opt, err := make(m.Params())
	require.NoError(t, err)
	scaler, err := optim.LossScale{Init: 8}.New()
	require.NoError(t, err)
	forward := func(i int) {
		batch := kit.InType([]fsdp.Tensor{kit.Floats(20*i+2*g.Rank(), 3+i%2, kit.ShapeDim), kit.Floats(20*i+2*g.Rank()+1, 3+i%2, kit.ShapeDim)}, cfg.Precision.Compute)
		_, err := m.Forward(ctx, batch...)
		require.NoError(t, err)
	}
	for step := range 2 {
		forward(4 * step)
		held := m.Hold()
		forward(4*step + 1)
		require.NoError(t, m.NoSync(func() error { return m.Backward(ctx, fsdp.Scale(8)) }))
		require.NoError(t, m.AverageBuffers(ctx))
		require.NoError(t, m.SyncGrads(ctx))
		require.NoError(t, m.NoSync(func() error { return held.Backward(ctx, fsdp.Scale(8)) }))
		forward(4*step + 2)
		require.NoError(t, m.Backward(ctx, fsdp.Scale(8)))
		_, err := m.Unscale(ctx, scaler)
		require.NoError(t, err)
		_, err = m.GradNorms(ctx, fsdp.L2Norm)
		require.NoError(t, err)
		_, err = m.ClipGradNorm(ctx, 0.1)
		require.NoError(t, err)
		require.NoError(t, opt.Step(1e-2))
		m.ZeroGrad()
		forward(4*step + 3) // discarded
		require.NoError(t, m.Summon(ctx, []string{"l1.w"}, func(p kit.Params) error {
			clear(kit.Elements(p["l1.w"])[:step+1])
			return nil
		}, fsdp.WriteBack(g.Size()-1)))
		forward(4*step + 3) // discarded
		opt = kit.Refreeze(t, ctx, m, []func(string) bool{func(name string) bool { return name == "l1.w" }, nil}[step], opt, make)
	}
	last := kit.StateBits(t, ctx, m)
	forward(1)
	m.Hold()
	forward(2)
	require.NoError(t, m.Close())
	return last
}

// TestCollectivesOwnTheirBuffers runs whole steps of every strategy and precision over a strict
// group: what is read too early is NaN, what is written too early is noticed, and every work is
// waited for at last. The bits are those of a group that forgives.
func TestCollectivesOwnTheirBuffers(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	const world = 4
	for _, p := range kit.ParityPrecisions {
		kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			cfg.WrapPolicy, cfg.Precision = fsdp.WrapEach(), fsdp.Precision{Compute: p.Compute, Gather: p.Gather, Reduce: p.Reduce}
			for _, prefetch := range []int{fsdp.NoPrefetch, 3} {
				cfg.Prefetch = prefetch
				cfg.Ignored = func(name string) bool { return prefetch > 0 && name == "l2.w" }
				var want kit.Bits
				kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
					if got := everything(t, ctx, g, cfg); g.Rank() == 0 {
						want = got
					}
				})
				kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
					strict := kit.NewStrictGroup(g)
					if got := everything(t, ctx, strict, cfg); g.Rank() == 0 {
						kit.RequireSameBits(t, want, got, p.Name)
					}
					strict.Book.Require(t)
				})
			}
		})
	}
}

// TestUnitGroupsOwnTheirBuffers is the same with a unit over a strict group of its own.
func TestUnitGroupsOwnTheirBuffers(t *testing.T) {
	const world = 4
	var states [2][world]kit.Bits
	for strict := range states {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			book := new(kit.StrictBook)
			if strict == 1 {
				g = &kit.StrictGroup{Group: g, Book: book}
			}
			cfg := kit.GroupedBy(t, ctx, g, "l1", 2)
			cfg.Prefetch = 3
			m := kit.Wrap(t, kit.Shapes["chain"], cfg)
			update := kit.Updater(t, m, 0.1)
			for range 3 {
				kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
				update(ctx)
			}
			states[strict][g.Rank()] = kit.StateBits(t, ctx, m)
			_, err := m.Forward(ctx, kit.ShapeBatch(g.Rank())...)
			require.NoError(t, err)
			require.NoError(t, m.Close())
			book.Require(t)
			require.Equal(t, strict == 1, book.Works > 0)
		})
	}
	for r := range world {
		kit.RequireSameBits(t, states[0][r], states[1][r], "rank ", r)
	}
}

// TestSetFullOwnsItsBuffers sets parameters that gathers for a backward may be reading: those are
// over first.
func TestSetFullOwnsItsBuffers(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	for _, how := range []string{"LoadStateDict", "Summon"} {
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			strict := kit.NewStrictGroup(g)
			m := kit.Wrap(t, kit.TinyGPT(3), fsdp.Config{Group: strict, Precision: kit.Float64s, WrapPolicy: kit.Blocks, Prefetch: 2})
			_, err := m.Forward(ctx, kit.TinyBatch(0, g.Rank(), 2, 5)...)
			require.NoError(t, err)
			require.Positive(t, strict.Book.Open, "gathers for the backward")
			double := func(p kit.Params) error {
				for _, v := range p {
					for i := range kit.Elements(v) {
						kit.Elements(v)[i] *= 2
					}
				}
				return nil
			}
			state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, errors.Join(err, double(state)))
			if how == "LoadStateDict" {
				err = m.LoadStateDict(ctx, 1, map[int]map[string]*tensor.Dense{1: state}[g.Rank()])
			} else {
				err = m.Summon(ctx, nil, double, fsdp.WriteBack(1))
			}
			require.NoError(t, err)
			strict.Book.Require(t)
			kit.RequireSameBits(t, kit.BitsOf(state), kit.StateBits(t, ctx, m))
			require.ErrorContains(t, m.Backward(ctx), "Backward has no pending Forward")
			kit.ForwardBackward(t, ctx, m, kit.TinyBatch(0, g.Rank(), 2, 5))
			strict.Book.Require(t)
		})
	}
}
