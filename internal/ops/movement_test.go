package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
)

// movements are Gorgonia's products, movements and softmaxes.
var movements = []operation{
	{"product", [][]int{{3, 4}, {4, 5}}, nil, nil, binary(G.Mul)},
	{"product with a transpose", [][]int{{3, 4}, {5, 4}}, nil, nil, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		return G.Mul(x[0], G.Must(G.Transpose(x[1])))
	}},
	{"transpose of a product", [][]int{{3, 4}, {4, 5}}, nil, nil, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		return G.Transpose(G.Must(G.Mul(x[0], x[1])))
	}},
	{"matrix and vector", [][]int{{3, 4}, {4}}, nil, nil, binary(G.Mul)},
	{"vectors", [][]int{{4}, {4}}, nil, nil, binary(G.Mul)},
	{"outer product", [][]int{{4}, {3}}, nil, nil, binary(G.OuterProd)},
	{"contraction", [][]int{{2, 3, 4}, {4, 2, 5}}, nil, nil, binary(func(x, y *G.Node) (*G.Node, error) {
		return G.Tensordot([]int{0, 2}, []int{1, 0}, x, y)
	})},
	{"heads", [][]int{{2, 5, 3, 4}, {2, 6, 3, 4}, {2, 6, 3, 4}}, nil, nil, heads},
	{"transpose", [][]int{{2, 35, 3, 20}}, nil, nil, unary(func(x *G.Node) (*G.Node, error) { return G.Transpose(x, 3, 0, 2, 1) })},
	{"transpose with rows", [][]int{{2, 3, 4, 5}}, nil, nil, unary(func(x *G.Node) (*G.Node, error) { return G.Transpose(x, 2, 0, 1, 3) })},
	{"transpose of nothing", [][]int{{1, 3, 1, 5}}, nil, nil, unary(func(x *G.Node) (*G.Node, error) { return G.Transpose(x, 1, 0, 3, 2) })},
	{"slices", [][]int{{3, 8}}, nil, nil, unary(func(x *G.Node) (*G.Node, error) {
		return G.HadamardProd(G.Must(G.Slice(x, nil, G.S(0, 4))), G.Must(G.Slice(x, nil, G.S(3, 7))))
	})},
	{"slice of one piece", [][]int{{5, 8}}, nil, nil, unary(func(x *G.Node) (*G.Node, error) {
		return G.HadamardProd(G.Must(G.Slice(x, G.S(1, 3))), G.Must(G.Slice(x, G.S(2, 4))))
	})},
	{"every other", [][]int{{3, 8, 2}}, nil, nil, unary(func(x *G.Node) (*G.Node, error) { return G.Slice(x, nil, G.S(1, 8, 2)) })},
	{"concatenation", [][]int{{3, 2, 2}, {3, 1, 2}}, nil, nil, binary(func(x, y *G.Node) (*G.Node, error) { return G.Concat(1, x, y, x) })},
	{"lookup", [][]int{{2, 5, 3}}, []float64{3, 0, 3}, []int{3}, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return G.ByIndices(x[0], x[1], 1) }},
	{"integers", [][]int{{3}}, []float64{3, 0, 3}, []int{3}, func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		return G.HadamardProd(x[0], G.Must(G.ConvType(x[1], tensor.Int, b.DType())))
	}},
	{"softmax", [][]int{{3, 4, 7}}, nil, nil, unary(along(G.SoftMax))},
	{"softmax along an axis", [][]int{{3, 7, 2}}, nil, nil, unary(along(G.SoftMax, 1))},
	{"log softmax", [][]int{{3, 4, 7}}, nil, nil, unary(along(G.LogSoftMax))},
	{"log softmax along an axis", [][]int{{7, 3, 2}}, nil, nil, unary(along(G.LogSoftMax, 0))},
}

func binary(f func(x, y *G.Node) (*G.Node, error)) function {
	return func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return f(x[0], x[1]) }
}

