package parity_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// bare is the product x ⊙ w [n], whose mean is the loss: with x of ones a forward shows w itself,
// and the gradient of w is x/n, to the bit if n is a power of two.
type bare struct {
	n    int
	full bool
}

func (m *bare) Params() []fsdp.Param {
	return []fsdp.Param{{Name: "w", Shape: []int{m.n}, Init: fsdp.Normal(1), Full: m.full}}
}

func (m *bare) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	w, err := b.Param("w")
	if err != nil {
		return nil, err
	}
	y, err := gorgonia.HadamardProd(in[0], w)
	if err != nil {
		return nil, err
	}
	loss, err := gorgonia.Mean(y)
	return gorgonia.Nodes{loss, y}, err
}

// sum is x + y.
var sum = &kit.Module{Graph: func(_ *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
	y, err := gorgonia.Add(in[0], in[1])
	return gorgonia.Nodes{y}, err
}}

const bareLen = 64

// bares is a model of three bare modules, the second of which is Full. The loss is the sum of
// theirs; the other results are their products.
var bares kit.Model = func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
	a, exact, b := t.Call("a", &bare{n: bareLen}, in[0]), t.Call("exact", &bare{bareLen, true}, in[0]), t.Call("b", &bare{n: bareLen}, in[0])
	loss := t.Call("all", sum, t.Call("both", sum, a, exact), b)
	return []fsdp.Ref{loss, a.At(1), exact.At(1), b.At(1)}, nil
}

// floats32 returns the elements of a float32 tensor.
func floats32(t fsdp.Tensor) []float32 { return t.Data().([]float32) }

// TestForwardSeesRoundedParameters checks that what forward computes with is exactly the rounded
// parameters under every strategy, also those that send none, that Full parameters are not rounded,
// and that the optimizer's stay as they are.
func TestForwardSeesRoundedParameters(t *testing.T) {
	for _, typ := range []fsdp.DType{fsdp.Float32, fsdp.BFloat16, fsdp.Float16} {
		for _, world := range []int{1, 3, 4} {
			kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
				kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
					cfg := cfg
					cfg.Group, cfg.WrapPolicy = g, fsdp.WrapEach()
					exact := kit.Wrap(t, bares, cfg)
					want, err := exact.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
					require.NoError(t, err)
					cfg.Precision.Gather = typ
					m := kit.Wrap(t, bares, cfg)
					for range 2 {
						out, err := m.Eval(ctx, kit.Ones(bareLen))
						require.NoError(t, err)
						for i, name := range []string{"a", "exact", "b"} {
							for j, w := range floats32(want[name+".w"]) {
								if name != "exact" {
									w = kit.Rounded(w, typ)
								}
								require.Equal(t, w, floats32(out[1+i])[j], "%s[%d]", name, j)
							}
						}
						loss := kit.ForwardBackward(t, ctx, m, []fsdp.Tensor{kit.Ones(bareLen)})
						require.Equal(t, float32(loss), floats32(out[0])[0], "training sees the same")
						kit.RequireSameBits(t, kit.BitsOf(want), kit.StateBits(t, ctx, m), "masters are not rounded")
						for name, grad := range kit.GradsOf(t, ctx, m) {
							require.Equal(t, 1./bareLen, grad[0], name)
						}
						m.ZeroGrad()
					}
				})
			})
		}
	}
}

