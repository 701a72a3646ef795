package parity_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// A deed is one thing that all ranks do to a model between two updates.
type deed struct {
	Kind    string
	Batch   int // that its forward takes
	Scale   float64
	Weights []float64 // by rank
	Which   int       // of the passes put aside
	NoSync  bool
}

// deeds are the kinds.
var deeds = []string{"backward", "backward", "hold", "hold", "held backward", "held backward", "discard", "forward", "sync", "zero", "eval", "state", "full"}

// history is a drawn sequence of deeds and what it is done to.
type history struct {
	Model  string
	World  int
	Divide fsdp.GradAverage
	Deeds  []deed
	Knobs  [2]kit.Knobs
}

func drawHistory(t *rapid.T) history {
	h := history{
		Model:  rapid.SampledFrom([]string{"chain", "recurrence", "tied across groups", "an unused parameter"}).Draw(t, "model"),
		World:  rapid.IntRange(1, 4).Draw(t, "world"),
		Divide: rapid.SampledFrom([]fsdp.GradAverage{fsdp.ByRanks, fsdp.ByWeights, fsdp.ByOne}).Draw(t, "divide"),
	}
	for i := range h.Knobs {
		h.Knobs[i] = kit.DrawKnobs(t, h.World)
	}
	for range rapid.IntRange(1, 9).Draw(t, "length") {
		d := deed{
			Kind:  rapid.SampledFrom(deeds).Draw(t, "kind"),
			Batch: rapid.IntRange(0, 3).Draw(t, "batch"), Scale: rapid.SampledFrom([]float64{1, 0.5, -3}).Draw(t, "scale"),
			Which: rapid.IntRange(0, 2).Draw(t, "which"), NoSync: rapid.Bool().Draw(t, "no sync"),
		}
		for range h.World {
			d.Weights = append(d.Weights, float64(rapid.IntRange(0, 3).Draw(t, "weight")))
		}
		d.Weights[d.Which%h.World]++ // not all are zero
		h.Deeds = append(h.Deeds, d)
	}
	return h
}

// historyBatch is a batch of a rank. Its number of rows is another for each.
func historyBatch(batch, rank int) []fsdp.Tensor {
	seed := 2 * (10*batch + rank)
	return []fsdp.Tensor{kit.Floats(seed, 1+batch, kit.ShapeDim), kit.Floats(seed+1, 1+batch, kit.ShapeDim)}
}

// alone are the gradients of one rank's batch without any other.
func alone(t require.TestingT, ctx context.Context, name string, batch, rank int) map[string][]float64 {
	m := kit.Wrap(t, kit.Shapes[name], fsdp.Config{Precision: kit.Float64s, Seed: 5})
	kit.ForwardBackward(t, ctx, m, historyBatch(batch, rank))
	return kit.GradsOf(t, ctx, m)
}

// ledger is what gradients should be by the definition of every deed.
type ledger struct {
	grads, pending map[string][]float64
	passes         int
}

// backward notes a backward of d, whose batch has these gradients by rank.
func (l *ledger) backward(h *history, d *deed, grads []map[string][]float64) {
	sum := 0.0
	for _, w := range d.Weights {
		sum += w
	}
	for r, g := range grads {
		kit.AddTo(l.pending, g, d.Scale*map[fsdp.GradAverage]float64{
			fsdp.ByRanks: 1 / float64(h.World), fsdp.ByWeights: d.Weights[r] / sum, fsdp.ByOne: 1,
		}[h.Divide])
	}
	if l.passes++; !d.NoSync {
		l.sync()
	}
}

func (l *ledger) sync() {
	kit.AddTo(l.grads, l.pending, 1)
	l.pending, l.passes = map[string][]float64{}, 0
}

