package parity_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// averaging wraps the model of 8 bits and makes an optimizer that keeps averages.
func averaging(t require.TestingT, g comm.Group, cfg fsdp.Config) (*fsdp.Sharded, optim.Optimizer) {
	m, opt := eight(t, g, cfg, eightBits)
	require.NoError(t, optim.EMA(opt, 0.75))
	return m, opt
}

// TestEMAResumes breaks off and goes on with the same averages, whatever the state was carried by,
// with every strategy, with moments in 8 bits, in files and where the state lies out of reach.
func TestEMAResumes(t *testing.T) {
	for _, where := range []string{"", "far", "files"} {
		for i, spread := range kit.Spreads {
			t.Run(spread.Name+where, func(t *testing.T) {
				if where == "far" {
					defer kit.UseFarDevice()()
				}
				dir, cfg := t.TempDir(), kit.Spreads[i].Config(4)
				if where == "files" {
					cfg.Offload.Dir = t.TempDir()
				}
				kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
					m, opt := averaging(t, g, cfg)
					makeSteps(t, m, opt, 0, 3)
					require.NoError(t, m.Save(ctx, filepath.Join(dir, "ckpt"), opt, nil))
					file := filepath.Join(dir, "file")
					require.NoError(t, m.Export(ctx, file, &fsdp.ExportOptions{Optimizer: opt}))
					full, err := m.OptimStateDict(ctx, opt, nil)
					require.NoError(t, err)
					values, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
					require.NoError(t, err)
					state := kit.StateOfAll(t, ctx, m, opt)
					for _, name := range []string{"a.w", "a.b", "b.w"} {
						require.Contains(t, state, "ema:"+name)
					}
					makeSteps(t, m, opt, 3, 5)
					want := kit.StateOfAll(t, ctx, m, opt)
					for _, carrier := range []string{"ckpt", "file", "full"} {
						again, next := averaging(t, g, cfg)
						switch carrier {
						case "file":
							require.NoError(t, again.Import(ctx, file, &fsdp.ImportOptions{Optimizer: next}))
						case "full":
							require.NoError(t, again.LoadStateDict(ctx, 0, values))
							require.NoError(t, again.LoadOptimStateDict(ctx, 0, next, full, nil))
						default:
							_, err := again.Load(ctx, filepath.Join(dir, carrier), next, nil)
							require.NoError(t, err)
						}
						kit.RequireSameBits(t, state, kit.StateOfAll(t, ctx, again, next), carrier)
						makeSteps(t, again, next, 3, 5)
						kit.RequireSameBits(t, want, kit.StateOfAll(t, ctx, again, next), carrier)
						require.NoError(t, again.Close())
					}
					require.NoError(t, m.Close())
				})
			})
		}
	}
}

// TestEMAOtherRanks saves on 1 rank, loads on 3 and on 2: the averages are the same to the bit.
func TestEMAOtherRanks(t *testing.T) {
	dir, want := t.TempDir(), kit.Bits(nil)
	for _, world := range []int{1, 3, 2} {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m, opt := eight(t, g, fsdp.Config{WrapPolicy: fsdp.WrapEach()}, optim.AdamW{})
			require.NoError(t, optim.EMA(opt, 0.75))
			if want == nil {
				makeSteps(t, m, opt, 0, 3)
				require.NoError(t, m.Save(ctx, dir, opt, nil))
				want = kit.StateOfAll(t, ctx, m, opt)
			} else {
				_, err := m.Load(ctx, dir, opt, nil)
				require.NoError(t, err)
			}
			kit.RequireSameBits(t, want, kit.StateOfAll(t, ctx, m, opt), world)

			bare, plain := eight(t, g, fsdp.Config{}, optim.AdamW{})
			_, err := bare.Load(ctx, dir, plain, nil)
			require.ErrorContains(t, err, "ema")
			_, err = bare.Load(ctx, dir, nil, nil)
			require.NoError(t, err, "the parameters alone")
			require.NoError(t, bare.Close())
			require.NoError(t, m.Close())
		})
	}
}

