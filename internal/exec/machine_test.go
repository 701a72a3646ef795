package exec_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// buildForMachine is a module of fused operations, views included, that Gorgonia's machine gets
// right.
func buildForMachine(x, gain, bias, w *G.Node) (*G.Node, error) {
	y, err := ops.LayerNorm(x, gain, bias, 1e-5)
	if err != nil {
		return nil, err
	}
	if y, err = ops.Linear(y, w, nil); err != nil {
		return nil, err
	}
	if y, err = ops.GELUTanh(y); err != nil {
		return nil, err
	}
	return ops.SelfAttention(y, nil, nil, nil, ops.Attention{Heads: 2, Causal: true})
}

// TestOpsInTapeMachine runs fused operations and their gradients in Gorgonia's own machine, with
// equal results.
func TestOpsInTapeMachine(t *testing.T) {
	shapes := [][]int{{2, 3, 4}, {4}, {4}, {12, 4}}
	trial := exectest.New(t, &exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		return buildForMachine(x[0], x[1], x[2], x[3])
	})}, exectest.Signature(tensor.Float64, shapes...))
	want := trial.Run(t)

	g := G.NewGraph()
	input := func(name string, shape []int, v []float64) *G.Node {
		return G.NewTensor(g, G.Float64, len(shape), G.WithName(name), G.WithShape(shape...),
			G.WithValue(tensor.New(tensor.WithShape(shape...), tensor.WithBacking(v))))
	}
	var x G.Nodes
	for i, s := range shapes {
		x = append(x, input(string(rune('a'+i)), s, trial.In[i]))
	}
	y, err := buildForMachine(x[0], x[1], x[2], x[3])
	require.NoError(t, err)
	grads, err := G.Backpropagate(G.Nodes{y}, G.Nodes{input("dy", y.Shape(), trial.GradOut[0])}, x)
	require.NoError(t, err)
	values := make([]G.Value, 1+len(grads))
	for i, n := range append(G.Nodes{y}, grads...) {
		G.Read(n, &values[i])
	}
	m := G.NewTapeMachine(g)
	require.NoError(t, m.RunAll())
	for i, w := range append(want.Out[:1:1], want.GradIn...) {
		require.Equal(t, w, values[i].Data())
	}
	require.NoError(t, m.Close())
}

// TestDo runs an operation on Gorgonia values.
func TestDo(t *testing.T) {
	g := G.NewGraph()
	part := G.Must(exec.NewView(G.NewVector(g, G.Float32, G.WithShape(3), G.WithName("x")), 1, 2))
	op := part.Op()
	y, err := op.Do(tensor.New(tensor.WithBacking([]float32{1, 2, 3})))
	require.NoError(t, err)
	require.Equal(t, []float32{2, 3}, y.Data())

	row := &exec.Row{Kind: "broken", Kernels: exec.Kernels{F32: func(*exec.Frame) error { return errors.New("no luck") }}}
	_, err = G.Must(row.Apply(nil, part)).Op().Do(tensor.New(tensor.WithBacking([]float32{1, 2})))
	require.EqualError(t, err, "broken: no luck")
	_, err = op.Do(tensor.New(tensor.WithBacking([]int{1, 2, 3})))
	require.EqualError(t, err, "view(1): no float argument")
	_, err = op.Do(G.NewF64(1))
	require.EqualError(t, err, "view(1): argument 0 is a scalar, which is not supported outside a program")
}