// run does the deeds on one rank, compares with the ledger whenever gradients can be seen, and
// returns the last.
func (h *history) run(t require.TestingT, ctx context.Context, g comm.Group, k kit.Knobs, grads [4][]map[string][]float64) kit.Bits {
	cfg := k.Config()
	cfg.Group, cfg.GradAverage = g, h.Divide
	m := kit.Wrap(t, kit.Shapes[h.Model], cfg)
	shards := m.Memory().Live
	book := &ledger{grads: map[string][]float64{}, pending: map[string][]float64{}}
	type heldPass struct {
		*fsdp.Pass
		batch int
	}
	var held []heldPass
	open := false // a forward that has no backward yet
	forward := func(batch int) {
		open = true
		_, err := m.Forward(ctx, historyBatch(batch, g.Rank())...)
		require.NoError(t, err)
	}
	backward := func(d *deed, batch int, f func(context.Context, ...fsdp.BackwardOption) error) {
		opts := []fsdp.BackwardOption{fsdp.Scale(d.Scale), nil}
		if h.Divide == fsdp.ByWeights {
			opts = append(opts, fsdp.Weight(d.Weights[g.Rank()]))
		}
		run := func() error { return f(ctx, opts...) }
		if d.NoSync {
			run = func() error { return m.NoSync(func() error { return f(ctx, opts...) }) }
		}
		require.NoError(t, run())
		book.backward(h, d, grads[batch])
	}
	for i := range h.Deeds {
		d := &h.Deeds[i]
		switch d.Kind {
		case "backward":
			if d.NoSync && d.Which > 0 { // the forward inside as well, as loops are written
				require.NoError(t, m.NoSync(func() error { forward(d.Batch); return nil }))
			} else {
				forward(d.Batch)
			}
			backward(d, d.Batch, m.Backward)
			open = false
		case "hold":
			forward(d.Batch)
			held, open = append(held, heldPass{m.Hold(), d.Batch}), false
		case "held backward":
			if d.Which < len(held) {
				p := held[d.Which]
				held = slices.Delete(held, d.Which, d.Which+1)
				backward(d, p.batch, p.Backward)
			}
		case "discard":
			if d.Which < len(held) {
				require.NoError(t, held[d.Which].Discard(ctx))
				held = slices.Delete(held, d.Which, d.Which+1)
			}
		case "forward":
			forward(d.Batch)
		case "sync":
			require.NoError(t, m.SyncGrads(ctx))
			book.sync()
		case "zero":
			m.ZeroGrad()
			*book = ledger{grads: map[string][]float64{}, pending: map[string][]float64{}}
		case "eval":
			_, err := m.Eval(ctx, historyBatch(d.Batch, g.Rank())...)
			require.NoError(t, err)
			open = false
		case "state":
			kit.StateBits(t, ctx, m)
		case "full":
			require.NoError(t, m.Summon(ctx, nil, func(params map[string]*tensor.Dense) error { return nil }))
		}
		if book.passes > 0 {
			_, err := m.FullGrads(ctx)
			require.ErrorContains(t, err, fmt.Sprintf("the gradients of %d passes inside NoSync are not reduced", book.passes))
		} else {
			kit.RequireNear(t, book.grads, kit.GradsOf(t, ctx, m), 1e-12)
			if !open && len(held) == 0 {
				require.Equal(t, shards, m.Memory().Live)
			}
		}
	}
	for _, p := range held {
		require.NoError(t, p.Discard(ctx))
	}
	require.NoError(t, m.SyncGrads(ctx))
	book.sync()
	kit.RequireNear(t, book.grads, kit.GradsOf(t, ctx, m), 1e-12)
	kit.RequireIdle(t, ctx, m, historyBatch(0, g.Rank()))
	last := kit.GradBits(t, ctx, m)
	require.NoError(t, m.Close())
	return last
}

