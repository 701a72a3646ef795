package ops_test

import (
	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
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
