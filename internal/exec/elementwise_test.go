package exec_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
	"github.com/gofsdp/gofsdp/internal/half"
)

// specials returns n numbers, exact in float32 and most in bfloat16, with all that are special.
func specials(n int) []float64 {
	x := []float64{0, math.Copysign(0, -1), 1, -1, math.Inf(1), math.Inf(-1), math.NaN(), 0x1p-140, -0x1p-140, 0x1p-126, 0x1p100, -0x1p100, 88, -95, 2, 0.5}
	for i := len(x); i < n; i++ {
		x = append(x, float64(i%97-48)/16)
	}
	return x
}

// requireAlmost compares a result with its definition, which is rounded to eps.
func requireAlmost(t *testing.T, want, got, eps float64, what ...any) {
	t.Helper()
	if want != want || math.IsInf(want, 0) {
		require.Equal(t, math.IsNaN(want), math.IsNaN(got), what...)
		if want == want {
			require.Equal(t, want, got, what...)
		}
		return
	}
	require.InDelta(t, want, got, eps*math.Abs(want)+0x1p-126, what...)
}

// elements runs f, of inputs in, in float64, float32 and bfloat16, on two threads, and compares every
// element with its definition.
func elements(t *testing.T, in [][]float64, f func(x []*G.Node) (*G.Node, error), define func(x []float64) float64) {
	sig := &exec.Signature{DType: tensor.Float64}
	for _, x := range in {
		shape := []int{len(x)}
		if len(x) == 1 {
			shape = nil
		}
		sig.Inputs = append(sig.Inputs, exec.Input{Shape: shape, DType: tensor.Float64})
	}
	tr := exectest.New(t, &exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return f(x) })}, sig)
	copy(tr.In, in)
	at := func(i int, round func(float64) float64) float64 {
		x := make([]float64, len(in))
		for k := range x {
			x[k] = round(in[k][i%len(in[k])])
		}
		return define(x)
	}
	single := func(x float64) float64 { return float64(float32(x)) }
	low := func(x float64) float64 { return float64(half.ToBFloat16(float32(x)).Float32()) }
	for i, got := range tr.On(t, 2).Run(t).Out[0] {
		requireAlmost(t, at(i, func(x float64) float64 { return x }), got, 1e-15, "float64, element %d", i)
	}
	for i, got := range tr.As(t, tensor.Float32).On(t, 2).Run(t).Out[0] {
		requireAlmost(t, single(at(i, single)), got, 2.5*0x1p-23, "float32, element %d", i)
	}
	for i, got := range tr.Half(t).On(t, 2).Run(t).Out[0] {
		requireAlmost(t, low(at(i, low)), got, 0x1p-7, "bfloat16, element %d", i)
	}
}

// TestElementaryFunctions holds every function against package math, special values included, on
// arrays of several blocks.
func TestElementaryFunctions(t *testing.T) {
	for name, c := range map[string]struct {
		f      func(*G.Node) (*G.Node, error)
		define func(float64) float64
	}{
		"abs": {G.Abs, math.Abs}, "neg": {G.Neg, func(x float64) float64 { return -x }}, "sqrt": {G.Sqrt, math.Sqrt},
		"square": {G.Square, func(x float64) float64 { return x * x }}, "cube": {G.Cube, func(x float64) float64 { return x * x * x }},
		"inverse": {G.Inverse, func(x float64) float64 { return 1 / x }}, "exp": {G.Exp, math.Exp}, "log": {G.Log, math.Log},
		"inverse sqrt": {G.InverseSqrt, func(x float64) float64 { return 1 / math.Sqrt(x) }},
		"tanh":         {G.Tanh, math.Tanh}, "sigmoid": {G.Sigmoid, func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }},
		"ceil": {G.Ceil, math.Ceil}, "floor": {G.Floor, math.Floor}, "sin": {G.Sin, math.Sin}, "cos": {G.Cos, math.Cos},
		"log2": {G.Log2, math.Log2}, "log1p": {G.Log1p, math.Log1p}, "expm1": {G.Expm1, math.Expm1},
		"softplus": {G.Softplus, func(x float64) float64 {
			if x > 40 {
				return x
			}
			return math.Log1p(math.Exp(x))
		}},
		"sign": {G.Sign, func(x float64) float64 {
			if x == 0 || x != x {
				return x
			}
			return math.Copysign(1, x)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			elements(t, [][]float64{specials(2500)}, func(x []*G.Node) (*G.Node, error) { return c.f(x[0]) },
				func(x []float64) float64 { return c.define(x[0]) })
		})
	}
}

