package ops_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/ops"
)

func init() { operations = append(operations, rotary...) }

// rope takes x, and positions if there are any, below rows.
func rope(rows int, r kernel.Rotary) function {
	return func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		return ops.Rope(x[0], slices.Concat(x[1:], G.Nodes{nil})[0], ops.Angles{Rows: rows, Base: 100, Factor: 1}, r)
	}
}

var rotary = []operation{
	{"rope", [][]int{{2, 3, 8}}, nil, nil, rope(3, kernel.Rotary{Heads: 2, HeadDim: 4, Dims: 4})},
	{"rope of all heads", [][]int{{2, 2, 3, 8}}, nil, nil, rope(0, kernel.Rotary{HeadDim: 2, Dims: 2})},
	{"rope of some columns", [][]int{{3, 13}}, nil, nil, rope(4, kernel.Rotary{Heads: 2, HeadDim: 5, Dims: 4})},
	{"interleaved rope", [][]int{{2, 3, 14}}, nil, nil, rope(3, kernel.Rotary{Heads: 2, HeadDim: 7, Dims: 6, Interleaved: true})},
	{"rope at positions", [][]int{{2, 3, 8}}, []float64{4, 0, 4, 1, 2, 3}, []int{2, 3}, rope(5, kernel.Rotary{Heads: 1, HeadDim: 8, Dims: 8})},
}

// TestRopeMistakes builds it on arguments that do not fit, and runs it at a position out of range.
func TestRopeMistakes(t *testing.T) {
	for want, r := range map[string]kernel.Rotary{
		"angles: rotates 3 columns, want a positive even number":   {Heads: 1, HeadDim: 4, Dims: 3},
		"rope: rotates 6 columns, but heads have only 4":           {Heads: 1, HeadDim: 4, Dims: 6},
		"rope: x is (2, 3, 4), want at least 2 heads of 4 columns": {Heads: 2, HeadDim: 4, Dims: 4},
		"rope: x is (2, 3, 4), want heads of 3 columns":            {HeadDim: 3, Dims: 2},
		"rope: x is (2, 3, 4), want at most 2 positions":           {HeadDim: 4, Dims: 4},
	} {
		rows := 3
		if r.HeadDim == r.Dims && r.Heads == 0 {
			rows = 2
		}
		_, err := exec.Compile(spec(rope(rows, r)), exectest.Signature(tensor.Float64, []int{2, 3, 4}))
		require.EqualError(t, err, "in Build: "+want)
	}
	sig := exectest.Signature(tensor.Float64, []int{2, 3, 4})
	sig.Inputs = append(sig.Inputs, exec.Input{Shape: []int{6}, DType: tensor.Int})
	_, err := exec.Compile(spec(rope(3, kernel.Rotary{HeadDim: 4, Dims: 4})), sig)
	require.EqualError(t, err, "in Build: rope: positions is (6), want [2 3] for x (2, 3, 4)")

	at := rotary[len(rotary)-1]
	tr := trial(t, at.f, []float64{4, 0, 5, 1, 2, 3}, at.intShape, at.shapes...)
	var r exec.Runner
	want := "rope(1,8,8,false): index 5 at position 2 is outside the table of 5 rows, 0 to 4: tokens need a model with the Vocab of their tokenizer, positions one with a longer Context"
	require.EqualError(t, r.Forward(tr.Unit, tr.Call()), want)
	require.EqualError(t, tr.Unit.Check(1, []int{4, 0, 5, 1, 2, 3}), want)
}

// llama3 is the angle of a pair as Hugging Face's modeling_rope_utils.py states it.
func llama3(angle, factor, low, high, context float64) float64 {
	length := 2 * math.Pi / angle
	smooth := (context/length - low) / (high - low)
	switch {
	case length > context/low:
		return angle / factor
	case length < context/high:
		return angle
	default:
		return (1-smooth)*angle/factor + smooth*angle
	}
}

