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
	"github.com/gofsdp/gofsdp/internal/ops"
)

// function is an operation on the inputs of a module.
type function = func(b *exec.Builder, x []*G.Node) (*G.Node, error)

// spec returns the module that is f.
func spec(f function) *exec.Spec {
	return &exec.Spec{Build: func(b *exec.Builder, in []*G.Node) (G.Nodes, error) {
		y, err := f(b, in)
		if err != nil {
			return nil, err
		}
		return G.Nodes{y}, nil
	}}
}

// trial compiles f on float inputs of some shapes, followed by one of integers if ints is not nil.
func trial(t *testing.T, f function, ints []float64, intShape []int, shapes ...[]int) *exectest.Trial {
	t.Helper()
	sig := exectest.Signature(tensor.Float64, shapes...)
	if ints != nil {
		sig.Inputs = append(sig.Inputs, exec.Input{Shape: intShape, DType: tensor.Int})
	}
	tr := exectest.New(t, spec(f), sig)
	if ints != nil {
		tr.In[len(shapes)] = ints
	}
	return tr
}

// operation is an operation with the shapes of its arguments, integers last.
type operation struct {
	name     string
	shapes   [][]int
	ints     []float64
	intShape []int
	f        function
}

func unary(f func(*G.Node) (*G.Node, error)) function {
	return func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return f(x[0]) }
}

func attention(heads int, causal, masked bool) function {
	return joined(ops.Attention{Heads: heads, Causal: causal}, false, masked)
}

// joined takes qkv, then bias if there is one, then a mask if it is masked or positions if it is
// packed. If it is both, the positions are the mask, too.
func joined(a ops.Attention, biased, masked bool) function {
	return func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		mask, positions, bias := optional(x, biased, masked, a.Packed)
		return ops.SelfAttention(x[0], mask, positions, bias, a)
	}
}

// optional returns what stands behind the arguments that must be there.
func optional(x []*G.Node, biased, masked, packed bool) (mask, positions, bias *G.Node) {
	last := x[len(x)-1]
	if masked {
		mask = last
	}
	if packed {
		positions = last
	}
	if masked || packed {
		x = x[:len(x)-1]
	}
	if biased {
		bias = x[len(x)-1]
	}
	return mask, positions, bias
}

// sdpa takes q, k and v, and then the same as joined.
func sdpa(a ops.Attention, biased, masked bool) function {
	return func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		mask, positions, bias := optional(x, biased, masked, a.Packed)
		return ops.SDPA(x[0], x[1], x[2], mask, positions, bias, a)
	}
}

func relative(a ops.Relative) function {
	return func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return ops.RelativeBias(x[0], a) }
}

// batchNorm takes x, gain, bias and the running statistics.
func batchNorm(momentum float64) function {
	return func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		y, _, _, err := ops.BatchNorm(x[0], x[1], x[2], x[3], x[4], 1e-5, momentum)
		return y, err
	}
}

func groupNorm(groups int) function {
	return func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		return ops.GroupNorm(x[0], x[1], x[2], groups, 1e-5)
	}
}

func convolution(c exec.Conv) function {
	return func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		return ops.Conv2D(x[0], x[1], append(x, nil)[2], c)
	}
}

// productOfGELU returns gelu(x·weightᵀ)·otherᵀ.
func productOfGELU(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
	y, err := ops.Linear(x[0], x[1], nil)
	if err != nil {
		return nil, err
	}
	if y, err = ops.GELUTanh(y); err != nil {
		return nil, err
	}
	return ops.Linear(y, x[2], nil)
}

// sumsOfProducts returns x + x·weightᵀ + bias + x·otherᵀ, so that its gradient with respect to x is
// a sum, too.
func sumsOfProducts(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
	y, err := ops.Linear(x[0], x[1], x[2])
	if err != nil {
		return nil, err
	}
	z, err := ops.Linear(x[0], x[3], nil)
	if err != nil {
		return nil, err
	}
	return G.Add(G.Must(G.Add(y, x[0])), z)
}

