package parity_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// TestAny has any ranks be true. All hear of it, whatever the model is in the middle of.
func TestAny(t *testing.T) {
	for world := 1; world <= 3; world++ {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m := kit.Chain64(t, g)
			for who := range 1 << world {
				got, err := m.Any(ctx, who>>g.Rank()&1 == 1)
				require.NoError(t, err)
				require.Equal(t, who != 0, got)
			}
			_, err := m.Forward(ctx, kit.ShapeBatch(g.Rank())...)
			require.NoError(t, err)
			_, err = m.Any(ctx, false)
			require.NoError(t, err)
			require.NoError(t, m.Backward(ctx), "the Forward still waits")
		})
	}
}

// TestAnyEndsJoin stops a loop that ranks have different numbers of batches for, in the iteration that
// one of them says, and saves there. One that has run out may say so, too.
func TestAnyEndsJoin(t *testing.T) {
	dir := t.TempDir()
	for says := range 3 {
		kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
			m := kit.Chain64(t, g)
			opt, err := optim.SGD{}.New(m.Params())
			require.NoError(t, err)
			passes, over := 0, false
			for batch, err := range m.Join(ctx, kit.Batches(2*g.Rank(), func(i int) []fsdp.Tensor { return kit.UnevenBatch(i, g.Rank()) })) {
				require.NoError(t, err)
				require.NoError(t, kit.TrainStep(ctx, m, batch))
				require.NoError(t, opt.Step(0.1))
				m.ZeroGrad()
				passes++
				over, err = m.Any(ctx, passes == 3 && g.Rank() == says)
				require.NoError(t, err)
				if over {
					require.NoError(t, m.Save(ctx, dir, opt, nil))
					break
				}
			}
			require.Equal(t, 3, passes)
			require.True(t, over)
			kit.RequireIdle(t, ctx, m, kit.ShapeBatch(0))
			require.NoError(t, m.Close())
		})
	}
}

// TestMean draws numbers and weights of ranks, and what loops are around the call.
func TestMean(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.IntRange(1, 4).Draw(t, "ranks")
		counts := rapid.SliceOfN(rapid.IntRange(0, 2), world, world).Draw(t, "batches")
		inner := rapid.SliceOfN(rapid.IntRange(0, 2), world, world).Draw(t, "inner batches")
		dummy := rapid.Bool().Draw(t, "dummy")
		x := rapid.SliceOfN(rapid.Float64Range(-9, 9), world, world).Draw(t, "numbers")
		weights := rapid.SliceOfN(rapid.IntRange(0, 3), world, world).Draw(t, "weights")
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m, rank := kit.Chain64(t, g), g.Rank()
			// check compares with the mean over the ranks that count; a dummy one never does.
			check := func(counts, never func(rank int) bool) {
				for given := range 2 {
					sum, all, mine := 0.0, 0.0, []float64(nil)
					for r := range world {
						w := 0.0
						if given == 1 {
							w = float64(weights[r])
						} else if counts(r) {
							w = 1
						}
						if never(r) {
							w = 0
						}
						sum, all = sum+w*x[r], all+w
					}
					if given == 1 {
						mine = append(mine, float64(weights[rank]))
					}
					got, err := m.Mean(ctx, x[rank], mine...)
					if all == 0 {
						require.EqualError(t, err, fmt.Sprintf("fsdp: rank %d: Mean: the weights of all ranks are 0: leave out the weight, or give a rank a positive one", rank))
						continue
					}
					require.NoError(t, err)
					require.InDelta(t, sum/all, got, 1e-12)
				}
			}
			yes, no := func(int) bool { return true }, func(int) bool { return false }
			loop := func(counts []int) func(func([]fsdp.Tensor, error) bool) {
				var opts []fsdp.JoinOption
				if dummy {
					opts = append(opts, fsdp.Dummy(kit.ShapeBatch(0)...))
				}
				return m.Join(ctx, kit.Batches(counts[rank], kit.ShapeBatch), opts...)
			}
			check(yes, no)
			i := 0
			for _, err := range loop(counts) {
				require.NoError(t, err)
				has := func(r int) bool { return i < counts[r] }
				spurious := func(r int) bool { return dummy && !has(r) }
				check(has, spurious)
				j := 0
				for _, err := range loop(inner) {
					require.NoError(t, err)
					has := func(r int) bool { return j < inner[r] }
					check(has, func(r int) bool { return spurious(r) || dummy && !has(r) })
					j++
				}
				check(has, spurious)
				i++
			}
			check(yes, no)
		})
	})
}