// TestTrainingInHalfIsTheSameUnderEveryStrategy trains with narrow gathers and compares the bits.
func TestTrainingInHalfIsTheSameUnderEveryStrategy(t *testing.T) {
	for _, p := range []fsdp.Precision{
		{Gather: fsdp.BFloat16}, {Gather: fsdp.Float16}, {Gather: fsdp.BFloat16, Reduce: fsdp.BFloat16},
		fsdp.BF16(), {Compute: fsdp.BFloat16, Reduce: fsdp.BFloat16}, masters16, {Compute: fsdp.BFloat16, Reduce: fsdp.BFloat16, Master: fsdp.BFloat16},
		{Compute: fsdp.BFloat16, Reduce: fsdp.Int8, Master: fsdp.BFloat16}, {Gather: fsdp.Int8}, {Compute: fsdp.BFloat16, Gather: fsdp.Int8},
		{Gather: fsdp.Int8, Reduce: fsdp.Int8}, {Compute: fsdp.BFloat16, Reduce: fsdp.Int8},
		{Gather: fsdp.Int8, Reduce: fsdp.Int8, TypesOf: kit.TypesByName(fsdp.Int8, fsdp.Int8, map[string][2]fsdp.DType{"wte.weight": {}, "blocks.1.fc.weight": {fsdp.BFloat16, 0}})},
	} {
		if (p.Gather == fsdp.Int8 || p.Reduce == fsdp.Int8) && !kit.GroupsCarryPasses {
			continue // not on GPUs
		}
		var want kit.Bits
		kit.EveryStrategy(t, 4, func(t *testing.T, cfg fsdp.Config) {
			cfg.Precision, cfg.WrapPolicy = p, kit.Blocks
			if p.Reduce != fsdp.Float32 && p.Reduce != fsdp.Int8 && cfg.ShardRanks > 0 {
				return // rounded twice
			}
			got := kit.Train(t, kit.TinyGPT(2), 4, 3, 0.5, cfg)
			if want == nil {
				want = got
			}
			kit.RequireSameBits(t, want, got)
		})
		require.NotEqual(t, want, kit.Train(t, kit.TinyGPT(2), 4, 3, 0.5, fsdp.Config{WrapPolicy: kit.Blocks}), "it is not float32")
	}
}

// TestGradientsAreRoundedOnce: whole gradients that backward writes in bfloat16 have the bits of
// whole gradients that stay float32 until they are reduced, as inside NoSync.
func TestGradientsAreRoundedOnce(t *testing.T) {
	tied := kit.TinyGPT(2)
	tied.Tied = true
	again := kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("wte", &nn.Embedding{Rows: kit.TinyVocab, Dim: 8}, in[0])
		x = t.Again("block", t.Call("block", &nn.Block{Dim: 8, Heads: 2}, x))
		return []fsdp.Ref{t.Call("head", &nn.Head{Dim: 8, Classes: kit.TinyVocab}, x, in[1])}, nil
	})
	grads := func(t *testing.T, model fsdp.Model, cfg fsdp.Config, whole bool) (bits kit.Bits) {
		kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
			cfg := cfg
			cfg.Group = g
			m := kit.Wrap(t, model, cfg)
			step := func() error {
				return kit.TrainStep(ctx, m, kit.TinyBatch(0, g.Rank(), 2, kit.TinyContext))
			}
			if whole {
				require.NoError(t, m.NoSync(step))
				require.NoError(t, m.SyncGrads(ctx))
			} else {
				require.NoError(t, step())
			}
			all, err := m.FullGrads(ctx)
			require.NoError(t, err)
			if g.Rank() == 0 {
				bits = kit.BitsOf(all)
			}
		})
		return bits
	}
	for name, model := range map[string]fsdp.Model{"plain": kit.TinyGPT(2), "tied": tied, "again": again} {
		for _, compute := range []fsdp.DType{fsdp.Float32, fsdp.BFloat16} {
			t.Run(fmt.Sprint(name, " in ", compute), func(t *testing.T) {
				kit.EveryStrategy(t, 4, func(t *testing.T, cfg fsdp.Config) {
					cfg.WrapPolicy, cfg.Precision = fsdp.WrapEach(), fsdp.Precision{Compute: compute, Reduce: fsdp.BFloat16}
					kit.RequireSameBits(t, grads(t, model, cfg, true), grads(t, model, cfg, false))
				})
			})
		}
	}
}

