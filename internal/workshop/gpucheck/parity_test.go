//go:build gpu && linux && cgo

package gpucheck

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// TestParity trains small models on the GPUs and on the processor, from the same weights and
// batches. Losses and, after the last step, weights are the same within rounding.
func TestParity(t *testing.T) {
	if !isRank() {
		inEach(t)
		return
	}
	m := join(t)
	for _, x := range []struct {
		name  string
		model fsdp.Model
		unit  fsdp.Module
	}{
		{"GPT", &nn.GPT{Vocab: 61, Context: 16, Layers: 2, Dim: 64, Heads: 4, Tied: true}, &nn.Block{}},
		{"Llama", &nn.Llama{Vocab: 61, Layers: 2, Dim: 64, Heads: 4, KVHeads: 2, Hidden: 96}, &nn.Layer{}},
		{"T5", &nn.T5{Vocab: 61, Encoder: 1, Decoder: 1, Dim: 64, Heads: 4, Hidden: 96, Act: nn.GELUTanh, Gated: true}, &nn.Layer{}},
	} {
		for _, p := range []struct {
			name      string
			precision fsdp.Precision
			tolerance float64 // of 1 plus the size
		}{
			{"float32", fsdp.Precision{}, 1e-5},
			{"bfloat16", fsdp.BF16(), 0.01},                           // of numbers with 8 bits, whose sums have other orders
			{"float16", fsdp.Precision{Compute: fsdp.Float16}, 0.001}, // the processor computes in float32
			{"16 bits", fsdp.Precision{Compute: fsdp.BFloat16, Master: fsdp.BFloat16, Reduce: fsdp.BFloat16}, 0.01}, // rounded at random, too
		} {
			cfg := fsdp.Config{Group: m, WrapPolicy: fsdp.WrapTypes(x.unit), Precision: p.precision}
			if p.precision.Compute == fsdp.Float16 {
				cfg.Precision = fsdp.Precision{}
			}
			want := train(t, x.model, cfg)
			cfg.Device, cfg.Precision = &gpu.Device{Device: m.dev}, p.precision
			got := train(t, x.model, cfg)
			losses, weights := distance(want.losses, got.losses), 0.0
			for name, w := range want.weights {
				weights = max(weights, distance(w, got.weights[name]))
			}
			if m.Rank() == 0 {
				report("parity", "%-6s %-9s %d ranks, %d steps: losses differ by %.2g, weights by %.2g of 1 plus their size (at most %g)",
					x.name, p.name, m.Size(), scale().paritySteps, losses, weights, p.tolerance)
			}
			require.LessOrEqual(t, max(losses, weights), p.tolerance, "%s in %s: losses %v on the processor, %v on the GPU",
				x.name, p.name, want.losses, got.losses)
		}
	}
}

// trained is what a training has come to.
type trained struct {
	losses  []float64
	weights map[string][]float64
}

// train trains a model by momentum, in which nothing amplifies rounding. Losses are scaled.
func train(t *testing.T, model fsdp.Model, cfg fsdp.Config) trained {
	ctx := t.Context()
	m, err := fsdp.WrapContext(ctx, model, cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	opt, err := optim.SGD{Momentum: 0.9}.New(m.Params())
	require.NoError(t, err)
	scaler, err := optim.LossScale{Init: 1024}.New()
	require.NoError(t, err)
	var r trained
	for step := range scale().paritySteps {
		loss, err := m.Forward(ctx, batchOf(model, step*cfg.Group.Size()+cfg.Group.Rank())...)
		require.NoError(t, err)
		require.NoError(t, m.Backward(ctx, fsdp.Scale(scaler.Scale())))
		finite, err := m.Unscale(ctx, scaler)
		require.NoError(t, err)
		require.True(t, finite)
		_, err = m.ClipGradNorm(ctx, 1)
		require.NoError(t, err)
		require.NoError(t, opt.Step(0.1))
		m.ZeroGrad()
		r.losses = append(r.losses, loss)
	}
	all, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	r.weights = make(map[string][]float64)
	for name, v := range all {
		for _, x := range v.Data().([]float32) {
			r.weights[name] = append(r.weights[name], float64(x))
		}
	}
	return r
}

// batchOf returns the number-th batch of two sequences.
func batchOf(model fsdp.Model, number int) []fsdp.Tensor {
	tokens := func(salt int) fsdp.Tensor {
		x := make([]int, 2*16)
		for i := range x {
			x[i] = (number*len(x) + i + salt) * 2654435761 >> 7 % 61
		}
		return tensor.New(tensor.WithShape(2, 16), tensor.WithBacking(x))
	}
	if _, ok := model.(*nn.T5); ok {
		mask := make([]int, 2*16)
		for i := range mask {
			mask[i] = min(1, (i+1)%7) // some are no tokens
		}
		return []fsdp.Tensor{tokens(0), tensor.New(tensor.WithShape(2, 16), tensor.WithBacking(mask)), tokens(3), tokens(4)}
	}
	return []fsdp.Tensor{tokens(0), tokens(1)}
}

// distance is the largest difference of two numbers, by 1 plus the first one's size.
func distance(a, b []float64) (most float64) {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	for i := range a {
		d := math.Abs(a[i]-b[i]) / (1 + math.Abs(a[i]))
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		most = max(most, d)
	}
	return most
}
