package state_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// TestFullOptimStateAfterTraining compares the state after five steps on three ranks with that of
// one on the three batches as one.
func TestFullOptimStateAfterTraining(t *testing.T) {
	const world, steps = 3, 5
	train := func(ctx context.Context, g comm.Group, batch func(step int) []fsdp.Tensor) *optim.FullState {
		m := kit.Tiny64(t, g)
		opt, err := optim.SGD{Momentum: 0.9}.New(m.Params())
		require.NoError(t, err)
		for step := range steps {
			kit.ForwardBackward(t, ctx, m, batch(step))
			require.NoError(t, opt.Step(0.1))
			m.ZeroGrad()
		}
		state, err := m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		return state
	}
	var want *optim.FullState
	kit.OnRanks(t, 1, func(ctx context.Context, g comm.Group) {
		want = train(ctx, g, func(step int) []fsdp.Tensor {
			var columns [2][]int
			for r := range world {
				for i, part := range kit.TinyBatch(step, r, 2, 3) {
					columns[i] = append(columns[i], part.Data().([]int)...)
				}
			}
			return []fsdp.Tensor{
				tensor.New(tensor.WithShape(2*world, 3), tensor.WithBacking(columns[0])),
				tensor.New(tensor.WithShape(2*world, 3), tensor.WithBacking(columns[1])),
			}
		})
	})
	kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
		got := train(ctx, g, func(step int) []fsdp.Tensor { return kit.TinyBatch(step, g.Rank(), 2, 3) })
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
	kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Statistics, fsdp.Config{Group: g, Precision: kit.Float64s})
		_, err := m.Forward(ctx, kit.ShapeBatch(g.Rank())...)
		require.NoError(t, err)
		state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		all[g.Rank()] = kit.Elements(state["bn.running_mean"])
		for root := range world {
			state, err := m.StateDict(ctx, &fsdp.StateDictOptions{Rank: root})
			require.NoError(t, err)
			if g.Rank() == root {
				only[root] = kit.Elements(state["bn.running_mean"])
			}
		}
	})
	require.Equal(t, all, only)
	require.NotEqual(t, all[0], all[1])
}

// TestFullStateNeedsLittleMemory bounds what collecting on one rank takes of the model's memory on
// all: that of the parcels in which small tensors travel.
func TestFullStateNeedsLittleMemory(t *testing.T) {
	params := []fsdp.Param{kit.Weight("large", 1000, 83)}
	for i := range 200 {
		params = append(params, kit.Weight(fmt.Sprint("w", i), 100, 83))
	}
	model := kit.Calls(kit.Call("a", kit.Having(params...)))
	kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, model, fsdp.Config{Group: g})
		opt, err := optim.AdamW{}.New(m.Params())
		require.NoError(t, err)
		m.ResetPeak()
		_, err = m.StateDict(ctx, &fsdp.StateDictOptions{Rank: 1})
		require.NoError(t, err)
		_, err = m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{Rank: 1})
		require.NoError(t, err)
		require.LessOrEqual(t, m.Memory().Peak-m.Memory().Live, 4<<20, "of 14 MB")
	})
}