// TestHalfHalvesTraffic compares the plans.
func TestHalfHalvesTraffic(t *testing.T) {
	plan := func(p fsdp.Precision, s fsdp.Strategy) (traffic int) {
		p.Full = func(fsdp.CallInfo, fsdp.Param) bool { return false }
		kit.OnRanks(t, 2, func(_ context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, Precision: p, WrapPolicy: kit.Blocks, Strategy: s})
			plan, err := m.Plan(kit.GoodBatch(0)...)
			require.NoError(t, err)
			if g.Rank() == 0 {
				traffic = plan.Traffic
			}
		})
		return traffic
	}
	for _, s := range []fsdp.Strategy{fsdp.FullShard, fsdp.ShardGradOp, fsdp.NoShard} {
		all := plan(fsdp.Precision{}, s)
		gathers, reduces := all-plan(fsdp.Precision{Gather: fsdp.BFloat16}, s), all-plan(fsdp.Precision{Reduce: fsdp.Float16}, s)
		require.Equal(t, all, 2*gathers+2*reduces, "%v: half of what is gathered and half of what is reduced", s)
		require.Equal(t, all/2, plan(fsdp.Precision{Gather: fsdp.Float16, Reduce: fsdp.BFloat16}, s), s.String())
		require.Equal(t, s == fsdp.NoShard, gathers == 0)
		require.Positive(t, reduces)
	}
}

// TestSumsInHalf compares gradients with a sum that rounds where a reduction does: what each rank
// sends, and the sum.
func TestSumsInHalf(t *testing.T) {
	x := func(rank int) func(int) float32 {
		return func(i int) float32 { return float32(kit.Value(i, rank)) } // in [-1, 1)
	}
	for _, typ := range []fsdp.DType{fsdp.BFloat16, fsdp.Float16} {
		for _, world := range []int{2, 3, 4} {
			kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
				if cfg.ShardRanks > 1 {
					return // rounds a second time in between
				}
				pre := float32(1)
				if typ == fsdp.Float16 {
					pre = 0.5
				}
				kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
					cfg := cfg
					cfg.Group, cfg.WrapPolicy, cfg.Precision.Reduce = g, fsdp.WrapEach(), typ
					m := kit.Wrap(t, bares, cfg)
					kit.ForwardBackward(t, ctx, m, []fsdp.Tensor{kit.Filled(bareLen, x(g.Rank()))})
					grads, err := m.FullGrads(ctx)
					require.NoError(t, err)
					for name, grad := range grads {
						for i, got := range floats32(grad) {
							sent := make([]float32, world)
							for r := range sent {
								sent[r] = x(r)(i) / bareLen
								if name != "exact.w" {
									sent[r] = kit.Rounded(sent[r]*pre, typ)
								}
							}
							var want float32
							if name == "exact.w" {
								want = treeSum(sent) * float32(1/float64(world))
							} else {
								want = kit.Rounded(treeSum(sent), typ) * float32(1/float64(world)/float64(pre))
							}
							require.Equal(t, want, got, "%s[%d]", name, i)
						}
					}
				})
			})
		}
	}
}

// treeSum sums in the order of the reductions: a balanced tree over the ranks.
func treeSum(x []float32) float32 {
	if len(x) == 1 {
		return x[0]
	}
	half := 1
	for 2*half < len(x) {
		half *= 2
	}
	return treeSum(x[:half]) + treeSum(x[half:])
}

// TestLossScaling overflows float16 on one rank and checks that every rank leaves the step out, and
// that the next goes on at half the scale.
func TestLossScaling(t *testing.T) {
	for _, world := range []int{1, 2, 3} {
		kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				cfg := cfg
				cfg.Group, cfg.WrapPolicy, cfg.Precision = g, fsdp.WrapEach(), fsdp.Precision{Gather: fsdp.Float16, Reduce: fsdp.Float16}
				m := kit.Wrap(t, bares, cfg)
				opt, err := optim.SGD{Momentum: 0.9}.New(m.Params())
				require.NoError(t, err)
				scaler, err := optim.LossScale{Init: 1 << 20, Interval: 2}.New()
				require.NoError(t, err)
				begin := kit.StateBits(t, ctx, m)
				step := func() bool {
					_, err := m.Forward(ctx, kit.Ones(bareLen))
					require.NoError(t, err)
					require.NoError(t, m.Backward(ctx, fsdp.Scale(4), fsdp.Scale(scaler.Scale())))
					finite, err := m.Unscale(ctx, scaler)
					require.NoError(t, err)
					if finite {
						for name, g := range kit.GradsOf(t, ctx, m) {
							require.Equal(t, 4./bareLen, g[7], name)
						}
					} else {
						require.Empty(t, kit.GradsOf(t, ctx, m), "dropped")
					}
					require.NoError(t, opt.Step(0.1))
					m.ZeroGrad()
					return finite
				}
				var finite []bool
				for range 8 {
					finite = append(finite, step())
					if !finite[len(finite)-1] {
						kit.RequireSameBits(t, begin, kit.StateBits(t, ctx, m), "a step left out changes nothing")
					}
					begin = kit.StateBits(t, ctx, m)
				}
				require.Contains(t, finite, false)
				require.Contains(t, finite, true)
				require.Less(t, scaler.Scale(), float64(1<<20))
			})
		})
	}
}