// turned returns the table, which is how (1, 0) is turned at each position.
func turned(t *testing.T, a ops.Angles, positions, dims int) []float64 {
	tr := trial(t, unary(func(x *G.Node) (*G.Node, error) {
		return ops.Rope(x, nil, a, kernel.Rotary{HeadDim: dims, Dims: dims})
	}), nil, nil, []int{positions, dims})
	for i := range tr.In[0] {
		tr.In[0][i] = 0
		if i%dims < dims/2 {
			tr.In[0][i] = 1
		}
	}
	return tr.Run(t).Out[0]
}

// TestAngles holds the angles against their formulas: plain, of linear scaling, and of Llama 3.
func TestAngles(t *testing.T) {
	const positions, dims = 50, 16
	for _, tt := range []struct {
		angles ops.Angles
		want   func(angle float64) float64
	}{
		{ops.Angles{Base: 10000, Factor: 1}, func(a float64) float64 { return a }},
		{ops.Angles{Base: 10000, Factor: 4}, func(a float64) float64 { return a / 4 }},
		{ops.Angles{Base: 500000, Factor: 8, Low: 1, High: 4, Original: 64}, func(a float64) float64 { return llama3(a, 8, 1, 4, 64) }},
	} {
		y := turned(t, tt.angles, positions, dims)
		for i := range dims / 2 {
			angle := tt.want(1 / math.Pow(tt.angles.Base, 2*float64(i)/dims))
			for p := range positions {
				sin, cos := math.Sincos(float64(p) * angle)
				require.InDelta(t, cos, y[p*dims+i], 1e-13, "%v, pair %d at %d", tt.angles, i, p)
				require.InDelta(t, sin, y[p*dims+dims/2+i], 1e-13, "%v, pair %d at %d", tt.angles, i, p)
			}
		}
	}
	for want, a := range map[string]ops.Angles{
		"base 0 and factor 1":                                    {Factor: 1},
		"base 10 and factor -1":                                  {Base: 10, Factor: -1},
		"base NaN and factor 1":                                  {Base: math.NaN(), Factor: 1},
		"frequency factors 4 and 1":                              {Base: 10, Factor: 8, Low: 4, High: 1, Original: 64},
		"frequency factors 0 and 0":                              {Base: 10, Factor: 8, Original: 64},
		"context lengths are 0 and -64, neither may be negative": {Base: 10, Factor: 8, Low: 1, High: 4, Original: -64},
	} {
		_, err := exec.Compile(spec(unary(func(x *G.Node) (*G.Node, error) {
			return ops.Rope(x, nil, a, kernel.Rotary{HeadDim: 4, Dims: 4})
		})), exectest.Signature(tensor.Float64, []int{3, 4}))
		require.ErrorContains(t, err, "in Build: angles: "+want)
	}
}

// TestRopeKeepsNothing: the table is a constant, the same memory for both of two operations and in
// both programs, and backward reads neither x nor y.
func TestRopeKeepsNothing(t *testing.T) {
	f := rope(0, kernel.Rotary{HeadDim: 4, Dims: 4})
	u := trial(t, func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		return f(b, G.Nodes{must(f(b, x))})
	}, nil, nil, []int{2, 30, 8}).Unit
	require.Zero(t, u.Saved)
	require.Equal(t, []bool{false}, u.KeepIn)
	require.Equal(t, []bool{false}, u.KeepOut)
	tables := slices.Concat(u.Forward.Consts(), u.Backward.Consts())
	require.Len(t, tables, 4)
	for _, v := range tables {
		require.Equal(t, tensor.Shape{30, 4}, v.Shape)
		require.True(t, &v.Bytes[0] == &tables[0].Bytes[0], "equal tables are one")
	}
	n := 0
	for range u.Forward.All() {
		n++
	}
	require.Equal(t, 2, n, "the table takes no instruction")
}
