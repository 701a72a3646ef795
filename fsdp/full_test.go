package fsdp_test

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/optim"
)

// expertRows is a prime, so that experts are cut unevenly.
const expertRows = 23

// stateModel has parameters of every sort, none of which is ever computed with: prime shapes, a
// scalar, a tied weight, experts, parameters so small that most ranks have nothing of them, and a
// buffer.
var stateModel = calls(
	call("a", having(initial(weight("w", 7, 3)), initial(weight("b", 7)))),
	call("b", having(initial(weight("w", 5, 11)), initial(weight("s")))),
	call("bn", having(fsdp.Param{Name: "mean", Shape: []int{3}, Buffer: true, Init: fsdp.Normal(1)})),
	call("c", having(initial(weight("own", 2, 3)), fsdp.Param{Name: "w", Shape: []int{7, 3}, Tied: "a.w"})),
	call("experts", having(initial(weight("up", expertRows, 5)))),
	call("d", having(initial(weight("one", 1)))),
)

func initial(p fsdp.Param) fsdp.Param {
	p.Init = fsdp.Normal(1)
	return p
}

// stateOptimizers keep nothing, one entry or two for a parameter, for some of them or all.
var stateOptimizers = map[string]func([]optim.Param) (optim.Optimizer, error){
	"SGD":      optim.SGD{}.New,
	"momentum": optim.SGD{Momentum: 0.9, WeightDecay: 0.01}.New,
	"AdamW": optim.AdamW{WeightDecay: 0.1, Rules: []optim.Rule{
		{Match: optim.MatchName(regexp.MustCompile(`^experts`)), LRScale: new(0.25)}, optim.NoDecay(),
	}}.New,
	"AdamW and momentum": func(params []optim.Param) (optim.Optimizer, error) {
		var matrices, rest []optim.Param
		for _, p := range params {
			if len(p.Shape) == 2 {
				matrices = append(matrices, p)
			} else {
				rest = append(rest, p)
			}
		}
		first, err := optim.AdamW{}.New(matrices)
		if err != nil {
			return nil, err
		}
		second, err := optim.SGD{Momentum: 0.5}.New(rest)
		if err != nil {
			return nil, err
		}
		return optim.Compose(first, second)
	},
}

// fiveUpdates makes an optimizer of the pieces and five updates. The gradients are integers that
// depend on nothing but the step, the parameter's name in a full state and the element. One
// parameter never has one, and another only every other time.
func fiveUpdates(t require.TestingT, pieces []optim.Param, name func(string) string, make func([]optim.Param) (optim.Optimizer, error)) optim.Optimizer {
	step := 0
	for i := range pieces {
		p := pieces[i].Name
		pieces[i].Absent = func() bool { return p == "d.one" || strings.HasPrefix(p, "b.w") && step%2 == 1 }
	}
	opt, err := make(pieces)
	require.NoError(t, err)
	for ; step < 5; step++ {
		for _, p := range pieces {
			edit(t, p.Grad, func(i int, _ float64) float64 {
				return float64(u24(p.Offset+i, step+100*len(name(p.Name))+int(name(p.Name)[len(name(p.Name))-1]))%17 - 8)
			})
		}
		require.NoError(t, opt.Step(0.01))
	}
	return opt
}

// whole are the pieces of one process that has the values of a full state, buffers and what is
// frozen apart.
func whole(state params, frozen func(string) bool) (pieces []optim.Param) {
	for _, name := range slices.Sorted(maps.Keys(state)) {
		if name == "bn.mean" || frozen(name) {
			continue
		}
		p := optim.Param{Name: name, Shape: state[name].Shape()}
		switch data := state[name].Data().(type) {
		case []float32:
			p.Value, p.Grad = optim.Host{F32: slices.Clone(data)}, optim.Host{F32: make([]float32, len(data))}
		case []float64:
			p.Value, p.Grad = optim.Host{F64: slices.Clone(data)}, optim.Host{F64: make([]float64, len(data))}
		}
		pieces = append(pieces, p)
	}
	return pieces
}

// stateOf is the state of an optimizer over whole parameters.
func stateOf(opt optim.Optimizer) *optim.FullState {
	full := &optim.FullState{Steps: opt.Steps(), Params: make(map[string]optim.FullParam)}
	for _, e := range opt.State() {
		if _, ok := full.Params[e.Param]; !ok {
			full.Params[e.Param] = optim.FullParam{Shape: e.Shape, Steps: e.Steps, Entries: make(map[string]optim.Host)}
		}
		full.Params[e.Param].Entries[e.Name] = e.Data.(optim.Host)
	}
	return full
}

