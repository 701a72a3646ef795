package join_test

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// What there is to go wrong when ranks have different numbers of batches, and the test that would
// notice. Most of it happens at random in TestJoinAtRandom, called random here.
//
//	 1 no batch before the first forward                 TestJoin, TestJoinLearns, TestJoinMemory, random
//	 2 one rank; even data; Join not used                TestJoin, random; TestJoinExchanges counts the flags
//	 3 all used up at once; one rank goes on alone       TestJoin; TestOneRankGoesOn
//	 4 an error on one rank                              TestJoinFailures, TestJoinDataFails, TestJoinRefusals
//	 5 an error in the middle of a pass                  TestJoinFailures
//	 6 used up in the middle of a NoSync window          TestJoinMidWindow, random
//	 7 accumulation without NoSync                       random
//	 8 where a step ends                                 the body decides, the same on all ranks: TestJoinBodiesDiffer
//	 9 NoSync on some ranks only                         TestJoinBodiesDiffer
//	10 clipping, infinite norms                          TestJoinMidWindow, random
//	11 loss scales that overflow                         TestJoinLossScale
//	12 infinities in a loss times zero                   there is no such product: TestJoinRefusals
//	13 the type of zeros that travel in 16 bits          TestJoinedIsWeightless
//	14 momentum, decay, step counts of a joined rank     TestGoldenJoin (AdamW), random
//	15 optimizers that communicate                       there are none
//	16 statistics of batches                             random (the model "statistics")
//	17 collectives inside of modules                     there are none
//	18 dropout                                           TestJoinedIsWeightless
//	19 a schedule that depends on the batch              TestJoinLearnsAgain
//	20 frozen and unused parameters                      TestJoinLearns, random
//	21 units in groups of their own, hybrid strategies   random
//	22 the order of collectives in several groups        one schedule orders all: random
//	23 prefetching                                       random
//	24 parameters that every rank has whole              random (ignored, NoShard)
//	25 units that stay whole                             random (ShardGradOp)
//	26 activation checkpoints                            random
//	27 several forwards before a backward                random ("two", "later")
//	28 a forward without a backward                      random ("drop")
//	29 other programs of a model                         TestJoinGenerates
//	30 done with a batch while others are not            TestJoinGenerates, TestJoinCallsBeamSearch
//	31 done is agreed for each step, in one group        TestJoinGenerates
//	32 two models in one loop                            TestJoinTwoModels
//	33 evaluating and saving inside of a training        random (nested Joins, "look")
//	34 memory in files                                   TestJoinOffload
//	35 quantized collectives                             there are none
//	36 means over ranks of what is measured              a joined rank's loss is 0, its results are none: random
//	37 deadlines while waiting for a flag                TestJoinFailures, TestJoinNeverWaits
//	38 the cost of a flag                                TestJoinExchanges, make bench-join
//	39 a second epoch                                    random, TestJoinedIsWeightless
//	40 nobody is active                                  TestNobodyHasABatch
//	41 parameters whole through an evaluation            random (NoShard)

