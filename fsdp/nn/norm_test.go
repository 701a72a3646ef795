package nn_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// checkGradients compares the gradient of every parameter that has one with central differences of
// the loss in training.
func checkGradients(t *testing.T, s *fsdp.Sharded, batch ...fsdp.Tensor) {
	t.Helper()
	s.ZeroGrad()
	loss := func() float64 {
		l, err := s.Forward(t.Context(), batch...)
		require.NoError(t, err)
		return l
	}
	loss()
	require.NoError(t, s.Backward(t.Context()))
	grads, err := s.FullGrads(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, grads)
	for _, p := range s.Params() {
		g, trained := grads[p.Name]
		if !trained {
			continue
		}
		values := optim.Host{F64: make([]float64, p.Value.Len())}
		require.NoError(t, p.Value.Read(values))
		for i, at := range values.F64 {
			const h = 1e-5
			lossAt := func(x float64) float64 {
				require.NoError(t, p.Value.Slice(i, i+1).Write(optim.Host{F64: []float64{x}}))
				return loss()
			}
			want := (lossAt(at+h) - lossAt(at-h)) / (2 * h)
			require.NoError(t, p.Value.Write(values))
			require.InDelta(t, want, g.Float64s()[p.Offset+i], 1e-7, "%s, element %d", p.Name, p.Offset+i)
		}
	}
}

// state returns the values of one parameter or buffer.
func state(t *testing.T, s *fsdp.Sharded, name string) []float64 {
	all, err := s.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	require.Contains(t, all, name)
	return all[name].Float64s()
}

// TestNormsTravelInFull keeps the parameters of every norm out of 16 bits.
func TestNormsTravelInFull(t *testing.T) {
	for _, m := range []fsdp.Module{&nn.LayerNorm{Dim: 4}, &nn.RMSNorm{Dim: 4}, &nn.BatchNorm{Dim: 4}, &nn.GroupNorm{Dim: 4}} {
		for _, p := range m.Params() {
			require.True(t, p.Full || p.Buffer, "%T %s", m, p.Name)
		}
	}
	for _, p := range (&nn.Linear{In: 2, Out: 2, LoRA: nn.LoRA{Rank: 1}}).Params() {
		require.False(t, p.Full, p.Name)
	}
}

// batchNormed is a model of a BatchNorm that is trained: of a linear layer's output, before a head.
func batchNormed(norm *nn.BatchNorm) model {
	return func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
		x := t.Call("fc", &nn.Linear{In: 3, Out: norm.Dim}, in[0])
		x = t.Call("norm", norm, x)
		return t.Call("head", &nn.Head{Dim: norm.Dim, Classes: 3}, x, in[1])
	}
}

// identity makes the linear layer before the norm pass its input on.
func identity(t *testing.T, s *fsdp.Sharded) {
	set(t, s, "fc.weight", 1, 0, 0, 0, 1, 0, 0, 0, 1)
	set(t, s, "fc.bias", 0, 0, 0)
}

// moments returns mean and unbiased variance of the channels of x [B, 3, ...].
func moments(x *tensor.Dense) (mean, unbiased []float64) {
	area := x.DataSize() / x.Shape()[0] / 3
	for c := range 3 {
		var column []float64
		for i, v := range x.Float64s() {
			if i/area%3 == c {
				column = append(column, v)
			}
		}
		m, std := spread(column)
		n := float64(len(column))
		mean, unbiased = append(mean, m), append(unbiased, std*std*n/(n-1))
	}
	return mean, unbiased
}

// moved returns where running statistics go from old: a share of the way to new.
func moved(old, new []float64, share float64) []float64 {
	out := make([]float64, len(old))
	for i := range old {
		out[i] = (1-share)*old[i] + share*new[i]
	}
	return out
}

