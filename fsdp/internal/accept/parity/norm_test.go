package parity_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
)

// gradient is what the tests of this file make element i of a parameter's gradient: a number of a
// size that depends on the parameter, from 1e-30 to 1e30, so that no sum of squares in floating
// point has any accuracy.
func gradient(name string, i int) float64 {
	seed := 0
	for _, c := range name {
		seed = 31*seed + int(c)
	}
	return kit.Value(i, seed) * math.Pow(10, float64(kit.U24(seed, 5)%61-30))
}

// mild is one whose squares float32 can hold.
func mild(name string, i int) float64 { return gradient(name, i) / math.Pow(10, 12) }

// setGrads writes gradients into the shards.
func setGrads(t require.TestingT, m *fsdp.Sharded, f func(name string, i int) float64) {
	for _, p := range m.Params() {
		kit.Edit(t, p.Grad, func(i int, _ float64) float64 { return f(p.Name, p.Offset+i) })
	}
}

// exactNorm is the L2 norm of numbers, computed with more bits than it matters.
func exactNorm(x []float64) float64 {
	total := new(big.Float).SetPrec(600)
	for _, v := range x {
		b := new(big.Float).SetPrec(600).SetFloat64(v)
		total.Add(total, b.Mul(b, b))
	}
	norm, _ := total.Sqrt(total).Float64()
	return norm
}

// largest is the infinity norm.
func largest(x []float64) float64 {
	most := 0.0
	for _, v := range x {
		most = max(most, math.Abs(v))
	}
	return most
}

// norms are the results of measuring and clipping.
type norms struct {
	l2, inf     float64
	each        map[string]float64
	clipped     kit.Bits
	clippedInf  kit.Bits
	afterwards  float64
	largestEach map[string]float64
}

// measure measures gradients on one rank of m, and clips them.
func measure(t require.TestingT, ctx context.Context, m *fsdp.Sharded, g comm.Group, f func(string, int) float64) (n norms) {
	setGrads(t, m, f)
	var err error
	n.l2, err = m.ClipGradNorm(ctx, math.Inf(1))
	require.NoError(t, err)
	n.inf, err = m.ClipGradNorm(ctx, math.Inf(1), fsdp.InfNorm)
	require.NoError(t, err)
	n.each, err = m.GradNorms(ctx, fsdp.L2Norm)
	require.NoError(t, err)
	n.largestEach, err = m.GradNorms(ctx, fsdp.InfNorm)
	require.NoError(t, err)
	again, err := m.ClipGradNorm(ctx, n.l2/3)
	require.NoError(t, err)
	require.Equal(t, n.l2, again, "the norm before clipping")
	n.clipped = kit.GradBits(t, ctx, m)
	n.afterwards, err = m.ClipGradNorm(ctx, math.Inf(1))
	require.NoError(t, err)
	setGrads(t, m, f)
	_, err = m.ClipGradNorm(ctx, n.inf/7, fsdp.InfNorm)
	require.NoError(t, err)
	n.clippedInf = kit.GradBits(t, ctx, m)
	return n
}

// layouts are ways to lay out the same gradients over world ranks.
func layouts(world int) map[string]fsdp.Config {
	list := map[string]fsdp.Config{
		"one unit":      {},
		"blocks":        {WrapPolicy: kit.Blocks},
		"each":          {WrapPolicy: fsdp.WrapEach()},
		"two of each":   {WrapPolicy: kit.EveryOther, Strategy: fsdp.ShardGradOp},
		"NoShard":       {WrapPolicy: kit.Blocks, Strategy: fsdp.NoShard},
		"mixed":         {WrapPolicy: fsdp.WrapEach(), Unit: kit.StrategyOf(func(u fsdp.UnitConfig) fsdp.Strategy { return fsdp.Strategy(len(u.Name) % 3) })},
		"ignored norms": {WrapPolicy: kit.Blocks, Ignored: func(name string) bool { return strings.Contains(name, "ln") }},
		"all ignored":   {Ignored: func(name string) bool { return true }},
		"some full":     {WrapPolicy: kit.Blocks, Precision: fsdp.Precision{Gather: fsdp.BFloat16, Full: func(_ fsdp.CallInfo, p fsdp.Param) bool { return len(p.Shape) < 2 }}},
	}
	for ranks := 1; ranks <= world; ranks++ {
		if world%ranks == 0 {
			list[fmt.Sprint("HybridShard over ", ranks)] = fsdp.Config{WrapPolicy: fsdp.WrapEach(), Strategy: fsdp.HybridShard, ShardRanks: ranks}
		}
	}
	return list
}