// requireSameState compares two states of an optimizer element by element, to the bit.
func requireSameState(t require.TestingT, want, got *optim.FullState) {
	require.NotNil(t, got)
	require.Equal(t, want.Steps, got.Steps)
	require.Equal(t, slices.Sorted(maps.Keys(want.Params)), slices.Sorted(maps.Keys(got.Params)))
	for name, w := range want.Params {
		g := got.Params[name]
		require.Equal(t, w.Steps, g.Steps, name)
		require.Equal(t, w.Entries, g.Entries, name) // no NaN is in it
	}
}

// stateLayouts are ways to lay a model out over ranks.
func stateLayouts(world int) map[string]func(t require.TestingT, ctx context.Context, g comm.Group) fsdp.Config {
	layouts := map[string]func(t require.TestingT, ctx context.Context, g comm.Group) fsdp.Config{
		"one unit": func(_ require.TestingT, _ context.Context, g comm.Group) fsdp.Config { return fsdp.Config{Group: g} },
		"ignored": func(_ require.TestingT, _ context.Context, g comm.Group) fsdp.Config {
			return fsdp.Config{Group: g, Ignored: func(name string) bool { return name == "a.w" }}
		},
	}
	for strategy := fsdp.FullShard; strategy <= lastStrategy; strategy++ {
		hybrid := strategy >= fsdp.HybridShard
		if hybrid && world%2 > 0 {
			continue
		}
		layouts[strategy.String()] = func(_ require.TestingT, _ context.Context, g comm.Group) fsdp.Config {
			cfg := fsdp.Config{Group: g, Strategy: strategy, Wrap: fsdp.WrapEach()}
			if hybrid {
				cfg.ShardRanks = world / 2
			}
			return cfg
		}
	}
	for _, ranks := range []int{1, 2, world} {
		for _, order := range []int{1, -1} { // of the ranks in the groups
			if world%ranks > 0 {
				continue
			}
			layouts[fmt.Sprintf("experts of %d ranks, order %d", ranks, order)] = func(t require.TestingT, ctx context.Context, g comm.Group) fsdp.Config {
				own, err := g.Split(ctx, g.Rank()/ranks, order*g.Rank())
				require.NoError(t, err)
				return fsdp.Config{Group: g, Wrap: fsdp.WrapEach(), GroupOf: func(u fsdp.UnitInfo) comm.Group {
					if u.Name == "experts" {
						return own
					}
					return nil
				}}
			}
		}
	}
	layouts["ignored experts"] = func(t require.TestingT, ctx context.Context, g comm.Group) fsdp.Config {
		cfg := layouts["experts of 1 ranks, order 1"](t, ctx, g)
		if world%2 == 0 {
			cfg = layouts["experts of 2 ranks, order -1"](t, ctx, g)
		}
		cfg.Ignored = func(name string) bool { return name == "experts.up" }
		return cfg
	}
	return layouts
}

// fullNames returns the names of a rank's parameters in a full state: those of experts have the
// first rank of its group.
func fullNames(state params, rank int) func(string) string {
	return func(name string) string {
		for leader := rank; leader >= 0; leader-- {
			if own := fmt.Sprintf("%s@%d", name, leader); state[own] != nil {
				return own
			}
		}
		return name
	}
}

