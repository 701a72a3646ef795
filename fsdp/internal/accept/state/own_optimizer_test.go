package state_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// TestOwnOptimizer trains with an optimizer that is only a formula, on two ranks, continues on one,
// and compares the parameters with an undisturbed training. The plan knows its state.
func TestOwnOptimizer(t *testing.T) {
	kit.Needs(t, kit.HostMemory) // the formula runs on the processor
	newLion := optim.Elementwise{
		Kind: "Lion", State: []string{"exp_avg"}, WeightDecay: 0.1, Numbers: map[string]float64{"beta1": 0.9, "beta2": 0.99},
		Float32: func(u optim.Elements[float32]) {
			lr, decay, m := float32(u.LR), float32(u.WeightDecay), u.State[0]
			beta1, beta2 := float32(u.Numbers["beta1"]), float32(u.Numbers["beta2"])
			for i, g := range u.Grad {
				direction := float32(1)
				if beta1*m[i]+(1-beta1)*g < 0 {
					direction = -1
				}
				u.Value[i] -= lr * (direction + decay*u.Value[i])
				m[i] = beta2*m[i] + (1-beta2)*g
			}
		},
	}.New
	dir := t.TempDir()
	train := func(ranks, from, to int) (whole map[string][]float32) {
		kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) {
			cfg := fsdp.Config{Group: g, VirtualRanks: 2}
			if g.Rank() == 0 && from == 0 {
				bytes := func(newOptimizer func([]optim.Param) (optim.Optimizer, error)) int {
					plan, err := fsdp.Planner{Model: kit.TinyGPT(2), Config: cfg, NewOptimizer: newOptimizer, Batch: []fsdp.Shape{fsdp.Ints(2, 3), fsdp.Ints(2, 3)}}.Plan()
					require.NoError(t, err)
					return plan.StateBytes
				}
				require.NotZero(t, bytes(newLion))
				require.Equal(t, bytes(optim.SGD{Momentum: 0.5}.New), bytes(newLion))
			}
			m := kit.Wrap(t, kit.TinyGPT(2), cfg)
			defer m.Close()
			opt, err := newLion(m.Params())
			require.NoError(t, err)
			if from > 0 {
				_, err := m.Load(ctx, dir, opt, nil)
				require.NoError(t, err)
			}
			for step := from; step < to; step++ {
				for row := range 2 / ranks {
					_, err := m.Forward(ctx, kit.TinyBatch(step, g.Rank()+row, 2, 3)...)
					require.NoError(t, err)
					require.NoError(t, m.Backward(ctx))
				}
				require.NoError(t, opt.Step(0.01))
				m.ZeroGrad()
			}
			require.NoError(t, m.Save(ctx, dir, opt, nil))
			full, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			if g.Rank() == 0 {
				whole = make(map[string][]float32)
				for name, v := range full {
					whole[name] = v.Data().([]float32)
				}
			}
		})
		return whole
	}
	want := train(2, 0, 4)
	dir = t.TempDir()
	train(2, 0, 2)
	require.Equal(t, want, train(1, 2, 4))
}
