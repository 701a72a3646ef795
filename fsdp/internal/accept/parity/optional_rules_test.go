package parity_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/optim"
)

// sighted is a model with a tower for an image, which a batch may lack. The second result is the
// output of the tower.
type sighted struct{ dropout bool }

func (*sighted) Inputs() []string { return []string{"text", "target", "image"} }

func (s *sighted) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	text := t.Call("text", &kit.Dense{Dim: kit.ShapeDim}, in[0])
	seen := t.Call("eye.0", &kit.Dense{Dim: kit.ShapeDim}, t.Optional(in[2]))
	seen = t.Call("eye.1", &kit.Dense{Dim: kit.ShapeDim}, seen)
	if s.dropout {
		seen = t.Call("dropout", &kit.Module{Graph: func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
			y, err := op.Dropout(in[0], 0.3, b.Stream("mask"))
			return gorgonia.Nodes{y}, err
		}}, seen)
	}
	x := t.Call("mix", &kit.Dense{Dim: kit.ShapeDim, Mem: true}, text, seen).Or(text)
	x = t.Call("end", &kit.Dense{Dim: kit.ShapeDim}, x)
	return []fsdp.Ref{t.Call("distance", kit.Distance, x, in[1]), seen}, nil
}

// sightedBatch returns a batch, with an image or without.
func sightedBatch(seed int, image bool) []fsdp.Tensor {
	b := []fsdp.Tensor{kit.Floats(seed, 3, kit.ShapeDim), kit.Floats(seed+1, 3, kit.ShapeDim), nil}
	if image {
		b[2] = kit.Floats(seed+2, 3, kit.ShapeDim)
	}
	return b
}

// TestOptionalLeavesAlone trains with AdamW, which moves a parameter with a gradient of zeros, too.
// In a step in which no rank has an image, in any of its passes, the tower and all that the
// optimizer keeps of it stay as they are, to the bit; one image on one rank, inside NoSync, is
// enough to move it.
func TestOptionalLeavesAlone(t *testing.T) {
	kit.EveryStrategy(t, 4, func(t *testing.T, cfg fsdp.Config) {
		kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
			cfg := cfg
			cfg.Group, cfg.WrapPolicy, cfg.Precision = g, fsdp.WrapEach(), kit.Float64s
			m := kit.Wrap(t, &sighted{}, cfg)
			opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Params())
			require.NoError(t, err)
			look := func() kit.Bits {
				all := kit.StateBits(t, ctx, m)
				full, err := m.OptimStateDict(ctx, opt, nil)
				require.NoError(t, err)
				if full != nil {
					for _, e := range full.Entries() {
						for _, x := range kit.Numbers(t, e.Data) {
							all[e.Param+" "+e.Name] = append(all[e.Param+" "+e.Name], math.Float64bits(x))
						}
					}
				}
				return all
			}
			before := look()
			for step, at := range []int{-1, 2, -1, 5, -1} { // the pass and rank that have an image
				for pass := range 2 {
					run := func() error {
						kit.ForwardBackward(t, ctx, m, sightedBatch(10*step+pass, at == 4*pass+g.Rank()))
						return nil
					}
					if pass == 0 {
						require.NoError(t, m.NoSync(run))
					} else {
						require.NoError(t, run())
					}
				}
				grads, err := m.FullGrads(ctx)
				require.NoError(t, err)
				norms, err := m.GradNorms(ctx, fsdp.L2Norm)
				require.NoError(t, err)
				require.Len(t, norms, len(grads))
				_, err = m.ClipGradNorm(ctx, 0.1)
				require.NoError(t, err)
				require.NoError(t, opt.Step(1e-2))
				m.ZeroGrad()
				after := look()
				for name, v := range after {
					tower := strings.HasPrefix(name, "eye") || strings.HasPrefix(name, "mix")
					if tower && at < 0 {
						require.Equal(t, before[name], v, "step %d: %s", step, name)
					} else if !strings.Contains(name, " ") {
						require.NotEqual(t, before[name], v, "step %d: %s", step, name)
					}
				}
				require.Equal(t, at >= 0, grads["eye.0.w"] != nil)
				require.Equal(t, at >= 0, grads["mix.v"] != nil)
				require.NotNil(t, grads["text.w"])
				before = after
			}
			require.NoError(t, m.Close())
		})
	})
}