func crossEntropy(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
	return ops.CrossEntropy(x[0], x[1], -1)
}

var operations = []operation{
	{"linear", [][]int{{2, 3, 4}, {5, 4}, {5}}, nil, nil, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return ops.Linear(x[0], x[1], x[2]) }},
	{"linear without bias", [][]int{{3, 4}, {5, 4}}, nil, nil, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return ops.Linear(x[0], x[1], nil) }},
	{"linear of one row", [][]int{{4}, {5, 4}, {5}}, nil, nil, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return ops.Linear(x[0], x[1], x[2]) }},
	{"add linear", [][]int{{2, 3, 5}, {2, 3, 4}, {5, 4}}, nil, nil, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return ops.AddLinear(x[0], x[1], x[2]) }},
	{"sums of products", [][]int{{2, 3, 4}, {4, 4}, {4}, {4, 4}}, nil, nil, sumsOfProducts},
	{"sums of layer norms", [][]int{{2, 3, 5}, {5}, {5}}, nil, nil, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		return G.Add(x[0], must(ops.LayerNorm(x[0], x[1], x[2], 1e-5)))
	}},
	{"sums of rms norms", [][]int{{2, 3, 16}, {16}}, nil, nil, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		return G.Add(x[0], must(ops.RMSNorm(x[0], x[1], 1e-6)))
	}},
	{"product of gelu", [][]int{{2, 3, 4}, {5, 4}, {4, 5}}, nil, nil, productOfGELU},
	{"gelu", [][]int{{3, 7}}, nil, nil, unary(ops.GELU)},
	{"gelu tanh", [][]int{{3, 7}}, nil, nil, unary(ops.GELUTanh)},
	{"relu", [][]int{{3, 7}}, nil, nil, unary(ops.ReLU)},
	{"dropout", [][]int{{3, 7}}, nil, nil, unary(func(x *G.Node) (*G.Node, error) { return ops.Dropout(x, 0.3, 1) })},
	{"layer norm", [][]int{{2, 3, 5}, {5}, {5}}, nil, nil, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return ops.LayerNorm(x[0], x[1], x[2], 1e-5) }},
	{"rms norm", [][]int{{2, 3, 5}, {5}}, nil, nil, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return ops.RMSNorm(x[0], x[1], 1e-6) }},
	{"batch norm", [][]int{{6, 5}, {5}, {5}, {5}, {5}}, nil, nil, batchNorm(0.1)},
	{"batch norm of images", [][]int{{2, 3, 2, 5}, {3}, {3}, {3}, {3}}, nil, nil, batchNorm(0.1)},
	{"group norm", [][]int{{3, 6}, {6}, {6}}, nil, nil, groupNorm(3)},
	{"group norm of images", [][]int{{2, 4, 3, 3}, {4}, {4}}, nil, nil, groupNorm(2)},
	{"convolution", [][]int{{2, 3, 5, 4}, {4, 3, 3, 2}, {4}}, nil, nil, convolution(exec.Conv{Stride: [2]int{1, 1}, Pad: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1})},
	{"convolution in groups", [][]int{{1, 4, 6, 5}, {2, 2, 2, 3}}, nil, nil, convolution(exec.Conv{Stride: [2]int{2, 3}, Pad: [2]int{0, 2}, Dilation: [2]int{3, 2}, Groups: 2})},
	{"max pool", [][]int{{2, 2, 4, 5}}, nil, nil, unary(func(x *G.Node) (*G.Node, error) {
		return ops.MaxPool2D(x, exec.Pool{Kernel: [2]int{2, 2}, Stride: [2]int{2, 2}})
	})},
	{"max pool with overlap", [][]int{{1, 2, 5, 4}}, nil, nil, unary(func(x *G.Node) (*G.Node, error) {
		return ops.MaxPool2D(x, exec.Pool{Kernel: [2]int{3, 2}, Stride: [2]int{2, 1}, Pad: [2]int{1, 0}})
	})},
	{"avg pool", [][]int{{2, 1, 5, 4}}, nil, nil, unary(func(x *G.Node) (*G.Node, error) {
		return ops.AvgPool2D(x, exec.Pool{Kernel: [2]int{3, 2}, Stride: [2]int{2, 1}, Pad: [2]int{1, 1}})
	})},
	{"scale", [][]int{{3, 7}}, nil, nil, unary(func(x *G.Node) (*G.Node, error) { return ops.Scale(x, -1.5) })},
	{"attention", [][]int{{2, 5, 12}}, nil, nil, attention(2, false, false)},
	{"causal attention", [][]int{{2, 5, 12}}, nil, nil, attention(2, true, false)},
	{"masked attention", [][]int{{2, 3, 12}}, []float64{1, 0, 1, 0, 0, 0}, []int{2, 3}, attention(2, false, true)},
	{"masked causal attention", [][]int{{2, 3, 12}}, []float64{0, 1, 1, 1, 0, 1}, []int{2, 3}, attention(1, true, true)},
	{"attention of one token", [][]int{{1, 1, 3}}, nil, nil, attention(1, true, false)},
	{"attention of grouped keys", [][]int{{2, 5, 16}}, nil, nil, joined(ops.Attention{Heads: 4, KVHeads: 2, Causal: true, Window: 3}, false, false)},
	{"attention with a bias", [][]int{{2, 3, 8}, {2, 3, 3}}, nil, nil, joined(ops.Attention{Heads: 2, KVHeads: 1, Scale: 1}, true, false)},
	{"masked attention with a bias", [][]int{{2, 3, 12}, {2, 3, 3}}, []float64{1, 0, 1, 0, 1, 1}, []int{2, 3}, joined(ops.Attention{Heads: 2}, true, true)},
	{"sdpa", [][]int{{2, 3, 8}, {2, 5, 8}, {2, 5, 8}}, nil, nil, sdpa(ops.Attention{Heads: 2}, false, false)},
	{"sdpa of grouped keys", [][]int{{2, 4, 12}, {2, 5, 6}, {2, 5, 6}}, nil, nil, sdpa(ops.Attention{Heads: 4, KVHeads: 2, Causal: true}, false, false)},
	{"sdpa in a window", [][]int{{1, 6, 8}, {1, 6, 4}, {1, 6, 4}}, nil, nil, sdpa(ops.Attention{Heads: 2, KVHeads: 1, Causal: true, Window: 2}, false, false)},
	{"sdpa in a window on both sides", [][]int{{1, 6, 8}, {1, 6, 4}, {1, 6, 4}}, []float64{0, 1, 1, 0, 1, 1}, []int{1, 6}, sdpa(ops.Attention{Heads: 2, KVHeads: 1, Window: 2}, false, true)},
	{"sdpa with a bias", [][]int{{2, 3, 8}, {2, 4, 4}, {2, 4, 4}, {2, 3, 4}}, nil, nil, sdpa(ops.Attention{Heads: 2, KVHeads: 1, Scale: 1}, true, false)},
	{"masked sdpa", [][]int{{2, 3, 4}, {2, 4, 4}, {2, 4, 4}}, []float64{1, 0, 1, 0, 0, 0, 0, 0}, []int{2, 4}, sdpa(ops.Attention{Heads: 2}, false, true)},
	{"masked sdpa with a bias", [][]int{{2, 3, 4}, {2, 3, 2}, {2, 3, 2}, {2, 3, 3}}, []float64{1, 0, 1, 0, 1, 1}, []int{2, 3}, sdpa(ops.Attention{Heads: 2, KVHeads: 1, Causal: true}, true, true)},
	{"packed attention", [][]int{{2, 5, 16}}, []float64{3, 4, 0, 1, 2, 0, 0, 1, 2, 0}, []int{2, 5}, joined(ops.Attention{Heads: 4, KVHeads: 2, Packed: true}, false, false)},
	{"packed causal attention", [][]int{{2, 5, 12}}, []float64{0, 1, 2, 0, 1, 0, 1, 2, 3, 4}, []int{2, 5}, joined(ops.Attention{Heads: 2, Causal: true, Packed: true}, false, false)},
	{"masked packed attention with a bias", [][]int{{2, 4, 8}, {2, 4, 4}}, []float64{1, 2, 0, 1, 0, 1, 2, 3}, []int{2, 4}, joined(ops.Attention{Heads: 2, KVHeads: 1, Packed: true}, true, true)},
	{"packed sdpa in a window", [][]int{{1, 6, 8}, {1, 6, 4}, {1, 6, 4}}, []float64{0, 1, 2, 3, 0, 1}, []int{1, 6}, sdpa(ops.Attention{Heads: 2, KVHeads: 1, Causal: true, Window: 2, Packed: true}, false, false)},
	{"masked packed sdpa with a bias", [][]int{{1, 5, 4}, {1, 5, 2}, {1, 5, 2}, {2, 5, 5}}, []float64{0, 1, 2, 0, 1}, []int{1, 5}, sdpa(ops.Attention{Heads: 2, KVHeads: 1, Causal: true, Packed: true}, true, true)},
	{"sdpa of one query", [][]int{{1, 1, 8}, {1, 7, 4}, {1, 7, 4}}, nil, nil, sdpa(ops.Attention{Heads: 2, KVHeads: 1, Causal: true, Window: 3}, false, false)},
	{"relative bias", [][]int{{8, 2}}, nil, nil, relative(ops.Relative{Queries: 9, Keys: 9, MaxDistance: 5})},
	{"causal relative bias", [][]int{{6, 3}}, nil, nil, relative(ops.Relative{Queries: 3, Keys: 11, MaxDistance: 7, Causal: true})},
	{"embedding", [][]int{{5, 3}}, []float64{4, 0, 4, 1}, []int{2, 2}, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return ops.Embedding(x[0], x[1]) }},
	{"positions", [][]int{{2, 3, 4}, {5, 4}}, nil, nil, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return ops.AddPositions(x[0], x[1]) }},
	{"cross-entropy", [][]int{{2, 3, 5}}, []float64{4, -1, 0, 2, 2, -1}, []int{2, 3}, crossEntropy},
	{"cross-entropy of nothing", [][]int{{2, 5}}, []float64{-1, -1}, []int{2}, crossEntropy},
	{"reshape", [][]int{{2, 6}}, nil, nil, unary(func(x *G.Node) (*G.Node, error) { return exec.NewView(x, 0, 3, 4) })},
}

