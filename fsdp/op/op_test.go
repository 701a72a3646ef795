package op_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp/op"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestDropoutDrawsAnotherMask gives one number to two dropouts of one graph, and runs it in
// Gorgonia's own machine.
func TestDropoutDrawsAnotherMask(t *testing.T) {
	ones := tensor.Ones(tensor.Float32, 1000)
	g := gorgonia.NewGraph()
	x := gorgonia.NodeFromAny(g, ones, gorgonia.WithName("x"))
	a, err := op.Dropout(x, 0.5, 7)
	require.NoError(t, err)
	b, err := op.Dropout(x, 0.5, 7)
	require.NoError(t, err)
	vm := gorgonia.NewTapeMachine(g)
	defer vm.Close()
	require.NoError(t, vm.RunAll())
	require.NotEqual(t, a.Value().Data(), b.Value().Data())
}

// TestErrorsNameTheArgument checks the errors of functions that add operations.
func TestErrorsNameTheArgument(t *testing.T) {
	g := gorgonia.NewGraph()
	x := gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(2, 3), gorgonia.WithName("x"))
	w := gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(5, 4), gorgonia.WithName("w"))
	_, err := op.Linear(x, w, nil)
	require.EqualError(t, err, "linear: weight is (5, 4), want [out 3] for x (2, 3)")
	_, err = op.Linear(x, nil, nil)
	require.EqualError(t, err, "linear: weight is nil")
	_, err = op.Dropout(nil, 0.1, 0)
	require.EqualError(t, err, "dropout: x is nil")
	_, err = op.Dropout(x, 1, 0)
	require.EqualError(t, err, "dropout: rate 1 is not in [0, 1)")
}

// TestSDPAEqualsSelfAttention computes attention over packed projections and over the same apart,
// in Gorgonia's own machine: the same bits. Two equal key heads are as good as one that both read.
func TestSDPAEqualsSelfAttention(t *testing.T) {
	const heads, d = 2, 8
	g := gorgonia.NewGraph()
	input := func(name string, shape ...int) *gorgonia.Node {
		x := gorgonia.NewTensor(g, tensor.Float64, 3, gorgonia.WithShape(shape...), gorgonia.WithName(name))
		data := tensor.New(tensor.WithShape(shape...), tensor.Of(tensor.Float64))
		for i := range data.Float64s() {
			data.Float64s()[i] = math.Sin(float64(len(name)+1) * float64(i%(5*d)))
		}
		require.NoError(t, gorgonia.Let(x, data))
		return x
	}
	q, k := input("q", 2, 5, d), input("kv", 2, 5, d)
	qkv, err := gorgonia.Concat(2, q, k, k)
	require.NoError(t, err)
	whole, err := op.SelfAttention(qkv, op.Attention{Heads: heads, Causal: true})
	require.NoError(t, err)
	apart, err := op.SDPA(q, k, k, op.Attention{Heads: heads, Causal: true})
	require.NoError(t, err)
	half := input("kv2", 2, 5, d/heads)
	pair, err := gorgonia.Concat(2, half, half)
	require.NoError(t, err)
	repeated, err := op.SDPA(q, pair, pair, op.Attention{Heads: heads, Causal: true, Window: 3})
	require.NoError(t, err)
	grouped, err := op.SDPA(q, half, half, op.Attention{Heads: heads, KVHeads: 1, Causal: true, Window: 3})
	require.NoError(t, err)
	vm := gorgonia.NewTapeMachine(g)
	defer vm.Close()
	require.NoError(t, vm.RunAll())
	require.Equal(t, whole.Value().Data(), apart.Value().Data())
	require.Equal(t, repeated.Value().Data(), grouped.Value().Data())
	require.NotEqual(t, apart.Value().Data(), grouped.Value().Data())
}
