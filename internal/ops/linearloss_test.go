package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/ops"
)

func init() { operations = append(operations, losses...) }

// linearLoss takes x, weight and, if there are four arguments, bias, then targets, rowLoss logits
// and targets.
func linearLoss(l kernel.Loss) function {
	return func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		if len(x) == 4 {
			return ops.LinearCrossEntropy(x[0], x[1], x[2], x[3], l)
		}
		return ops.LinearCrossEntropy(x[0], x[1], nil, x[2], l)
	}
}

func lossOfConstant(b *exec.Builder, x []*G.Node) (*G.Node, error) {
	weight := tensor.New(tensor.WithShape(3, 4), tensor.WithBacking([]float64{1, -2, 3, 0, 0.5, 1, -1, 2, 0, 0.25, 1, -3}))
	if b.DType() == tensor.Float32 {
		weight = tensor.New(tensor.WithShape(3, 4), tensor.WithBacking([]float32{1, -2, 3, 0, 0.5, 1, -1, 2, 0, 0.25, 1, -3}))
	}
	return ops.LinearCrossEntropy(x[0], must(b.ConstTensor(weight)), nil, x[1], kernel.Loss{Ignore: -1})
}

func rowLoss(l kernel.Loss) function {
	return func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return ops.SmoothCrossEntropy(x[0], x[1], l) }
}

// pair takes x, a constant target of the numbers of the second input and, if there is a third,
// which of them count: those where it is positive.
func pair(f func(x, target, weight *G.Node) (*G.Node, error)) function {
	return func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		target, weight := must(ops.Sigmoid(must(G.HadamardProd(x[1], b.Const(0))))), (*G.Node)(nil)
		if len(x) == 3 {
			weight = must(G.Gt(x[2], b.Const(0), true))
		}
		return f(x[0], target, weight)
	}
}

var losses = []operation{
	{"linear loss", [][]int{{2, 3, 4}, {5, 4}}, []float64{4, -1, 0, 2, 2, -1}, []int{2, 3}, linearLoss(kernel.Loss{Ignore: -1})},
	{"linear loss of much", [][]int{{3, 4}, {5, 4}}, []float64{4, 1, 0}, []int{3}, linearLoss(kernel.Loss{Ignore: -1, Smoothing: 0.1, Z: 0.01})},
	{"linear loss of nothing", [][]int{{2, 4}, {5, 4}}, []float64{-1, -1}, []int{2}, linearLoss(kernel.Loss{Ignore: -1})},
	{"linear loss with bias", [][]int{{2, 3, 4}, {5, 4}, {5}}, []float64{4, -1, 0, 2, 2, -1}, []int{2, 3}, linearLoss(kernel.Loss{Ignore: -1, Smoothing: 0.1, Z: 0.01})},
	{"linear loss of a constant weight", [][]int{{2, 4}}, []float64{2, 0}, []int{2}, lossOfConstant},
	{"mse", [][]int{{2, 3, 4}, {2, 3, 4}}, nil, nil, pair(ops.MSE)},
	{"bce", [][]int{{7}, {7}}, nil, nil, pair(ops.BCE)},
	{"weighted mse", [][]int{{2, 3, 4}, {2, 3, 4}, {2, 3, 4}}, nil, nil, pair(ops.MSE)},
	{"weighted bce", [][]int{{7}, {7}, {7}}, nil, nil, pair(ops.BCE)},
	{"softmax", [][]int{{2, 3, 4}}, nil, nil, unary(func(x *G.Node) (*G.Node, error) { return ops.Softmax(x, false) })},
	{"log softmax", [][]int{{5}}, nil, nil, unary(func(x *G.Node) (*G.Node, error) { return ops.Softmax(x, true) })},
	{"smooth loss", [][]int{{2, 3, 5}}, []float64{4, -1, 0, 2, 2, -1}, []int{2, 3}, rowLoss(kernel.Loss{Ignore: -1, Smoothing: 0.1, Z: 0.01})},
}

// TestLinearLossEqualsItsParts compares the loss of a linear layer with that of its logits,
// gradients included, and the plain one with CrossEntropy.
func TestLinearLossEqualsItsParts(t *testing.T) {
	for _, l := range []kernel.Loss{{Ignore: -1}, {Ignore: 2, Smoothing: 0.2, Z: 1e-3}} {
		targets, shape := []float64{4, 2, 0, 2, 1, 3}, []int{2, 3}
		parts := func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
			var bias *G.Node
			if len(x) == 4 {
				bias = x[2]
			}
			logits, targets := must(ops.Linear(x[0], x[1], bias)), x[len(x)-1]
			if l.Smoothing == 0 && l.Z == 0 {
				return ops.CrossEntropy(logits, targets, l.Ignore)
			}
			return ops.SmoothCrossEntropy(logits, targets, l)
		}
		for _, shapes := range [][][]int{{{2, 3, 4}, {5, 4}}, {{2, 3, 4}, {5, 4}, {5}}} {
			want := trial(t, parts, targets, shape, shapes...).Run(t)
			exectest.RequireClose(t, want, trial(t, linearLoss(l), targets, shape, shapes...).Run(t), 1e-13)
		}
	}
}

// TestLinearLossMemory: neither scratch nor what is kept grows with the classes, beyond a block of
// them.
func TestLinearLossMemory(t *testing.T) {
	const n, d = 100, 8
	bytes := func(classes int) int {
		u := trial(t, linearLoss(kernel.Loss{Ignore: -1}), make([]float64, n), []int{n}, []int{n, d}, []int{classes, d}).Unit
		return u.Saved + u.Forward.Work + u.Backward.Work
	}
	require.Equal(t, bytes(5000), bytes(50000))
	require.Less(t, bytes(50000), 3*8*n*1024, "two programs have a block each")
}

// TestLossMistakes builds losses on arguments that do not fit.
func TestLossMistakes(t *testing.T) {
	sig := exectest.Signature(tensor.Float64, []int{3, 4}, []int{5, 3})
	sig.Inputs = append(sig.Inputs, exec.Input{Shape: []int{3}, DType: tensor.Int})
	_, err := exec.Compile(spec(linearLoss(kernel.Loss{})), sig)
	require.EqualError(t, err, "in Build: linear loss: weight is (5, 3), want [classes 4] for x (3, 4)")
	for _, l := range []kernel.Loss{{Smoothing: -0.1}, {Smoothing: 1.1}, {Z: -1}} {
		_, err := exec.Compile(spec(linearLoss(l)), sig)
		require.ErrorContains(t, err, "in Build: cross-entropy: label smoothing")
	}
	tr := trial(t, linearLoss(kernel.Loss{Ignore: -1}), []float64{4, 5, 0}, []int{3}, []int{3, 4}, []int{5, 4})
	var r exec.Runner
	want := "linear loss(-1,0,0): target 5 of row 1 is outside the 5 classes, which are 0 to 4"
	require.EqualError(t, r.Forward(tr.Unit, tr.Call()), want)
	require.EqualError(t, tr.Unit.Check(2, []int{4, 5, 0}), want)
}