// TestAnyInterleavingAddsUp draws histories of forwards and backwards in any order, inside and
// outside NoSync, and checks that gradients are those of all batches together, whatever else
// happens in between, and have the same bits under any two strategies.
func TestAnyInterleavingAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		var grads [4][]map[string][]float64
		for batch := range grads {
			for rank := range h.World {
				grads[batch] = append(grads[batch], alone(t, context.Background(), h.Model, batch, rank))
			}
		}
		var results [2]kit.Bits
		for i, k := range h.Knobs {
			kit.OnRanks(t, h.World, func(ctx context.Context, g comm.Group) {
				if got := h.run(t, ctx, g, k, grads); g.Rank() == 0 {
					results[i] = got
				}
			})
		}
		kit.RequireSameBits(t, results[0], results[1])
	})
}

// TestUnreducedGradients checks what is and what is not possible after a pass inside NoSync, and
// what it holds in memory.
func TestUnreducedGradients(t *testing.T) {
	for world := 1; world <= 3; world++ {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m, batch := kit.Chain64(t, g), kit.ShapeBatch(g.Rank())
			scaler, err := optim.LossScale{}.New()
			require.NoError(t, err)
			for pass := 1; pass <= 3; pass++ {
				require.NoError(t, m.NoSync(func() error {
					plan, err := m.Plan(batch...)
					require.NoError(t, err)
					require.Zero(t, plan.Reduces+plan.AllReduces)
					m.ResetPeak()
					kit.ForwardBackward(t, ctx, m, batch)
					require.Equal(t, plan.Peak(), m.Memory().Peak)
					whole := 0
					for _, g := range plan.Groups {
						whole += g.Bytes
					}
					require.Equal(t, plan.ShardBytes+whole, m.Memory().Live, "the gradients of the whole model")
					return nil
				}))
				want := fmt.Sprintf("the gradients of %d passes inside NoSync are not reduced", pass)
				_, err := m.FullGrads(ctx)
				require.ErrorContains(t, err, want)
				_, err = m.ClipGradNorm(ctx, 1)
				require.ErrorContains(t, err, want)
				_, err = m.GradNorms(ctx, fsdp.L2Norm)
				require.ErrorContains(t, err, want)
				_, err = m.Unscale(ctx, scaler)
				require.ErrorContains(t, err, want)
				_, err = m.Freeze(ctx, nil, nil)
				require.ErrorContains(t, err, want)
				require.Equal(t, 65536., scaler.Scale(), "no update")
			}
			plan, err := m.Plan(batch...)
			require.NoError(t, err)
			m.ResetPeak()
			kit.ForwardBackward(t, ctx, m, batch)
			require.Equal(t, plan.Peak(), m.Memory().Peak)
			kit.RequireIdle(t, ctx, m, batch)
			got := kit.GradsOf(t, ctx, m)
			m.ZeroGrad()
			kit.ForwardBackward(t, ctx, m, batch)
			want := map[string][]float64{}
			kit.AddTo(want, kit.GradsOf(t, ctx, m), 4)
			kit.RequireNear(t, want, got, 1e-12)
			require.NoError(t, m.SyncGrads(ctx), "nothing to do")
			kit.RequireNear(t, kit.GradsOf(t, ctx, m), kit.GradsOf(t, ctx, m), 0)
		})
	}
}

// TestZeroGradDropsUnreduced checks that ZeroGrad drops whole gradients and their memory, and Close
// likewise.
func TestZeroGradDropsUnreduced(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m, batch := kit.Chain64(t, g), kit.ShapeBatch(g.Rank())
		pass := func() error { kit.ForwardBackward(t, ctx, m, batch); return nil }
		require.NoError(t, m.NoSync(pass))
		m.ZeroGrad()
		kit.RequireIdle(t, ctx, m, batch)
		require.Empty(t, kit.GradsOf(t, ctx, m), "no backward since ZeroGrad")
		require.NoError(t, m.NoSync(pass))
		_, err := m.Forward(ctx, batch...)
		require.NoError(t, err)
		held := m.Hold()
		require.NoError(t, m.Close())
		require.ErrorContains(t, held.Backward(ctx), "the model is closed")
		require.NoError(t, held.Discard(ctx))
		require.ErrorContains(t, m.SyncGrads(ctx), "the model is closed")
		require.ErrorContains(t, m.Hold().Backward(ctx), "the model is closed")
	})
}