// TestOptionalCost compares a rank without an image with one that has it, and with a model without
// a tower: it has the collectives of the first, and the buffers of the second.
func TestOptionalCost(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		absent := make(map[string]int)
		cfg := fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: kit.Float64s, Poison: true}
		cfg.Observers = append(cfg.Observers, fsdp.TraceFunc(func(e fsdp.Event) {
			if e.Absent {
				absent[e.Kind+" "+e.Call]++
			}
		}))
		m := kit.Wrap(t, &sighted{}, cfg)
		plans := make([]*fsdp.Plan, 2)
		for i, image := range []bool{false, true} {
			var err error
			plans[i], err = m.Plan(sightedBatch(1, image)...)
			require.NoError(t, err)
		}
		require.Equal(t, plans[1].Gathers, plans[0].Gathers)
		require.Equal(t, plans[1].Reduces, plans[0].Reduces)
		require.Equal(t, plans[1].Traffic, plans[0].Traffic)
		require.Less(t, plans[0].FLOPs, plans[1].FLOPs*2/3)

		plain := kit.Wrap(t, kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
			x := t.Call("text", &kit.Dense{Dim: kit.ShapeDim}, in[0])
			x = t.Call("end", &kit.Dense{Dim: kit.ShapeDim}, x)
			return []fsdp.Ref{t.Call("distance", kit.Distance, x, in[1])}, nil
		}), fsdp.Config{Group: g, Strategy: fsdp.NoShard, Precision: kit.Float64s, WrapPolicy: fsdp.WrapEach()})
		p, err := plain.Plan(sightedBatch(1, false)[:2]...)
		require.NoError(t, err)
		require.Equal(t, p.FLOPs, plans[0].FLOPs)
		m.ResetPeak()
		kit.ForwardBackward(t, ctx, m, sightedBatch(1, g.Rank() == 1))
		require.Equal(t, plans[g.Rank()].ShardBytes+plans[g.Rank()].PassBytes, m.Memory().Peak)
		if g.Rank() == 0 {
			require.Equal(t, map[string]int{
				"forward eye.0": 1, "forward eye.1": 1, "forward mix": 1, "backward eye.0": 1, "backward eye.1": 1, "backward mix": 1,
			}, absent)
		} else {
			require.Empty(t, absent)
		}
		still := kit.Wrap(t, &sighted{}, fsdp.Config{Group: g, Strategy: fsdp.NoShard, Precision: kit.Float64s, WrapPolicy: fsdp.WrapEach(), Frozen: func(name string) bool {
			return strings.HasPrefix(name, "eye") || strings.HasPrefix(name, "mix") // whose gradients would be whole for a moment
		}})
		q, err := still.Plan(sightedBatch(1, false)...)
		require.NoError(t, err)
		require.Equal(t, p.PassBytes, q.PassBytes)
		require.NoError(t, errors.Join(m.Close(), plain.Close(), still.Close()))
	})
}

// TestOptionalEval evaluates on ranks of which one has an image, alone inside JoinCalls, and trains
// there.
func TestOptionalEval(t *testing.T) {
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, &sighted{}, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: kit.Float64s, Poison: true})
		for seed := range 3 {
			image := seed == g.Rank()
			out, err := m.Eval(ctx, sightedBatch(seed, image)...)
			require.NoError(t, err)
			require.Len(t, out, 2)
			require.Equal(t, image, out[1] != nil)
		}
		require.NoError(t, m.JoinCalls(ctx, func() error {
			for i := range 2 * g.Rank() {
				if _, err := m.Eval(ctx, sightedBatch(i, i%2 == 1)...); err != nil {
					return err
				}
				if err := kit.TrainStep(ctx, m, sightedBatch(i, g.Rank() == 2 && i == 1)); err != nil {
					return err
				}
			}
			return nil
		}))
		grads, err := m.FullGrads(ctx)
		require.NoError(t, err)
		require.Contains(t, grads, "eye.0.w", "rank 2 had an image once")
		require.NoError(t, m.Close())
	})
}