// TestOverflowOnOneRank checks that one rank's infinite gradient reaches every rank.
func TestOverflowOnOneRank(t *testing.T) {
	for world := 1; world <= 3; world++ {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, bares, fsdp.Config{Group: g, Precision: fsdp.Precision{Reduce: fsdp.Float16}})
			scaler, err := optim.LossScale{Init: 1 << 10, Interval: 1}.New()
			require.NoError(t, err)
			backward := func(x *tensor.Dense) {
				_, err := m.Forward(ctx, x)
				require.NoError(t, err)
				require.NoError(t, m.Backward(ctx, fsdp.Scale(scaler.Scale())))
			}
			last := g.Rank() == world-1
			backward(kit.Filled(bareLen, func(i int) float32 {
				if last && i == bareLen-1 {
					return 1e6
				}
				return 1
			}))
			_, err = m.ClipGradNorm(ctx, 1)
			require.ErrorContains(t, err, ".w[")
			require.ErrorContains(t, err, "is not finite")
			finite, err := m.Unscale(ctx, scaler)
			require.NoError(t, err)
			require.False(t, finite)
			require.Equal(t, 512., scaler.Scale())
			backward(kit.Ones(bareLen))
			finite, err = m.Unscale(ctx, scaler)
			require.NoError(t, err)
			require.True(t, finite)
			require.Equal(t, 1024., scaler.Scale(), "grows after Interval")
			norm, err := m.ClipGradNorm(ctx, math.Inf(1))
			require.NoError(t, err)
			require.InDelta(t, math.Sqrt(3./bareLen), norm, 1e-6)
		})
	}
}

// TestScalersDiffer gives ranks different scales, or none.
func TestScalersDiffer(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, bares, fsdp.Config{Group: g})
		scaler, err := optim.LossScale{Init: []float64{2, 4}[g.Rank()]}.New()
		require.NoError(t, err)
		kit.ForwardBackward(t, ctx, m, []fsdp.Tensor{kit.Ones(bareLen)})
		want := kit.GradBits(t, ctx, m)
		_, err = m.Unscale(ctx, scaler)
		require.ErrorContains(t, err, "Unscale as call 4 with 2")
		require.ErrorContains(t, err, "Unscale as call 4 with 4")
		_, err = m.Unscale(ctx, nil)
		require.ErrorContains(t, err, "the LossScaler is nil")
		kit.RequireSameBits(t, want, kit.GradBits(t, ctx, m))
		require.Equal(t, []float64{2, 4}[g.Rank()], scaler.Scale())
	})
}

// TestUnderflow checks that a gradient of 1e-8, which is nothing in float16, survives a loss scale.
func TestUnderflow(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, bares, fsdp.Config{Group: g, Precision: fsdp.Precision{Reduce: fsdp.Float16}})
		scaler, err := optim.LossScale{}.New()
		require.NoError(t, err)
		tiny := kit.Filled(bareLen, func(int) float32 { return 1e-8 * bareLen })
		kit.ForwardBackward(t, ctx, m, []fsdp.Tensor{tiny})
		for name, grad := range kit.GradsOf(t, ctx, m) {
			require.Equal(t, name == "exact.w", grad[0] != 0, name)
		}
		m.ZeroGrad()
		_, err = m.Forward(ctx, tiny)
		require.NoError(t, err)
		require.NoError(t, m.Backward(ctx, fsdp.Scale(scaler.Scale())))
		_, err = m.Unscale(ctx, scaler)
		require.NoError(t, err)
		for name, grad := range kit.GradsOf(t, ctx, m) {
			require.InEpsilon(t, 1e-8, grad[0], 1e-3, name)
		}
	})
}

