package state_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
)

// odds is a chain with parameters of odd shapes: a scalar, one element, and more than a rank's
// share of the others together.
var odds kit.Model = func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
	scaled := &kit.Module{
		Parameters: []fsdp.Param{{Name: "scalar", Init: fsdp.Constant(0.75)}, {Name: "one", Shape: []int{1, 1}, Init: fsdp.Constant(0.5)}},
		Graph: func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
			s, err := b.Param("scalar")
			if err != nil {
				return nil, err
			}
			y, err := gorgonia.HadamardProd(in[0], s)
			return gorgonia.Nodes{y}, err
		},
	}
	x := t.Call("l0", &kit.Dense{Dim: kit.ShapeDim}, in[0])
	x = t.Call("scaled", scaled, x)
	return kit.Regress(t, in, t.Call("l1", &kit.Dense{Dim: kit.ShapeDim}, x)), nil
}

// oddConfig is a configuration for odds.
func oddConfig(g comm.Group, cfg fsdp.Config) fsdp.Config {
	cfg.Group, cfg.WrapPolicy, cfg.Precision, cfg.Seed = g, fsdp.WrapEach(), kit.Float64s, 5
	return cfg
}

// TestFullShowsAll checks what Full gives its function: all or the chosen parameters, whole, as
// tensors of the function's own.
func TestFullShowsAll(t *testing.T) {
	for _, world := range []int{1, 2, 3, 4} {
		kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, odds, oddConfig(g, cfg))
				kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
				want := kit.StateBits(t, ctx, m)
				live := m.Memory().Live
				var kept kit.Params
				require.NoError(t, m.Summon(ctx, nil, func(p kit.Params) error {
					kit.RequireSameBits(t, want, kit.BitsOf(p))
					require.Equal(t, tensor.Shape{kit.ShapeDim, kit.ShapeDim}, p["l0.w"].Shape())
					for _, v := range p {
						kit.Elements(v)[0] = 77
					}
					kept = maps.Clone(p)
					clear(p)
					return nil
				}))
				require.Equal(t, live, m.Memory().Live)
				require.Equal(t, 77., kit.Elements(kept["l1.w"])[0])
				names := []string{"scaled.scalar", "l1.w", "l1.w"}
				require.NoError(t, m.Summon(ctx, names, func(p kit.Params) error {
					kit.RequireSameBits(t, kit.Bits{"scaled.scalar": want["scaled.scalar"], "l1.w": want["l1.w"]}, kit.BitsOf(p), "nothing was written back")
					return nil
				}, nil))
			})
		})
	}
}

// TestWriteBack checks that what the chosen rank has changed is what all have, to the bit, whatever
// others have done, and that what it has not is as it was.
func TestWriteBack(t *testing.T) {
	for _, world := range []int{1, 2, 3, 4} {
		kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, odds, oddConfig(g, cfg))
				want := kit.StateBits(t, ctx, m)
				for root := range world {
					require.NoError(t, m.Summon(ctx, []string{"l0.w", "l1.w", "scaled.scalar", "scaled.one"}, func(p kit.Params) error {
						for i := range kit.Elements(p["l0.w"]) {
							kit.Elements(p["l0.w"])[i] = kit.Value(i, g.Rank())
						}
						p["scaled.scalar"] = tensor.New(tensor.FromScalar(float64(g.Rank())))
						p["scaled.one"] = tensor.New(tensor.WithShape(1), tensor.WithBacking([]float64{float64(-g.Rank())}))
						delete(p, "l1.w")
						return nil
					}, fsdp.WriteBack(root)))
					for i := range want["l0.w"] {
						want["l0.w"][i] = math.Float64bits(kit.Value(i, root))
					}
					want["scaled.scalar"][0] = math.Float64bits(float64(root))
					want["scaled.one"][0] = math.Float64bits(float64(-root))
					kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
				}
				kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
				_, err := m.ClipGradNorm(ctx, math.Inf(1))
				require.NoError(t, err)
				kit.RequireIdle(t, ctx, m, kit.ShapeBatch(g.Rank()))
			})
		})
	}
}