// TestBatchNormTraining normalises with the batch's own statistics and moves the running ones, once
// in each training forward and never in backward or evaluation, whatever is kept for backward.
func TestBatchNormTraining(t *testing.T) {
	all := func(calls []fsdp.CallInfo) []string {
		names := make([]string, len(calls))
		for i, c := range calls {
			names[i] = c.Name
		}
		return names
	}
	for name, cfg := range map[string]fsdp.Config{"balanced": {}, "checkpoint": {Activations: fsdp.Activations{Recompute: all}}, "keep": {Activations: fsdp.Activations{Save: all}}} {
		t.Run(name, func(t *testing.T) {
			cfg.Precision.Compute, cfg.Poison = fsdp.Float64, true
			s, err := fsdp.Wrap(batchNormed(&nn.BatchNorm{Dim: 3, Momentum: 0.25}), cfg)
			require.NoError(t, err)
			identity(t, s)
			x, targets := floats(2, 3, 3), ints([]int{2, 3}, 0, 2, 1, 1, 0, 2)
			mean, unbiased := moments(x)
			wantMean, wantVar := []float64{0, 0, 0}, []float64{1, 1, 1}
			for range 3 {
				_, err := s.Forward(t.Context(), x, targets)
				require.NoError(t, err)
				require.NoError(t, s.Backward(t.Context()))
				eval(t, s, x, targets)
				wantMean, wantVar = moved(wantMean, mean, 0.25), moved(wantVar, unbiased, 0.25)
				require.InDeltaSlice(t, wantMean, state(t, s, "norm.running_mean"), 1e-12)
				require.InDeltaSlice(t, wantVar, state(t, s, "norm.running_var"), 1e-12)
			}
			set(t, s, "norm.weight", 0.5, -2, 1.5)
			set(t, s, "norm.bias", 0.1, 0.2, -0.3)
			checkGradients(t, s, x, targets)
		})
	}
}

// TestBatchNormEvaluation normalises with the running statistics, however many rows there are.
func TestBatchNormEvaluation(t *testing.T) {
	s := wrap(t, calling(&nn.BatchNorm{Dim: 2, Eps: 0.5}, 1))
	set(t, s, "m.weight", 3, 4)
	set(t, s, "m.bias", 5, 6)
	require.NoError(t, s.LoadStateDict(t.Context(), 0, map[string]*tensor.Dense{
		"m.running_mean": vector(1, -1), "m.running_var": vector(1.5, 8.5),
	}))
	x := tensor.New(tensor.WithShape(1, 2), tensor.WithBacking([]float64{2, 2}))
	require.InDeltaSlice(t, []float64{3*(2-1)/math.Sqrt(2) + 5, 4*(2+1)/3. + 6}, eval(t, s, x), 1e-12)
}

func vector(v ...float64) *tensor.Dense { return tensor.New(tensor.WithBacking(v)) }

// TestBatchNormOfOneRow has no variance: the output is the bias, and the running variance shrinks.
func TestBatchNormOfOneRow(t *testing.T) {
	s := wrap(t, batchNormed(&nn.BatchNorm{Dim: 3}))
	identity(t, s)
	loss, err := s.Forward(t.Context(), floats(1, 3), ints([]int{1}, 1))
	require.NoError(t, err)
	require.False(t, math.IsNaN(loss))
	require.InDeltaSlice(t, []float64{0.9, 0.9, 0.9}, state(t, s, "norm.running_var"), 1e-12)
}

// TestBatchNormOnRanks keeps statistics of each rank's own batches until they are averaged;
// parameters stay equal.
func TestBatchNormOnRanks(t *testing.T) {
	x := floats(4, 3)
	var halves [2]*tensor.Dense
	for r := range halves {
		halves[r] = tensor.New(tensor.WithShape(2, 3), tensor.WithBacking(x.Float64s()[r*6:r*6+6]))
	}
	err := comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
		s, err := fsdp.Wrap(batchNormed(&nn.BatchNorm{Dim: 3, Momentum: 1}), fsdp.Config{
			Group: g, Precision: fsdp.Precision{Compute: fsdp.Float64}, WrapPolicy: fsdp.WrapEach(),
		})
		if err != nil {
			return err
		}
		defer s.Close()
		err = s.LoadStateDict(ctx, 0, map[string]*tensor.Dense{"fc.weight": tensor.New(tensor.WithShape(3, 3), tensor.WithBacking([]float64{1, 0, 0, 0, 1, 0, 0, 0, 1}))})
		if err != nil {
			return err
		}
		if _, err := s.Forward(ctx, halves[g.Rank()], ints([]int{2}, 0, 2)); err != nil {
			return err
		}
		if err := s.Backward(ctx); err != nil {
			return err
		}
		own, _ := moments(halves[g.Rank()])
		other, _ := moments(halves[1-g.Rank()])
		require.InDeltaSlice(t, own, state(t, s, "norm.running_mean"), 1e-12)
		if err := s.AverageBuffers(ctx); err != nil {
			return err
		}
		require.InDeltaSlice(t, moved(own, other, 0.5), state(t, s, "norm.running_mean"), 1e-12)
		return nil
	})
	require.NoError(t, err)
}