// TestNoSyncEnds checks that NoSync is over when its function returns, fails or panics, that it
// nests, and that the error is the caller's.
func TestNoSyncEnds(t *testing.T) {
	m, batch := kit.Chain64(t, nil), kit.ShapeBatch(0)
	oops := errors.New("out of data")
	require.ErrorIs(t, m.NoSync(func() error { return oops }), oops)
	require.PanicsWithValue(t, "oops", func() { _ = m.NoSync(func() error { panic("oops") }) })
	kit.ForwardBackward(t, t.Context(), m, batch)
	kit.GradsOf(t, t.Context(), m)
	require.NoError(t, m.NoSync(func() error {
		require.NoError(t, m.NoSync(func() error { return nil }))
		kit.ForwardBackward(t, t.Context(), m, batch)
		return nil
	}))
	_, err := m.FullGrads(t.Context())
	require.ErrorContains(t, err, "1 passes inside NoSync")
}

// TestPassIsOver checks that a pass put aside has one Backward or Discard, keeps its loss, and
// blocks Freeze.
func TestPassIsOver(t *testing.T) {
	for world := 1; world <= 2; world++ {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m, batch := kit.Chain64(t, g), kit.ShapeBatch(g.Rank())
			none := m.Hold()
			require.Zero(t, none.Loss())
			require.NoError(t, none.Discard(ctx))
			require.ErrorContains(t, none.Backward(ctx), "Backward has no pending Forward")
			loss, err := m.Forward(ctx, batch...)
			require.NoError(t, err)
			p := m.Hold()
			require.ErrorContains(t, m.Backward(ctx), "Backward has no pending Forward", "it is put aside")
			_, err = m.Freeze(ctx, nil, nil)
			require.ErrorContains(t, err, "passes put aside by Hold are waiting for their Backward")
			require.NoError(t, p.Backward(ctx))
			require.Equal(t, loss, p.Loss())
			grads := kit.GradBits(t, ctx, m)
			require.ErrorContains(t, p.Backward(ctx), "Backward has no pending Forward")
			require.NoError(t, p.Discard(ctx))
			kit.RequireSameBits(t, grads, kit.GradBits(t, ctx, m))
			_, err = m.Forward(ctx, batch...)
			require.NoError(t, err)
			p = m.Hold()
			require.NoError(t, p.Discard(ctx))
			require.ErrorContains(t, p.Backward(ctx), "Backward has no pending Forward")
			kit.RequireIdle(t, ctx, m, batch)
			_, err = m.Freeze(ctx, nil, nil)
			require.NoError(t, err)
		})
	}
}

