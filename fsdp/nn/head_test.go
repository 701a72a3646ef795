package nn_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// gradients returns the loss of a training pass and the gradients of all parameters.
func gradients(t *testing.T, s *fsdp.Sharded, batch []fsdp.Tensor) (loss float64, grads map[string][]float64) {
	loss, err := s.Forward(t.Context(), batch...)
	require.NoError(t, err)
	require.NoError(t, s.Backward(t.Context()))
	grads = make(map[string][]float64)
	for _, p := range s.Params() {
		grads[p.Name] = make([]float64, p.Grad.Len())
		require.NoError(t, p.Grad.Read(optim.Host{F64: grads[p.Name]}))
	}
	return loss, grads
}

// TestFusedLoss trains and evaluates models whose losses are fused: they compute what others do,
// with the same parameters, and training has no logits.
func TestFusedLoss(t *testing.T) {
	tokens, mask := ints([]int{2, 3}, 1, 4, 2, 8, 5, 7), ints([]int{2, 3}, 1, 1, 1, 1, 1, 0)
	targets := ints([]int{2, 3}, 4, 2, nn.IgnoreTarget, 5, 7, 6)
	gpt := func(fused, tied bool) fsdp.Model {
		return &nn.GPT{Vocab: 9, Context: 3, Layers: 1, Dim: 4, Heads: 2, Tied: tied, FusedLoss: fused}
	}
	llama := func(fused, tied bool) fsdp.Model {
		return &nn.Llama{Vocab: 9, Layers: 1, Dim: 4, Heads: 2, Hidden: 5, Tied: tied, FusedLoss: fused}
	}
	t5 := func(fused, tied bool) fsdp.Model {
		return &nn.T5{Vocab: 9, Encoder: 1, Decoder: 1, Dim: 4, Heads: 2, HeadDim: 2, Hidden: 5, Act: nn.ReLU, Tied: tied, FusedLoss: fused}
	}
	for _, tt := range []struct {
		model func(fused, tied bool) fsdp.Model
		batch []fsdp.Tensor
	}{{gpt, []fsdp.Tensor{tokens, targets}}, {llama, []fsdp.Tensor{tokens, targets}}, {t5, []fsdp.Tensor{tokens, mask, tokens, targets}}} {
		for _, tied := range []bool{false, true} {
			plain, fused := wrap(t, tt.model(false, tied)), wrap(t, tt.model(true, tied))
			want, wantGrads := gradients(t, plain, tt.batch)
			got, grads := gradients(t, fused, tt.batch)
			require.InDelta(t, want, got, 1e-13)
			require.Len(t, grads, len(wantGrads))
			for name, g := range wantGrads {
				require.InDeltaSlice(t, g, grads[name], 1e-12, name)
			}
			plan, err := fused.Plan(tt.batch...)
			require.NoError(t, err)
			require.NotContains(t, strings.Join(plan.Schedule, "\n"), "logits")

			wantOut, err := plain.Eval(t.Context(), tt.batch...)
			require.NoError(t, err)
			out, err := fused.Eval(t.Context(), tt.batch...)
			require.NoError(t, err)
			require.Len(t, out, 2)
			for i := range out {
				require.Equal(t, wantOut[i].Shape(), out[i].Shape())
				require.InDeltaSlice(t, wantOut[i].Data(), out[i].Data(), 1e-13)
			}
		}
	}
}

// TestFusedLossMemory plans a pass with many classes.
func TestFusedLossMemory(t *testing.T) {
	const tokens, classes = 512, 20_000
	bytes := func(fused bool) int {
		s, err := fsdp.Wrap(&nn.GPT{Vocab: classes, Context: tokens, Dim: 4, Heads: 1, FusedLoss: fused}, fsdp.Config{})
		require.NoError(t, err)
		batch := ints([]int{1, tokens}, make([]int, tokens)...)
		plan, err := s.Plan(batch, batch)
		require.NoError(t, err)
		return plan.PassBytes
	}
	require.Greater(t, bytes(false), 4*tokens*classes, "the logits")
	require.Less(t, bytes(true), 4*tokens*classes/8)
}

// TestHeadLoss has the options of the loss.
func TestHeadLoss(t *testing.T) {
	x, target := floats(1, 2), ints([]int{1}, 1)
	for _, fused := range []bool{false, true} {
		s := wrap(t, calling(&nn.Head{Dim: 2, Classes: 3, Fused: fused, Smoothing: 0.3, Z: 0.1, Scale: 2, Bias: true}, 2))
		set(t, s, "m.bias", 0.5, -1, 2)
		set(t, s, "m.weight", 1, 2, 3, 4, 5, 6)
		a, b := 2*x.Float64s()[0], 2*x.Float64s()[1]
		l := []float64{a + 2*b + 0.5, 3*a + 4*b - 1, 5*a + 6*b + 2}
		lse := math.Log(math.Exp(l[0]) + math.Exp(l[1]) + math.Exp(l[2]))
		require.InDelta(t, lse-0.7*l[1]-0.1*(l[0]+l[1]+l[2])+0.1*lse*lse, eval(t, s, x, target)[0], 1e-12)
	}
}
