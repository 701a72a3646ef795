package ops_test

import (
	"math"
	"slices"
	"testing"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
)

// native are operations of Gorgonia's that have kernels here.
var native = slices.Concat(movements, []operation{
	{"sum", [][]int{{2, 3, 4, 5}}, nil, nil, unary(along(G.Sum, 2))},
	{"patches", [][]int{{2, 3, 4, 5}}, nil, nil, unary(func(x *G.Node) (*G.Node, error) {
		return G.Im2Col(x, tensor.Shape{3, 2}, tensor.Shape{1, 0}, tensor.Shape{1, 1}, tensor.Shape{1, 1})
	})},
	{"sum over axes", [][]int{{2, 3, 4, 1, 5}}, nil, nil, unary(along(G.Sum, 4, 0, 3))},
	{"sum over all", [][]int{{2, 3, 4}}, nil, nil, unary(along(G.Sum))},
	{"sum over axes of length 1", [][]int{{1, 3, 1, 4}}, nil, nil, unary(along(G.Sum, 0, 2))},
	{"mean", [][]int{{2, 3, 4, 5}}, nil, nil, unary(along(G.Mean, 2, 3))},
	{"max", [][]int{{2, 3, 4, 5}}, nil, nil, unary(along(G.Max, 2, 3))},
	{"max over the fifth axis", [][]int{{2, 1, 3, 2, 5}}, nil, nil, unary(along(G.Max, 1, 2, 4))},
	{"broadcast", [][]int{{2, 3, 4, 5}, {2, 1, 4, 1}}, nil, nil, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		return G.BroadcastHadamardProd(x[0], x[1], nil, []byte{1, 3})
	}},
	{"quotient", [][]int{{3, 4}, {3, 4}}, nil, nil, func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		return G.HadamardDiv(x[0], G.Must(G.Add(G.Must(G.HadamardProd(x[1], x[1])), b.Const(1))))
	}},
	{"difference from a number", [][]int{{3, 4}, {}}, nil, nil, func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		return G.Sub(G.Must(G.HadamardProd(b.Const(2), x[1])), x[0])
	}},
	{"largest and smallest", [][]int{{3, 4}, {3, 4}}, nil, nil, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		return G.Sub(G.Must(G.MaxBetween(x[0], x[1])), G.Must(G.MinBetween(x[0], x[1])))
	}},
	{"functions", [][]int{{3, 7}}, nil, nil, func(b *exec.Builder, x []*G.Node) (sum *G.Node, err error) {
		positive := G.Must(G.Add(G.Must(G.Sigmoid(x[0])), b.Const(0.5)))
		sum = x[0]
		for _, f := range []func(*G.Node) (*G.Node, error){
			G.Abs, G.Neg, G.Sqrt, G.Square, G.Cube, G.Inverse, G.InverseSqrt, G.Exp, G.Log, G.Tanh, G.Sigmoid,
			G.Sin, G.Cos, G.Log2, G.Log1p, G.Expm1, G.Softplus,
		} {
			sum = G.Must(G.Add(sum, G.Must(f(positive))))
		}
		return sum, nil
	}},
	{"random numbers", [][]int{{3, 7}}, nil, nil, func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		g, dt, like := b.Graph(), b.DType(), tensor.Shape{3, 7} // Gorgonia takes random nodes of one shape for one
		y := G.Must(G.HadamardProd(x[0], G.BinomialRandomNode(g, dt, 3, 0.4, 3, 7)))
		y = G.Must(G.HadamardProd(y, G.Must(G.Reshape(G.GaussianRandomNode(g, dt, 1, 2, 7, 3), like))))
		return G.Add(y, G.Must(G.Reshape(G.UniformRandomNode(g, dt, -1, 2, 21), like)))
	}},
	{"steps", [][]int{{3, 7}}, nil, nil, func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		steps := G.Must(G.Add(G.Must(G.Sign(x[0])), G.Must(G.Add(G.Must(G.Ceil(x[0])), G.Must(G.Floor(x[0]))))))
		return G.HadamardProd(steps, x[0])
	}},
	{"powers", [][]int{{3, 4}, {3, 4}}, nil, nil, func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		base := G.Must(G.Add(G.Must(G.Sigmoid(x[0])), b.Const(0.5)))
		return G.Add(G.Must(G.Pow(base, x[1])), G.Must(G.Pow(x[0], b.Const(2))))
	}},
	{"comparisons", [][]int{{3, 4}, {3, 4}}, nil, nil, func(_ *exec.Builder, x []*G.Node) (sum *G.Node, err error) {
		sum = x[0]
		for _, compare := range []func(a, b *G.Node, same bool) (*G.Node, error){G.Lt, G.Gt, G.Lte, G.Gte, G.Eq, G.Ne} {
			sum = G.Must(G.HadamardProd(sum, G.Must(G.Sub(G.Must(compare(x[0], x[1], true)), x[1]))))
		}
		return sum, nil
	}},
})

