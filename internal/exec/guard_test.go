package exec_test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// compileError compiles a module with one output and returns the error.
func compileError(dt tensor.Dtype, f func(b *exec.Builder, x []*G.Node) (*G.Node, error), shapes ...[]int) error {
	_, err := exec.Compile(&exec.Spec{Build: returning(f)}, exectest.Signature(dt, shapes...))
	return err
}

// TestConstants refuses constants that Gorgonia may have merged with others and keeps apart those
// of Builder.
func TestConstants(t *testing.T) {
	named := func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		return G.Add(x[0], G.NewConstant(2.0, G.WithName("eps")))
	}
	require.ErrorContains(t, compileError(tensor.Float64, named, []int{2}), "Builder.Const")
	plain := func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		return G.Add(x[0], G.NewConstant(tensor.New(tensor.WithBacking([]float64{1, 2}))))
	}
	require.ErrorContains(t, compileError(tensor.Float64, plain, []int{2}), "Builder.ConstTensor")
	byValue := func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return G.Add(x[0], G.NewConstant(2.0)) }
	require.NoError(t, compileError(tensor.Float64, byValue, []int{2}))

	// Two tensors that print alike, and a number in every spelling.
	a, b := make([]float64, 1000), make([]float64, 1000)
	a[500], b[500] = 1, 2
	trial := exectest.New(t, &exec.Spec{Build: returning(func(bld *exec.Builder, x []*G.Node) (*G.Node, error) {
		ca, err := bld.ConstTensor(tensor.New(tensor.WithBacking(a)))
		if err != nil {
			return nil, err
		}
		cb, err := bld.ConstTensor(tensor.New(tensor.WithBacking(b)))
		if err != nil {
			return nil, err
		}
		y := G.Must(G.HadamardProd(G.Must(G.Add(x[0], ca)), G.Must(G.Add(x[0], cb))))
		return G.Add(y, G.Must(G.Add(bld.Const(1), G.NewConstant(1.0))))
	})}, exectest.Signature(tensor.Float64, []int{1000}))
	x := trial.In[0][500]
	require.InDelta(t, (x+1)*(x+2)+2, trial.Run(t).Out[0][500], 1e-12)

	strided, err := tensor.New(tensor.WithShape(2, 4), tensor.WithBacking(make([]float64, 8))).Slice(nil, tensor.S(0, 2))
	require.NoError(t, err)
	require.ErrorContains(t, compileError(tensor.Float64, func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		return b.ConstTensor(strided.(*tensor.Dense))
	}, []int{2}), "constant: tensor of shape (2, 2) is a view")
}

// TestBuildMistakes are mistakes in Build, each with its message.
func TestBuildMistakes(t *testing.T) {
	mistakes := map[string]builder{
		"in Build: no luck":                       func(*exec.Builder, []*G.Node) (G.Nodes, error) { return nil, errors.New("no luck") },
		"Build returned no outputs":               func(*exec.Builder, []*G.Node) (G.Nodes, error) { return nil, nil },
		"in Build: output 1 is nil":               func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) { return G.Nodes{x[0], nil}, nil },
		"in Build: output 0 is int, want float64": func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) { return G.Nodes{x[1]}, nil },
		"in Build: output 0 is a node of another graph": func(*exec.Builder, []*G.Node) (G.Nodes, error) {
			return G.Nodes{G.NewScalar(G.NewGraph(), G.Float64)}, nil
		},
		`no parameter "block.weight" in Params`: func(b *exec.Builder, _ []*G.Node) (G.Nodes, error) {
			_, err := b.Scope("block").Param("weight")
			return nil, err
		},
		`value "stray" is not an input of the module`: func(b *exec.Builder, x []*G.Node) (G.Nodes, error) {
			return G.Nodes{G.Must(G.Add(x[0], G.NewVector(b.Graph(), G.Float64, G.WithName("stray"), G.WithShape(2))))}, nil
		},
		"op: argument 1 is nil": func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) {
			_, err := (&exec.Row{Kind: "op"}).Apply(nil, x[0], nil)
			return nil, err
		},
		"opaque: not differentiable": returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
			return (&exec.Row{Kind: "opaque", Diff: 1}).Apply(nil, x[0])
		}),
	}
	for want, build := range mistakes {
		t.Run(want, func(t *testing.T) {
			sig := exectest.Signature(tensor.Float64, []int{2})
			sig.Inputs = append(sig.Inputs, exec.Input{Shape: []int{2}, DType: tensor.Int})
			_, err := exec.Compile(&exec.Spec{Build: build}, sig)
			require.ErrorContains(t, err, want)
		})
	}
	_, err := exec.Compile(&exec.Spec{}, &exec.Signature{DType: tensor.Int})
	require.EqualError(t, err, "element type int is not supported: want float32 or float64")
}