// TestJoin trains ranks with different numbers of batches of different shapes against one process
// that adds up the gradients of those that have one.
func TestJoin(t *testing.T) {
	for _, divide := range []fsdp.GradAverage{fsdp.ByRanks, fsdp.ByActive} {
		for _, data := range [][]string{ // of each rank, in which iterations it has a batch
			{"xxx", "", "xxxxx"}, {"xx", "xx", "xx"}, {"", "", "x"}, {"", "", ""}, {"xxxx"}, {"x", "xxxxxxx"}, {"x.xx", "..x", ".x.."},
		} {
			t.Run(fmt.Sprint(divide, data), func(t *testing.T) {
				has := func(rank, i int) bool { return i < len(data[rank]) && data[rank][i] == 'x' }
				iterations := 0
				for _, d := range data {
					iterations = max(iterations, len(d))
				}
				batch := func(rank, i int) []fsdp.Tensor { return kit.TinyBatch(i, rank, 1+(i+rank)%2, 3+i%2) }
				ref := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Precision: kit.Float64s, GradAverage: fsdp.ByOne, Seed: 3})
				opt, err := optim.SGD{Momentum: 0.9}.New(ref.Params())
				require.NoError(t, err)
				for i := range iterations {
					active := 0
					for r := range data {
						if has(r, i) {
							active++
						}
					}
					if divide == fsdp.ByRanks {
						active = len(data)
					}
					for r := range data {
						if has(r, i) {
							_, err := ref.Forward(t.Context(), batch(r, i)...)
							require.NoError(t, err)
							require.NoError(t, ref.Backward(t.Context(), fsdp.Scale(1/float64(active))))
						}
					}
					_, err = ref.ClipGradNorm(t.Context(), 0.5)
					require.NoError(t, err)
					require.NoError(t, opt.Step(0.1))
					ref.ZeroGrad()
				}
				want, err := ref.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
				require.NoError(t, err)
				kit.OnRanks(t, len(data), func(ctx context.Context, g comm.Group) {
					m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, Precision: kit.Float64s, GradAverage: divide, WrapPolicy: kit.Blocks, Seed: 3, Poison: true})
					opt, err := optim.SGD{Momentum: 0.9}.New(m.Params())
					require.NoError(t, err)
					mine := func(yield func([]fsdp.Tensor, error) bool) {
						for i := range data[g.Rank()] {
							var b []fsdp.Tensor
							if has(g.Rank(), i) {
								b = batch(g.Rank(), i)
							}
							if !yield(b, nil) {
								return
							}
						}
					}
					passes := 0
					for b, err := range m.Join(ctx, mine) {
						require.NoError(t, err)
						passes++
						_, err = m.Forward(ctx, b...)
						require.NoError(t, err)
						require.NoError(t, m.Backward(ctx))
						_, err = m.ClipGradNorm(ctx, 0.5)
						require.NoError(t, err)
						require.NoError(t, opt.Step(0.1))
						m.ZeroGrad()
						_, err = m.Eval(ctx, b...)
						require.NoError(t, err)
					}
					require.Equal(t, iterations, passes)
					got, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
					require.NoError(t, err)
					for name := range want {
						require.InDeltaSlice(t, kit.Elements(want[name]), kit.Elements(got[name]), 1e-12, name)
					}
				})
			})
		}
	}
}

// unevenly runs a loop over this rank's batches of shapes until it or its body fails.
func unevenly(ctx context.Context, m *fsdp.Sharded, rank, count int, body func(i int, batch []fsdp.Tensor) error, opts ...fsdp.JoinOption) error {
	i := 0
	for batch, err := range m.Join(ctx, kit.Batches(count, func(i int) []fsdp.Tensor { return kit.UnevenBatch(i, rank) }), opts...) {
		if err == nil {
			err = body(i, batch)
		}
		if err != nil {
			return err
		}
		i++
	}
	return nil
}

// TestJoinedIsWeightless trains ranks with different numbers of batches, and again with as many on
// all, of which those beyond the first count nothing. Under every strategy and precision the losses
// and parameters have the same bits, and so have the masks of dropout, which count passes and not
// batches. What a joined rank says of its batch is ignored.
func TestJoinedIsWeightless(t *testing.T) {
	epochs := [][]int{{3, 1, 0, 2}, {0, 2, 2, 1}}
	for _, p := range kit.ParityPrecisions {
		kit.EveryStrategy(t, 4, func(t *testing.T, cfg fsdp.Config) {
			cfg.WrapPolicy, cfg.Precision, cfg.GradAverage = kit.Blocks, fsdp.Precision{Compute: p.Compute, Gather: p.Gather, Reduce: p.Reduce}, fsdp.ByWeights
			run := func(joins bool) [4]kit.Bits {
				var seen [4]kit.Bits
				kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
					cfg := cfg
					cfg.Group = g
					m := kit.Wrap(t, kit.DropoutGPT(), cfg)
					update, losses := kit.Updater(t, m, 0.5), []uint64{}
					for e, counts := range epochs {
						batch := func(i int) []fsdp.Tensor { return kit.TinyBatch(10*e+i, g.Rank(), 1+i%2, kit.TinyContext-g.Rank()) }
						data, i := kit.Batches(counts[g.Rank()], batch), 0
						if !joins {
							data = kit.Batches(slices.Max(counts), batch)
						}
						for b, err := range m.Join(ctx, data) {
							require.NoError(t, err)
							loss, err := m.Forward(ctx, b...)
							require.NoError(t, err)
							weight := 0.0
							if i < counts[g.Rank()] {
								weight = 2 + float64(g.Rank())
								losses = append(losses, math.Float64bits(loss))
							} else if joins {
								weight = math.NaN()
							}
							require.NoError(t, m.Backward(ctx, fsdp.Weight(weight)))
							update(ctx)
							i++
						}
					}
					seen[g.Rank()] = kit.StateBits(t, ctx, m)
					seen[g.Rank()]["losses"] = losses
				})
				return seen
			}
			want, got := run(false), run(true)
			for r := range want {
				kit.RequireSameBits(t, want[r], got[r], p.Name)
			}
		})
	}
}