// TestPairsOfElements holds every operation on two arrays, or on one and a number, against Go's own.
func TestPairsOfElements(t *testing.T) {
	type pair struct {
		f       func(a, b *G.Node) (*G.Node, error)
		define  func(a, b float64) float64
		numbers bool // either argument may be a number
	}
	pairs := map[string]pair{"min": {G.MinBetween, math.Min, false}, "max": {G.MaxBetween, math.Max, false}}
	for name, c := range computing {
		pairs[name] = pair{c.f, c.define, true}
	}
	for name, c := range comparing {
		pairs[name] = pair{func(a, b *G.Node) (*G.Node, error) { return c.f(a, b, true) }, c.define, true}
	}
	x, y := specials(2500), specials(2500)
	for i := range y {
		y[i] = x[(i*7+3)%len(x)]
	}
	for name, c := range pairs {
		f, define := func(x []*G.Node) (*G.Node, error) { return c.f(x[0], x[1]) }, func(x []float64) float64 { return c.define(x[0], x[1]) }
		t.Run(name, func(t *testing.T) { elements(t, [][]float64{x, y}, f, define) })
		for _, number := range []float64{2, 1, -0.5} {
			if !c.numbers {
				break
			}
			t.Run(name+" and a number", func(t *testing.T) { elements(t, [][]float64{x, {number}}, f, define) })
			t.Run(name+" of a number", func(t *testing.T) { elements(t, [][]float64{{number}, x}, f, define) })
		}
	}
}

// TestNumberInAVector multiplies with an element of a vector that nothing needs afterwards: the product
// must not be written over it, since all threads and all blocks read it.
func TestNumberInAVector(t *testing.T) {
	const n = 5000
	run := func(product func(number, x *G.Node) (*G.Node, error), low bool, threads int) []float64 {
		sig := exectest.Signature(tensor.Float32, []int{n}, []int{n})
		sig.GradOut = nil
		tr := exectest.New(t, &exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
			return G.Sum(G.Must(G.Neg(G.Must(product(G.Must(G.Slice(G.Must(G.Tanh(x[0])), G.S(3))), x[1])))))
		})}, sig)
		if low {
			tr = tr.Half(t)
		}
		return tr.On(t, threads).Run(t).Out[0]
	}
	for _, low := range []bool{false, true} {
		for threads := 1; threads <= 3; threads++ {
			require.Equal(t, run(func(e, x *G.Node) (*G.Node, error) { return G.HadamardProd(x, e) }, low, threads),
				run(func(e, x *G.Node) (*G.Node, error) { return G.HadamardProd(e, x) }, low, threads), "%d threads", threads)
		}
	}
}

// TestVectorsAndMatrices mixes vectors with matrices of one row or column, which Gorgonia takes for equal,
// behind and before operations whose gradients depend on the shape.
func TestVectorsAndMatrices(t *testing.T) {
	for name, op := range map[string]func(a, b *G.Node) (*G.Node, error){
		"sum": G.Add, "difference": G.Sub, "product": G.HadamardProd, "quotient": G.HadamardDiv,
	} {
		for _, matrix := range [][]int{{1, 8}, {8, 1}} {
			axis := map[int]int{1: 0, 8: 1}[matrix[0]] // that of length 1
			for _, shapes := range [][][]int{{{8}, matrix}, {matrix, {8}}} {
				tr := exectest.New(t, &exec.Spec{Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
					square := G.Must(G.Add(G.Must(G.Square(x[1])), b.Const(1)))
					vector := G.Must(G.Sum(G.Must(op(x[0], square)), axis)) // [8] again
					other := G.Must(G.Reshape(G.Must(G.Sigmoid(vector)), tensor.Shape{matrix[1], matrix[0]}))
					return op(vector, other) // with a matrix of the other kind
				})}, exectest.Signature(tensor.Float64, shapes...))
				require.Equal(t, tensor.Shape{matrix[1], matrix[0]}, tr.Unit.OutShape[0], name)
				tr.CheckGradients(t)
			}
		}
	}
}
