package fsdp_test

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
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/optim"
)

// sighted is a model with a tower for an image, which a batch may lack, and what the tower has seen as a
// second result.
type sighted struct{ dropout bool }

func (*sighted) Inputs() []string { return []string{"text", "target", "image"} }

func (s *sighted) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	text := t.Call("text", &dense{dim: shapeDim}, in[0])
	seen := t.Call("eye.0", &dense{dim: shapeDim}, t.Optional(in[2]))
	seen = t.Call("eye.1", &dense{dim: shapeDim}, seen)
	if s.dropout {
		seen = t.Call("dropout", &module{build: func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
			y, err := op.Dropout(in[0], 0.3, b.Stream("mask"))
			return gorgonia.Nodes{y}, err
		}}, seen)
	}
	x := t.Call("mix", &dense{shapeDim, true}, text, seen).Or(text)
	x = t.Call("end", &dense{dim: shapeDim}, x)
	return []fsdp.Ref{t.Call("distance", distance, x, in[1]), seen}, nil
}

// sightedBatch returns a batch, with an image or without.
func sightedBatch(seed int, image bool) []fsdp.Tensor {
	b := []fsdp.Tensor{floats(seed, 3, shapeDim), floats(seed+1, 3, shapeDim), nil}
	if image {
		b[2] = floats(seed+2, 3, shapeDim)
	}
	return b
}