// TestOneRankGoesOn trains one rank for a thousand steps, a hundred on doubles of GPUs, after all others
// have run out, which is as if it were alone.
func TestOneRankGoesOn(t *testing.T) {
	steps := 1000
	if !kit.GroupsCarryPasses {
		steps = 100
	}
	run := func(world int) (state kit.Bits) {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m := kit.Chain64(t, g, func(c *fsdp.Config) { c.GradAverage = fsdp.ByOne })
			opt := kit.Momentum(t, m.Params())
			count := 0
			if g.Rank() == world-1 {
				count = steps
			}
			passes := 0
			require.NoError(t, unevenly(ctx, m, 0, count, func(i int, batch []fsdp.Tensor) error {
				passes++
				if err := kit.TrainStep(ctx, m, batch); err != nil {
					return err
				}
				defer m.ZeroGrad()
				return opt.Step(1e-3)
			}))
			require.Equal(t, steps, passes)
			if b := kit.StateBits(t, ctx, m); g.Rank() == 0 {
				state = b
			}
		})
		return state
	}
	kit.RequireSameBits(t, run(1), run(3))
}

// TestJoinMidWindow lets a rank run out in the middle of a window without reductions: the gradients
// that it has are handed in, and every rank finds the same norms.
func TestJoinMidWindow(t *testing.T) {
	for _, sync := range []bool{true, false} { // by SyncGrads, or by the last Backward
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			m := kit.Chain64(t, g)
			require.NoError(t, unevenly(ctx, m, g.Rank(), 3-2*g.Rank(), func(i int, batch []fsdp.Tensor) error {
				if !sync && i == 2 {
					return kit.TrainStep(ctx, m, batch)
				}
				return m.NoSync(func() error { return kit.TrainStep(ctx, m, batch) })
			}))
			require.NoError(t, m.SyncGrads(ctx))
			want, all, most := kit.Record{}, 0.0, 0.0
			for _, at := range [][2]int{{0, 0}, {0, 1}, {0, 2}, {1, 0}} { // rank and batch
				one := kit.Chain64(t, nil)
				kit.ForwardBackward(t, ctx, one, kit.UnevenBatch(at[1], at[0]))
				kit.AddTo(want, kit.GradsOf(t, ctx, one), 0.5)
			}
			kit.RequireNear(t, want, kit.GradsOf(t, ctx, m), 1e-14)
			for _, v := range want {
				for _, x := range v {
					all, most = all+x*x, max(most, math.Abs(x))
				}
			}
			norm, err := m.ClipGradNorm(ctx, math.Inf(1), fsdp.InfNorm)
			require.NoError(t, err)
			require.InDelta(t, most, norm, 1e-14)
			norm, err = m.ClipGradNorm(ctx, math.Inf(1))
			require.NoError(t, err)
			require.InDelta(t, math.Sqrt(all), norm, 1e-14)
			kit.RequireIdle(t, ctx, m, kit.ShapeBatch(0))
		})
	}
}

