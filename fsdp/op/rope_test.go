package op_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp/op"
)

// compute runs a graph on x in Gorgonia's own machine.
func compute(t *testing.T, shape tensor.Shape, x []float64, f func(x *gorgonia.Node) (*gorgonia.Node, error)) []float64 {
	g := gorgonia.NewGraph()
	y, err := f(gorgonia.NodeFromAny(g, tensor.New(tensor.WithShape(shape...), tensor.WithBacking(x)), gorgonia.WithName("x")))
	require.NoError(t, err)
	vm := gorgonia.NewTapeMachine(g)
	defer vm.Close()
	require.NoError(t, vm.RunAll())
	return y.Value().Data().([]float64)
}

// TestRope turns two positions of a head of four columns by hand, with the defaults of Rotary.
func TestRope(t *testing.T) {
	x := []float64{9, 9, 9, 9, 1, 2, 3, 4}
	turn := func(r op.Rotary) []float64 {
		return compute(t, tensor.Shape{2, 4}, x, func(x *gorgonia.Node) (*gorgonia.Node, error) { return op.Rope(x, nil, r) })
	}
	c0, s0, c1, s1 := math.Cos(1), math.Sin(1), math.Cos(0.01), math.Sin(0.01)
	require.InDeltaSlice(t, []float64{9, 9, 9, 9, c0 - 3*s0, 2*c1 - 4*s1, s0 + 3*c0, 2*s1 + 4*c1}, turn(op.Rotary{HeadDim: 4}), 1e-14)
	require.InDeltaSlice(t, []float64{9, 9, 9, 9, c0 - 2*s0, s0 + 2*c0, 3*c1 - 4*s1, 3*s1 + 4*c1},
		turn(op.Rotary{HeadDim: 4, Interleaved: true}), 1e-14)
	require.InDeltaSlice(t, []float64{9, 9, 9, 9, c0 - 2*s0, s0 + 2*c0, 3, 4}, turn(op.Rotary{HeadDim: 4, Dims: 2}), 1e-14)
	require.InDeltaSlice(t, []float64{9, 9, 9, 9, c0 - 2*s0, s0 + 2*c0, 3, 4}, turn(op.Rotary{HeadDim: 2, Heads: 1}), 1e-14)
	half := math.Cos(0.5)
	require.InDelta(t, half-3*math.Sin(0.5), turn(op.Rotary{HeadDim: 4, Scaling: op.RopeScaling{Factor: 2}})[4], 1e-14)
}

// TestGatedUnits holds each against its definition, of two tensors and of one.
func TestGatedUnits(t *testing.T) {
	silu := func(x float64) float64 { return x / (1 + math.Exp(-x)) }
	gelu := func(x float64) float64 { return x / 2 * (1 + math.Erf(x/math.Sqrt2)) }
	tanh := func(x float64) float64 { return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))) }
	x := []float64{-1.5, 2, 3, -4}
	for name, f := range map[string]struct {
		unit func(gate, up *gorgonia.Node) (*gorgonia.Node, error)
		act  func(x float64) float64
	}{
		"swiglu": {op.SwiGLU, silu}, "geglu": {op.GEGLU, gelu}, "geglu tanh": {op.GEGLUTanh, tanh},
		"glu":   {op.GLU, func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }},
		"reglu": {op.ReGLU, func(x float64) float64 { return max(x, 0) }},
	} {
		packed := compute(t, tensor.Shape{1, 4}, x, func(x *gorgonia.Node) (*gorgonia.Node, error) { return f.unit(x, nil) })
		require.InDeltaSlice(t, []float64{f.act(-1.5) * 3, f.act(2) * -4}, packed, 1e-14, name)
		both := compute(t, tensor.Shape{4}, x, func(x *gorgonia.Node) (*gorgonia.Node, error) { return f.unit(x, x) })
		require.InDelta(t, f.act(-1.5)*-1.5, both[0], 1e-14, name)
	}
}