// TestWeights checks the errors of Weight, and that they cost nothing but the pass.
func TestWeights(t *testing.T) {
	for name, c := range map[string]struct {
		divide fsdp.GradAverage
		weight func(rank int) float64
		want   string
	}{
		"of ByRanks":  {fsdp.ByRanks, func(int) float64 { return 2 }, "Weight needs Config.GradAverage = ByWeights, but it is By"},
		"of ByOne":    {fsdp.ByOne, func(int) float64 { return 0 }, "Weight needs Config.GradAverage = ByWeights, but it is By"},
		"of one rank": {fsdp.ByRanks, func(r int) float64 { return float64(1 + r) }, "rank 1: "},
		"all zero":    {fsdp.ByWeights, func(int) float64 { return 0 }, "the mean of the ranks' weights is 0"},
		"negative":    {fsdp.ByWeights, func(r int) float64 { return float64(1 - 2*r) }, "Weight is -1"},
		"NaN":         {fsdp.ByWeights, func(r int) float64 { return math.NaN() }, "give Backward a Weight"},
		"infinite":    {fsdp.ByWeights, func(r int) float64 { return math.Inf(1) }, "Weight is +Inf"},
	} {
		t.Run(name, func(t *testing.T) {
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				m, batch := kit.Chain64(t, g, func(c2 *fsdp.Config) { c2.GradAverage = c.divide }), kit.ShapeBatch(g.Rank())
				if c.divide == fsdp.ByWeights {
					_, err := m.Forward(ctx, batch...)
					require.NoError(t, err)
					require.ErrorContains(t, m.Backward(ctx), "Config.GradAverage is ByWeights: give Backward a Weight")
					kit.ForwardBackward(t, ctx, m, batch, fsdp.Weight(1))
				} else {
					kit.ForwardBackward(t, ctx, m, batch)
				}
				grads := kit.GradBits(t, ctx, m)
				for _, noSync := range []bool{false, true} {
					_, err := m.Forward(ctx, batch...)
					require.NoError(t, err)
					back := func() error { return m.Backward(ctx, fsdp.Weight(c.weight(g.Rank()))) }
					if noSync {
						err = m.NoSync(back)
					} else {
						err = back()
					}
					require.ErrorContains(t, err, c.want)
					require.ErrorContains(t, err, fmt.Sprintf("fsdp: rank %d: Backward: ", g.Rank()))
					kit.RequireSameBits(t, grads, kit.GradBits(t, ctx, m))
					kit.RequireIdle(t, ctx, m, batch)
				}
			})
		})
	}
}

// TestScales checks that a scale that is no number is an error on every rank, and that scales
// multiply.
func TestScales(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m, batch := kit.Chain64(t, g), kit.ShapeBatch(g.Rank())
		kit.ForwardBackward(t, ctx, m, batch)
		want := map[string][]float64{}
		kit.AddTo(want, kit.GradsOf(t, ctx, m), -6)
		for _, bad := range []float64{math.NaN(), math.Inf(1)} {
			_, err := m.Forward(ctx, batch...)
			require.NoError(t, err)
			require.ErrorContains(t, m.Backward(ctx, fsdp.Scale(bad*float64(g.Rank()*2-1))), "Scale is")
			kit.RequireIdle(t, ctx, m, batch)
		}
		m.ZeroGrad()
		_, err := m.Forward(ctx, batch...)
		require.NoError(t, err)
		require.NoError(t, m.Backward(ctx, fsdp.Scale(-2), fsdp.Scale(3)))
		kit.RequireNear(t, want, kit.GradsOf(t, ctx, m), 1e-14)
	})
}

// TestTokensAsWeights gives ranks batches of different sizes, weighted by them, and compares with
// one rank that has all rows.
func TestTokensAsWeights(t *testing.T) {
	const world = 3
	one := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Precision: kit.Float64s})
	x, y := kit.Tokens(1, kit.TinyVocab, 6, 4), kit.Tokens(2, kit.TinyVocab, 6, 4)
	kit.ForwardBackward(t, t.Context(), one, []fsdp.Tensor{x, y})
	want := kit.GradsOf(t, t.Context(), one)
	for _, unit := range []float64{1, 1000} {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, Precision: kit.Float64s, GradAverage: fsdp.ByWeights, WrapPolicy: kit.Blocks})
			rows, first := g.Rank()+1, g.Rank()*(g.Rank()+1)/2
			a, b := kit.Tokens(0, kit.TinyVocab, rows, 4), kit.Tokens(0, kit.TinyVocab, rows, 4)
			copy(a.Ints(), x.Ints()[4*first:])
			copy(b.Ints(), y.Ints()[4*first:])
			_, err := m.Forward(ctx, a, b)
			require.NoError(t, err)
			require.NoError(t, m.Backward(ctx, fsdp.Weight(unit*float64(rows))))
			kit.RequireNear(t, want, kit.GradsOf(t, ctx, m), 1e-12)
		})
	}
}