// TestJoinLossScale overflows the gradients of the one rank that has a batch: every rank leaves the
// step out, and all have the same scale.
func TestJoinLossScale(t *testing.T) {
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Regression, fsdp.Config{Group: g})
		opt := kit.Momentum(t, m.Params())
		scaler, err := optim.LossScale{Init: 0x1p126, Backoff: 0x1p-20, Interval: 1}.New()
		require.NoError(t, err)
		big := func(int) []fsdp.Tensor {
			return kit.InType([]fsdp.Tensor{kit.Vector(1e3, 1e3, 1e3, 1e3), kit.Vector(0, 0, 0, 0)}, fsdp.Float32)
		}
		before := kit.StateBits(t, ctx, m)
		var found []bool
		for batch, err := range m.Join(ctx, kit.Batches(2*(g.Rank()/2), big)) {
			require.NoError(t, err)
			require.NoError(t, kit.TrainStep(ctx, m, batch, fsdp.Scale(scaler.Scale())))
			finite, err := m.Unscale(ctx, scaler)
			require.NoError(t, err)
			found = append(found, finite)
			if finite {
				require.NoError(t, opt.Step(1e-9))
				require.NotEqual(t, before, kit.StateBits(t, ctx, m))
			} else {
				kit.RequireSameBits(t, before, kit.StateBits(t, ctx, m))
			}
		}
		require.Equal(t, []bool{false, true}, found)
		require.Equal(t, 0x1p107, scaler.Scale())
	})
}

// TestJoinLearns trains a rank that never has a batch, and what it cannot know before the first
// pass is which parameters are read and trained: some are frozen, and some unused.
func TestJoinLearns(t *testing.T) {
	for _, name := range []string{"chain", "an unused call", "an unused parameter", "recurrence"} {
		for _, frozen := range kit.Freezable {
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, kit.Shapes[name], fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Frozen: frozen, GradAverage: fsdp.ByActive, Precision: kit.Float64s, Poison: true})
				one := kit.Wrap(t, kit.Shapes[name], fsdp.Config{Frozen: frozen, Precision: kit.Float64s})
				require.NoError(t, unevenly(ctx, m, 0, 2*g.Rank(), func(i int, batch []fsdp.Tensor) error {
					kit.ForwardBackward(t, ctx, one, kit.UnevenBatch(i, 0))
					return kit.TrainStep(ctx, m, batch)
				}))
				kit.RequireNear(t, kit.GradsOf(t, ctx, one), kit.GradsOf(t, ctx, m), 1e-14)
				got, err := m.GradNorms(ctx, fsdp.L2Norm)
				require.NoError(t, err)
				want, err := one.GradNorms(ctx, fsdp.L2Norm)
				require.NoError(t, err)
				require.Len(t, got, len(want))
			})
		}
	}
}

// moody is dense, but does not use v where x has one row.
type moody struct{ kit.Dense }

func (m *moody) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	if in[0].Shape()[0] == 1 {
		return (&kit.Dense{Dim: m.Dim}).Build(b, in...)
	}
	return m.Dense.Build(b, in...)
}

// TestJoinLearnsAgain trains a model whose schedule depends on the shape of the batch: a rank
// without batches learns it anew when it changes, and keeps the old one for the backward of a pass
// that was put aside.
func TestJoinLearnsAgain(t *testing.T) {
	var changing kit.Model = func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("a", &kit.Dense{Dim: kit.ShapeDim}, in[0])
		x = t.Call("b", &moody{kit.Dense{Dim: kit.ShapeDim, Mem: true}}, x, x)
		return kit.Regress(t, in, t.Call("c", &kit.Dense{Dim: kit.ShapeDim}, x)), nil
	}
	rows := []int{3, 1, 3, 1, 1, 2}
	batch := func(i int) []fsdp.Tensor {
		return []fsdp.Tensor{kit.Floats(2*i, rows[i], kit.ShapeDim), kit.Floats(2*i+1, rows[i], kit.ShapeDim)}
	}
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, changing, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), GradAverage: fsdp.ByActive, Precision: kit.Float64s, Poison: true})
		var held *fsdp.Pass
		i := 0
		for b, err := range m.Join(ctx, kit.Batches(len(rows)*g.Rank(), batch)) {
			require.NoError(t, err)
			one := kit.Wrap(t, changing, fsdp.Config{Precision: kit.Float64s})
			kit.ForwardBackward(t, ctx, one, batch(i))
			want := kit.GradsOf(t, ctx, one)
			require.Equal(t, rows[i] > 1, want["b.v"] != nil)
			_, err = m.Forward(ctx, b...)
			require.NoError(t, err)
			if held != nil {
				last := m.Hold()
				require.NoError(t, held.Backward(ctx))
				held = last
				m.ZeroGrad()
				require.NoError(t, held.Backward(ctx))
				held = nil
			} else if i == 2 {
				held = m.Hold()
				i++
				continue
			} else {
				require.NoError(t, m.Backward(ctx))
			}
			kit.RequireNear(t, want, kit.GradsOf(t, ctx, m), 1e-14)
			m.ZeroGrad()
			i++
		}
		kit.RequireIdle(t, ctx, m, batch(0))
	})
}