// TestEMABeginsLate loads a checkpoint without averages, which cannot be loaded with them, and begins
// them with what it has.
func TestEMABeginsLate(t *testing.T) {
	dir := t.TempDir()
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m, opt := eight(t, g, fsdp.Config{}, optim.AdamW{})
		makeSteps(t, m, opt, 0, 2)
		require.NoError(t, m.Save(ctx, dir, opt, nil))
		require.NoError(t, m.Close())
		m, opt = averaging(t, g, fsdp.Config{})
		_, err := m.Load(ctx, dir, opt, nil)
		require.ErrorContains(t, err, "ema")
		m, opt = eight(t, g, fsdp.Config{}, optim.AdamW{})
		_, err = m.Load(ctx, dir, opt, nil)
		require.NoError(t, err)
		require.NoError(t, optim.EMA(opt, 0.75))
		require.NoError(t, optim.Swap(opt))
		require.NoError(t, optim.Swap(opt))
		values, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		full, err := m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		for name, v := range values {
			require.Equal(t, v.Float32s(), full.Params[name].Entries["ema"].F32, name)
		}
	})
}

// TestSwapEvaluates runs a model with its averages, some of its parameters frozen, and compares with
// one that was given them. Meanwhile nothing loads or saves with the optimizer, and ranks must all
// have swapped.
func TestSwapEvaluates(t *testing.T) {
	dir := t.TempDir()
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		frozen := func(c *fsdp.Config) { c.Frozen = func(name string) bool { return name == "l1.w" } }
		m, other := kit.Chain64(t, g, frozen), kit.Chain64(t, g)
		opt, err := optim.AdamW{}.New(m.Params())
		require.NoError(t, err)
		require.NoError(t, optim.EMA(opt, 0.5))
		for i := range 4 {
			kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(10*i+g.Rank()))
			require.NoError(t, opt.Step(0.1))
			m.ZeroGrad()
		}
		evaluate := func(m *fsdp.Sharded) []float64 {
			out, err := m.Eval(ctx, kit.ShapeBatch(3)...)
			require.NoError(t, err)
			return kit.Elements(out[0])
		}
		before := evaluate(m)
		values, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		full, err := m.OptimStateDict(ctx, opt, nil)
		require.NoError(t, err)
		if g.Rank() == 0 {
			for name, p := range full.Params {
				copy(values[name].Float64s(), p.Entries["ema"].F64)
			}
			require.NotContains(t, full.Params, "l1.w")
		}
		require.NoError(t, other.LoadStateDict(ctx, 0, values))
		require.NoError(t, optim.Swap(opt))
		require.Equal(t, evaluate(other), evaluate(m))
		require.NotEqual(t, before, evaluate(m))
		for _, err := range []error{
			m.Save(ctx, dir, opt, nil), kit.ErrorOf(m.Load(ctx, dir, opt, nil)), kit.ErrorOf(m.OptimStateDict(ctx, opt, nil)), m.LoadOptimStateDict(ctx, 0, opt, full, nil),
			m.Export(ctx, filepath.Join(dir, "file"), &fsdp.ExportOptions{Optimizer: opt}), kit.ErrorOf(m.Freeze(ctx, nil, opt)),
		} {
			require.ErrorIs(t, err, optim.ErrSwapped)
		}
		require.NoError(t, m.Export(ctx, filepath.Join(dir, "averages"), nil))
		require.NoError(t, m.Save(ctx, dir, nil, nil))
		swapped := evaluate(m)
		for method, err := range map[string]error{
			"Load": kit.ErrorOf(m.Load(ctx, dir, nil, nil)), "LoadStateDict": m.LoadStateDict(ctx, 0, values), "Freeze": kit.ErrorOf(m.Freeze(ctx, nil, nil)),
			"Import": m.Import(ctx, filepath.Join(dir, "averages"), nil),
			"Summon": m.Summon(ctx, nil, func(map[string]*tensor.Dense) error { return nil }, fsdp.WriteBack(1)),
		} {
			require.ErrorIs(t, err, optim.ErrSwapped, method)
			require.ErrorContains(t, err, method)
		}
		require.Equal(t, swapped, evaluate(m), "nothing has changed")
		require.ErrorIs(t, opt.Step(0.1), optim.ErrSwapped)
		require.NoError(t, optim.Swap(opt))
		require.Equal(t, before, evaluate(m))

		_, err = m.Forward(ctx, kit.ShapeBatch(0)...)
		require.NoError(t, err)
		require.ErrorContains(t, optim.Swap(opt), "a Forward waits for its Backward")
		require.NoError(t, m.Backward(ctx))
		m.ZeroGrad()
		if g.Rank() == 1 {
			require.NoError(t, optim.Swap(opt))
		}
		_, err = m.Eval(ctx, kit.ShapeBatch(3)...)
		require.ErrorContains(t, err, "ranks disagree: rank 1 has made a step of Swap since the last pass, but rank 0 has made none")
		if g.Rank() != 1 {
			require.NoError(t, optim.Swap(opt))
		}
		require.NoError(t, kit.ErrorOf(m.Eval(ctx, kit.ShapeBatch(3)...)))
		require.NoError(t, optim.Swap(opt))
		require.NoError(t, m.Close())
		require.ErrorContains(t, optim.Swap(opt), "the model is closed")
	})
}

