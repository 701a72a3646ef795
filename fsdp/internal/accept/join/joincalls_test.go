package join_test

import (
	"cmp"
	"context"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
)

// TestJoinCallsExchanges evaluates three times on one rank and seven times on another, and trains as
// often on both. Where all make the same calls, and where ranks are done, that takes no exchange
// beside those of the passes, but for one at the end.
func TestJoinCallsExchanges(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		talk := &talkingGroup{Group: g}
		m, one := kit.Chain64(t, talk), kit.Chain64(t, nil)
		took := func(f func() error) int {
			talk.exchanges = 0
			require.NoError(t, m.JoinCalls(ctx, f))
			return talk.exchanges
		}
		evals := func() error {
			for i := range 3 + 4*g.Rank() {
				got, err := m.Eval(ctx, kit.UnevenBatch(i, g.Rank())...)
				require.NoError(t, err)
				want, err := one.Eval(ctx, kit.UnevenBatch(i, g.Rank())...)
				require.NoError(t, err)
				for j := range want {
					require.Equal(t, want[j].Data(), got[j].Data())
				}
			}
			return nil
		}
		require.Equal(t, 7+1, took(evals))
		require.Equal(t, 2*3+1, took(func() error {
			for i := range 3 {
				require.NoError(t, kit.TrainStep(ctx, m, kit.UnevenBatch(i, g.Rank())))
			}
			return nil
		}))
		require.Equal(t, 1, took(func() error { return nil }))
		kit.RequireIdle(t, ctx, m, kit.ShapeBatch(0))
	})
}

// TestJoinCallsTakeTurns has ranks want different programs: the lowest begins, and then the one
// after the last, so that none waits longer than for one pass of each other.
func TestJoinCallsTakeTurns(t *testing.T) {
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		var order []string // own passes
		passes := 0
		m := kit.Wrap(t, translator{}, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: kit.Float64s, Observers: []fsdp.Observer{fsdp.TraceFunc(func(e fsdp.Event) {
			if e.Pass > passes {
				passes = e.Pass
				if e.Absent {
					order = append(order, "-")
				} else {
					order = append(order, "x")
				}
			}
		})}})
		require.NoError(t, m.JoinCalls(ctx, func() error {
			for i := range []int{3, 1, 4}[g.Rank()] {
				source, state := prompt(g.Rank(), i)
				var err error
				switch g.Rank() {
				case 0:
					_, err = m.EvalProgram(ctx, "encode", source)
				case 1:
					err = kit.TrainStep(ctx, m, []fsdp.Tensor{source, state, state})
				case 2:
					_, err = m.EvalProgram(ctx, "decode", state, source)
				}
				require.NoError(t, err)
			}
			return nil
		}))
		require.Equal(t, [][]string{
			{"x", "-", "-", "x", "-", "x", "-", "-"},
			{"-", "x", "-", "-", "-", "-", "-", "-"},
			{"-", "-", "x", "-", "x", "-", "x", "x"},
		}[g.Rank()], order)
	})
}

// A hypothesis is a translation under way in a beam.
type hypothesis struct {
	state []float64
	score float64
}

// search translates a prompt by beam search: every state has two continuations, the two best are
// kept, and how many steps it takes depends on what it finds.
func search(ctx context.Context, m *fsdp.Sharded, rank, i int) (best [][]float64, err error) {
	source := kit.Floats(100+10*rank+i, 1, kit.ShapeDim)
	memory, err := m.EvalProgram(ctx, "encode", source)
	if err != nil {
		return nil, err
	}
	beam := []hypothesis{{state: kit.Floats(200+10*rank+i, kit.ShapeDim).Float64s()}}
	for step := 0; step < 6 && math.Abs(beam[0].score) < 1.5; step++ {
		rows, again := []float64{}, []float64{}
		for _, h := range beam {
			rows, again = append(rows, h.state...), append(again, kit.Elements(memory[0])...)
		}
		shape := tensor.WithShape(len(beam), kit.ShapeDim)
		out, err := m.EvalProgram(ctx, "decode", tensor.New(shape, tensor.WithBacking(rows)), tensor.New(shape, tensor.WithBacking(again)))
		if err != nil {
			return nil, err
		}
		var next []hypothesis
		for k, h := range beam {
			state := kit.Elements(out[0])[k*kit.ShapeDim:][:kit.ShapeDim]
			back := make([]float64, kit.ShapeDim)
			for j, x := range state {
				back[j] = -x
			}
			next = append(next, hypothesis{state, h.score + state[0]}, hypothesis{back, h.score + state[1]})
		}
		slices.SortStableFunc(next, func(a, b hypothesis) int { return cmp.Compare(b.score, a.score) })
		beam = next[:2]
		best = append(best, beam[0].state)
	}
	return best, nil
}