// TestFullStateIsThatOfOneProcess compares values and optimizer state, collected after five
// updates, with those of one process, to the bit; on one rank and on all. A new optimizer that is
// given that state has it.
func TestFullStateIsThatOfOneProcess(t *testing.T) {
	frozen := []func(string) bool{func(string) bool { return false }, func(name string) bool { return strings.HasPrefix(name, "b.w") || name == "a.b" }}
	kinds := slices.Sorted(maps.Keys(stateOptimizers))
	for _, world := range []int{1, 2, 3, 4, 5, 8} {
		layouts := stateLayouts(world)
		for n, layout := range slices.Sorted(maps.Keys(layouts)) {
			for k, kind := range kinds {
				t.Run(fmt.Sprintf("%d ranks/%s/%s", world, layout, kind), func(t *testing.T) {
					frozen, root := frozen[(n+k)%2], (n+k)%world
					onRanks(t, world, func(ctx context.Context, g comm.Group) {
						cfg := layouts[layout](t, ctx, g)
						cfg.Poison, cfg.Frozen, cfg.Seed = true, frozen, 3
						if (n+k)%3 == 0 {
							cfg.Precision = float64s
						}
						m := wrap(t, stateModel, cfg)
						fsdp.PoisonPadding(m)
						before, err := m.FullState(ctx)
						require.NoError(t, err)
						opt := fiveUpdates(t, m.Shards(), fullNames(before, g.Rank()), stateOptimizers[kind])

						alone := whole(before, frozen)
						single := fiveUpdates(t, alone, func(name string) string { return name }, stateOptimizers[kind])
						want := stateOf(single)
						values := bitsOf(before)
						for _, p := range alone {
							values[p.Name] = bitsOf(params{p.Name: tensor.New(tensor.WithShape(p.Value.Len()), tensor.WithBacking(anySlice(p.Value.(optim.Host))))})[p.Name]
						}

						checkFull(t, ctx, g, m, opt, root, values, want)
						next, err := stateOptimizers[kind](m.Shards())
						require.NoError(t, err)
						var given *optim.FullState
						if g.Rank() == root {
							given = want
						}
						require.NoError(t, m.SetFullOptim(ctx, root, next, given))
						checkFull(t, ctx, g, m, next, (root+1)%world, values, want)
						require.NoError(t, m.Close())
					})
				})
			}
		}
	}
}

func anySlice(v optim.Host) any {
	if v.F64 != nil {
		return v.F64
	}
	return v.F32
}

// checkFull collects values and state on all ranks and on one, and compares them.
func checkFull(t require.TestingT, ctx context.Context, g comm.Group, m *fsdp.Sharded, opt optim.Optimizer, root int, values bits, want *optim.FullState) {
	all, err := m.FullState(ctx)
	require.NoError(t, err)
	requireSameBits(t, values, bitsOf(all))
	require.NoError(t, m.SetFull(ctx, root, map[int]params{root: all}[g.Rank()]), "what FullState returns, SetFull takes")
	again, err := m.FullState(ctx)
	require.NoError(t, err)
	requireSameBits(t, values, bitsOf(again))
	state, err := m.FullOptimState(ctx, opt, fsdp.OnEveryRank())
	require.NoError(t, err)
	requireSameState(t, want, state)
	for _, p := range state.Params {
		clear(p.Shape) // it is the caller's
	}
	one, err := m.FullState(ctx, fsdp.OnlyOn(root))
	require.NoError(t, err)
	state, err = m.FullOptimState(ctx, opt, fsdp.OnlyOn(root), fsdp.Extra("rank", g.Rank()))
	require.NoError(t, err)
	if g.Rank() != root {
		require.Nil(t, one)
		require.Nil(t, state)
		return
	}
	requireSameBits(t, values, bitsOf(one))
	requireSameState(t, want, state)
	require.Equal(t, map[string]any{"rank": root}, state.Extra)
}

// TestFullOptimStateAfterTraining compares the state after five steps on three ranks with that of
// one on the three batches as one.
func TestFullOptimStateAfterTraining(t *testing.T) {
	const world, steps = 3, 5
	train := func(ctx context.Context, g comm.Group, batch func(step int) []fsdp.Tensor) *optim.FullState {
		m := tiny64(t, g)
		opt, err := optim.SGD{Momentum: 0.9}.New(m.Shards())
		require.NoError(t, err)
		for step := range steps {
			forwardBackward(t, ctx, m, batch(step))
			require.NoError(t, opt.Step(0.1))
			m.ZeroGrad()
		}
		state, err := m.FullOptimState(ctx, opt, fsdp.OnEveryRank())
		require.NoError(t, err)
		return state
	}
	var want *optim.FullState
	onRanks(t, 1, func(ctx context.Context, g comm.Group) {
		want = train(ctx, g, func(step int) []fsdp.Tensor {
			var columns [2][]int
			for r := range world {
				for i, part := range tinyBatch(step, r, 2, 3) {
					columns[i] = append(columns[i], part.Data().([]int)...)
				}
			}
			return []fsdp.Tensor{
				tensor.New(tensor.WithShape(2*world, 3), tensor.WithBacking(columns[0])),
				tensor.New(tensor.WithShape(2*world, 3), tensor.WithBacking(columns[1])),
			}
		})
	})
	onRanks(t, world, func(ctx context.Context, g comm.Group) {
		got := train(ctx, g, func(step int) []fsdp.Tensor { return tinyBatch(step, g.Rank(), 2, 3) })
		require.Equal(t, want.Steps, got.Steps)
		require.Len(t, got.Params, len(want.Params))
		for name, w := range want.Params {
			require.Equal(t, w.Shape, got.Params[name].Shape)
			require.InDeltaSlice(t, w.Entries["momentum_buffer"].F64, got.Params[name].Entries["momentum_buffer"].F64, 1e-12, name)
		}
	})
}