// TestSumOfManyRanksStaysFinite sums gradients whose sum is out of float16's range, but whose mean
// is not.
func TestSumOfManyRanksStaysFinite(t *testing.T) {
	for divide, finite := range map[fsdp.GradAverage]bool{fsdp.ByRanks: true, fsdp.ByWeights: true, fsdp.ByOne: false} {
		kit.OnRanks(t, 8, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, bares, fsdp.Config{Group: g, GradAverage: divide, Precision: fsdp.Precision{Reduce: fsdp.Float16}})
			var opts []fsdp.BackwardOption
			if divide == fsdp.ByWeights {
				opts = append(opts, fsdp.Weight(2))
			}
			kit.ForwardBackward(t, ctx, m, []fsdp.Tensor{kit.Filled(bareLen, func(int) float32 { return 20000 * bareLen })}, opts...)
			if grads := kit.GradsOf(t, ctx, m); finite {
				require.InEpsilon(t, 20000, grads["a.w"][3], 1e-3)
			} else {
				require.True(t, math.IsInf(grads["a.w"][3], 1))
			}
		})
	}
}

// TestPrecisionErrors checks what Wrap refuses.
func TestPrecisionErrors(t *testing.T) {
	for want, p := range map[string]fsdp.Precision{
		"Config.Precision.Compute is float16, which needs Config.Device: processors have no kernels of it, want BFloat16": {Compute: fsdp.Float16},
		"Config.Precision.Compute is DType(9): want Float32, BFloat16, Float16 or Float64":                                {Compute: 9},
		"Config.Precision.Gather is float16, which needs Compute to be Float32, not bfloat16":                             {Compute: fsdp.BFloat16, Gather: fsdp.Float16},
		"Config.Precision.Reduce is float16, which needs Compute to be Float32, not bfloat16":                             {Compute: fsdp.BFloat16, Reduce: fsdp.Float16},
		"Config.Precision.Compute is int8: want Float32, BFloat16, Float16 or Float64":                                    {Compute: fsdp.Int8},
		"Config.Precision.Gather is int8: want BFloat16, Float16 or the type of Compute":                                  {Compute: fsdp.Float64, Gather: fsdp.Int8},
		"Config.Precision.Reduce is int8: want BFloat16, Float16 or the type of Compute":                                  {Compute: fsdp.Float64, Reduce: fsdp.Int8},
		"Config.Precision.Gather is float64: want BFloat16, Float16 or":                                                   {Compute: fsdp.BFloat16, Gather: fsdp.Float64},
		"Config.Precision.Wide selects calls that stay in Float32, but Compute is float32":                                {Gather: fsdp.BFloat16, Wide: fsdp.WrapEach()},
		"Config.Precision.Master is bfloat16, but Compute is float32: want BFloat16 for both":                             {Master: fsdp.BFloat16},
		"Config.Precision.Master is float16: want BFloat16 or Float32":                                                    {Compute: fsdp.BFloat16, Master: fsdp.Float16},
		"parameters that ranks keep in bfloat16 (Master) do not travel as int8":                                           {Compute: fsdp.BFloat16, Master: fsdp.BFloat16, Gather: fsdp.Int8},
		"policy Config.Precision.Wide returned 0 names for 5 calls":                                                       {Compute: fsdp.BFloat16, Wide: func([]fsdp.CallInfo) []string { return nil }},
		"Config.Precision.Gather is bfloat16, which needs Compute to be Float32, not float64":                             {Compute: fsdp.Float64, Gather: fsdp.BFloat16},
		"Config.Precision.Reduce is float16, which needs Compute to be Float32, not float64":                              {Compute: fsdp.Float64, Reduce: fsdp.Float16},
		"Config.Precision.Gather is float64: want BFloat16, Float16 or the type of Compute":                               {Gather: fsdp.Float64},
		"Config.Precision.Reduce is DType(77): want BFloat16, Float16 or the type of Compute":                             {Reduce: 77},
		kit.PanickedHere("parameter a.w: Config.Frozen, Ignored, Precision.Full or TypesOf", "too full"):                  {Gather: fsdp.BFloat16, Full: func(fsdp.CallInfo, fsdp.Param) bool { panic("too full") }},
		"parameter a.w: Config.Precision.TypesOf returned float64 and float32: gather is float64: want BFloat16,":         {TypesOf: kit.TypesByName(fsdp.Float64, 0, nil)},
		"parameter a.w: Config.Precision.TypesOf returned bfloat16 and float16: reduce is float16, which needs":           {Compute: fsdp.BFloat16, TypesOf: kit.TypesByName(0, fsdp.Float16, nil)},
	} {
		_, err := fsdp.Wrap(bares, fsdp.Config{Precision: p})
		require.ErrorContains(t, err, want)
	}
	for _, err := range kit.ErrorsOf(t, 2, func(_ context.Context, g comm.Group) error {
		cfg := fsdp.Config{Group: g}
		if g.Rank() == 1 {
			cfg.Precision.Reduce = fsdp.BFloat16
		}
		_, err := fsdp.Wrap(bares, cfg)
		return err
	}) {
		require.ErrorContains(t, err, "Config.Precision.Reduce float32")
		require.ErrorContains(t, err, "Config.Precision.Reduce bfloat16")
	}
	for _, err := range kit.ErrorsOf(t, 2, func(_ context.Context, g comm.Group) error {
		types := [2]map[string][2]fsdp.DType{{}, {"b.w": {fsdp.BFloat16, 0}}}[g.Rank()]
		_, err := fsdp.Wrap(bares, fsdp.Config{Group: g, Precision: fsdp.Precision{TypesOf: kit.TypesByName(0, 0, types)}})
		return err
	}) {
		require.ErrorContains(t, err, "parameter b.w [64]: full, in unit root")
		require.ErrorContains(t, err, "parameter b.w [64]: gather bfloat16, reduce float32, in unit root")
	}
}