// TestRefusedSumOfIntegers is one that package tensor would add up wrongly.
func TestRefusedSumOfIntegers(t *testing.T) {
	compile := func(shape ...int) error {
		_, err := exec.Compile(&exec.Spec{Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
			return G.ConvType(G.Must(G.Sum(x[0], 2)), tensor.Int, b.DType())
		})}, &exec.Signature{DType: tensor.Float64, Inputs: []exec.Input{{Shape: shape, DType: tensor.Int}}})
		return err
	}
	require.ErrorContains(t, compile(2, 3, 5, 2), "is refused: integers of four or more axes are added up wrongly")
	require.NoError(t, compile(2, 3, 5))
}

// TestBuildPanics names the line of the module that a panic came through, in one line.
func TestBuildPanics(t *testing.T) {
	_, file, line, _ := runtime.Caller(0)
	panics := []func(x *G.Node){ // one a line
		func(*G.Node) { panic("no such luck") },
		func(x *G.Node) { G.Must(G.Add(x, G.NewVector(x.Graph(), G.Float64, G.WithShape(3), G.WithName("y")))) },
		func(x *G.Node) { slices.SortFunc([]int{2, 1}, func(a, b int) int { return x.Shape()[a+b] }) },
		func(x *G.Node) { _ = slices.Grow([]int{}, -1) },
		func(x *G.Node) { G.Must(ops.Scale(nil, 1)) },
	}
	for i, panics := range panics {
		_, err := exec.Compile(&exec.Spec{Build: func(_ *exec.Builder, in []*G.Node) (G.Nodes, error) {
			panics(in[0])
			return in, nil
		}}, exectest.Signature(tensor.Float64, []int{2}))
		require.ErrorContains(t, err, fmt.Sprintf("the module's Build panicked at %s:%d: ", file, line+2+i))
		require.NotContains(t, err.Error(), "\n")
	}
}

// TestSoftmaxFarBelow is of rows far below the first element, where Gorgonia's own is NaN.
func TestSoftmaxFarBelow(t *testing.T) {
	tr := exectest.New(t, &exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return G.SoftMax(x[0]) })},
		exectest.Signature(tensor.Float64, []int{2, 3}))
	tr.In[0] = []float64{1000, 999, 990, -500, -501, -502.5}
	tr.CheckGradients(t)
	tr.CheckFloat32(t, 1e-5)
	e, f := math.Exp(-1), math.Exp(-2.5)
	require.InDeltaSlice(t, []float64{1 / (1 + e + f), e / (1 + e + f), f / (1 + e + f)}, tr.Run(t).Out[0][3:], 1e-12)
}