// TestSwapAfterLoad swaps on ranks of which some have no element of a parameter, and so no state that
// says how many steps it has had.
func TestSwapAfterLoad(t *testing.T) {
	dir := t.TempDir()
	kit.OnRanks(t, 16, func(ctx context.Context, g comm.Group) {
		for _, resumed := range []bool{false, true} {
			m := kit.Chain64(t, g)
			opt, err := optim.AdamW{}.New(m.Params())
			require.NoError(t, err)
			require.NoError(t, optim.EMA(opt, 0.5))
			if resumed {
				require.NoError(t, kit.ErrorOf(m.Load(ctx, dir, opt, nil)))
				require.NoError(t, optim.Swap(opt))
				require.NoError(t, kit.ErrorOf(m.Eval(ctx, kit.ShapeBatch(3)...)))
			} else {
				kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(0))
				require.NoError(t, opt.Step(0.1))
				require.NoError(t, m.Save(ctx, dir, opt, nil))
			}
			require.NoError(t, m.Close())
		}
	})
}

// TestRanksAverageDifferently is an error at the next pass.
func TestRanksAverageDifferently(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Chain64(t, g)
		opt, err := optim.SGD{}.New(m.Params())
		require.NoError(t, err)
		require.NoError(t, optim.EMA(opt, []float64{0.5, 0.75}[g.Rank()]))
		kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(0))
		require.NoError(t, opt.Step(0.1))
		_, err = m.Eval(ctx, kit.ShapeBatch(0)...)
		require.ErrorContains(t, err, fmt.Sprintf("rank 0 has SGD with EMA %v, rank 1 has SGD with EMA %v", 0.5, 0.75))
	})
}

// TestEMAFreezes hands averages over to the optimizer that is made after a parameter was frozen. It
// has those of the others.
func TestEMAFreezes(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m, opt := averaging(t, g, fsdp.Config{WrapPolicy: fsdp.WrapEach()})
		makeSteps(t, m, opt, 0, 2)
		want := kit.StateOfAll(t, ctx, m, opt)
		kept, err := m.Freeze(ctx, func(name string) bool { return name == "a.b" }, opt)
		require.NoError(t, err)
		next, err := eightBits.New(m.Params())
		require.NoError(t, err)
		require.NoError(t, optim.EMA(next, 0.75))
		require.NoError(t, next.Adopt(opt.Steps(), kept))
		got := kit.StateOfAll(t, ctx, m, next)
		require.Equal(t, want["ema:b.w"], got["ema:b.w"])
		require.Equal(t, want["ema:a.w"], got["ema:a.w"])
		require.NotContains(t, got, "ema:a.b")
	})
}