// TestOptionalVirtualRanks trains micro-batches of which some have images on 1, 2 and 4 ranks, to
// the same bits.
func TestOptionalVirtualRanks(t *testing.T) {
	var want kit.Bits
	for _, ranks := range []int{4, 2, 1} {
		kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, &sighted{dropout: true}, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: kit.Float64s, VirtualRanks: 4, Seed: 3})
			update := kit.Updater(t, m, 0.1)
			for step := range 3 {
				for pass := range 4 / ranks {
					v := pass*ranks + g.Rank()
					kit.ForwardBackward(t, ctx, m, sightedBatch(10*step+v, (step+v)%3 == 0 && step != 1))
				}
				update(ctx)
			}
			if got := kit.StateBits(t, ctx, m); g.Rank() == 0 && want == nil {
				want = got
			} else if g.Rank() == 0 {
				kit.RequireSameBits(t, want, got, ranks, " ranks")
			}
			require.NoError(t, m.Close())
		})
	}
}

// TestOptionalPrecision trains in bfloat16, and with gradients that travel in it, with
// checkpointing and without, to the same bits under two wrappings.
func TestOptionalPrecision(t *testing.T) {
	kit.Needs(t, kit.ActiveRanks)
	for _, p := range kit.ParityPrecisions {
		var want kit.Bits
		for _, cfg := range []fsdp.Config{{WrapPolicy: fsdp.WrapEach()}, {Strategy: fsdp.ShardGradOp, Activations: fsdp.Activations{Recompute: fsdp.WrapEach()}}} {
			kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
				cfg := cfg
				cfg.Group, cfg.Poison, cfg.GradAverage = g, true, fsdp.ByActive
				cfg.Precision = fsdp.Precision{Compute: p.Compute, Gather: p.Gather, Reduce: p.Reduce}
				m := kit.Wrap(t, &sighted{dropout: true}, cfg)
				update := kit.Updater(t, m, 0.1)
				for step := range 3 {
					image := (step+g.Rank())%3 == 0
					batch := sightedBatch(step, image)
					if kit.InType(batch[:2], p.Compute); image {
						kit.InType(batch[2:], p.Compute)
					}
					kit.ForwardBackward(t, ctx, m, batch)
					update(ctx)
				}
				if got := kit.StateBits(t, ctx, m); g.Rank() == 0 && want == nil {
					want = got
				} else if g.Rank() == 0 {
					kit.RequireSameBits(t, want, got, p.Name)
				}
				require.NoError(t, m.Close())
			})
		}
	}
}

