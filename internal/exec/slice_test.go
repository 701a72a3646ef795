package exec_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
)

// columns returns Slices of columns of x, from each of these beginnings on.
func columns(n int, from ...int) func(b *exec.Builder, x []*G.Node) (G.Nodes, error) {
	return func(_ *exec.Builder, x []*G.Node) (outs G.Nodes, err error) {
		for _, at := range from {
			outs = append(outs, G.Must(G.Tanh(G.Must(G.Slice(x[0], nil, G.S(at, at+n))))))
		}
		return outs, nil
	}
}

// TestSlicesThatCollide refuses Slices that Gorgonia takes for one: the thirds of 768 columns.
func TestSlicesThatCollide(t *testing.T) {
	compile := func(width, n int, from ...int) error {
		_, err := exec.Compile(&exec.Spec{Build: columns(n, from...)}, exectest.Signature(tensor.Float64, []int{2, width}))
		return err
	}
	for _, err := range []error{compile(768, 256, 0, 256, 512), compile(300, 7, 3, 259), compile(2000, 100, 1200, 50, 1200-1024)} {
		require.ErrorContains(t, err, "is refused: Gorgonia confuses Slices of equal length")
		require.NotContains(t, err.Error(), "\n")
	}
	require.ErrorContains(t, compile(768, 256, 0, 256, 512), "Build makes 3 such Slices of (2, 768)")
	require.NoError(t, compile(900, 300, 0, 300, 600))
	require.NoError(t, compile(768, 256, 256))
	require.NoError(t, compile(768, 200, 0, 255, 257))
}

// TestSlicesThatDoNot are right: the halves of 600 columns, one of them used twice, and the thirds of
// 768 by the advice of the refusal.
func TestSlicesThatDoNot(t *testing.T) {
	for _, build := range []builder{
		func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) {
			a, b := G.Must(G.Slice(x[0], nil, G.S(0, 300))), G.Must(G.Slice(x[0], nil, G.S(300, 600)))
			return G.Nodes{G.Must(G.HadamardProd(a, a)), G.Must(G.HadamardProd(a, b))}, nil
		},
		func(_ *exec.Builder, x []*G.Node) (outs G.Nodes, err error) {
			thirds := G.Must(G.Reshape(x[0], tensor.Shape{1, 3, 200}))
			for i := range 3 {
				outs = append(outs, G.Must(G.Tanh(G.Must(G.Slice(thirds, nil, G.S(i, i+1))))))
			}
			return outs, nil
		},
	} {
		tr := exectest.New(t, &exec.Spec{Build: build}, &exec.Signature{
			DType: tensor.Float64, Inputs: []exec.Input{{Shape: []int{1, 600}, DType: tensor.Float64, Grad: true}}, GradOut: []bool{true, true},
		})
		tr.CheckGradients(t)
	}
}

// TestSlicesThatConcatMakes are those of the gradient of a concatenation, of equal length and 256
// columns apart.
func TestSlicesThatConcatMakes(t *testing.T) {
	tr := exectest.New(t, &exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		return G.Square(G.Must(G.Concat(1, x...)))
	})}, exectest.Signature(tensor.Float64, []int{1, 256}, []int{1, 256}, []int{1, 256}))
	got := tr.Run(t)
	for i, x := range tr.In {
		for j, v := range x {
			require.InDelta(t, 2*v*tr.GradOut[0][256*i+j], got.GradIn[i][j], 1e-12)
		}
	}
}

// TestSliceOfATerm adds the gradient of a slice to that of a sum whose terms have as many elements in
// other shapes, which Gorgonia takes for equal.
func TestSliceOfATerm(t *testing.T) {
	for _, shape := range [][]int{{1, 3}, {3, 1}} {
		sig := exectest.Signature(tensor.Float64, []int{3}, shape)
		sig.GradOut = []bool{true, true}
		for _, swap := range []int{0, 1} {
			exectest.New(t, &exec.Spec{Build: func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) {
				return G.Nodes{G.Must(G.Slice(x[0], G.S(1))), G.Must(G.Tanh(G.Must(G.Add(x[swap], x[1-swap]))))}, nil
			}}, sig).CheckGradients(t)
		}
	}
}
