package monitor

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// TestModel watches a model: its memory is as planned, on the rank that holds most, and norms have
// names.
func TestModel(t *testing.T) {
	const length = 4
	model := &nn.GPT{Vocab: 8, Context: length, Layers: 1, Dim: 8, Heads: 2}
	var k keeper
	var shown bytes.Buffer
	require.NoError(t, comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(model, fsdp.Config{Group: g})
		if err != nil {
			return err
		}
		defer m.Close()
		if _, err := (optim.AdamW{}).New(m.Params()); err != nil {
			return err
		}
		tokens := tensor.New(tensor.WithShape(1, length), tensor.Of(tensor.Int))
		plan, err := m.Plan(tokens, tokens)
		if err != nil {
			return err
		}
		mon, err := New(Config{Group: g, Steps: 2, Model: m, Plan: plan, FLOPs: plan.FLOPs / length, Peak: 1e9, Out: &shown, Writers: []Writer{&k}})
		if err != nil {
			return err
		}
		loss, err := m.Forward(ctx, tokens, tokens)
		if err != nil {
			return err
		}
		if err := m.Backward(ctx); err != nil {
			return err
		}
		require.NoError(t, mon.Step(ctx, length, Values{"loss": loss}))
		norms, err := m.GradNorms(ctx, fsdp.L2Norm) // which take memory of their own
		if err != nil {
			return err
		}
		require.NotEmpty(t, norms)
		require.NoError(t, mon.Add("grad_norm/", norms))
		require.NoError(t, mon.Step(ctx, length, Values{"loss": loss}))
		if g.Rank() == 0 {
			require.GreaterOrEqual(t, k.rows[0]["run/memory"], float64(plan.Peak()), "another rank may hold a little more")
			require.Equal(t, k.rows[0]["run/memory"], float64(mon.planned))
			for name, norm := range norms {
				require.Equal(t, norm, k.rows[1]["grad_norm/"+name])
			}
			mfu := k.rows[0]["run/units_per_second"] * float64(plan.FLOPs/length) / 2e9
			require.InEpsilon(t, mfu, k.rows[0]["run/mfu"], 1e-12)
		}
		return mon.Close()
	}))
	require.Regexp(t, `MFU .*%  20.8 kB/rank\n`, shown.String())
	require.Regexp(t, `memory per rank: .* kB at most, 20.8 kB planned\n`, shown.String())
}

// TestTargets trains on rows whose targets are masked in part, on uneven ranks, one step of which
// has a pass that is no rank's batch. The monitor counts the targets of batches, and continues to
// count when it resumes.
func TestTargets(t *testing.T) {
	var k keeper
	var shown bytes.Buffer
	masked := func(counted, all int) []fsdp.Tensor {
		tokens, targets := make([]int, all), make([]int, all)
		for i := counted; i < all; i++ {
			targets[i] = nn.IgnoreTarget
		}
		return []fsdp.Tensor{tensor.New(tensor.WithShape(1, all), tensor.WithBacking(tokens)), tensor.New(tensor.WithShape(1, all), tensor.WithBacking(targets))}
	}
	require.NoError(t, comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(&nn.GPT{Vocab: 8, Context: 4, Layers: 1, Dim: 8, Heads: 2}, fsdp.Config{Group: g})
		require.NoError(t, err)
		defer m.Close()
		opt, err := optim.AdamW{}.New(m.Params())
		require.NoError(t, err)
		cfg := Config{Group: g, Steps: 3, Model: m, Out: &shown, Writers: []Writer{&k}}
		step := func(mon *Monitor, batch []fsdp.Tensor) {
			loss, err := m.Forward(ctx, batch...)
			require.NoError(t, err)
			require.NoError(t, m.Backward(ctx, fsdp.Share(batch)))
			require.NoError(t, opt.Step(1e-3))
			m.ZeroGrad()
			tokens := 0
			if batch != nil {
				tokens = batch[0].Shape().TotalSize()
			}
			require.NoError(t, mon.Step(ctx, tokens, Values{"loss": loss}))
		}
		var data [][]fsdp.Tensor
		data = append(data, masked(1+g.Rank(), 4))
		if g.Rank() == 0 {
			data = append(data, masked(3, 3))
		}
		mon, err := New(cfg)
		require.NoError(t, err)
		for batch, err := range m.Join(ctx, fsdp.Batches(data...), fsdp.Dummy(masked(4, 4)...)) {
			require.NoError(t, err)
			if counted, _ := m.Targets(); counted > 0 {
				_, err = m.Eval(ctx, batch...) // no training
				require.NoError(t, err)
			}
			step(mon, batch)
		}
		cfg.State = mon.State()
		require.NoError(t, mon.Close())
		mon, err = New(cfg)
		require.NoError(t, err)
		step(mon, masked(2, 4))
		counted, all := m.Targets()
		require.Equal(t, [][2]int{{6, 11}, {4, 8}}[g.Rank()], [2]int{counted, all})
		return mon.Close()
	}))
	for i, want := range []float64{3, 6, 10} {
		require.Equal(t, want, k.rows[i]["run/targets"])
	}
	require.InEpsilon(t, k.rows[2]["run/units_per_second"]/2, k.rows[2]["run/targets_per_second"], 1e-12)
	require.Regexp(t, `step 3/3  loss .* tok/s  .* targets/s  `, shown.String())
	require.Contains(t, shown.String(), "  3 steps over 23 tok, 10 targets that count, in ")
}