// TestMeanOfWhatIsNoNumber checks what is left out, what is passed on and what is refused.
func TestMeanOfWhatIsNoNumber(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m, rank := kit.Chain64(t, g), float64(g.Rank())
		mean, err := m.Mean(ctx, []float64{math.NaN(), 3}[g.Rank()], rank)
		require.NoError(t, err)
		require.Equal(t, 3.0, mean, "NaN has no weight")
		mean, err = m.Mean(ctx, []float64{math.NaN(), 3}[g.Rank()])
		require.NoError(t, err)
		require.True(t, math.IsNaN(mean))
		for _, weight := range []float64{-1, math.NaN(), math.Inf(1)} {
			_, err = m.Mean(ctx, 1, []float64{1, weight}[g.Rank()])
			require.ErrorContains(t, err, fmt.Sprintf("fsdp: rank %d: Mean: ", g.Rank()))
			require.ErrorContains(t, err, fmt.Sprintf("the weight is %v", weight))
		}
		_, err = m.Mean(ctx, 1, []float64{1, 2}[g.Rank():]...)
		require.ErrorContains(t, err, "got 2 weights, want at most one")
		kit.RequireIdle(t, ctx, m, kit.ShapeBatch(0))
	})
}

// TestParamNorms compares the norms of parameters, some of which are frozen, with those of the whole
// ones, under every strategy.
func TestParamNorms(t *testing.T) {
	for world := 1; world <= 4; world++ {
		kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				cfg := cfg
				cfg.Group, cfg.WrapPolicy = g, kit.Blocks
				cfg.Frozen = func(name string) bool { return name == "wte.weight" }
				m := kit.Wrap(t, kit.TinyGPT(2), cfg)
				state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
				require.NoError(t, err)
				l2, err := m.ParamNorms(ctx, fsdp.L2Norm)
				require.NoError(t, err)
				inf, err := m.ParamNorms(ctx, fsdp.InfNorm)
				require.NoError(t, err)
				require.ElementsMatch(t, slices.Collect(maps.Keys(state)), slices.Collect(maps.Keys(l2)))
				for name, v := range state {
					require.InDelta(t, exactNorm(kit.Elements(v)), l2[name], 1e-14*l2[name], name)
					require.Equal(t, largest(kit.Elements(v)), inf[name], name)
				}
			})
		})
	}
}

// TestNormsOfUnitGroupsByName measures parameters of which ranks have different ones of one name.
func TestNormsOfUnitGroupsByName(t *testing.T) {
	kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Shapes["chain"], kit.GroupedBy(t, ctx, g, "l1", 2))
		for _, p := range m.Params() {
			kit.Edit(t, p.Value, func(i int, _ float64) float64 {
				if p.Name == "l1.w" {
					return mild(fmt.Sprint("expert", g.Rank()/2), p.Offset+i)
				}
				return mild(p.Name, p.Offset+i)
			})
		}
		norms, err := m.ParamNorms(ctx, fsdp.L2Norm)
		require.NoError(t, err)
		for name, norm := range norms {
			if name == "l1.w" {
				name = fmt.Sprint("expert", g.Rank()/2)
			}
			var all []float64
			for i := range kit.ShapeDim * kit.ShapeDim {
				all = append(all, mild(name, i))
			}
			require.InEpsilon(t, exactNorm(all), norm, 1e-14, name)
		}
		require.Len(t, norms, 4)
	})
}

// TestNormsTakeTwoCollectives counts them, and what decisions send, for many units.
func TestNormsTakeTwoCollectives(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		counter := &kit.CountingGroup{Group: g, Tally: &kit.Tally{}}
		m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: counter, WrapPolicy: fsdp.WrapEach()})
		kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
		counter.Take()
		require.NoError(t, kit.ErrorOf(m.Any(ctx, true)))
		require.Equal(t, kit.Tally{}, counter.Take())
		require.NoError(t, kit.ErrorOf(m.Mean(ctx, 1)))
		require.Equal(t, kit.Tally{AllReduces: 1, Bytes: 16}, counter.Take())
		require.NoError(t, kit.ErrorOf(m.ParamNorms(ctx, fsdp.L2Norm)))
		require.Equal(t, 2, counter.Take().AllReduces)
		require.NoError(t, kit.ErrorOf(m.GradNorms(ctx, fsdp.L2Norm)))
		require.Equal(t, 2, counter.Take().AllReduces)
	})
}