// TestJoinTwoModels runs a teacher and a student in one loop: a Join of the one inside a Join of
// the other, over the one batch or none, tells both.
func TestJoinTwoModels(t *testing.T) {
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		teacher, student := kit.Chain64(t, g), kit.Chain64(t, g, func(c *fsdp.Config) { c.Seed = 7 })
		passes := 0
		require.NoError(t, unevenly(ctx, teacher, g.Rank(), g.Rank(), func(i int, batch []fsdp.Tensor) error {
			one := kit.Batches(min(len(batch), 1), func(int) []fsdp.Tensor { return batch })
			for b, err := range student.Join(ctx, one) {
				require.NoError(t, err)
				require.Equal(t, batch, b)
				out, err := teacher.Eval(ctx, b...)
				require.NoError(t, err)
				passes++
				if len(b) > 0 {
					b = []fsdp.Tensor{b[0], out[1]}
				}
				require.NoError(t, kit.TrainStep(ctx, student, b))
			}
			return nil
		}))
		require.Equal(t, 2, passes)
	})
}

// TestJoinMemory checks that a rank without a batch takes no more memory than one with, and gives
// all of it back, and that its events are those of the others, marked.
func TestJoinMemory(t *testing.T) {
	for _, prefetch := range []int{fsdp.NoPrefetch, 2} {
		kit.EveryStrategy(t, 2, func(t *testing.T, cfg fsdp.Config) {
			var events [2][]fsdp.Event
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				cfg := cfg
				cfg.Group, cfg.WrapPolicy, cfg.Prefetch, cfg.Precision = g, fsdp.WrapEach(), prefetch, kit.Float64s
				cfg.Observers = append(cfg.Observers, fsdp.TraceFunc(func(e fsdp.Event) {
					require.Equal(t, g.Rank() == 0, e.Absent)
					events[g.Rank()] = append(events[g.Rank()], e)
				}))
				m := kit.Wrap(t, kit.Shapes["recurrence"], cfg)
				opt := kit.Momentum(t, m.Params())
				require.NoError(t, unevenly(ctx, m, 0, 2*g.Rank(), func(i int, batch []fsdp.Tensor) error {
					idle, whole := m.Memory().Live, 0
					m.ResetPeak()
					require.NoError(t, kit.TrainStep(ctx, m, batch))
					plan, err := m.Plan(kit.UnevenBatch(i, 0)...)
					require.NoError(t, err)
					if g.Rank() == 1 {
						require.Equal(t, plan.Peak(), m.Memory().Peak)
					}
					require.LessOrEqual(t, m.Memory().Peak, plan.Peak())
					require.Equal(t, plan.ShardBytes+plan.StateBytes, m.Memory().Live)
					require.Equal(t, idle, m.Memory().Live)
					require.NoError(t, m.NoSync(func() error { return kit.TrainStep(ctx, m, batch) }))
					for _, g := range plan.Groups {
						whole += g.Bytes
					}
					require.Equal(t, idle+whole, m.Memory().Live)
					require.NoError(t, m.SyncGrads(ctx))
					_, err = m.Eval(ctx, batch...)
					require.NoError(t, err)
					require.Equal(t, idle, m.Memory().Live)
					return opt.Step(0.1)
				}))
			})
			require.NotEmpty(t, events[0])
			require.Equal(t, kit.Schedule(events[1]), kit.Schedule(events[0]))
		})
	}
}

// talkingGroup counts the exchanges between ranks that are not of parameters or gradients.
type talkingGroup struct {
	comm.Group
	exchanges int
}

