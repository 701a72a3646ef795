package exec_test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
)

// compileError compiles a module with one output and returns the error.
func compileError(dt tensor.Dtype, f func(b *exec.Builder, x []*G.Node) (*G.Node, error), shapes ...[]int) error {
	_, err := exec.Compile(&exec.Spec{Build: returning(f)}, exectest.Signature(dt, shapes...))
	return err
}

// TestRefusedOperations compiles every stock operation that gives wrong results.
func TestRefusedOperations(t *testing.T) {
	image := []int{1, 2, 4, 4}
	two := tensor.Shape{2, 2}
	refused := []stockOp{
		unaryOp("SoftMax", []int{2, 3}, along(G.SoftMax)),
		unaryOp("LogSoftMax", []int{2, 3}, along(G.LogSoftMax)),
		unaryOp("Dropout", []int{2, 3}, func(x *G.Node) (*G.Node, error) { return G.Dropout(x, 0.5) }),
		{"random numbers", [][]int{{2, 2}}, func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
			return G.Add(x[0], G.UniformRandomNode(b.Graph(), b.DType(), 0, 1, 2, 2))
		}},
		{"InverseSqrt", [][]int{{2, 3}}, func(b *exec.Builder, x []*G.Node) (*G.Node, error) { return G.InverseSqrt(positive(b, x[0])) }},
		{"Log2", [][]int{{2, 3}}, func(b *exec.Builder, x []*G.Node) (*G.Node, error) { return G.Log2(positive(b, x[0])) }},
		unaryOp("Sparsemax", []int{2, 3}, along(G.Sparsemax)),
		unaryOp("YOLOv3", []int{1, 12, 2, 2}, func(x *G.Node) (*G.Node, error) {
			return G.YOLOv3(x, []float32{1, 2, 3, 4}, []int{0, 1}, 4, 1, 0.5)
		}),
		// Dilated by 2, either would have the same shape.
		binaryOp("Conv2d of even kernel and stride", []int{1, 2, 5, 5}, []int{3, 2, 2, 2}, convolution(0, 2, 1)),
		binaryOp("Conv2d of one row of the image", []int{1, 1, 2, 4}, []int{1, 1, 2, 3}, convolution(0, 3, 1)),
		binaryOp("OuterProd", []int{3}, []int{3}, G.OuterProd),
		unaryOp("MaxPool2D", image, func(x *G.Node) (*G.Node, error) { return G.MaxPool2D(x, two, []int{0, 0}, []int{1, 1}) }),
		unaryOp("AveragePool2D", image, func(x *G.Node) (*G.Node, error) { return G.AveragePool2D(x, two, []int{0, 0}, []int{1, 1}) }),
		{"BatchNorm", [][]int{image, image, image}, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
			y, _, _, _, err := G.BatchNorm(x[0], x[1], x[2], 0.9, 1e-5)
			return y, err
		}},
		{"GroupNorm", [][]int{{1, 2, 2, 2}, {1, 2, 1, 1}, {1, 2, 1, 1}}, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
			return G.GroupNorm(x[0], x[1], x[2], 1, 2, 1e-5)
		}},
	}
	for _, op := range refused {
		t.Run(op.name, func(t *testing.T) {
			require.ErrorContains(t, compileError(tensor.Float64, op.build, op.in...), "is refused: ")
		})
	}
	t.Run("ByIndices", func(t *testing.T) {
		sig := exectest.Signature(tensor.Float64, []int{4, 2})
		sig.Inputs = append(sig.Inputs, exec.Input{Shape: []int{3}, DType: tensor.Int})
		_, err := exec.Compile(&exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
			return G.ByIndices(x[0], x[1], 0)
		})}, sig)
		require.ErrorContains(t, err, "is refused: ")
	})
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
		"Build panicked: no such luck":            func(*exec.Builder, []*G.Node) (G.Nodes, error) { panic("no such luck") },
		"Build returned no outputs":               func(*exec.Builder, []*G.Node) (G.Nodes, error) { return nil, nil },
		"in Build: output 1 is nil":               func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) { return G.Nodes{x[0], nil}, nil },
		"in Build: output 0 is int, want float64": func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) { return G.Nodes{x[1]}, nil },
		"in Build: output 0 is a node of another graph": func(*exec.Builder, []*G.Node) (G.Nodes, error) {
			return G.Nodes{G.NewScalar(G.NewGraph(), G.Float64)}, nil
		},
		`no parameter "block.weight" among those of Pa`: func(b *exec.Builder, _ []*G.Node) (G.Nodes, error) {
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