func TestMeasurePeak(t *testing.T) {
	require.Zero(t, MeasurePeak(1, fsdp.Float64))
	require.Zero(t, MeasurePeak(0, fsdp.Float32))
	wide, half := MeasurePeak(1, fsdp.Float32), MeasurePeak(1, fsdp.BFloat16)
	require.Equal(t, wide > 0, half > 0)
	if wide > 0 {
		require.Greater(t, wide, 1e8)
	}
}

// TestFrozenParametersSaveOperations trains adapters of a model: each frozen weight that meets a
// token takes four operations in place of six, also where backward computes activations again.
func TestFrozenParametersSaveOperations(t *testing.T) {
	const length, rows = 32, 2
	model := &nn.GPT{Vocab: 64, Context: length, Layers: 2, Dim: 64, Heads: 4, LoRA: nn.LoRA{Rank: 1}}
	all, blocks := model.FLOPs(length), fsdp.WrapTypes(&nn.Block{})
	flops := func(cfg fsdp.Config) float64 {
		m, err := fsdp.Wrap(model, cfg)
		require.NoError(t, err)
		defer func() { require.NoError(t, m.Close()) }()
		tokens := tensor.New(tensor.WithShape(rows, length), tensor.Of(tensor.Int))
		plan, err := m.Plan(tokens, tokens)
		require.NoError(t, err)
		require.InEpsilon(t, all*rows*length, plan.Pass.Cost().Trained, 0.05)
		mon, err := New(Config{FLOPs: all, Plan: plan})
		require.NoError(t, err)
		return mon.flops
	}
	require.Equal(t, float64(all), flops(fsdp.Config{}))
	adapters := func(name string) bool { return !nn.IsAdapter(name) }
	// The weights of the blocks and the head have no gradients, and neither has the first block's
	// input.
	needed := all - 2*(2*12*64*64+64*64) - 2*3*64*64
	require.InEpsilon(t, needed, flops(fsdp.Config{Frozen: adapters}), 0.02)
	require.InEpsilon(t, needed, flops(fsdp.Config{Frozen: adapters, Activations: fsdp.Activations{Save: blocks}}), 0.02)
	require.InEpsilon(t, needed, flops(fsdp.Config{Frozen: adapters, Activations: fsdp.Activations{Recompute: blocks}}), 0.02)
	require.InEpsilon(t, all/3, flops(fsdp.Config{Frozen: func(string) bool { return true }}), 0.02, "forward alone")
}