// TestOptionalIsSaid gives models and batches that say too little of absence.
func TestOptionalIsSaid(t *testing.T) {
	says := func(text string, f func(t *fsdp.Tape, in []fsdp.Ref) []fsdp.Ref) {
		_, err := fsdp.Wrap(kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) { return f(t, in), nil }), fsdp.Config{})
		require.ErrorContains(t, err, text)
	}
	says("the loss may be absent, see Tape.Optional: give another value for that case by Or", func(t *fsdp.Tape, in []fsdp.Ref) []fsdp.Ref {
		return []fsdp.Ref{t.Call("a", &kit.Dense{Dim: kit.ShapeDim}, t.Optional(in[0]))}
	})
	says("Optional: a value that is not a tensor of the batch needs a function", func(t *fsdp.Tape, in []fsdp.Ref) []fsdp.Ref {
		return []fsdp.Ref{t.Optional(t.Call("a", &kit.Dense{Dim: kit.ShapeDim}, in[0]))}
	})
	says("Optional: a function is nil", func(t *fsdp.Tape, in []fsdp.Ref) []fsdp.Ref {
		return []fsdp.Ref{t.Optional(t.Call("a", &kit.Dense{Dim: kit.ShapeDim}, in[0]), nil)}
	})
	says("result 0 is not the output of a call of this model", func(t *fsdp.Tape, in []fsdp.Ref) []fsdp.Ref {
		return []fsdp.Ref{t.Call("a", &kit.Dense{Dim: kit.ShapeDim}, t.Optional(in[0])).Or(in[1])}
	})
	says("Or: input 1 is not a value of this model", func(t *fsdp.Tape, in []fsdp.Ref) []fsdp.Ref {
		return []fsdp.Ref{t.Call("a", &kit.Dense{Dim: kit.ShapeDim}, in[0]).Or(fsdp.Ref{})}
	})
	says("At(1): the value is not the output of a call", func(t *fsdp.Tape, in []fsdp.Ref) []fsdp.Ref {
		return []fsdp.Ref{t.Call("a", &kit.Dense{Dim: kit.ShapeDim}, t.Optional(in[0])).Or(t.Zeros("none", 1)).At(1)}
	})
	_, err := fsdp.Wrap(&sighted{}, fsdp.Config{Device: noDevice{}, GradAverage: fsdp.ByActive})
	require.ErrorContains(t, err, "Config.Device does not support Config.GradAverage = ByActive")
	for r, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		m := kit.Wrap(t, &sighted{}, fsdp.Config{Group: g, Precision: kit.Float64s})
		b := sightedBatch(0, true)
		if g.Rank() == 1 {
			b[1] = nil
		}
		_, err := m.Forward(ctx, b...)
		return errors.Join(err, m.Close())
	}) {
		require.ErrorContains(t, err, "batch tensor 1 (target): the tensor is nil, but the model has not declared it as optional by Tape.Optional", "rank %d", r)
	}
	for r, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		_, err := fsdp.Wrap(kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
			x := t.Call("a", &kit.Dense{Dim: kit.ShapeDim}, in[0])
			if y := t.Call("b", &kit.Dense{Dim: kit.ShapeDim}, x); g.Rank() == 0 {
				x = t.Optional(y, func([]fsdp.Tensor) bool { return true }).Or(x)
			} else {
				x = y.Or(x)
			}
			return kit.Regress(t, in, x), nil
		}), fsdp.Config{Group: g})
		return err
	}) {
		require.ErrorContains(t, err, "ranks disagree about the model or configuration", "rank %d", r)
	}
	for r, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		m := kit.Wrap(t, kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
			x := t.Call("a", &kit.Dense{Dim: kit.ShapeDim}, in[0])
			y := t.Optional(t.Call("b", &kit.Dense{Dim: kit.ShapeDim}, x), func([]fsdp.Tensor) bool { panic(fmt.Sprint("panic of rank ", g.Rank())) })
			return kit.Regress(t, in, y.Or(x)), nil
		}), fsdp.Config{Group: g, Precision: kit.Float64s})
		_, err := m.Forward(ctx, sightedBatch(0, false)[:2]...)
		return errors.Join(err, m.Close())
	}) {
		require.ErrorContains(t, err, "a function of the model's Optional", "rank %d", r)
		require.ErrorContains(t, err, "panic of rank 0", "rank %d", r)
	}
}

// noDevice is one that Wrap refuses before it asks for anything.
type noDevice struct{}

func (noDevice) Settings() string { return "" }

func (noDevice) Engine(engine.DeviceOptions) (engine.Device, error) { panic("not reached") }