// TestFullErrors checks that a mistake of one rank is an error on all, changes nothing, and costs
// nothing.
func TestFullErrors(t *testing.T) {
	spoil := func(p kit.Params) error { kit.ClearAll(p); return nil }
	type attempt struct {
		names []string
		f     func(p kit.Params) error
		opts  []fsdp.SummonOption
	}
	for name, c := range map[string]struct {
		odd  func(a *attempt) // what the last rank does
		all  bool             // and all others
		want string
	}{
		"unknown name":    {func(a *attempt) { a.names = []string{"l0.w", "l9.w"} }, true, `the model has no parameter "l9.w"`},
		"of one rank":     {func(a *attempt) { a.names = []string{"l9.w"} }, false, `the model has no parameter "l9.w": its parameters are [l0.w`},
		"other names":     {func(a *attempt) { a.names = []string{"l0.w"} }, false, "ranks disagree"},
		"other root":      {func(a *attempt) { a.opts[0] = fsdp.WriteBack(1) }, false, "ranks disagree"},
		"no root":         {func(a *attempt) { a.opts = nil }, false, "ranks disagree"},
		"root too large":  {func(a *attempt) { a.opts[0] = fsdp.WriteBack(3) }, true, "WriteBack(3): there are 3 ranks"},
		"root negative":   {func(a *attempt) { a.opts[0] = fsdp.WriteBack(-1) }, true, "WriteBack(-1): there are 3 ranks"},
		"function fails":  {func(a *attempt) { a.f = func(p kit.Params) error { kit.ClearAll(p); return errors.New("out of luck") } }, false, "out of luck"},
		"function panics": {func(a *attempt) { a.f = func(p kit.Params) error { panic("out of mind") } }, false, kit.PanickedHere("the function", "out of mind")},
		"function is nil": {func(a *attempt) { a.f = nil }, true, "the function panicked at "},
		"new name":        {func(a *attempt) { a.f = func(p kit.Params) error { p["l7.w"] = p["l0.w"]; return nil } }, true, `the model has no parameter "l7.w"`},
		"name not asked": {func(a *attempt) {
			a.names, a.f = []string{"l0.w"}, func(p kit.Params) error { p["l1.w"] = p["l0.w"]; return nil }
		}, true, `has added parameter "l1.w", which Summon was not asked for`},
		"other shape": {func(a *attempt) { a.f = func(p kit.Params) error { p["l1.w"] = kit.Floats(1, 3, 3); return nil } }, true, "parameter l1.w is float64 [5 5], got float64 (3, 3)"},
		"other type":  {func(a *attempt) { a.f = func(p kit.Params) error { p["l1.w"] = kit.Ones(25); return nil } }, true, "parameter l1.w is float64 [5 5], got float32"},
		"nil tensor":  {func(a *attempt) { a.f = func(p kit.Params) error { p["l1.w"] = nil; return nil } }, true, "parameter l1.w"},
		"transposed":  {func(a *attempt) { a.f = func(p kit.Params) error { return p["l1.w"].T() } }, true, "parameter l1.w"},
	} {
		t.Run(name, func(t *testing.T) {
			kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, odds, oddConfig(g, fsdp.Config{}))
				want := kit.StateBits(t, ctx, m)
				for _, root := range []int{2, 0} { // the odd one writes, or another
					a := attempt{nil, spoil, []fsdp.SummonOption{fsdp.WriteBack(root)}}
					if c.all || g.Rank() == 2 {
						c.odd(&a)
					}
					err := m.Summon(ctx, a.names, a.f, a.opts...)
					if name == "other root" && root == 0 {
						require.ErrorContains(t, err, "with WriteBack 1")
						continue
					}
					require.ErrorContains(t, err, fmt.Sprintf("fsdp: rank %d: Summon: ", g.Rank()))
					if name != "other root" {
						require.ErrorContains(t, err, c.want)
					}
					kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
					kit.RequireIdle(t, ctx, m, kit.ShapeBatch(g.Rank()))
				}
			})
		})
	}
}

// TestSetFull moves the parameters of a model under one strategy, known to one rank, to a model
// under another.
func TestSetFull(t *testing.T) {
	source := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Seed: 9})
	weights, err := source.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	want := kit.BitsOf(weights)
	for _, world := range []int{1, 2, 3, 4} {
		kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			for root := range world {
				kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
					cfg := cfg
					cfg.Group, cfg.WrapPolicy, cfg.Precision.Gather = g, kit.Blocks, fsdp.BFloat16
					cfg.Frozen = func(name string) bool { return name == "wte.weight" }
					cfg.Ignored = func(name string) bool { return name == "lnf.bias" }
					m := kit.Wrap(t, kit.TinyGPT(2), cfg)
					before := kit.StateBits(t, ctx, m)
					var mine kit.Params
					if g.Rank() == root {
						mine = kit.Params{"wpe.weight": weights["wpe.weight"]}
					} else if g.Rank() == root+1 {
						mine = kit.Params{"nobody": nil} // nobody looks
					}
					require.NoError(t, m.LoadStateDict(ctx, root, mine))
					before["wpe.weight"] = want["wpe.weight"]
					kit.RequireSameBits(t, before, kit.StateBits(t, ctx, m), "others keep their value")
					if g.Rank() == root {
						mine = weights
					}
					require.NoError(t, m.LoadStateDict(ctx, root, mine))
					kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
					require.NoError(t, m.LoadStateDict(ctx, root, nil), "nothing to set")
					kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
					kit.RequireIdle(t, ctx, m, kit.GoodBatch(g.Rank()))
				})
			}
		})
	}
}