// TestFullDecides checks that Precision.Full takes the place of Param.Full, and sees calls and
// parameters by full name.
func TestFullDecides(t *testing.T) {
	m := kit.Wrap(t, bares, fsdp.Config{WrapPolicy: fsdp.WrapEach(), Precision: fsdp.Precision{
		Gather: fsdp.BFloat16,
		Full:   func(c fsdp.CallInfo, p fsdp.Param) bool { return c.Name == "b" && strings.HasPrefix(p.Name, "b.") },
	}})
	state, err := m.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	out, err := m.Eval(t.Context(), kit.Ones(bareLen))
	require.NoError(t, err)
	require.Equal(t, floats32(state["b.w"]), floats32(out[3]))
	require.NotEqual(t, floats32(state["exact.w"]), floats32(out[2]))
}

// TestIgnoredAreNotRounded checks that what every rank holds is neither computed with nor summed in
// 16 bits.
func TestIgnoredAreNotRounded(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, bares, fsdp.Config{
			Group: g, Precision: fsdp.Precision{Gather: fsdp.BFloat16, Reduce: fsdp.BFloat16},
			Ignored: func(name string) bool { return name == "b.w" },
		})
		state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		out, err := m.Eval(ctx, kit.Ones(bareLen))
		require.NoError(t, err)
		require.Equal(t, floats32(state["b.w"]), floats32(out[3]))
		require.NotEqual(t, floats32(state["a.w"]), floats32(out[1]))
		x := float32(1 + 1./1024) // more bits than bfloat16 has
		kit.ForwardBackward(t, ctx, m, []fsdp.Tensor{kit.Filled(bareLen, func(int) float32 { return x })})
		grads := kit.GradsOf(t, ctx, m)
		require.Equal(t, float64(x/bareLen), grads["b.w"][0])
		require.Equal(t, 1./bareLen, grads["a.w"][0])
	})
}