// TestAdviceForPooling follows that of the refusal: windows of 2 by 2.
func TestAdviceForPooling(t *testing.T) {
	for _, c := range []struct {
		over func(*G.Node, ...int) (*G.Node, error)
		want func(a, b, c, d float64) float64
	}{
		{G.Max, func(a, b, c, d float64) float64 { return max(a, b, c, d) }},
		{G.Mean, func(a, b, c, d float64) float64 { return (a + b + c + d) / 4 }},
	} {
		tr := exectest.New(t, &exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
			return c.over(G.Must(G.Reshape(x[0], tensor.Shape{2, 3, 2, 2, 3, 2})), 3, 5)
		})}, exectest.Signature(tensor.Float64, []int{2, 3, 4, 6}))
		tr.CheckGradients(t)
		require.Equal(t, tensor.Shape{2, 3, 2, 3}, tr.Unit.OutShape[0])
		for i, v := range tr.Run(t).Out[0] {
			x := tr.In[0][i/6*24+i/3%2*12+i%3*2:]
			require.InDelta(t, c.want(x[0], x[1], x[6], x[7]), v, 1e-12)
		}
	}
}

// TestBuildMustBeDeterministic refuses modules whose graph is another one each time.
func TestBuildMustBeDeterministic(t *testing.T) {
	calls := 0.0
	constant := func(b *exec.Builder, x []*G.Node) (*G.Node, error) { calls++; return G.Add(x[0], b.Const(calls)) }
	require.ErrorContains(t, compileError(tensor.Float64, constant, []int{2}), "not deterministic")

	elided := func(b *exec.Builder, x []*G.Node) (*G.Node, error) { // prints the same each time
		calls++
		v := make([]float64, 1000)
		v[500] = calls
		c, err := b.ConstTensor(tensor.New(tensor.WithBacking(v)))
		if err != nil {
			return nil, err
		}
		return G.Add(x[0], c)
	}
	require.ErrorContains(t, compileError(tensor.Float64, elided, []int{1000}), "not deterministic")

	longer := func(_ *exec.Builder, x []*G.Node) (y *G.Node, err error) {
		calls++
		for range int(calls) {
			x[0] = G.Must(G.Tanh(x[0]))
		}
		return x[0], nil
	}
	require.ErrorContains(t, compileError(tensor.Float64, longer, []int{2}), "not deterministic")
}

// TestHashCollision makes Gorgonia merge tanh of two different parameters: it compares nodes by a
// 32-bit hash that covers the names of parameters, and two names with equal hashes are found in no
// time. The module must be refused.
func TestHashCollision(t *testing.T) {
	p, q := collidingNames(t)
	spec := &exec.Spec{
		Params: []exec.Param{{Name: p, Shape: []int{2}}, {Name: q, Shape: []int{2}}},
		Build: returning(func(b *exec.Builder, _ []*G.Node) (*G.Node, error) {
			x, err := b.Param(p)
			if err != nil {
				return nil, err
			}
			y, err := b.Param(q)
			if err != nil {
				return nil, err
			}
			return G.Sub(G.Must(G.Tanh(x)), G.Must(G.Tanh(y)))
		}),
	}
	_, err := exec.Compile(spec, exectest.Signature(tensor.Float64))
	require.ErrorContains(t, err, "collided in Gorgonia's 32-bit hash")

	spec.Params[1].Name, q = "another", "another"
	_, err = exec.Compile(spec, exectest.Signature(tensor.Float64))
	require.NoError(t, err)
}

// collidingNames returns two names of vectors of two float64 whose nodes have equal hashes, which
// it checks.
func collidingNames(t *testing.T) (p, q string) {
	node := func(name string) *G.Node {
		return G.NewTensor(G.NewGraph(), G.Float64, 1, G.WithName("param "+name), G.WithShape(2))
	}
	typ := node("").Type()
	seen := make(map[uint32]string)
	for i := range 1 << 20 {
		name := fmt.Sprint("p", i)
		h := fnv.New32a()
		fmt.Fprintf(h, "%v%vparam %s\x00", typ, tensor.Shape{2}, name)
		if other, ok := seen[h.Sum32()]; ok {
			require.Equal(t, node(other).Hashcode(), node(name).Hashcode())
			return other, name
		}
		seen[h.Sum32()] = name
	}
	t.Fatal("no two names collide")
	return "", ""
}