func along(op func(*G.Node, ...int) (*G.Node, error), axes ...int) func(*G.Node) (*G.Node, error) {
	return func(x *G.Node) (*G.Node, error) { return op(x, axes...) }
}

// The twins: operations composed of stock operations, on matrices and in the notation of their
// definition.

func twinLinear(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
	y := G.Must(G.Mul(x[0], G.Must(G.Transpose(x[1], 1, 0))))
	return G.BroadcastAdd(y, row(x[2]), nil, []byte{0})
}

func twinGELUTanh(b *exec.Builder, x []*G.Node) (*G.Node, error) {
	cubed := G.Must(G.HadamardProd(b.Const(0.044715), G.Must(G.Cube(x[0]))))
	inner := G.Must(G.HadamardProd(b.Const(math.Sqrt(2/math.Pi)), G.Must(G.Add(x[0], cubed))))
	return G.HadamardProd(G.Must(G.HadamardProd(b.Const(0.5), x[0])), G.Must(G.Add(b.Const(1), G.Must(G.Tanh(inner)))))
}

func twinReLU(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return G.Rectify(x[0]) }

func twinLayerNorm(b *exec.Builder, x []*G.Node) (*G.Node, error) {
	centered := G.Must(G.BroadcastSub(x[0], column(G.Must(G.Mean(x[0], 1))), nil, []byte{1}))
	y := G.Must(G.BroadcastHadamardDiv(centered, column(rootMeanSquare(b, centered, 1e-5)), nil, []byte{1}))
	return G.BroadcastAdd(G.Must(G.BroadcastHadamardProd(y, row(x[1]), nil, []byte{0})), row(x[2]), nil, []byte{0})
}

func twinRMSNorm(b *exec.Builder, x []*G.Node) (*G.Node, error) {
	y := G.Must(G.BroadcastHadamardDiv(x[0], column(rootMeanSquare(b, x[0], 1e-6)), nil, []byte{1}))
	return G.BroadcastHadamardProd(y, row(x[1]), nil, []byte{0})
}

// twinAttention is one head on one sequence, qkv [1, T, 3*D], without a mask.
func twinAttention(b *exec.Builder, x []*G.Node) (*G.Node, error) {
	rows, d := x[0].Shape()[1], x[0].Shape()[2]/3
	qkv := reshape(x[0], rows, 3*d)
	part := func(i int) *G.Node { return G.Must(G.Slice(qkv, nil, G.S(i*d, (i+1)*d))) }
	scores := G.Must(G.Mul(part(0), G.Must(G.Transpose(part(1), 1, 0))))
	e := G.Must(G.Exp(G.Must(G.HadamardProd(scores, b.Const(1/math.Sqrt(float64(d)))))))
	p := G.Must(G.BroadcastHadamardDiv(e, column(G.Must(G.Sum(e, 1))), nil, []byte{1}))
	return reshape(G.Must(G.Mul(p, part(2))), 1, rows, d), nil
}

