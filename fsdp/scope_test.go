package fsdp_test

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
)

// odds is a chain with parameters of odd shapes: a scalar, one element, and more than a rank's
// share of the others together.
var odds model = func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
	scaled := &module{
		[]fsdp.Param{{Name: "scalar", Init: fsdp.Constant(0.75)}, {Name: "one", Shape: []int{1, 1}, Init: fsdp.Constant(0.5)}},
		func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
			s, err := b.Param("scalar")
			if err != nil {
				return nil, err
			}
			y, err := gorgonia.HadamardProd(in[0], s)
			return gorgonia.Nodes{y}, err
		},
	}
	x := t.Call("l0", &dense{dim: shapeDim}, in[0])
	x = t.Call("scaled", scaled, x)
	return regress(t, in, t.Call("l1", &dense{dim: shapeDim}, x)), nil
}

// oddConfig is a configuration for odds.
func oddConfig(g comm.Group, cfg fsdp.Config) fsdp.Config {
	cfg.Group, cfg.Wrap, cfg.Precision, cfg.Seed = g, fsdp.WrapEach(), float64s, 5
	return cfg
}

// params is what Full gives its function.
type params = map[string]*tensor.Dense

// TestFullShowsAll checks what Full gives its function: all or the chosen parameters, whole, as
// tensors of the function's own.
func TestFullShowsAll(t *testing.T) {
	for _, world := range []int{1, 2, 3, 4} {
		everyStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			onRanks(t, world, func(ctx context.Context, g comm.Group) {
				m := wrap(t, odds, oddConfig(g, cfg))
				forwardBackward(t, ctx, m, shapeBatch(g.Rank()))
				want := stateBits(t, ctx, m)
				live := m.Memory().Live
				var kept params
				require.NoError(t, m.Full(ctx, nil, func(p params) error {
					requireSameBits(t, want, bitsOf(p))
					require.Equal(t, tensor.Shape{shapeDim, shapeDim}, p["l0.w"].Shape())
					for _, v := range p {
						elements(v)[0] = 77
					}
					kept = maps.Clone(p)
					clear(p)
					return nil
				}))
				require.Equal(t, live, m.Memory().Live)
				require.Equal(t, 77., elements(kept["l1.w"])[0])
				names := []string{"scaled.scalar", "l1.w", "l1.w"}
				require.NoError(t, m.Full(ctx, names, func(p params) error {
					requireSameBits(t, bits{"scaled.scalar": want["scaled.scalar"], "l1.w": want["l1.w"]}, bitsOf(p), "nothing was written back")
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
		everyStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			onRanks(t, world, func(ctx context.Context, g comm.Group) {
				m := wrap(t, odds, oddConfig(g, cfg))
				want := stateBits(t, ctx, m)
				for root := range world {
					require.NoError(t, m.Full(ctx, []string{"l0.w", "l1.w", "scaled.scalar", "scaled.one"}, func(p params) error {
						for i := range elements(p["l0.w"]) {
							elements(p["l0.w"])[i] = value(i, g.Rank())
						}
						p["scaled.scalar"] = tensor.New(tensor.FromScalar(float64(g.Rank())))
						p["scaled.one"] = tensor.New(tensor.WithShape(1), tensor.WithBacking([]float64{float64(-g.Rank())}))
						delete(p, "l1.w")
						return nil
					}, fsdp.WriteBack(root)))
					for i := range want["l0.w"] {
						want["l0.w"][i] = math.Float64bits(value(i, root))
					}
					want["scaled.scalar"][0] = math.Float64bits(float64(root))
					want["scaled.one"][0] = math.Float64bits(float64(-root))
					requireSameBits(t, want, stateBits(t, ctx, m))
				}
				forwardBackward(t, ctx, m, shapeBatch(g.Rank()))
				_, err := m.ClipGradNorm(ctx, math.Inf(1))
				require.NoError(t, err)
				requireIdle(t, ctx, m, shapeBatch(g.Rank()))
			})
		})
	}
}

// TestFullErrors checks that a mistake of one rank is an error on all, changes nothing, and costs
// nothing.
func TestFullErrors(t *testing.T) {
	spoil := func(p params) error { clearAll(p); return nil }
	type attempt struct {
		names []string
		f     func(p params) error
		opts  []fsdp.FullOption
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
		"function fails":  {func(a *attempt) { a.f = func(p params) error { clearAll(p); return errors.New("out of luck") } }, false, "out of luck"},
		"function panics": {func(a *attempt) { a.f = func(p params) error { panic("out of mind") } }, false, panickedHere("the function", "out of mind")},
		"function is nil": {func(a *attempt) { a.f = nil }, true, "the function panicked at "},
		"new name":        {func(a *attempt) { a.f = func(p params) error { p["l7.w"] = p["l0.w"]; return nil } }, true, `the model has no parameter "l7.w"`},
		"name not asked": {func(a *attempt) {
			a.names, a.f = []string{"l0.w"}, func(p params) error { p["l1.w"] = p["l0.w"]; return nil }
		}, true, `has added parameter "l1.w", which was not asked for`},
		"other shape": {func(a *attempt) { a.f = func(p params) error { p["l1.w"] = floats(1, 3, 3); return nil } }, true, "parameter l1.w is float64 [5 5], got float64 (3, 3)"},
		"other type":  {func(a *attempt) { a.f = func(p params) error { p["l1.w"] = ones(25); return nil } }, true, "parameter l1.w is float64 [5 5], got float32"},
		"nil tensor":  {func(a *attempt) { a.f = func(p params) error { p["l1.w"] = nil; return nil } }, true, "parameter l1.w"},
		"transposed":  {func(a *attempt) { a.f = func(p params) error { return p["l1.w"].T() } }, true, "parameter l1.w"},
	} {
		t.Run(name, func(t *testing.T) {
			onRanks(t, 3, func(ctx context.Context, g comm.Group) {
				m := wrap(t, odds, oddConfig(g, fsdp.Config{}))
				want := stateBits(t, ctx, m)
				for _, root := range []int{2, 0} { // the odd one writes, or another
					a := attempt{nil, spoil, []fsdp.FullOption{fsdp.WriteBack(root)}}
					if c.all || g.Rank() == 2 {
						c.odd(&a)
					}
					err := m.Full(ctx, a.names, a.f, a.opts...)
					if name == "other root" && root == 0 {
						require.ErrorContains(t, err, "with WriteBack(1)")
						continue
					}
					require.ErrorContains(t, err, fmt.Sprintf("fsdp: rank %d: Full: ", g.Rank()))
					if name != "other root" {
						require.ErrorContains(t, err, c.want)
					}
					requireSameBits(t, want, stateBits(t, ctx, m))
					requireIdle(t, ctx, m, shapeBatch(g.Rank()))
				}
			})
		})
	}
}

// clearAll sets all elements to zero.
func clearAll(p params) {
	for _, v := range p {
		clear(elements(v))
	}
}

// TestSetFull moves the parameters of a model under one strategy, known to one rank, to a model
// under another.
func TestSetFull(t *testing.T) {
	source := wrap(t, tinyGPT(2), fsdp.Config{Seed: 9})
	weights, err := source.FullState(t.Context())
	require.NoError(t, err)
	want := bitsOf(weights)
	for _, world := range []int{1, 2, 3, 4} {
		everyStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			for root := range world {
				onRanks(t, world, func(ctx context.Context, g comm.Group) {
					cfg := cfg
					cfg.Group, cfg.Wrap, cfg.Precision.Gather = g, blocks, fsdp.BFloat16
					cfg.Frozen = func(name string) bool { return name == "wte.weight" }
					cfg.Ignored = func(name string) bool { return name == "lnf.bias" }
					m := wrap(t, tinyGPT(2), cfg)
					before := stateBits(t, ctx, m)
					var mine params
					if g.Rank() == root {
						mine = params{"wpe.weight": weights["wpe.weight"]}
					} else if g.Rank() == root+1 {
						mine = params{"nobody": nil} // nobody looks
					}
					require.NoError(t, m.SetFull(ctx, root, mine))
					before["wpe.weight"] = want["wpe.weight"]
					requireSameBits(t, before, stateBits(t, ctx, m), "others keep their value")
					if g.Rank() == root {
						mine = weights
					}
					require.NoError(t, m.SetFull(ctx, root, mine))
					requireSameBits(t, want, stateBits(t, ctx, m))
					require.NoError(t, m.SetFull(ctx, root, nil), "nothing to set")
					requireSameBits(t, want, stateBits(t, ctx, m))
					requireIdle(t, ctx, m, good(g.Rank()))
				})
			}
		})
	}
}

// TestSetFullErrors checks that what is wrong with the root's values is an error on every rank, and
// changes nothing.
func TestSetFullErrors(t *testing.T) {
	values := func(change func(params)) params {
		p := params{"l0.w": floats(1, shapeDim, shapeDim), "scaled.one": floats(2, 1)}
		change(p)
		return p
	}
	for name, c := range map[string]struct {
		root   func(rank int) int
		change func(params)
		want   string
	}{
		"negative root":  {func(int) int { return -1 }, func(params) {}, "rank -1 is not one of the 3 ranks"},
		"root too large": {func(int) int { return 3 }, func(params) {}, "rank 3 is not one of the 3 ranks"},
		"two roots":      {func(r int) int { return r % 2 }, func(params) {}, "ranks disagree"},
		"unknown name":   {func(int) int { return 1 }, func(p params) { p["l5.w"] = floats(1, 1) }, `the model has no parameter "l5.w"`},
		"other shape":    {func(int) int { return 1 }, func(p params) { p["l1.w"] = floats(1, 25) }, "parameter l1.w is float64 [5 5], got float64 (25)"},
		"other type":     {func(int) int { return 1 }, func(p params) { p["l1.w"] = ones(25) }, "got float32"},
		"integers":       {func(int) int { return 1 }, func(p params) { p["l1.w"] = tokens(1, 5, 5, 5) }, "got int"},
		"nil":            {func(int) int { return 1 }, func(p params) { p["l1.w"] = nil }, "parameter l1.w"},
	} {
		t.Run(name, func(t *testing.T) {
			onRanks(t, 3, func(ctx context.Context, g comm.Group) {
				m := wrap(t, odds, oddConfig(g, fsdp.Config{}))
				want := stateBits(t, ctx, m)
				err := m.SetFull(ctx, c.root(g.Rank()), values(c.change))
				require.ErrorContains(t, err, c.want)
				require.ErrorContains(t, err, fmt.Sprintf("fsdp: rank %d: SetFull: ", g.Rank()))
				requireSameBits(t, want, stateBits(t, ctx, m))
				requireIdle(t, ctx, m, shapeBatch(g.Rank()))
				require.NoError(t, m.SetFull(ctx, 1, values(func(params) {})))
				require.NotEqual(t, want, stateBits(t, ctx, m))
			})
		})
	}
}

// TestFullBetweenPasses uses Full between forward and backward, after a failure and on a closed
// model.
func TestFullBetweenPasses(t *testing.T) {
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := wrap(t, odds, oddConfig(g, fsdp.Config{Poison: true}))
		forwardBackward(t, ctx, m, shapeBatch(g.Rank()))
		want := gradBits(t, ctx, m)
		m.ZeroGrad()
		_, err := m.Forward(ctx, shapeBatch(g.Rank())...)
		require.NoError(t, err)
		require.NoError(t, m.Full(ctx, nil, func(params) error { return nil }))
		require.NoError(t, m.Backward(ctx))
		requireSameBits(t, want, gradBits(t, ctx, m))
		for _, change := range []func() error{
			func() error { return m.Full(ctx, nil, func(params) error { return nil }, fsdp.WriteBack(1)) },
			func() error { return m.SetFull(ctx, 0, nil) },
		} {
			_, err := m.Forward(ctx, shapeBatch(g.Rank())...)
			require.NoError(t, err)
			require.NoError(t, change())
			require.ErrorContains(t, m.Backward(ctx), "without a Forward", "parameters may have changed")
			_, err = m.Forward(ctx, shapeBatch(g.Rank())...)
			require.NoError(t, err)
			held := m.Hold()
			require.ErrorContains(t, change(), "put aside by Hold")
			require.NoError(t, held.Discard(ctx))
		}
		require.NoError(t, m.Close())
		require.ErrorContains(t, m.Full(ctx, nil, func(params) error { return nil }), "the model is closed")
		require.ErrorContains(t, m.SetFull(ctx, 0, nil), "the model is closed")
		require.ErrorContains(t, m.AverageBuffers(ctx), "the model is closed")
	})
}