// TestJoinCallsBeamSearch searches on ranks with different prompts, none included, while another
// rank validates and one trains. Each gets what it gets alone, to the bit.
func TestJoinCallsBeamSearch(t *testing.T) {
	type job func(ctx context.Context, t require.TestingT, m *fsdp.Sharded) (seen [][]float64)
	searches := func(rank, prompts int) job {
		return func(ctx context.Context, t require.TestingT, m *fsdp.Sharded) (all [][]float64) {
			for i := range prompts {
				states, err := search(ctx, m, rank, i)
				require.NoError(t, err)
				all = append(all, states...)
			}
			return all
		}
	}
	validates := func(ctx context.Context, t require.TestingT, m *fsdp.Sharded) (all [][]float64) {
		for i := range 5 {
			source, state := prompt(2, i)
			out, err := m.Eval(ctx, source, state, state)
			require.NoError(t, err)
			all = append(all, kit.Elements(out[0]))
		}
		return all
	}
	trains := func(ctx context.Context, t require.TestingT, m *fsdp.Sharded) (all [][]float64) {
		for i := range 3 {
			source, state := prompt(3, i)
			all = append(all, []float64{kit.ForwardBackward(t, ctx, m, []fsdp.Tensor{source, state, state})})
		}
		return all
	}
	jobs := []job{searches(0, 3), searches(1, 5), validates, trains, searches(0, 0), searches(2, 1)}
	kit.EveryStrategy(t, len(jobs), func(t *testing.T, cfg fsdp.Config) {
		kit.OnRanks(t, len(jobs), func(ctx context.Context, g comm.Group) {
			cfg := cfg
			cfg.Group, cfg.WrapPolicy, cfg.Precision, cfg.Seed = g, fsdp.WrapEach(), kit.Float64s, 4
			m := kit.Wrap(t, translator{}, cfg)
			one := kit.Wrap(t, translator{}, fsdp.Config{Precision: kit.Float64s, Seed: 4})
			want := jobs[g.Rank()](ctx, t, one)
			var got [][]float64
			require.NoError(t, m.JoinCalls(ctx, func() error {
				got = jobs[g.Rank()](ctx, t, m)
				return nil
			}))
			require.Equal(t, want, got)
			source, state := prompt(0, 0)
			kit.RequireIdle(t, ctx, m, []fsdp.Tensor{source, state, state})
		})
	})
}

// TestJoinCallsTrains takes steps after JoinCalls in which ranks train on different numbers of
// batches, with AdamW, in the body of Join and without. It is as if one process had trained on all.
func TestJoinCallsTrains(t *testing.T) {
	counts := [][]int{{2, 0, 1}, {0, 0, 3}, {0, 0, 0}, {1, 1, 1}}
	train := func(t require.TestingT, ctx context.Context, m *fsdp.Sharded, g comm.Group, join bool) kit.Bits {
		update := kit.Updater(t, m, 0.5)
		for i, counts := range counts {
			step := func(mine int) {
				require.NoError(t, m.JoinCalls(ctx, func() error {
					for r := range counts {
						if g != nil && r != g.Rank() {
							continue
						}
						for k := range counts[r] {
							if err := kit.TrainStep(ctx, m, kit.UnevenBatch(10*i+k, r)); err != nil {
								return err
							}
						}
					}
					return nil
				}))
				update(ctx)
			}
			if !join {
				step(0)
				continue
			}
			rank := 0
			if g != nil {
				rank = g.Rank()
			}
			require.NoError(t, unevenly(ctx, m, rank, (rank+1)%2, func(int, []fsdp.Tensor) error { step(0); return nil }))
		}
		return kit.StateBits(t, ctx, m)
	}
	sum := func(c *fsdp.Config) { c.GradAverage = fsdp.ByOne }
	want := train(t, t.Context(), kit.Chain64(t, nil, sum), nil, false)
	for _, join := range []bool{false, true} {
		kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
			m := kit.Chain64(t, g, sum)
			got := train(t, ctx, m, g, join)
			for name := range want {
				for i, x := range want[name] {
					require.InDelta(t, math.Float64frombits(x), math.Float64frombits(got[name][i]), 1e-12, name)
				}
			}
			kit.RequireIdle(t, ctx, m, kit.ShapeBatch(0))
		})
	}
}