// TestRanksAccumulateDifferently lets one rank do something else about its gradients. Every rank
// must be told who does what, and can go on.
func TestRanksAccumulateDifferently(t *testing.T) {
	type rank struct {
		ctx   context.Context
		m     *fsdp.Sharded
		batch []fsdp.Tensor
		odd   bool
	}
	forward := func(r rank) error { _, err := r.m.Forward(r.ctx, r.batch...); return err }
	for name, c := range map[string]struct {
		do   func(t *testing.T, r rank) error
		want []string
	}{
		"forward inside NoSync": {func(t *testing.T, r rank) error {
			if r.odd {
				return r.m.NoSync(func() error { return forward(r) })
			}
			return forward(r)
		}, []string{"Forward as call", "inside NoSync"}},
		"backward inside NoSync": {func(t *testing.T, r rank) error {
			require.NoError(t, forward(r))
			if r.odd {
				return r.m.NoSync(func() error { return r.m.Backward(r.ctx) })
			}
			return r.m.Backward(r.ctx)
		}, []string{"Backward as call", "inside NoSync"}},
		"another pass": {func(t *testing.T, r rank) error {
			require.NoError(t, forward(r))
			p := r.m.Hold()
			require.NoError(t, forward(r))
			if r.odd {
				defer r.m.Hold().Discard(r.ctx)
				return p.Backward(r.ctx)
			}
			defer p.Discard(r.ctx)
			return r.m.Backward(r.ctx)
		}, []string{"Backward as call 3 with 1", "Backward as call 3 with 2"}},
		"only one holds": {func(t *testing.T, r rank) error {
			require.NoError(t, forward(r))
			p := &fsdp.Pass{}
			if r.odd {
				p = r.m.Hold()
			}
			require.NoError(t, forward(r))
			if r.odd {
				defer r.m.Hold().Discard(r.ctx)
				return p.Backward(r.ctx)
			}
			return r.m.Backward(r.ctx)
		}, []string{"Backward as call 3 with 1", "Backward as call 3 with 2"}},
		"only one discards": {func(t *testing.T, r rank) error {
			require.NoError(t, forward(r))
			p := r.m.Hold()
			if r.odd {
				require.NoError(t, p.Discard(r.ctx))
			}
			return p.Backward(r.ctx)
		}, []string{"Backward has no pending Forward"}},
		"only one drops": {func(t *testing.T, r rank) error {
			require.NoError(t, r.m.NoSync(func() error { return errors.Join(forward(r), r.m.Backward(r.ctx)) }))
			if r.odd {
				r.m.ZeroGrad()
			}
			defer r.m.ZeroGrad()
			return r.m.SyncGrads(r.ctx)
		}, []string{"SyncGrads as call 3 with 1", "runs SyncGrads as call 3"}},
		"only one reduces": {func(t *testing.T, r rank) error {
			require.NoError(t, forward(r))
			if r.odd {
				return r.m.SyncGrads(r.ctx)
			}
			return r.m.Backward(r.ctx)
		}, []string{"SyncGrads as call 2", "Backward as call 2"}},
	} {
		for world := 2; world <= 3; world++ {
			t.Run(fmt.Sprintf("%s/%d ranks", name, world), func(t *testing.T) {
				kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
					m, batch := kit.Chain64(t, g), kit.ShapeBatch(g.Rank())
					err := c.do(t, rank{ctx, m, batch, g.Rank() == world-1})
					for _, want := range append(c.want, fmt.Sprintf("rank %d", world-1), fmt.Sprintf("fsdp: rank %d: ", g.Rank())) {
						require.ErrorContains(t, err, want)
					}
					m.ZeroGrad()
					kit.ForwardBackward(t, ctx, m, batch)
					kit.RequireIdle(t, ctx, m, batch)
				})
			})
		}
	}
}