// TestOptionalManyPasses runs random passes with random absence, where time stands still as long as
// any rank can go on: 10,000 of them, or in make test a part.
func TestOptionalManyPasses(t *testing.T) {
	kit.Needs(t, kit.FakeTime)
	passes := 2000
	if n := os.Getenv("FSDP_TEST_PASSES"); n != "" {
		var err error
		passes, err = strconv.Atoi(n)
		require.NoError(t, err)
	}
	synctest.Test(t, func(t *testing.T) {
		kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, &sighted{}, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: kit.Float64s, Poison: true, GradAverage: fsdp.ByActive})
			update := kit.Updater(t, m, 1)
			all, mine := rand.New(rand.NewPCG(1, 0)), rand.New(rand.NewPCG(2, uint64(g.Rank())))
			done := 0
			for done < passes {
				for batch, err := range m.Join(ctx, kit.Batches(1+all.IntN(9), func(int) []fsdp.Tensor {
					if g.Rank() > 0 && mine.IntN(5) == 0 {
						return nil
					}
					return sightedBatch(mine.IntN(100), mine.IntN(2) == 0)
				})) {
					require.NoError(t, err)
					done++
					if what := all.IntN(8); what == 0 {
						_, err := m.Eval(ctx, batch...)
						require.NoError(t, err)
					} else if require.NoError(t, kit.TrainStep(ctx, m, batch)); what == 1 {
						update(ctx)
					}
				}
			}
			require.NoError(t, m.Close())
		})
	})
}

// TestOptionalFaults has each rank, those without an image too, fail in each operation of a pass
// and in each of its collectives, and be cancelled there: every rank returns why.
func TestOptionalFaults(t *testing.T) {
	kit.Needs(t, kit.FakeTime)
	run := func(faulty int, trace func(cancel context.CancelCauseFunc, e fsdp.Event), decide func(commtest.Call) commtest.Fault) (failed int) {
		synctest.Test(t, func(t *testing.T) {
			errs := make([]error, 3)
			require.NoError(t, comm.Run(context.Background(), 3, func(ctx context.Context, g comm.Group) error {
				ctx, cancel := context.WithCancelCause(ctx)
				defer cancel(nil)
				cfg := fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: kit.Float64s, Poison: true}
				if g.Rank() == faulty {
					cfg.Group = commtest.Faulty(g, decide)
					cfg.Observers = append(cfg.Observers, fsdp.TraceFunc(func(e fsdp.Event) { trace(cancel, e) }))
				}
				m := kit.Wrap(t, &sighted{}, cfg)
				for i := range 2 {
					if err := kit.TrainStep(ctx, m, sightedBatch(i, (g.Rank()+i)%3 == 0)); err != nil {
						errs[g.Rank()] = err
						break
					}
				}
				require.NoError(t, m.Close())
				return nil
			}))
			for _, err := range errs {
				if err != nil {
					failed++
					require.ErrorContains(t, err, kit.ErrOops.Error())
				}
			}
		})
		return failed
	}
	none := func(commtest.Call) commtest.Fault { return commtest.Fault{} }
	for faulty := range 3 {
		operations := 0
		require.Zero(t, run(faulty, func(context.CancelCauseFunc, fsdp.Event) { operations++ }, none))
		for at := range operations {
			for _, cancels := range []bool{false, true} {
				left := at
				failed := run(faulty, func(cancel context.CancelCauseFunc, _ fsdp.Event) {
					if left--; left == -1 && cancels {
						cancel(kit.ErrOops)
					} else if left == -1 {
						panic(kit.ErrOops)
					}
				}, none)
				if at < operations-1 || !cancels { // nothing comes after the last that would see the context
					require.Positive(t, failed, "rank %d, operation %d, cancelled %t", faulty, at, cancels)
				}
			}
		}
		for at, failed := 5, 3; failed > 0; at++ { // Wrap has four
			left := at
			failed = run(faulty, func(context.CancelCauseFunc, fsdp.Event) {}, func(commtest.Call) commtest.Fault {
				if left--; left == 0 {
					return commtest.Fault{Err: kit.ErrOops}
				}
				return commtest.Fault{}
			})
			require.Less(t, at, 100)
		}
	}
}
