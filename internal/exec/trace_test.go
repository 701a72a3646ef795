package exec_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
)

// unnamable is an operation that panics when it is asked for its name.
type unnamable struct{ foreign }

func (unnamable) String() string { panic("no name") }

// TestNotDifferentiable refuses to leave out the gradient of what lies behind an operation without
// one. Where no gradient is asked for, the operation is welcome.
func TestNotDifferentiable(t *testing.T) {
	identity := foreign(func(in ...G.Value) (G.Value, error) { return in[0], nil })
	spec := &exec.Spec{
		Params: []exec.Param{{Name: "p", Shape: []int{3}}},
		// x has a gradient by another way
		Build: func(b *exec.Builder, x []*G.Node) (G.Nodes, error) {
			p, err := b.Param("p")
			if err != nil {
				return nil, err
			}
			h := G.Must(G.Tanh(x[0]))
			y, err := G.ApplyOp(identity, h)
			return G.Nodes{y, G.Must(G.HadamardProd(h, p))}, err
		},
	}
	sig := exectest.Signature(tensor.Float64, []int{3})
	sig.GradOut = []bool{true, true}
	_, err := exec.Compile(spec, sig)
	require.ErrorContains(t, err, "differentiation: foreign is not differentiable")

	sig.GradOut[0] = false
	exectest.New(t, spec, sig).CheckGradients(t)
	sig.GradOut[0], sig.Inputs[0].Grad = true, false
	exectest.New(t, spec, sig).CheckGradients(t)
}

// TestFlatOperations have a gradient, and it is zero: comparisons do not stand in the way of one.
func TestFlatOperations(t *testing.T) {
	exectest.New(t, &exec.Spec{Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		positive, err := G.Gt(x[0], b.Const(0), true)
		if err != nil {
			return nil, err
		}
		return G.HadamardProd(x[0], positive)
	})}, exectest.Signature(tensor.Float64, []int{3, 4})).CheckGradients(t)
}

// TestWrongGradientShape refuses a gradient that does not fit its input, be it only turned, but not
// one that differs in dimensions of 1.
func TestWrongGradientShape(t *testing.T) {
	for _, c := range []struct {
		x, y tensor.Shape
		want string
	}{
		{tensor.Shape{4}, tensor.Shape{3}, "has shape (3)"},
		{tensor.Shape{2, 3}, tensor.Shape{3, 2}, "has shape (3, 2)"},
		{tensor.Shape{6}, tensor.Shape{3, 2}, "has shape (3, 2)"},
		{tensor.Shape{3}, tensor.Shape{1, 3}, ""},
		{tensor.Shape{2, 3}, tensor.Shape{2, 1, 3}, ""},
	} {
		err := compileError(tensor.Float64, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
			op := &exec.Row{Kind: "odd", Shapes: "x -> y [" + strings.Trim(fmt.Sprint([]int(c.y)), "[]") + "]", Diff: 1,
				Grad: func(_ *exec.Op, _ G.Nodes, _, dy *G.Node) (G.Nodes, error) { return G.Nodes{dy}, nil }}
			return op.Apply(nil, x[0])
		}, c.x)
		if c.want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.want)
		}
	}
}

// TestCompileDoesNotPanic makes errors of panics outside of Build: in the inputs, and in the
// assembly of the program.
func TestCompileDoesNotPanic(t *testing.T) {
	sig := exectest.Signature(tensor.Float64, []int{2})
	sig.Inputs[0].Same = 5
	u, err := exec.Compile(&exec.Spec{}, sig)
	require.ErrorContains(t, err, "compilation panicked: runtime error: index out of range [4]")
	require.ErrorContains(t, err, "trace.go", "the stack")
	require.Nil(t, u)

	_, err = exec.Compile(&exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		return G.ApplyOp(unnamable{}, x[0])
	})}, &exec.Signature{DType: tensor.Float64, Inputs: []exec.Input{{Shape: []int{2}, DType: tensor.Float64}}})
	require.ErrorContains(t, err, "compilation panicked: no name")

	_, err = exec.Compile(mixedSpec, exectest.Signature(tensor.Float64, []int{2, 3, 4}))
	require.NoError(t, err, "the lock is free again")
}

// TestIntegerSum adds integers and converts the sum: neither the kernel for floats nor a gradient
// has any business there.
func TestIntegerSum(t *testing.T) {
	sum := func(x ...*G.Node) (*G.Node, error) {
		n, err := G.Add(x[0], x[1])
		if err != nil {
			return nil, err
		}
		return G.ConvType(n, tensor.Int, tensor.Float64)
	}
	sig := exectest.Signature(tensor.Float64, []int{3}, []int{3}, []int{3})
	for i := range 2 {
		sig.Inputs[1+i].DType, sig.Inputs[1+i].Grad = tensor.Int, false
	}
	exectest.New(t, &exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		n, err := sum(x[1], x[2])
		if err != nil {
			return nil, err
		}
		return G.HadamardProd(x[0], n)
	})}, sig).CheckGradients(t)

	_, err := exec.Compile(&exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		n, err := G.ConvType(x[0], tensor.Float64, tensor.Int)
		if err != nil {
			return nil, err
		}
		return sum(n, x[1])
	})}, sig)
	require.ErrorContains(t, err, "is not differentiable")
}

// TestOutputsThatAreOneValue has outputs that become one node when stock operations are replaced. Each
// has its gradient.
func TestOutputsThatAreOneValue(t *testing.T) {
	for name, build := range map[string]func(y *G.Node) (G.Nodes, error){
		"slice":  func(y *G.Node) (G.Nodes, error) { z, err := G.Slice(y, nil); return G.Nodes{y, z}, err },
		"concat": func(y *G.Node) (G.Nodes, error) { z, err := G.Concat(0, y); return G.Nodes{z, y}, err },
		"softmax": func(y *G.Node) (G.Nodes, error) {
			z, err := G.SoftMax(y)
			return G.Nodes{G.Must(exec.NewSoftmax(y, exec.Softmax{Axis: 1})), z}, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			sig := exectest.Signature(tensor.Float64, []int{3, 2}, []int{3, 2})
			sig.GradOut = []bool{true, true}
			exectest.New(t, &exec.Spec{Build: func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) {
				return build(G.Must(G.HadamardProd(x[0], x[1])))
			}}, sig).CheckGradients(t)
		})
	}
}