// heads is attention without a mask on q, k and v [B, T, heads, d], with its result in that order.
func heads(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
	split := func(x *G.Node) *G.Node { return G.Must(G.Transpose(x, 0, 2, 1, 3)) }
	p := G.Must(G.SoftMax(G.Must(G.BatchedMatMul(split(x[0]), split(x[1]), false, true))))
	return G.Transpose(G.Must(G.BatchedMatMul(p, split(x[2]))), 0, 2, 1, 3)
}

// instructions returns those of both programs of a unit.
func instructions(u *exec.Unit) (list []exec.Instr) {
	for _, p := range []*exec.Program{u.Forward, u.Backward} {
		for in := range p.All() {
			list = append(list, in)
		}
	}
	return list
}

// TestProductsReadTransposes has attention between linear layers, whose transposes are no
// instructions, in either direction.
func TestProductsReadTransposes(t *testing.T) {
	tr := trial(t, func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		split := func(w *G.Node) *G.Node { return reshape(G.Must(G.Mul(x[0], G.Must(G.Transpose(w)))), 2, 5, 3, 4) }
		y, err := heads(b, G.Nodes{split(x[1]), split(x[2]), split(x[3])})
		if err != nil {
			return nil, err
		}
		return G.Mul(reshape(y, 10, 12), x[1])
	}, nil, nil, []int{10, 12}, []int{12, 12}, []int{12, 12}, []int{12, 12})
	tr.CheckGradients(t)
	products := 0
	for _, in := range instructions(tr.Unit) {
		require.NotEqual(t, exec.KindTranspose, in.Op.Kind)
		if in.Op.Kind == exec.KindProduct {
			products++
		}
	}
	require.Equal(t, 3*6, products)
}

// TestSlicesAreAddedInPlace has one gradient with zeros around a slice, to which the others are
// added.
func TestSlicesAreAddedInPlace(t *testing.T) {
	tr := trial(t, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		var sum *G.Node
		for i := range 3 {
			part := G.Must(G.Square(G.Must(G.Slice(x[0], nil, G.S(3*i, 3*i+4)))))
			if i == 0 {
				sum = part
			} else {
				sum = G.Must(G.HadamardProd(sum, part))
			}
		}
		return sum, nil
	}, nil, nil, []int{5, 10})
	tr.CheckGradients(t)
	kinds := make(map[exec.Kind]int)
	for in := range tr.Unit.Backward.All() {
		kinds[in.Op.Kind]++
	}
	require.Equal(t, 1, kinds[exec.KindSliceGrad])
	require.Equal(t, 2, kinds[exec.KindSliceAdd])
}

// TestProductsOfBFloat16 are computed from bfloat16, those that are gradients of parameters too:
// these are float32 and added where they lie.
func TestProductsOfBFloat16(t *testing.T) {
	sig := exectest.Signature(tensor.Float64, []int{6, 4})
	sig.AccParam = []bool{true}
	tr := exectest.New(t, &exec.Spec{
		Params: []exec.Param{{Name: "w", Shape: []int{8, 4}}},
		Build: func(b *exec.Builder, x []*G.Node) (G.Nodes, error) {
			half := G.Must(G.Slice(G.Must(b.Param("w")), G.S(4, 8)))
			y, err := G.Mul(G.Must(G.Mul(x[0], G.Must(G.Transpose(G.Must(b.Param("w")))))), G.Must(b.Param("w")))
			return G.Nodes{G.Must(G.Add(y, G.Must(G.Mul(x[0], half))))}, err
		},
	}, sig)
	low := tr.Half(t)
	exectest.RequireClose(t, tr.Run(t), low.Run(t), 0.05)
	wide := 0
	for _, in := range instructions(low.Unit) {
		if in.Op.Kind != exec.KindProduct {
			continue
		}
		require.True(t, in.Half)
		if !in.Out.Form.Half {
			wide++
		}
	}
	require.Equal(t, 3, wide, "one for each use of the parameter")
}