// TestGradients holds the gradient of every operation with respect to every argument against
// central differences, and float32 against float64.
func TestGradients(t *testing.T) {
	for _, op := range slices.Concat(operations, native) {
		t.Run(op.name, func(t *testing.T) {
			tr := trial(t, op.f, op.ints, op.intShape, op.shapes...)
			tr.CheckGradients(t)
			tr.CheckFloat32(t, 1e-5)
		})
	}
}

// keep sends x, a value that depends on the batch only, through tanh, so that it lies in work
// memory.
func keep(x *G.Node) *G.Node { return G.Must(G.Tanh(x)) }

// TestInPlace runs every operation on a value that it may overwrite and that something else reads
// later.
func TestInPlace(t *testing.T) {
	for _, op := range slices.Concat(operations, native) {
		t.Run(op.name, func(t *testing.T) {
			tr := trial(t, func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
				h := keep(x[0])
				y, err := op.f(b, append(G.Nodes{h}, x[1:]...))
				if err != nil {
					return nil, err
				}
				return G.Add(G.Must(G.Sum(keep(y))), G.Must(G.Sum(G.Must(G.Square(h)))))
			}, op.ints, op.intShape, op.shapes...)
			tr.CheckGradients(t)
		})
	}
}

// TestNoAllocation runs every operation and its gradient on memory that is there.
func TestNoAllocation(t *testing.T) {
	for _, op := range slices.Concat(operations, native) {
		t.Run(op.name, func(t *testing.T) {
			tr := trial(t, op.f, op.ints, op.intShape, op.shapes...)
			var r exec.Runner
			var err error
			c := tr.Call()
			require.NoError(t, r.Forward(tr.Unit, c)) // the workspace of the products is made once
			require.Zero(t, testing.AllocsPerRun(5, func() { err = r.Forward(tr.Unit, c) }), "forward")
			require.NoError(t, err)
			tr.Turn(c)
			require.NoError(t, r.Backward(tr.Unit, c))
			require.Zero(t, testing.AllocsPerRun(5, func() { err = r.Backward(tr.Unit, c) }), "backward")
			require.NoError(t, err)
		})
	}
}