// TestOptionalLeavesAlone trains with AdamW, which moves a parameter with a gradient of zeros, too. In a
// step in which no rank has an image, in any of its passes, the tower and all that the optimizer keeps of
// it stay as they are, to the bit; one image on one rank, inside NoSync, is enough to move it.
func TestOptionalLeavesAlone(t *testing.T) {
	everyStrategy(t, 4, func(t *testing.T, cfg fsdp.Config) {
		onRanks(t, 4, func(ctx context.Context, g comm.Group) {
			cfg := cfg
			cfg.Group, cfg.Wrap, cfg.Precision = g, fsdp.WrapEach(), float64s
			m := wrap(t, &sighted{}, cfg)
			opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Shards())
			require.NoError(t, err)
			look := func() bits {
				all := stateBits(t, ctx, m)
				full, err := m.FullOptimState(ctx, opt)
				require.NoError(t, err)
				if full != nil {
					for _, e := range full.Entries() {
						for _, x := range numbers(t, e.Data) {
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
						forwardBackward(t, ctx, m, sightedBatch(10*step+pass, at == 4*pass+g.Rank()))
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

// TestOptionalCost compares a rank without an image with one that has it, and with a model without a tower:
// the collectives are those of the first, and its own buffers those of the second.
func TestOptionalCost(t *testing.T) {
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		absent := make(map[string]int)
		cfg := fsdp.Config{Group: g, Wrap: fsdp.WrapEach(), Precision: float64s, Poison: true}
		cfg.Trace = func(e fsdp.Event) {
			if e.Absent {
				absent[e.Kind+" "+e.Call]++
			}
		}
		m := wrap(t, &sighted{}, cfg)
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

		plain := wrap(t, model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
			x := t.Call("text", &dense{dim: shapeDim}, in[0])
			x = t.Call("end", &dense{dim: shapeDim}, x)
			return []fsdp.Ref{t.Call("distance", distance, x, in[1])}, nil
		}), fsdp.Config{Group: g, Strategy: fsdp.NoShard, Precision: float64s, Wrap: fsdp.WrapEach()})
		p, err := plain.Plan(sightedBatch(1, false)[:2]...)
		require.NoError(t, err)
		require.Equal(t, p.FLOPs, plans[0].FLOPs)
		m.ResetPeak()
		forwardBackward(t, ctx, m, sightedBatch(1, g.Rank() == 1))
		require.Equal(t, plans[g.Rank()].ShardBytes+plans[g.Rank()].PassBytes, m.Memory().Peak)
		if g.Rank() == 0 {
			require.Equal(t, map[string]int{
				"forward eye.0": 1, "forward eye.1": 1, "forward mix": 1, "backward eye.0": 1, "backward eye.1": 1, "backward mix": 1,
			}, absent)
		} else {
			require.Empty(t, absent)
		}
		still := wrap(t, &sighted{}, fsdp.Config{Group: g, Strategy: fsdp.NoShard, Precision: float64s, Wrap: fsdp.WrapEach(), Frozen: func(name string) bool {
			return strings.HasPrefix(name, "eye") || strings.HasPrefix(name, "mix") // whose gradients would be whole for a moment
		}})
		q, err := still.Plan(sightedBatch(1, false)...)
		require.NoError(t, err)
		require.Equal(t, p.PassBytes, q.PassBytes)
		require.NoError(t, errors.Join(m.Close(), plain.Close(), still.Close()))
	})
}

// TestOptionalEval evaluates on ranks of which one has an image, alone inside JoinCalls, and trains there.
func TestOptionalEval(t *testing.T) {
	onRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := wrap(t, &sighted{}, fsdp.Config{Group: g, Wrap: fsdp.WrapEach(), Precision: float64s, Poison: true})
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
				if err := trainStep(ctx, m, sightedBatch(i, g.Rank() == 2 && i == 1)); err != nil {
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

// TestOptionalVirtualRanks trains micro-batches of which some have images on 1, 2 and 4 ranks, to the
// same bits.
func TestOptionalVirtualRanks(t *testing.T) {
	var want bits
	for _, ranks := range []int{4, 2, 1} {
		onRanks(t, ranks, func(ctx context.Context, g comm.Group) {
			m := wrap(t, &sighted{dropout: true}, fsdp.Config{Group: g, Wrap: fsdp.WrapEach(), Precision: float64s, VirtualRanks: 4, Seed: 3})
			update := updater(t, m, 0.1)
			for step := range 3 {
				for pass := range 4 / ranks {
					v := pass*ranks + g.Rank()
					forwardBackward(t, ctx, m, sightedBatch(10*step+v, (step+v)%3 == 0 && step != 1))
				}
				update(ctx)
			}
			if got := stateBits(t, ctx, m); g.Rank() == 0 && want == nil {
				want = got
			} else if g.Rank() == 0 {
				requireSameBits(t, want, got, ranks, " ranks")
			}
			require.NoError(t, m.Close())
		})
	}
}

// TestOptionalPrecision trains in bfloat16, and with gradients that travel in it, with checkpointing and
// without, to the same bits under two wrappings.
func TestOptionalPrecision(t *testing.T) {
	for _, p := range parityPrecisions {
		var want bits
		for _, cfg := range []fsdp.Config{{Wrap: fsdp.WrapEach()}, {Strategy: fsdp.ShardGradOp, Checkpoint: fsdp.WrapEach()}} {
			onRanks(t, 3, func(ctx context.Context, g comm.Group) {
				cfg := cfg
				cfg.Group, cfg.Poison, cfg.Divide = g, true, fsdp.ByActive
				cfg.Precision = fsdp.Precision{Compute: p.compute, Gather: p.gather, Reduce: p.reduce}
				m := wrap(t, &sighted{dropout: true}, cfg)
				update := updater(t, m, 0.1)
				for step := range 3 {
					image := (step+g.Rank())%3 == 0
					batch := sightedBatch(step, image)
					if inType(batch[:2], p.compute); image {
						inType(batch[2:], p.compute)
					}
					forwardBackward(t, ctx, m, batch)
					update(ctx)
				}
				if got := stateBits(t, ctx, m); g.Rank() == 0 && want == nil {
					want = got
				} else if g.Rank() == 0 {
					requireSameBits(t, want, got, p.name)
				}
				require.NoError(t, m.Close())
			})
		}
	}
}

// TestOptionalIsSaid gives models and batches that say too little of absence.
func TestOptionalIsSaid(t *testing.T) {
	says := func(text string, f func(t *fsdp.Tape, in []fsdp.Ref) []fsdp.Ref) {
		_, err := fsdp.Wrap(model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) { return f(t, in), nil }), fsdp.Config{})
		require.ErrorContains(t, err, text)
	}
	says("the loss may be absent, see Tape.Optional: say by Or what it is then", func(t *fsdp.Tape, in []fsdp.Ref) []fsdp.Ref {
		return []fsdp.Ref{t.Call("a", &dense{dim: shapeDim}, t.Optional(in[0]))}
	})
	says("Optional of a value that is no tensor of the batch needs a function", func(t *fsdp.Tape, in []fsdp.Ref) []fsdp.Ref {
		return []fsdp.Ref{t.Optional(t.Call("a", &dense{dim: shapeDim}, in[0]))}
	})
	says("Optional: a function is nil", func(t *fsdp.Tape, in []fsdp.Ref) []fsdp.Ref {
		return []fsdp.Ref{t.Optional(t.Call("a", &dense{dim: shapeDim}, in[0]), nil)}
	})
	says("result 0 is not the output of a call of this model", func(t *fsdp.Tape, in []fsdp.Ref) []fsdp.Ref {
		return []fsdp.Ref{t.Call("a", &dense{dim: shapeDim}, t.Optional(in[0])).Or(in[1])}
	})
	says("Or: input 1 is not a value of this model", func(t *fsdp.Tape, in []fsdp.Ref) []fsdp.Ref {
		return []fsdp.Ref{t.Call("a", &dense{dim: shapeDim}, in[0]).Or(fsdp.Ref{})}
	})
	says("At(1) of a value that is not the output of a call", func(t *fsdp.Tape, in []fsdp.Ref) []fsdp.Ref {
		return []fsdp.Ref{t.Call("a", &dense{dim: shapeDim}, t.Optional(in[0])).Or(t.Zeros("none", 1)).At(1)}
	})
	_, err := fsdp.Wrap(&sighted{}, fsdp.Config{Device: noDevice{}, Divide: fsdp.ByActive})
	require.ErrorContains(t, err, "Config.Device cannot divide their gradients ByActive")
	for r, err := range errorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		m := wrap(t, &sighted{}, fsdp.Config{Group: g, Precision: float64s})
		b := sightedBatch(0, true)
		if g.Rank() == 1 {
			b[1] = nil
		}
		_, err := m.Forward(ctx, b...)
		return errors.Join(err, m.Close())
	}) {
		require.ErrorContains(t, err, "batch tensor 1 (target): the tensor is nil, and the model does not say by Tape.Optional that it may be", "rank %d", r)
	}
	for r, err := range errorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		_, err := fsdp.Wrap(model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
			x := t.Call("a", &dense{dim: shapeDim}, in[0])
			if y := t.Call("b", &dense{dim: shapeDim}, x); g.Rank() == 0 {
				x = t.Optional(y, func([]fsdp.Tensor) bool { return true }).Or(x)
			} else {
				x = y.Or(x)
			}
			return regress(t, in, x), nil
		}), fsdp.Config{Group: g})
		return err
	}) {
		require.ErrorContains(t, err, "ranks disagree about the model or configuration", "rank %d", r)
	}
	for r, err := range errorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		m := wrap(t, model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
			x := t.Call("a", &dense{dim: shapeDim}, in[0])
			y := t.Optional(t.Call("b", &dense{dim: shapeDim}, x), func([]fsdp.Tensor) bool { panic(fmt.Sprint("panic of rank ", g.Rank())) })
			return regress(t, in, y.Or(x)), nil
		}), fsdp.Config{Group: g, Precision: float64s})
		_, err := m.Forward(ctx, sightedBatch(0, false)[:2]...)
		return errors.Join(err, m.Close())
	}) {
		require.ErrorContains(t, err, "a function of the model's Optional", "rank %d", r)
		require.ErrorContains(t, err, "panic of rank 0", "rank %d", r)
	}
}