// TestJoinCallsInJoin runs the body of a loop inside JoinCalls. Ranks without a batch do nothing in
// it, or compute on a dummy, whose gradients do not count.
func TestJoinCallsInJoin(t *testing.T) {
	for world := 1; world <= 3; world++ {
		for _, dummy := range []bool{false, true} {
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				m := kit.Chain64(t, g, func(c *fsdp.Config) { c.GradAverage = fsdp.ByActive })
				var opts []fsdp.JoinOption
				if dummy {
					opts = append(opts, fsdp.Dummy(kit.UnevenBatch(9, 9)...))
				}
				iterations := 0
				require.NoError(t, unevenly(ctx, m, g.Rank(), 2*(g.Rank()%2), func(i int, batch []fsdp.Tensor) error {
					iterations++
					err := m.JoinCalls(ctx, func() error {
						out, err := m.Eval(ctx, batch...)
						require.NoError(t, err)
						require.Equal(t, batch == nil, out == nil)
						loss, err := m.Forward(ctx, batch...)
						require.NoError(t, err)
						require.Equal(t, batch == nil, loss == 0)
						err = m.Backward(ctx)
						if err == nil && dummy && g.Rank()%2 == 0 { // with other dummies only
							err = kit.TrainStep(ctx, m, batch)
						}
						return err
					})
					require.NoError(t, err)
					one := kit.Chain64(t, nil)
					kit.ForwardBackward(t, ctx, one, kit.UnevenBatch(i, 1))
					kit.RequireNear(t, kit.GradsOf(t, ctx, one), kit.GradsOf(t, ctx, m), 1e-14)
					m.ZeroGrad()
					_, err = m.Eval(ctx, batch...)
					require.NoError(t, err)
					return nil
				}, opts...))
				require.Equal(t, 2*min(1, world-1), iterations)
			})
		}
	}
}

// TestJoinCallsEndsAForward begins with a Forward outside, which one rank has discarded already: it
// ends on the others, too.
func TestJoinCallsEndsAForward(t *testing.T) {
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := kit.Chain64(t, g)
		_, err := m.Forward(ctx, kit.UnevenBatch(0, g.Rank())...)
		require.NoError(t, err)
		if g.Rank() == 1 {
			require.NoError(t, m.Hold().Discard(ctx))
		}
		require.NoError(t, m.JoinCalls(ctx, func() error { return kit.ErrorOf(m.Eval(ctx, kit.UnevenBatch(0, g.Rank())...)) }))
		require.ErrorContains(t, m.Backward(ctx), "Backward has no pending Forward")
		kit.RequireIdle(t, ctx, m, kit.ShapeBatch(0))
	})
}

// TestJoinCallsInGroups trains each rank on one batch, of a model of which a unit lies in groups of
// the user's: as if all had trained on four, three of which count nothing.
func TestJoinCallsInGroups(t *testing.T) {
	kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
		cfg := kit.GroupedBy(t, ctx, g, groupedUnit["recurrence"], 2)
		cfg.GradAverage = fsdp.ByOne
		m := kit.Wrap(t, kit.Shapes["recurrence"], cfg)
		run := func(i int, weight float64) (seen []float64) {
			out, err := m.Eval(ctx, kit.UnevenBatch(i, g.Rank())...)
			require.NoError(t, err)
			if weight >= 0 {
				seen = append(seen, kit.ForwardBackward(t, ctx, m, kit.UnevenBatch(i, g.Rank()), fsdp.Scale(weight)))
			}
			return append(seen, kit.Elements(out[1])...)
		}
		var want, got []float64
		for i := range 4 {
			if i == g.Rank() {
				want = append(want, run(i, 1)...)
			} else {
				want = append(want, run(i, 0)[1:]...)
			}
		}
		grads := kit.GradsOf(t, ctx, m)
		m.ZeroGrad()
		require.NoError(t, m.JoinCalls(ctx, func() error {
			for i := range 4 {
				if i == g.Rank() {
					got = append(got, run(i, 1)...)
				} else {
					got = append(got, run(i, -1)...)
				}
			}
			return nil
		}))
		require.Equal(t, want, got)
		kit.RequireNear(t, grads, kit.GradsOf(t, ctx, m), 1e-14)
	})
}