func onInts(f function, ints []float64, shape []int, shapes ...[]int) operation {
	return operation{shapes: shapes, ints: ints, intShape: shape, f: f}
}

func on(f function, shapes ...[]int) operation { return operation{shapes: shapes, f: f} }

// TestMistakes builds every operation on arguments that do not fit. The message has the shapes.
func TestMistakes(t *testing.T) {
	two := func(f func(x, y *G.Node) (*G.Node, error)) function {
		return func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return f(x[0], x[1]) }
	}
	linear := two(func(x, w *G.Node) (*G.Node, error) { return ops.Linear(x, w, nil) })
	layerNorm := two(func(x, g *G.Node) (*G.Node, error) { return ops.LayerNorm(x, g, g, 1e-5) })
	for want, op := range map[string]operation{
		"linear: x is (), want [... in]":                                                                 on(linear, []int{}, []int{5, 4}),
		"linear: weight is (5, 3), want [out 4] for x (2, 4)":                                            on(linear, []int{2, 4}, []int{5, 3}),
		"linear: weight is (4), want [out 4] for x (2, 4)":                                               on(linear, []int{2, 4}, []int{4}),
		"linear: bias is (2, 4), want [5] for x (2, 4)":                                                  on(two(func(x, w *G.Node) (*G.Node, error) { return ops.Linear(x, w, x) }), []int{2, 4}, []int{5, 4}),
		"add linear: x is (2, 2), want [in] for y (4)":                                                   on(two(func(x, w *G.Node) (*G.Node, error) { return ops.AddLinear(G.Must(exec.NewView(x, 0, 4)), x, w) }), []int{2, 2}, []int{5, 2}),
		"add linear: weight is (5, 3), want [2 2] for y (2, 2)":                                          on(two(func(x, w *G.Node) (*G.Node, error) { return ops.AddLinear(x, x, w) }), []int{2, 2}, []int{5, 3}),
		"dropout: rate 1 is not in [0, 1)":                                                               on(dropout(1, 0), []int{2}),
		"dropout: rate -0.1 is not in [0, 1)":                                                            on(dropout(-0.1, 0), []int{2}),
		"dropout: rate NaN is not in [0, 1)":                                                             on(dropout(math.NaN(), 0), []int{2}),
		"layer norm: x is (), want [... d]":                                                              on(layerNorm, []int{}, []int{4}),
		"layer norm: gain is (3), want [4] for x (2, 4)":                                                 on(layerNorm, []int{2, 4}, []int{3}),
		"layer norm: bias is (2, 4), want [4] for x (2, 4)":                                              on(two(func(x, g *G.Node) (*G.Node, error) { return ops.LayerNorm(x, g, x, 1e-5) }), []int{2, 4}, []int{4}),
		"relative bias: table is (7, 2), want [buckets heads] with an even number of at least 4 buckets": on(relative(ops.Relative{Queries: 3, Keys: 3, MaxDistance: 9}), []int{7, 2}),
		"relative bias: table is (1, 2), want [buckets heads] with at least 2 buckets":                   on(relative(ops.Relative{Queries: 3, Keys: 3, MaxDistance: 9, Causal: true}), []int{1, 2}),
		"relative bias: the largest distance is 4, want more than 4 for 16 buckets":                      on(relative(ops.Relative{Queries: 3, Keys: 3, MaxDistance: 4}), []int{16, 2}),
		"relative bias: 3 queries and 2 keys, want at least one query and as many keys as queries":       on(relative(ops.Relative{Queries: 3, Keys: 2, MaxDistance: 9}), []int{16, 2}),
		"rms norm: gain is (2, 2), want [4] for x (2, 4)":                                                on(two(func(x, g *G.Node) (*G.Node, error) { return ops.RMSNorm(x, g, 1e-5) }), []int{2, 4}, []int{2, 2}),
		"batch norm statistics: x is (), want [B C ...]":                                                 on(batchNorm(0.1), []int{}, []int{1}, []int{1}, []int{1}, []int{1}),
		"batch norm statistics: running variance is (3), want [4] for x (2, 4)":                          on(batchNorm(0.1), []int{2, 4}, []int{4}, []int{4}, []int{4}, []int{3}),
		"batch norm: gain is (2, 4), want [4] for x (2, 4)":                                              on(batchNorm(0.1), []int{2, 4}, []int{2, 4}, []int{4}, []int{4}, []int{4}),
		"batch norm: momentum 0 is not in (0, 1]":                                                        on(batchNorm(0), []int{2, 4}, []int{4}, []int{4}, []int{4}, []int{4}),
		"batch norm: momentum NaN is not in (0, 1]":                                                      on(batchNorm(math.NaN()), []int{2, 4}, []int{4}, []int{4}, []int{4}, []int{4}),
		"embedding: index is float64, want int":                                                          on(two(ops.Embedding), []int{5, 3}, []int{2}),
		"embedding: table is (5), want [rows d]":                                                         onInts(two(ops.Embedding), []float64{1}, []int{1}, []int{5}),
		"positions: table is (2, 4), want at least 3 rows":                                               on(two(ops.AddPositions), []int{2, 3, 4}, []int{2, 4}),
		"positions: x is (3, 4), want [B T d]":                                                           on(two(ops.AddPositions), []int{3, 4}, []int{5, 4}),
		"cross-entropy: targets is float64, want int":                                                    on(crossEntropy, []int{3, 4}, []int{3}),
		"cross-entropy: targets is (2), want [3] for logits (3, 4)":                                      onInts(crossEntropy, []float64{1, 1}, []int{2}, []int{3, 4}),
		"cross-entropy: logits is (4), want [... n classes]":                                             onInts(crossEntropy, []float64{1}, []int{1}, []int{4}),
	} {
		requireMistake(t, want, op)
	}
}