// TestFullStateHasOwnBuffers checks that buffers are those of the rank that gets them.
func TestFullStateHasOwnBuffers(t *testing.T) {
	const world = 3
	var all, only [world][]float64
	onRanks(t, world, func(ctx context.Context, g comm.Group) {
		m := wrap(t, statistics, fsdp.Config{Group: g, Precision: float64s})
		_, err := m.Forward(ctx, shapeBatch(g.Rank())...)
		require.NoError(t, err)
		state, err := m.FullState(ctx)
		require.NoError(t, err)
		all[g.Rank()] = elements(state["bn.running_mean"])
		for root := range world {
			state, err := m.FullState(ctx, fsdp.OnlyOn(root))
			require.NoError(t, err)
			if g.Rank() == root {
				only[root] = elements(state["bn.running_mean"])
			}
		}
	})
	require.Equal(t, all, only)
	require.NotEqual(t, all[0], all[1])
}

// TestFullStateNeedsLittleMemory bounds what collecting on one rank takes of the model's memory on
// all: that of the parcels in which small tensors travel.
func TestFullStateNeedsLittleMemory(t *testing.T) {
	params := []fsdp.Param{weight("large", 1000, 83)}
	for i := range 200 {
		params = append(params, weight(fmt.Sprint("w", i), 100, 83))
	}
	model := calls(call("a", having(params...)))
	onRanks(t, 4, func(ctx context.Context, g comm.Group) {
		m := wrap(t, model, fsdp.Config{Group: g})
		opt, err := optim.AdamW{}.New(m.Shards())
		require.NoError(t, err)
		m.ResetPeak()
		_, err = m.FullState(ctx, fsdp.OnlyOn(1))
		require.NoError(t, err)
		_, err = m.FullOptimState(ctx, opt, fsdp.OnlyOn(1))
		require.NoError(t, err)
		require.LessOrEqual(t, m.Memory().Peak-m.Memory().Live, 4<<20, "of 14 MB")
	})
}