func (g *talkingGroup) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	if buf.DType() == comm.Int64 {
		g.exchanges++
	}
	return g.Group.AllReduce(buf, op)
}

func (g *talkingGroup) Broadcast(buf comm.Buffer, root int) comm.Work {
	if t := buf.DType(); t == comm.Int64 || t == comm.Uint8 {
		g.exchanges++
	}
	return g.Group.Broadcast(buf, root)
}

// TestJoinExchanges checks that Join costs one exchange for each iteration and one for the end,
// that ranks without batches learn once, and that without Join there is none of it.
func TestJoinExchanges(t *testing.T) {
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		talk := &talkingGroup{Group: g}
		m := kit.Chain64(t, talk)
		const steps = 4
		took := func(f func() error) int {
			talk.exchanges = 0
			require.NoError(t, f())
			return talk.exchanges
		}
		plain := took(func() error {
			for i := range steps {
				require.NoError(t, kit.TrainStep(ctx, m, kit.UnevenBatch(i, g.Rank())))
			}
			return nil
		})
		require.Equal(t, 2*steps+1, plain)
		plain-- // the first Forward compares where the batches come from
		body := func(_ int, batch []fsdp.Tensor) error { return kit.TrainStep(ctx, m, batch) }
		require.Equal(t, plain+steps+1, took(func() error { return unevenly(ctx, m, g.Rank(), steps, body) }))
		require.Equal(t, plain+steps+1, took(func() error { return unevenly(ctx, m, g.Rank(), steps*(g.Rank()/2), body) }))
		fresh := kit.Chain64(t, talk)
		body = func(_ int, batch []fsdp.Tensor) error { return kit.TrainStep(ctx, fresh, batch) }
		once := took(func() error { return unevenly(ctx, fresh, g.Rank(), steps*(g.Rank()/2), body) })
		require.Greater(t, once, plain+steps+1)
		require.Equal(t, plain+steps+1, took(func() error { return unevenly(ctx, fresh, g.Rank(), steps*(g.Rank()/2), body) }))
	})
}

// TestJoinPolicies ends loops at the shortest, refuses what is uneven, and leaves both and a
// broken-off loop behind without a trace.
func TestJoinPolicies(t *testing.T) {
	for _, c := range []struct {
		counts []int
		opts   []fsdp.JoinOption
		passes int
		err    string
	}{
		{[]int{3, 1, 2}, []fsdp.JoinOption{fsdp.StopAtShortest()}, 1, ""},
		{[]int{2, 0}, []fsdp.JoinOption{fsdp.StopAtShortest(), nil}, 0, ""},
		{[]int{2, 2}, []fsdp.JoinOption{fsdp.StopAtShortest()}, 2, ""},
		{[]int{3}, []fsdp.JoinOption{fsdp.StopAtShortest()}, 3, ""},
		{[]int{2, 2, 2}, []fsdp.JoinOption{fsdp.RefuseUneven()}, 2, ""},
		{[]int{0, 0}, []fsdp.JoinOption{fsdp.RefuseUneven()}, 0, ""},
		{[]int{3, 1, 2, 1}, []fsdp.JoinOption{fsdp.RefuseUneven()}, 1, "Join: ranks [1 3] have no batch left, but other ranks have: give all ranks the same number of batches, or use another policy than RefuseUneven"},
		{[]int{0, 1}, []fsdp.JoinOption{fsdp.StopAtShortest(), fsdp.RefuseUneven()}, 0, "Join: ranks [0] have no batch left, but other ranks have: give all ranks the same number of batches, or use another policy than RefuseUneven"},
	} {
		t.Run(fmt.Sprint(c.counts, c.passes, c.err), func(t *testing.T) {
			kit.OnRanks(t, len(c.counts), func(ctx context.Context, g comm.Group) {
				m := kit.Chain64(t, g)
				nothing := func() {
					_, err := m.Forward(ctx)
					require.ErrorContains(t, err, "the batch has 0 tensors, the model takes 2")
				}
				for range 2 { // epochs
					passes := 0
					err := unevenly(ctx, m, g.Rank(), c.counts[g.Rank()], func(_ int, batch []fsdp.Tensor) error {
						require.NotNil(t, batch)
						passes++
						return kit.TrainStep(ctx, m, batch)
					}, c.opts...)
					if c.err != "" {
						require.EqualError(t, err, fmt.Sprintf("fsdp: rank %d: %s", g.Rank(), c.err))
					} else {
						require.NoError(t, err)
					}
					require.Equal(t, c.passes, passes)
					nothing()
				}
				closed := 0
				loop := m.Join(ctx, func(yield func([]fsdp.Tensor, error) bool) {
					defer func() { closed++ }()
					for i := 0; i < c.counts[g.Rank()] && yield(kit.UnevenBatch(i, g.Rank()), nil); i++ {
					}
				})
				for epoch := 1; epoch <= 2; epoch++ { // one loop, twice, that all leave in the last iteration
					i := 0
					for batch, err := range loop {
						require.NoError(t, err)
						require.NoError(t, kit.TrainStep(ctx, m, batch))
						if i++; i == slices.Max(c.counts) {
							break
						}
					}
					require.Equal(t, slices.Max(c.counts), i)
					require.Equal(t, epoch, closed, "the data is told that the loop is over")
					nothing()
				}
				kit.RequireIdle(t, ctx, m, kit.ShapeBatch(0))
			})
		})
	}
}