// requireMistake builds an operation on arguments that do not fit.
func requireMistake(t *testing.T, want string, op operation) {
	t.Helper()
	sig := exectest.Signature(tensor.Float64, op.shapes...)
	if op.ints != nil {
		sig.Inputs = append(sig.Inputs, exec.Input{Shape: op.intShape, DType: tensor.Int})
	}
	_, err := exec.Compile(spec(op.f), sig)
	require.EqualError(t, err, "in Build: "+want)
}

// TestIntegersAreNotFloats refuses integers where an operation computes with floats: it would read
// their bits.
func TestIntegersAreNotFloats(t *testing.T) {
	for _, op := range operations {
		sig := exectest.Signature(tensor.Float64, op.shapes...)
		sig.Inputs[0] = exec.Input{Shape: op.shapes[0], DType: tensor.Int}
		if op.ints != nil {
			sig.Inputs = append(sig.Inputs, exec.Input{Shape: op.intShape, DType: tensor.Int})
		}
		_, err := exec.Compile(spec(op.f), sig)
		require.ErrorContains(t, err, " is int, want a float", op.name)
	}
}

// TestBadData is an index and a target out of range, named with their position.
func TestBadData(t *testing.T) {
	for i, op := range operations {
		want := map[string]string{
			"embedding":        "embedding: index 7 at position 2 is outside the table of 5 rows, 0 to 4: tokens need a model with the Vocab of their tokenizer, positions one with a longer Context",
			"packed attention": "attention(4,2,false,0,0,true): token 2 of row 0 has position 7 after position 4: want 5, or 0 where a document begins",
			"cross-entropy":    "cross-entropy(-1): target 7 of row 2 is outside the 5 classes, which are 0 to 4",
		}[op.name]
		if want == "" {
			continue
		}
		tr := trial(t, op.f, op.ints, op.intShape, op.shapes...)
		tr.In[1] = append([]float64{}, operations[i].ints...)
		tr.In[1][2] = 7
		var r exec.Runner
		require.EqualError(t, r.Forward(tr.Unit, tr.Call()), want)
	}
}