// TestFullStateErrors checks what every rank hears of a mistake of one, and that the model can be
// used afterwards.
func TestFullStateErrors(t *testing.T) {
	const wrong = 2 // the rank that makes the mistake
	type collecting func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, rank int) error
	state := func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, opts fsdp.StateDictOptions) error {
		_, err := m.OptimStateDict(ctx, opt, &opts)
		return err
	}
	only := func(rank int, f collecting) collecting {
		return func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, r int) error {
			if r == rank {
				return f(ctx, m, opt, r)
			}
			return state(ctx, m, opt, fsdp.StateDictOptions{})
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
			_, err := m.StateDict(ctx, &fsdp.StateDictOptions{Rank: 3})
			return err
		}, "StateDict: option Rank is 3: there are 3 ranks"},
		"negative rank": {func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, _ int) error {
			return state(ctx, m, opt, fsdp.StateDictOptions{Rank: -1})
		}, "OptimStateDict: StateDictOptions.Rank is -1: give a rank, or AllRanks"},
		"roots differ": {func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, rank int) error {
			return state(ctx, m, opt, fsdp.StateDictOptions{Rank: rank / 2})
		}, "rank 2 runs OptimStateDict as call 1 with Rank 1"},
		"memory of another method": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, _ optim.Optimizer, _ int) error {
			_, err := m.StateDict(ctx, &fsdp.StateDictOptions{Into: &optim.FullState{}})
			return err
		}), "StateDictOptions.Into is for OptimStateDict"},
		"no optimizer on one rank": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, _ optim.Optimizer, _ int) error {
			return state(ctx, m, nil, fsdp.StateDictOptions{})
		}), "the optimizer is nil"},
		"two roots": {func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, _ int) error {
			return state(ctx, m, opt, fsdp.StateDictOptions{Rank: 1, AllRanks: true})
		}, "StateDictOptions.Rank is 1 and AllRanks is set: give only one of them"},
		"another method on one rank": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, _ optim.Optimizer, _ int) error {
			_, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
			return err
		}), "ranks disagree: "},
		"an optimizer of another model": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, _ optim.Optimizer, _ int) error {
			return state(ctx, m, foreign(optim.Param{Name: "z", Shape: []int{2}}), fsdp.StateDictOptions{})
		}), `the optimizer has exp_avg of "z", which is not a parameter of the model`},
		"another shape": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, _ optim.Optimizer, _ int) error {
			return state(ctx, m, foreign(optim.Param{Name: "a.b", Shape: []int{2}}), fsdp.StateDictOptions{})
		}), "the optimizer has exp_avg of a.b with shape [2], but the model's shape is [7]"},
		"another interval": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, _ optim.Optimizer, _ int) error {
			return state(ctx, m, foreign(optim.Param{Name: "b.w", Shape: []int{5, 11}, Offset: 3}), fsdp.StateDictOptions{})
		}), "the optimizer has elements [3:5] of b.w, which differ from this rank's shard"},
		"another number of steps": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, _ int) error {
			next, err := optim.AdamW{}.New(m.Params())
			require.NoError(t, err)
			require.NoError(t, next.Adopt(7, nil))
			return state(ctx, m, next, fsdp.StateDictOptions{})
		}), "the optimizer has made 0 steps on rank 0, but 7 steps on rank 2"},
		"another number of updates": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, _ int) error {
			next, err := optim.AdamW{}.New(m.Params())
			require.NoError(t, err)
			entries := next.State()
			for i := range entries {
				entries[i].Steps = 3
			}
			require.NoError(t, next.Adopt(0, entries))
			return state(ctx, m, next, fsdp.StateDictOptions{})
		}), "parameter b.w: rank 1 has exp_avg after 0 updates, exp_avg_sq after 0 updates, rank 2 has exp_avg after 3 updates, exp_avg_sq after 3 updates"},
		"other entries": {only(wrong, func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, _ int) error {
			next, err := optim.SGD{}.New(m.Params())
			require.NoError(t, err)
			return state(ctx, m, next, fsdp.StateDictOptions{})
		}), "parameter b.w: rank 1 has exp_avg after 0 updates, exp_avg_sq after 0 updates, rank 2 has nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			for r, err := range kit.ErrorsOf(t, 3, func(ctx context.Context, g comm.Group) error {
				m := kit.Wrap(t, kit.Calls(kit.Call("a", kit.Having(kit.Weight("w", 31, 3), kit.Weight("b", 7))), kit.Call("b", kit.Having(kit.Weight("w", 5, 11)))), fsdp.Config{Group: g})
				opt, err := optim.AdamW{}.New(m.Params())
				require.NoError(t, err)
				failed := c.call(ctx, m, opt, g.Rank())
				require.NoError(t, state(ctx, m, opt, fsdp.StateDictOptions{}), "the model can be used")
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
	model := kit.Calls(kit.Call("a", kit.Having(kit.Weight("b.up", 3))), kit.Call("a.b", kit.Having(kit.Weight("up@0", 3))))
	for _, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		own, err := g.Split(ctx, g.Rank(), 0)
		require.NoError(t, err)
		m := kit.Wrap(t, model, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Unit: kit.GroupOf(func(u fsdp.UnitConfig) comm.Group {
			if u.Name == "a" {
				return own
			}
			return nil
		})})
		opt, err := optim.AdamW{}.New(m.Params())
		require.NoError(t, err)
		err = m.LoadOptimStateDict(ctx, 0, opt, &optim.FullState{}, nil)
		require.ErrorContains(t, err, `LoadOptimStateDict: the state would have two tensors named "exp_avg:a.b.up@0"`)
		require.ErrorContains(t, m.LoadStateDict(ctx, 0, nil), `the state would have two tensors named "a.b.up@0"`)
		_, err = m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		return err
	}) {
		require.ErrorContains(t, err, `StateDict: the state would have two tensors named "a.b.up@0"`)
	}
}

// TestFullGradsAllOrNothing: beside an error there is nothing. It was what had been collected until
// then.
func TestFullGradsAllOrNothing(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
		require.NoError(t, m.Close())
		grads, err := m.FullGrads(ctx)
		require.ErrorContains(t, err, "FullGrads: the model is closed")
		require.Nil(t, grads)
	})
}