// TestJoinDummy gives ranks that have run out a batch that would spoil every gradient it were part
// of. Their gradients are those of ranks without a batch, also after NoSync, under every divisor;
// forwards compute, and their statistics move.
func TestJoinDummy(t *testing.T) {
	counts := []int{3, 0, 1}
	for _, divide := range []fsdp.GradAverage{fsdp.ByRanks, fsdp.ByWeights, fsdp.ByActive, fsdp.ByOne} {
		var runs [2]kit.Bits
		for i := range runs {
			kit.OnRanks(t, len(counts), func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, Precision: kit.Float64s, GradAverage: divide, WrapPolicy: kit.Blocks, Poison: true})
				var opts []fsdp.JoinOption
				if i == 1 {
					opts = append(opts, fsdp.Dummy(kit.TinyBatch(99, 9, 2, 5)...))
				}
				data := func(yield func([]fsdp.Tensor, error) bool) {
					for k := range counts[g.Rank()] {
						if !yield(kit.TinyBatch(k, g.Rank(), 1, 3), nil) {
							return
						}
					}
				}
				pass := 0
				for batch, err := range m.Join(ctx, data, opts...) {
					require.NoError(t, err)
					require.Equal(t, i == 1 || pass < counts[g.Rank()], batch != nil)
					loss, err := m.Forward(ctx, batch...)
					require.NoError(t, err)
					require.Equal(t, batch != nil, loss != 0, "what is given is computed")
					var weight []fsdp.BackwardOption
					if divide == fsdp.ByWeights {
						weight = append(weight, fsdp.Weight(3))
					}
					back := func() error { return m.Backward(ctx, weight...) }
					if pass == 0 {
						require.NoError(t, m.NoSync(back))
					} else {
						require.NoError(t, back())
					}
					pass++
				}
				require.Equal(t, 3, pass)
				grads := kit.GradBits(t, ctx, m)
				if g.Rank() == 0 {
					runs[i] = grads
				}
			})
		}
		kit.RequireSameBits(t, runs[0], runs[1], "divide ", divide)
	}
}

// TestDummiesShareASchedule lets dummies have many shapes: their backwards compute nothing, so that
// one schedule does for all.
func TestDummiesShareASchedule(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, Precision: kit.Float64s, WrapPolicy: kit.Blocks})
		for i := range 4 {
			data := kit.Batches(1-g.Rank(), func(int) []fsdp.Tensor { return kit.TinyBatch(i, 0, 1, 3) })
			for batch, err := range m.Join(ctx, data, fsdp.Dummy(kit.TinyBatch(0, 0, 1+i, 3)...)) {
				require.NoError(t, err)
				require.NoError(t, kit.TrainStep(ctx, m, batch))
			}
			require.LessOrEqual(t, reflect.ValueOf(m).Elem().FieldByName("engine").Elem().FieldByName("absent").Len(), 1)
		}
	})
}