// TestThreadsDoNotChangeBits runs operations and their gradients on one to four threads, on as many
// elements as several have a share of, with scratch memory that must be as large as the unit says.
func TestThreadsDoNotChangeBits(t *testing.T) {
	large := []operation{
		{name: "linear", shapes: [][]int{{6, 30, 70}, {90, 70}, {90}}, f: operations[0].f},
		{name: "attention", shapes: [][]int{{2, 60, 3 * 40}}, f: attention(5, true, false)},
		{name: "attention with a bias", shapes: [][]int{{2, 60, (6 + 2*3) * 8}, {6, 60, 60}},
			f: joined(ops.Attention{Heads: 6, KVHeads: 3}, true, false)},
		{name: "sdpa", shapes: [][]int{{2, 60, 6 * 8}, {2, 70, 3 * 8}, {2, 70, 3 * 8}},
			f: sdpa(ops.Attention{Heads: 6, KVHeads: 3, Causal: true, Window: 20}, false, false)},
		{name: "sdpa with a bias", shapes: [][]int{{2, 60, 6 * 8}, {2, 70, 3 * 8}, {2, 70, 3 * 8}, {6, 60, 70}},
			f: sdpa(ops.Attention{Heads: 6, KVHeads: 3}, true, false)},
		{name: "gelu", shapes: [][]int{{9, 70}}, f: unary(ops.GELU)},
		{name: "dropout", shapes: [][]int{{9, 70}}, f: dropout(0.3, 7)},
		{name: "scale", shapes: [][]int{{9, 70}}, f: func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return ops.Scale(x[0], -3) }},
		{name: "binary", shapes: [][]int{{9, 70}, {9, 70}}, f: func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
			return G.HadamardProd(G.Must(G.Mul(G.Must(G.Sum(x[1])), x[0])), G.Must(G.Neg(G.Must(G.Add(x[0], x[1])))))
		}},
	}
	for _, op := range slices.Concat(operations, native, large) {
		tr := trial(t, op.f, op.ints, op.intShape, op.shapes...)
		for _, tr := range []*exectest.Trial{tr.As(t, tensor.Float32), tr, tr.Half(t)} {
			want := tr.Run(t)
			for threads := 2; threads <= 4; threads++ {
				exectest.RequireClose(t, want, tr.On(t, threads).Run(t), 0)
			}
		}
	}
}