// TestNormsDoNotDependOnLayout measures equal gradients under every strategy, policy, number of
// ranks and choice of what is ignored, compares the bits, and the norms with exact ones.
func TestNormsDoNotDependOnLayout(t *testing.T) {
	for name, f := range map[string]func(string, int) float64{"wild": gradient, "mild": mild} {
		for _, dtype := range []fsdp.DType{fsdp.Float32, fsdp.Float64} {
			if dtype == fsdp.Float32 && name == "wild" {
				f = func(name string, i int) float64 { return float64(float32(gradient(name, i))) }
			}
			t.Run(fmt.Sprint(name, "/", dtype), func(t *testing.T) {
				var want *norms
				for world := 1; world <= 5; world++ {
					for layout, cfg := range layouts(world) {
						if cfg.Precision.Gather != fsdp.Float32 && dtype == fsdp.Float64 {
							continue
						}
						kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
							cfg := cfg
							cfg.Group, cfg.Precision.Compute = g, dtype
							m := kit.Wrap(t, kit.TinyGPT(2), cfg)
							kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank())) // so that all have a gradient
							got := measure(t, ctx, m, g, f)
							if g.Rank() > 0 {
								return
							}
							if want == nil {
								want = &got
								requireExact(t, ctx, got, m, f, dtype)
							}
							msg := fmt.Sprintf("%s over %d ranks", layout, world)
							require.Equal(t, want.l2, got.l2, msg)
							require.Equal(t, want.inf, got.inf, msg)
							require.Equal(t, want.afterwards, got.afterwards, msg)
							require.Equal(t, want.each, got.each, msg)
							require.Equal(t, want.largestEach, got.largestEach, msg)
							kit.RequireSameBits(t, want.clipped, got.clipped, msg)
							kit.RequireSameBits(t, want.clippedInf, got.clippedInf, msg)
						})
					}
				}
			})
		}
	}
}

// requireExact compares norms of one rank with those of big numbers.
func requireExact(t require.TestingT, ctx context.Context, n norms, m *fsdp.Sharded, f func(string, int) float64, dtype fsdp.DType) {
	var all []float64
	names := make(map[string]bool)
	for _, p := range m.Params() {
		names[p.Name] = true
		var own []float64
		for i := range p.Grad.Len() {
			if v := f(p.Name, i); dtype == fsdp.Float32 {
				own = append(own, float64(float32(v)))
			} else {
				own = append(own, v)
			}
		}
		all = append(all, own...)
		require.InEpsilon(t, exactNorm(own), n.each[p.Name], 1e-15, p.Name)
		require.Equal(t, largest(own), n.largestEach[p.Name], p.Name)
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(names)), slices.Collect(maps.Keys(n.each)))
	require.InEpsilon(t, exactNorm(all), n.l2, 1e-15)
	require.Equal(t, largest(all), n.inf)
	require.InEpsilon(t, n.l2/3, n.afterwards, 1e-6)
}

// TestNormsOfTrainedParameters freezes some and checks that norms are those of the rest.
func TestNormsOfTrainedParameters(t *testing.T) {
	frozen := func(name string) bool { return strings.HasPrefix(name, "blocks.0") || name == "wte.weight" }
	want := 0.0
	for world := 1; world <= 3; world++ {
		kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				cfg := cfg
				cfg.Group, cfg.WrapPolicy, cfg.Precision = g, kit.Blocks, kit.Float64s
				cfg.Frozen = frozen
				m := kit.Wrap(t, kit.TinyGPT(2), cfg)
				kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
				setGrads(t, m, mild)
				norm, err := m.ClipGradNorm(ctx, math.Inf(1))
				require.NoError(t, err)
				each, err := m.GradNorms(ctx, fsdp.L2Norm)
				require.NoError(t, err)
				for name := range each {
					require.False(t, frozen(name), name)
				}
				require.Len(t, each, 16)
				if world == 1 && g.Rank() == 0 && want == 0 {
					want = norm
					require.InEpsilon(t, exactNorm(slices.Collect(maps.Values(each))), norm, 1e-14)
				}
				require.Equal(t, want, norm)
			})
		})
	}
}

// TestNormOfUnitGroups checks that the norm counts the parameters of every group once.
func TestNormOfUnitGroups(t *testing.T) {
	kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Shapes["chain"], kit.GroupedBy(t, ctx, g, "l1", 2))
		kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
		of := func(half int) func(string, int) float64 {
			return func(name string, i int) float64 {
				if name == "l1.w" {
					return mild("expert"+fmt.Sprint(half), i)
				}
				return mild(name, i)
			}
		}
		setGrads(t, m, of(g.Rank()/2))
		norm, err := m.ClipGradNorm(ctx, math.Inf(1))
		require.NoError(t, err)
		var all []float64
		for i := range kit.ShapeDim * kit.ShapeDim {
			all = append(all, of(0)("l0.w", i), of(0)("l1.w", i), of(1)("l1.w", i), of(0)("l2.w", i), of(0)("l3.w", i))
		}
		require.InEpsilon(t, exactNorm(all), norm, 1e-14)
		norm, err = m.ClipGradNorm(ctx, math.Inf(1), fsdp.InfNorm)
		require.NoError(t, err)
		require.Equal(t, largest(all), norm)
		each, err := m.GradNorms(ctx, fsdp.L2Norm)
		require.NoError(t, err)
		var own []float64
		for i := range kit.ShapeDim * kit.ShapeDim {
			own = append(own, of(g.Rank()/2)("l1.w", i))
		}
		require.InEpsilon(t, exactNorm(own), each["l1.w"], 1e-14, "that of this rank's group")
	})
}

