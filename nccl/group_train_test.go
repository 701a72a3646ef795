//go:build linux && cgo

package nccl

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// train returns the losses of a few steps of a small model.
func train(ctx context.Context, g comm.Group) (losses []float64, err error) {
	model := &nn.GPT{Vocab: 11, Context: 8, Layers: 2, Dim: 16, Heads: 2}
	m, err := fsdp.Wrap(model, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{})})
	if err != nil {
		return nil, err
	}
	defer m.Close()
	opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Params())
	if err != nil {
		return nil, err
	}
	for step := range 5 {
		x, y := make([]int, 16), make([]int, 16)
		for i := range x {
			x[i] = (step + 3*g.Rank() + i) % 11
			y[i] = (x[i] + 1) % 11
		}
		shape := tensor.WithShape(2, 8)
		loss, err := m.Forward(ctx, tensor.New(shape, tensor.WithBacking(x)), tensor.New(shape, tensor.WithBacking(y)))
		if err != nil {
			return nil, err
		}
		losses = append(losses, loss)
		if err := m.Backward(ctx); err != nil {
			return nil, err
		}
		if _, err := m.ClipGradNorm(ctx, 1); err != nil {
			return nil, err
		}
		if err := opt.Step(0.01); err != nil {
			return nil, err
		}
		m.ZeroGrad()
	}
	return losses, nil
}

// A model whose parameters are in host memory trains over NCCL as it does without.
func TestGroupTrains(t *testing.T) {
	doubles(t)
	const n = 3
	gs, want := comm.Local(n), make([][]float64, n)
	for _, err := range each(n, func(r int) (err error) {
		want[r], err = train(t.Context(), gs[r])
		return err
	}) {
		require.NoError(t, err)
	}
	got := make([][]float64, n)
	inGroup(t, n, GroupConfig{}, func(m *member) (err error) {
		got[m.Rank()], err = train(m.me.ctx, m.Group)
		return err
	})
	for r := range want {
		require.NotEmpty(t, want[r])
		require.InDeltaSlice(t, want[r], got[r], 1e-4, "rank %d", r)
	}
}
