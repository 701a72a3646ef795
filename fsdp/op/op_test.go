package op_test

import (
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