// TestClipLimits checks limits that are none, and that clipping leaves small gradients alone.
func TestClipLimits(t *testing.T) {
	for world := 1; world <= 2; world++ {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m := kit.Chain64(t, g)
			norm, err := m.ClipGradNorm(ctx, 1)
			require.NoError(t, err)
			require.Zero(t, norm, "no gradient yet")
			kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
			grads := kit.GradBits(t, ctx, m)
			for _, limit := range []float64{0, -1, math.NaN(), math.Inf(-1)} {
				for _, kind := range [][]fsdp.Norm{nil, {fsdp.L2Norm}, {fsdp.InfNorm}} {
					_, err := m.ClipGradNorm(ctx, limit, kind...)
					require.ErrorContains(t, err, "ClipGradNorm")
					require.ErrorContains(t, err, fmt.Sprintf("limit is %v, want a positive number", limit))
				}
			}
			norm, err = m.ClipGradNorm(ctx, math.Inf(1))
			require.NoError(t, err)
			_, err = m.ClipGradNorm(ctx, 2*norm)
			require.NoError(t, err)
			kit.RequireSameBits(t, grads, kit.GradBits(t, ctx, m))
			for _, wrong := range []fsdp.Norm{2, 77} {
				_, err = m.ClipGradNorm(ctx, 1, wrong)
				require.ErrorContains(t, err, fmt.Sprintf("norm %d", wrong))
				_, err = m.GradNorms(ctx, wrong)
				require.ErrorContains(t, err, fmt.Sprintf("norm %d", wrong))
			}
			kit.RequireSameBits(t, grads, kit.GradBits(t, ctx, m))
		})
	}
}

// TestRanksClipDifferently gives ranks different limits and norms.
func TestRanksClipDifferently(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Chain64(t, g)
		kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
		_, err := m.ClipGradNorm(ctx, float64(1+g.Rank()))
		require.ErrorContains(t, err, fmt.Sprintf("rank %d runs ClipGradNorm as call 3 with %d", 1-g.Rank(), 2-g.Rank()))
		_, err = m.ClipGradNorm(ctx, 1, fsdp.Norm(g.Rank()))
		require.ErrorContains(t, err, "ClipGradNorm of the infinity norm")
		_, err = m.GradNorms(ctx, fsdp.Norm(g.Rank()))
		require.ErrorContains(t, err, "GradNorms as call 5")
		_, err = m.ClipGradNorm(ctx, 1)
		require.NoError(t, err)
	})
}

// TestNormsNotFinite makes one element on one rank NaN or infinite. Clipping must name the
// parameter on every rank and change nothing; the norms for logging must show it.
func TestNormsNotFinite(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(-1)} {
		for world := 1; world <= 3; world++ {
			kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
				kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
					cfg := cfg
					cfg.Group, cfg.WrapPolicy, cfg.Precision = g, fsdp.WrapEach(), kit.Float64s
					m := kit.Wrap(t, kit.Shapes["chain"], cfg)
					kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
					setGrads(t, m, func(name string, i int) float64 {
						if name == "l2.w" && i == 24 {
							return bad
						}
						return mild(name, i)
					})
					for _, kind := range []fsdp.Norm{fsdp.L2Norm, fsdp.InfNorm} {
						_, err := m.ClipGradNorm(ctx, 1e-9, kind)
						require.ErrorContains(t, err, "the gradient of l2.w[")
						require.ErrorContains(t, err, fmt.Sprintf("fsdp: rank %d: ", g.Rank()))
						each, err := m.GradNorms(ctx, kind)
						require.NoError(t, err)
						for name, n := range each {
							require.Equal(t, name == "l2.w", math.IsNaN(n) || math.IsInf(n, 0), name)
						}
					}
					require.Equal(t, mild("l1.w", 3), kit.GradsOf(t, ctx, m)["l1.w"][3], "nothing was scaled")
				})
			})
		}
	}
}

// TestNormOverflows checks gradients that are finite and whose norm is not.
func TestNormOverflows(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Chain64(t, g)
		kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
		setGrads(t, m, func(string, int) float64 { return math.MaxFloat64 })
		_, err := m.ClipGradNorm(ctx, 1)
		require.ErrorContains(t, err, "the norm of the gradients overflows")
		norm, err := m.ClipGradNorm(ctx, math.Inf(1), fsdp.InfNorm)
		require.NoError(t, err)
		require.Equal(t, math.MaxFloat64, norm)
		setGrads(t, m, func(string, int) float64 { return 0x1p-1000 })
		norm, err = m.ClipGradNorm(ctx, 1)
		require.NoError(t, err)
		require.Equal(t, 0x1p-1000*10, norm, "√100 times that, whose square is nothing")
	})
}