// TestSetFullOfEmptyRoot gives root no tensors. That is an error if another rank has some, and
// changes nothing otherwise.
func TestSetFullOfEmptyRoot(t *testing.T) {
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, odds, oddConfig(g, fsdp.Config{}))
		want := kit.StateBits(t, ctx, m)
		all, err := m.StateDict(ctx, &fsdp.StateDictOptions{Rank: 1})
		require.NoError(t, err)
		require.ErrorContains(t, m.LoadStateDict(ctx, 0, all), "root is rank 0, which has no tensors, but this rank has some: set root to the rank with the tensors")
		require.NoError(t, m.LoadStateDict(ctx, 0, nil))
		kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
	})
}

// TestSetFullErrors checks that what is wrong with the root's values is an error on every rank, and
// changes nothing.
func TestSetFullErrors(t *testing.T) {
	values := func(change func(kit.Params)) kit.Params {
		p := kit.Params{"l0.w": kit.Floats(1, kit.ShapeDim, kit.ShapeDim), "scaled.one": kit.Floats(2, 1)}
		change(p)
		return p
	}
	for name, c := range map[string]struct {
		root   func(rank int) int
		change func(kit.Params)
		want   string
	}{
		"negative root":  {func(int) int { return -1 }, func(kit.Params) {}, "rank -1 is not one of the 3 ranks"},
		"root too large": {func(int) int { return 3 }, func(kit.Params) {}, "rank 3 is not one of the 3 ranks"},
		"two roots":      {func(r int) int { return r % 2 }, func(kit.Params) {}, "ranks disagree"},
		"unknown name":   {func(int) int { return 1 }, func(p kit.Params) { p["l5.w"] = kit.Floats(1, 1) }, `the model has no parameter "l5.w"`},
		"other shape":    {func(int) int { return 1 }, func(p kit.Params) { p["l1.w"] = kit.Floats(1, 25) }, "parameter l1.w is float64 [5 5], got float64 (25)"},
		"other type":     {func(int) int { return 1 }, func(p kit.Params) { p["l1.w"] = kit.Ones(25) }, "got float32"},
		"integers":       {func(int) int { return 1 }, func(p kit.Params) { p["l1.w"] = kit.Tokens(1, 5, 5, 5) }, "got int"},
		"nil":            {func(int) int { return 1 }, func(p kit.Params) { p["l1.w"] = nil }, "parameter l1.w"},
	} {
		t.Run(name, func(t *testing.T) {
			kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, odds, oddConfig(g, fsdp.Config{}))
				want := kit.StateBits(t, ctx, m)
				err := m.LoadStateDict(ctx, c.root(g.Rank()), values(c.change))
				require.ErrorContains(t, err, c.want)
				require.ErrorContains(t, err, fmt.Sprintf("fsdp: rank %d: LoadStateDict: ", g.Rank()))
				kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
				kit.RequireIdle(t, ctx, m, kit.ShapeBatch(g.Rank()))
				require.NoError(t, m.LoadStateDict(ctx, 1, values(func(kit.Params) {})))
				require.NotEqual(t, want, kit.StateBits(t, ctx, m))
			})
		})
	}
}

// TestFullBetweenPasses uses Full between forward and backward, after a failure and on a closed
// model.
func TestFullBetweenPasses(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, odds, oddConfig(g, fsdp.Config{Poison: true}))
		kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
		want := kit.GradBits(t, ctx, m)
		m.ZeroGrad()
		_, err := m.Forward(ctx, kit.ShapeBatch(g.Rank())...)
		require.NoError(t, err)
		require.NoError(t, m.Summon(ctx, nil, func(kit.Params) error { return nil }))
		require.NoError(t, m.Backward(ctx))
		kit.RequireSameBits(t, want, kit.GradBits(t, ctx, m))
		for _, change := range []func() error{
			func() error { return m.Summon(ctx, nil, func(kit.Params) error { return nil }, fsdp.WriteBack(1)) },
			func() error { return m.LoadStateDict(ctx, 0, nil) },
		} {
			_, err := m.Forward(ctx, kit.ShapeBatch(g.Rank())...)
			require.NoError(t, err)
			require.NoError(t, change())
			require.ErrorContains(t, m.Backward(ctx), "no pending Forward", "parameters may have changed")
			_, err = m.Forward(ctx, kit.ShapeBatch(g.Rank())...)
			require.NoError(t, err)
			held := m.Hold()
			require.ErrorContains(t, change(), "put aside by Hold")
			require.NoError(t, held.Discard(ctx))
		}
		require.NoError(t, m.Close())
		require.ErrorContains(t, m.Summon(ctx, nil, func(kit.Params) error { return nil }), "the model is closed")
		require.ErrorContains(t, m.LoadStateDict(ctx, 0, nil), "the model is closed")
		require.ErrorContains(t, m.AverageBuffers(ctx), "the model is closed")
	})
}
