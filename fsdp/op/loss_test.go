package op_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp/op"
)

// TestLosses holds each loss against its definition, on a row of numbers.
func TestLosses(t *testing.T) {
	x := []float64{0.5, -1, 2}
	sum := math.Exp(0.5) + math.Exp(-1) + math.Exp(2)
	lse := math.Log(sum)
	on := func(f func(x, ints *gorgonia.Node) (*gorgonia.Node, error), ints ...int) []float64 {
		return compute(t, tensor.Shape{1, 3}, x, func(x *gorgonia.Node) (*gorgonia.Node, error) {
			target := tensor.New(tensor.WithShape(len(ints)), tensor.WithBacking(ints))
			return f(x, gorgonia.NodeFromAny(x.Graph(), target, gorgonia.WithName("targets")))
		})
	}
	l := op.Loss{Ignore: -1, Smoothing: 0.1, Z: 0.01}
	smooth := func(x, targets *gorgonia.Node) (*gorgonia.Node, error) { return op.SmoothCrossEntropy(x, targets, l) }
	require.InDelta(t, lse+1-0.1*(1+0.5)+0.01*lse*lse, on(smooth, 1)[0], 1e-14) // mean(l) is 0.5, l[1] is -1
	require.Zero(t, on(smooth, -1)[0])
	linear := func(x, targets *gorgonia.Node) (*gorgonia.Node, error) {
		weight := tensor.New(tensor.WithShape(3, 3), tensor.WithBacking([]float64{1, 0, 0, 0, 1, 0, 0, 0, 1}))
		bias := tensor.New(tensor.WithShape(3), tensor.WithBacking([]float64{0, 0, 1}))
		return op.LinearCrossEntropy(x, gorgonia.NodeFromAny(x.Graph(), weight, gorgonia.WithName("w")),
			gorgonia.NodeFromAny(x.Graph(), bias, gorgonia.WithName("b")), targets, op.Loss{Ignore: -1})
	}
	require.InDelta(t, math.Log(math.Exp(0.5)+math.Exp(-1)+math.Exp(3))-3, on(linear, 2)[0], 1e-14)

	one := func(f func(x *gorgonia.Node) (*gorgonia.Node, error)) []float64 {
		return compute(t, tensor.Shape{1, 3}, x, f)
	}
	require.InDeltaSlice(t, []float64{math.Exp(0.5) / sum, math.Exp(-1) / sum, math.Exp(2) / sum}, one(op.Softmax), 1e-15)
	require.InDeltaSlice(t, []float64{0.5 - lse, -1 - lse, 2 - lse}, one(op.LogSoftmax), 1e-15)
	double := func(x *gorgonia.Node) *gorgonia.Node { return gorgonia.Must(gorgonia.Add(x, x)) }
	mse := one(func(x *gorgonia.Node) (*gorgonia.Node, error) { return op.MSE(double(x), x) })
	require.InDelta(t, (0.25+1+4)/3, mse[0], 1e-15)
	bce := one(func(x *gorgonia.Node) (*gorgonia.Node, error) { return op.BCE(x, double(x)) })
	want := 0.0
	for _, v := range x {
		want += (math.Log(1+math.Exp(v)) - 2*v*v) / 3
	}
	require.InDelta(t, want, bce[0], 1e-15)
	heavy := func(f func(y, target, weight *gorgonia.Node) (*gorgonia.Node, error), weights ...float64) []float64 {
		return one(func(x *gorgonia.Node) (*gorgonia.Node, error) {
			w := tensor.New(tensor.WithShape(1, 3), tensor.WithBacking(weights))
			return f(x, double(x), gorgonia.NodeFromAny(x.Graph(), w, gorgonia.WithName("weights")))
		})
	}
	require.InDelta(t, (0.25+3*4)/4, heavy(op.WeightedMSE, 1, 0, 3)[0], 1e-15)
	require.InDelta(t, math.Log(1+math.Exp(-1))-2, heavy(op.WeightedBCE, 0, 5, 0)[0], 1e-15)
	require.Equal(t, []float64{0}, heavy(op.WeightedMSE, 0, 0, 0))
	_, err := op.Softmax(nil)
	require.EqualError(t, err, "softmax: x is nil")
	_, err = op.MSE(nil, nil)
	require.EqualError(t, err, "mean squared error: x is nil")
}