// noDevice is one that Wrap refuses before it asks for anything.
type noDevice struct{}

func (noDevice) Engine(engine.DeviceOptions) (engine.Device, error) { panic("not reached") }

// TestOptionalManyPasses runs random passes with random absence, where time stands still as long as any
// rank can go on: 10,000 of them, or in make test a part.
func TestOptionalManyPasses(t *testing.T) {
	passes := 2000
	if n := os.Getenv("FSDP_TEST_PASSES"); n != "" {
		var err error
		passes, err = strconv.Atoi(n)
		require.NoError(t, err)
	}
	synctest.Test(t, func(t *testing.T) {
		onRanks(t, 4, func(ctx context.Context, g comm.Group) {
			m := wrap(t, &sighted{}, fsdp.Config{Group: g, Wrap: fsdp.WrapEach(), Precision: float64s, Poison: true, Divide: fsdp.ByActive})
			update := updater(t, m, 1)
			all, mine := rand.New(rand.NewPCG(1, 0)), rand.New(rand.NewPCG(2, uint64(g.Rank())))
			done := 0
			for done < passes {
				for batch, err := range m.Join(ctx, batches(1+all.IntN(9), func(int) []fsdp.Tensor {
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
					} else if require.NoError(t, trainStep(ctx, m, batch)); what == 1 {
						update(ctx)
					}
				}
			}
			require.NoError(t, m.Close())
		})
	})
}

// TestOptionalFaults has each rank, those without an image too, fail in each operation of a pass and in
// each of its collectives, and be cancelled there: every rank returns why.
func TestOptionalFaults(t *testing.T) {
	run := func(faulty int, trace func(cancel context.CancelCauseFunc, e fsdp.Event), decide func(commtest.Call) commtest.Fault) (failed int) {
		synctest.Test(t, func(t *testing.T) {
			errs := make([]error, 3)
			require.NoError(t, comm.Run(context.Background(), 3, func(ctx context.Context, g comm.Group) error {
				ctx, cancel := context.WithCancelCause(ctx)
				defer cancel(nil)
				cfg := fsdp.Config{Group: g, Wrap: fsdp.WrapEach(), Precision: float64s, Poison: true}
				if g.Rank() == faulty {
					cfg.Group = commtest.Faulty(g, decide)
					cfg.Trace = func(e fsdp.Event) { trace(cancel, e) }
				}
				m := wrap(t, &sighted{}, cfg)
				for i := range 2 {
					if err := trainStep(ctx, m, sightedBatch(i, (g.Rank()+i)%3 == 0)); err != nil {
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
					require.ErrorContains(t, err, errOops.Error())
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
						cancel(errOops)
					} else if left == -1 {
						panic(errOops)
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
					return commtest.Fault{Err: errOops}
				}
				return commtest.Fault{}
			})
			require.Less(t, at, 100)
		}
	}
}