// TestFullStateErrors checks what every rank hears of a mistake of one, and that the model can be
// used afterwards.
func TestFullStateErrors(t *testing.T) {
	const wrong = 2 // the rank that makes the mistake
	type collecting func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, rank int) error
	state := func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, opts ...fsdp.StateOption) error {
		_, err := m.FullOptimState(ctx, opt, opts...)
		return err
	}
	only := func(rank int, f collecting) collecting {
		return func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, r int) error {
			if r == rank {
				return f(ctx, m, opt, r)
			}
			return state(ctx, m, opt)
		}
	}
	foreign := func(param optim.Param) optim.Optimizer {
		param.Value, param.Grad = optim.Host{F32: make([]float32, 2)}, optim.Host{F32: make([]float32, 2)}
		opt, err := optim.AdamW{}.New([]optim.Param{param})
		require.NoError(t, err)
		return opt
	}
	for name, c := range map[string]struct {
		call collecting
		want string
	}{
		"rank out of range": {func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, _ int) error {
			_, err := m.FullState(ctx, fsdp.OnlyOn(3))
			return err
		}, "FullState: OnlyOn(3): there are 3 ranks"},
		"negative rank": {func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, _ int) error {
			return state(ctx, m, opt, fsdp.OnlyOn(-1))
		}, "FullOptimState: OnlyOn(-1): there are 3 ranks"},
		"roots differ": {func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, rank int) error {
			return state(ctx, m, opt, fsdp.OnlyOn(rank/2))
		}, "rank 2 runs FullOptimState as call 1 with OnlyOn(1)"},
		"option of another method": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, _ int) error {
			return state(ctx, m, opt, fsdp.As(fsdp.BFloat16))
		}), "option As is not for this method, which takes [OnlyOn OnEveryRank Extra Into]"},
		"no optimizer on one rank": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, _ optim.Optimizer, _ int) error {
			return state(ctx, m, nil)
		}), "the optimizer is nil"},
		"two roots": {func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, _ int) error {
			return state(ctx, m, opt, fsdp.OnlyOn(1), fsdp.OnEveryRank())
		}, "options OnlyOn and OnEveryRank contradict each other"},
		"another method on one rank": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, _ optim.Optimizer, _ int) error {
			_, err := m.FullState(ctx)
			return err
		}), "ranks disagree: "},
		"an optimizer of another model": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, _ optim.Optimizer, _ int) error {
			return state(ctx, m, foreign(optim.Param{Name: "z", Shape: []int{2}}))
		}), `the optimizer has exp_avg of "z", which is no parameter of the model`},
		"another shape": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, _ optim.Optimizer, _ int) error {
			return state(ctx, m, foreign(optim.Param{Name: "a.b", Shape: []int{2}}))
		}), "the optimizer has exp_avg of a.b [2], the model's is [7]"},
		"another interval": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, _ optim.Optimizer, _ int) error {
			return state(ctx, m, foreign(optim.Param{Name: "b.w", Shape: []int{5, 11}, Offset: 3}))
		}), "the optimizer has elements [3:5] of b.w, which is not what this rank has of it"},
		"another number of steps": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, _ int) error {
			next, err := optim.AdamW{}.New(m.Shards())
			require.NoError(t, err)
			require.NoError(t, next.Adopt(7, nil))
			return state(ctx, m, next)
		}), "the optimizer has made 0 steps on rank 0, 7 on rank 2"},
		"another number of updates": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, _ int) error {
			next, err := optim.AdamW{}.New(m.Shards())
			require.NoError(t, err)
			entries := next.State()
			for i := range entries {
				entries[i].Steps = 3
			}
			require.NoError(t, next.Adopt(0, entries))
			return state(ctx, m, next)
		}), "parameter b.w: rank 1 keeps exp_avg after 0 updates, exp_avg_sq after 0 updates, rank 2 exp_avg after 3 updates, exp_avg_sq after 3 updates"},
		"other entries": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, _ int) error {
			next, err := optim.SGD{}.New(m.Shards())
			require.NoError(t, err)
			return state(ctx, m, next)
		}), "parameter b.w: rank 1 keeps exp_avg after 0 updates, exp_avg_sq after 0 updates, rank 2 nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			for r, err := range errorsOf(t, 3, func(ctx context.Context, g comm.Group) error {
				m := wrap(t, calls(call("a", having(weight("w", 31, 3), weight("b", 7))), call("b", having(weight("w", 5, 11)))), fsdp.Config{Group: g})
				opt, err := optim.AdamW{}.New(m.Shards())
				require.NoError(t, err)
				failed := c.call(ctx, m, opt, g.Rank())
				require.NoError(t, state(ctx, m, opt), "the model can be used")
				require.NoError(t, g.Barrier(ctx)) // a rank that leaves would tell the others
				return failed
			}) {
				require.ErrorContains(t, err, c.want, "rank %d", r)
			}
		})
	}
}

// TestFullStateNamesAreDistinct gives a parameter the name that another one of a group of ranks
// gets.
func TestFullStateNamesAreDistinct(t *testing.T) {
	model := calls(call("a", having(weight("b.up", 3))), call("a.b", having(weight("up@0", 3))))
	for _, err := range errorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		own, err := g.Split(ctx, g.Rank(), 0)
		require.NoError(t, err)
		m := wrap(t, model, fsdp.Config{Group: g, Wrap: fsdp.WrapEach(), GroupOf: func(u fsdp.UnitInfo) comm.Group {
			if u.Name == "a" {
				return own
			}
			return nil
		}})
		opt, err := optim.AdamW{}.New(m.Shards())
		require.NoError(t, err)
		err = m.SetFullOptim(ctx, 0, opt, &optim.FullState{})
		require.ErrorContains(t, err, `SetFullOptim: the state would have two tensors named "exp_avg:a.b.up@0"`)
		require.ErrorContains(t, m.SetFull(ctx, 0, nil), `the state would have two tensors named "a.b.up@0"`)
		_, err = m.FullState(ctx)
		return err
	}) {
		require.ErrorContains(t, err, `FullState: the state would have two tensors named "a.b.up@0"`)
	}
}

// TestFullGradsAllOrNothing: beside an error there is nothing. It was what had been collected until
// then.
func TestFullGradsAllOrNothing(t *testing.T) {
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := wrap(t, smallModel, fsdp.Config{Group: g})
		require.NoError(t, m.Close())
		grads, err := m.FullGrads(ctx)
		require.ErrorContains(t, err, "FullGrads: the model is closed")
		require.Nil(t, grads)
	})
}
