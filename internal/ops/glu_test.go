package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/internal/ops"
)

func init() { operations = append(operations, gated...) }

// glu takes gate and up, or both in one.
func glu(act vec.Gate, packed bool) function {
	return func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		if packed {
			return ops.GLU(act, x[0], nil)
		}
		return ops.GLU(act, x[0], x[1])
	}
}

var gated = []operation{
	{"silu", [][]int{{3, 70}}, nil, nil, unary(ops.SiLU)},
	{"tanh", [][]int{{3, 7}}, nil, nil, unary(ops.Tanh)},
	{"sigmoid", [][]int{{3, 7}}, nil, nil, unary(ops.Sigmoid)},
	{"swiglu", [][]int{{3, 70}, {3, 70}}, nil, nil, glu(vec.GateSiLU, false)},
	{"geglu", [][]int{{2, 3, 5}, {2, 3, 5}}, nil, nil, glu(vec.GateGELUErf, false)},
	{"geglu tanh", [][]int{{7}, {7}}, nil, nil, glu(vec.GateGELUTanh, false)},
	{"reglu", [][]int{{3, 7}, {3, 7}}, nil, nil, glu(vec.GateReLU, false)},
	{"sigmoid glu", [][]int{{3, 7}, {3, 7}}, nil, nil, glu(vec.GateSigmoid, false)},
	{"packed swiglu", [][]int{{2, 3, 14}}, nil, nil, glu(vec.GateSiLU, true)},
	{"packed geglu tanh", [][]int{{6}}, nil, nil, glu(vec.GateGELUTanh, true)},
}

// TestGLUMistakes builds gated linear units on arguments that do not fit.
func TestGLUMistakes(t *testing.T) {
	_, err := exec.Compile(spec(glu(vec.GateSiLU, false)), exectest.Signature(tensor.Float64, []int{2, 4}, []int{4, 2}))
	require.EqualError(t, err, "in Build: glu: up is (4, 2), want [2 4] for gate (2, 4)")
	_, err = exec.Compile(spec(glu(vec.GateSiLU, true)), exectest.Signature(tensor.Float64, []int{2, 3}))
	require.EqualError(t, err, "in Build: packed glu: x is (2, 3), want [... 2*d]")
}