// twinEmbedding multiplies rows 3, 0 and 3 of the table out of it.
func twinEmbedding(b *exec.Builder, x []*G.Node) (*G.Node, error) {
	hot, err := oneHot(b, 5, 3, 0, 3)
	if err != nil {
		return nil, err
	}
	return G.Mul(hot, x[0])
}

// twinCrossEntropy has targets 3, 0 and 3 of five classes.
func twinCrossEntropy(b *exec.Builder, x []*G.Node) (*G.Node, error) {
	hot, err := oneHot(b, 5, 3, 0, 3)
	if err != nil {
		return nil, err
	}
	sums := G.Must(G.Log(G.Must(G.Sum(G.Must(G.Exp(x[0])), 1))))
	picked := G.Must(G.Sum(G.Must(G.HadamardProd(x[0], hot)), 1))
	return reshape(G.Must(G.Mean(G.Must(G.Sub(sums, picked)))), 1), nil
}

func twinPositions(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
	first := G.Must(G.Slice(x[1], G.S(0, x[0].Shape()[1])))
	return G.BroadcastAdd(x[0], reshape(first, append([]int{1}, first.Shape()...)...), nil, []byte{0})
}

func oneHot(b *exec.Builder, classes int, which ...int) (*G.Node, error) {
	v := make([]float64, len(which)*classes)
	for i, c := range which {
		v[i*classes+c] = 1
	}
	return b.ConstTensor(tensor.New(tensor.WithShape(len(which), classes), tensor.WithBacking(v)))
}

// rootMeanSquare returns sqrt(mean(x²) + eps) of every row.
func rootMeanSquare(b *exec.Builder, x *G.Node, eps float64) *G.Node {
	return G.Must(G.Sqrt(G.Must(G.Add(G.Must(G.Mean(G.Must(G.Square(x)), 1)), b.Const(eps)))))
}

func reshape(x *G.Node, shape ...int) *G.Node { return G.Must(G.Reshape(x, shape)) }
func row(x *G.Node) *G.Node                   { return reshape(x, 1, x.Shape()[0]) }
func column(x *G.Node) *G.Node                { return reshape(x, x.Shape()[0], 1) }

// TestTwins compares values and gradients of operations with those of their twins.
func TestTwins(t *testing.T) {
	byName := make(map[string]function)
	for _, op := range operations {
		byName[op.name] = op.f
	}
	picks := []float64{3, 0, 3}
	for _, c := range []struct {
		name   string
		twin   function
		ints   []float64
		shapes [][]int
	}{
		{"linear", twinLinear, nil, [][]int{{3, 4}, {5, 4}, {5}}},
		{"gelu tanh", twinGELUTanh, nil, [][]int{{3, 7}}},
		{"relu", twinReLU, nil, [][]int{{3, 7}}},
		{"layer norm", twinLayerNorm, nil, [][]int{{3, 5}, {5}, {5}}},
		{"rms norm", twinRMSNorm, nil, [][]int{{3, 5}, {5}}},
		{"attention of one head", twinAttention, nil, [][]int{{1, 6, 12}}},
		{"embedding", twinEmbedding, picks, [][]int{{5, 2}}},
		{"positions", twinPositions, nil, [][]int{{2, 3, 4}, {5, 4}}},
		{"cross-entropy", twinCrossEntropy, picks, [][]int{{3, 5}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := byName[c.name]
			if f == nil {
				f = attention(1, false, false)
			}
			fused := trial(t, f, c.ints, []int{len(c.ints)}, c.shapes...)
			stock := trial(t, c.twin, c.ints, []int{len(c.ints)}, c.shapes...)
			exectest.RequireClose(t, stock.Run(t), fused.Run(t), 1e-12)
		})
	}
}