// TestArgumentsThatAreOneValue takes a value that nothing needs afterwards for two arguments. The
// result must not be written over it while the other is still read.
func TestArgumentsThatAreOneValue(t *testing.T) {
	sig := exectest.Signature(tensor.Float64, []int{2, 4}, []int{4, 4})
	sig.GradOut = nil
	sum := func(f function) []float64 {
		return exectest.New(t, spec(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
			return G.Sum(G.Must(f(b, G.Nodes{G.Must(G.Tanh(x[0])), x[1]})))
		}), sig).Run(t).Out[0]
	}
	require.InDeltaSlice(t,
		sum(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
			return G.Add(x[0], G.Must(ops.Linear(x[0], x[1], nil)))
		}),
		sum(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return ops.AddLinear(x[0], x[0], x[1]) }), 1e-12)

	sig = exectest.Signature(tensor.Float64, []int{2, 4}, []int{2, 4})
	sig.Save = exec.RecomputeAll
	slope := func(target int) []float64 {
		tr := exectest.New(t, spec(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
			return ops.BCE(G.Must(ops.Scale(x[0], 2)), G.Must(ops.Scale(x[target], 2)), nil)
		}), sig)
		tr.In[1] = tr.In[0]
		return tr.Run(t).GradIn[0]
	}
	require.Equal(t, slope(1), slope(0))
}