// TestJoinCallsLearns trains on ranks whose schedules depend on the shapes of their batches: they
// take turns, and learn those of each other.
func TestJoinCallsLearns(t *testing.T) {
	var changing kit.Model = func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("a", &kit.Dense{Dim: kit.ShapeDim}, in[0])
		x = t.Call("b", &moody{kit.Dense{Dim: kit.ShapeDim, Mem: true}}, x, x)
		return kit.Regress(t, in, t.Call("c", &kit.Dense{Dim: kit.ShapeDim}, x)), nil
	}
	rows := [][]int{{3, 1, 1}, {1, 3, 1, 2}, {}, {2}}
	batch := func(rank, i int) []fsdp.Tensor {
		n, seed := rows[rank][i], 20*rank+2*i
		return []fsdp.Tensor{kit.Floats(seed, n, kit.ShapeDim), kit.Floats(seed+1, n, kit.ShapeDim)}
	}
	kit.OnRanks(t, len(rows), func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, changing, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), GradAverage: fsdp.ByOne, Precision: kit.Float64s, Poison: true})
		one := kit.Wrap(t, changing, fsdp.Config{Precision: kit.Float64s})
		for r := range rows {
			for i := range rows[r] {
				kit.ForwardBackward(t, ctx, one, batch(r, i))
			}
		}
		require.NoError(t, m.JoinCalls(ctx, func() error {
			for i := range rows[g.Rank()] {
				require.NoError(t, kit.TrainStep(ctx, m, batch(g.Rank(), i)))
			}
			return nil
		}))
		kit.RequireNear(t, kit.GradsOf(t, ctx, one), kit.GradsOf(t, ctx, m), 1e-13)
	})
}

// TestJoinCallsCountsOwnPasses trains with dropout and batch statistics: what a rank draws and
// observes in JoinCalls does not depend on what others do there. Afterwards all count alike, so that
// a training that continues from a checkpoint is the same.
func TestJoinCallsCountsOwnPasses(t *testing.T) {
	run := func(others int, fails error) (losses []uint64) {
		dir := t.TempDir()
		kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
			cfg := fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Poison: true}
			m := kit.Wrap(t, kit.DropoutGPT(), cfg)
			count := 2
			if g.Rank() > 0 {
				count = others * g.Rank()
			}
			err := m.JoinCalls(ctx, func() error {
				for i := range count {
					loss := kit.ForwardBackward(t, ctx, m, kit.TinyBatch(i, g.Rank(), 1, 3))
					if g.Rank() == 0 {
						losses = append(losses, math.Float64bits(loss))
					}
				}
				if g.Rank() > 0 {
					return nil
				}
				return fails
			})
			require.Equal(t, fails != nil, err != nil)
			m.ZeroGrad()
			require.NoError(t, m.Save(ctx, dir, nil, nil))
			again := kit.Wrap(t, kit.DropoutGPT(), cfg)
			_, err = again.Load(ctx, dir, nil, nil)
			require.NoError(t, err)
			want, got := kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank())), kit.ForwardBackward(t, ctx, again, kit.GoodBatch(g.Rank()))
			require.Equal(t, want, got)
		})
		return losses
	}
	alone := run(0, nil)
	for _, others := range []int{1, 3} {
		require.Equal(t, alone, run(others, nil))
	}
	run(0, kit.ErrOops) // where ranks are in different places when it ends
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m, one := kit.Wrap(t, kit.Statistics, fsdp.Config{Group: g, Precision: kit.Float64s}), kit.Wrap(t, kit.Statistics, fsdp.Config{Precision: kit.Float64s})
		calls := func(m *fsdp.Sharded) error {
			for i := range 1 + 2*g.Rank() {
				if _, err := m.Forward(ctx, kit.UnevenBatch(i, g.Rank())...); err != nil {
					return err
				}
			}
			return nil
		}
		require.NoError(t, calls(one))
		require.NoError(t, m.JoinCalls(ctx, func() error { return calls(m) }))
		want, err := kit.OwnState(ctx, one)
		require.NoError(t, err)
		got, err := kit.OwnState(ctx, m)
		require.NoError(t, err)
		kit.RequireSameBits(t, kit.BitsOf(want), kit.BitsOf(got))
	})
}
