package exec_test

import (
	"errors"
	"hash"
	"hash/fnv"
	"testing"

	"github.com/chewxy/hm"
	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
)

// builder is the Build of a Spec.
type builder = func(b *exec.Builder, in []*G.Node) (G.Nodes, error)

// returning makes a Build of a function with one result.
func returning(f func(b *exec.Builder, x []*G.Node) (*G.Node, error)) builder {
	return func(b *exec.Builder, in []*G.Node) (G.Nodes, error) {
		y, err := f(b, in)
		if err != nil {
			return nil, err
		}
		return G.Nodes{y}, nil
	}
}

func batchedMatMul(trans ...bool) func(x, y *G.Node) (*G.Node, error) {
	return func(x, y *G.Node) (*G.Node, error) { return G.BatchedMatMul(x, y, trans...) }
}

func along(op func(*G.Node, ...int) (*G.Node, error), axes ...int) func(*G.Node) (*G.Node, error) {
	return func(x *G.Node) (*G.Node, error) { return op(x, axes...) }
}

func sliced(by ...tensor.Slice) func(*G.Node) (*G.Node, error) {
	return func(x *G.Node) (*G.Node, error) { return G.Slice(x, by...) }
}

func convolution(pad, stride, dilation int) func(x, y *G.Node) (*G.Node, error) {
	return func(x, w *G.Node) (*G.Node, error) {
		return G.Conv2d(x, w, w.Shape()[2:], []int{pad, pad}, []int{stride, stride}, []int{dilation, dilation})
	}
}

// foreign is an operation of somebody else, neither stock nor fused.
type foreign func(...G.Value) (G.Value, error)

func (foreign) Arity() int                                       { return 1 }
func (foreign) Type() hm.Type                                    { return hm.NewFnType(hm.TypeVariable('a'), hm.TypeVariable('a')) }
func (foreign) InferShape(s ...G.DimSizer) (tensor.Shape, error) { return s[0].(tensor.Shape), nil }
func (f foreign) Do(in ...G.Value) (G.Value, error)              { return f(in...) }
func (foreign) ReturnsPtr() bool                                 { return false }
func (foreign) CallsExtern() bool                                { return false }
func (foreign) OverwritesInput() int                             { return -1 }
func (f foreign) WriteHash(h hash.Hash)                          { h.Write([]byte(f.String())) }
func (f foreign) Hashcode() uint32                               { h := fnv.New32a(); f.WriteHash(h); return h.Sum32() }
func (foreign) String() string                                   { return "foreign" }

// TestForeignOperations runs operations that are not fused as Gorgonia would, and turns their
// errors, panics and odd results into errors that name the operation.
func TestForeignOperations(t *testing.T) {
	run := func(do foreign) ([][]float64, error) {
		sig := &exec.Signature{DType: tensor.Float64, Inputs: []exec.Input{{Shape: []int{2}, DType: tensor.Float64}}}
		trial := exectest.New(t, &exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
			return G.ApplyOp(do, x[0])
		})}, sig)
		trial.In[0] = []float64{1, 2}
		var r exec.Runner
		c := trial.Call()
		err := r.Forward(trial.Unit, c)
		return [][]float64{exec.Data[float64](c.Out[0])}, err
	}
	y, err := run(func(in ...G.Value) (G.Value, error) { return in[0], nil })
	require.NoError(t, err)
	require.Equal(t, [][]float64{{1, 2}}, y)

	for want, do := range map[string]foreign{
		"foreign: no luck":             func(...G.Value) (G.Value, error) { return nil, errors.New("no luck") },
		"foreign: panic: no such luck": func(...G.Value) (G.Value, error) { panic("no such luck") },
		"foreign: result is a *gorgonia.I, want a tensor or a number": func(...G.Value) (G.Value, error) { return G.NewI(1), nil },
		"foreign: result is 8 bytes of float64, want (2) of float64": func(...G.Value) (G.Value, error) {
			return G.NewF64(1), nil
		},
	} {
		_, err := run(do)
		require.EqualError(t, err, want)
	}
}

// TestProductsThatDoNotFit refuses factors whose inner lengths differ, which Gorgonia lets pass when a
// graph is built.
func TestProductsThatDoNotFit(t *testing.T) {
	for _, c := range []struct {
		mul  func(a, b *G.Node) (*G.Node, error)
		a, b []int
		want string
	}{
		{G.Mul, []int{3}, []int{4}, "(1, 3) and (4, 1): 3 columns and 4 rows must be equal"},
		{G.Mul, []int{2, 3}, []int{2}, "(2, 3) and (2, 1): 3 columns and 2 rows must be equal"},
		{G.Mul, []int{3}, []int{2, 3}, "(2, 3) and (3, 1): 2 columns and 3 rows must be equal"},
		{batchedMatMul(), []int{2, 3, 4}, []int{2, 5, 2}, "(2, 3, 4) and (2, 5, 2): 4 columns and 5 rows must be equal"},
		{batchedMatMul(false, true), []int{2, 3, 4}, []int{2, 4, 2}, "(2, 3, 4) and (2, 4, 2): 4 columns and 2 rows must be equal"},
	} {
		_, err := exec.Compile(&exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return c.mul(x[0], x[1]) })},
			exectest.Signature(tensor.Float64, c.a, c.b))
		require.ErrorContains(t, err, "matrix product of "+c.want)
	}
}
