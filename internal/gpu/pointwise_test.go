//go:build linux && cgo

package gpu_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/gpu/gputest"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// edges are numbers that functions treat apart, and large ones.
var edges = []float64{0, math.Copysign(0, -1), 1, -1, 2, 0.5, math.NaN(), math.Inf(1), math.Inf(-1), 1e5, -1e5}

// edged returns random numbers, of which one in three is of edges.
func (u *use) edged(form exec.Form, shape ...int) exec.Value {
	v := u.value(form, shape...)
	u.set(v, func(_ int, x float64) float64 {
		if u.rand.IntN(3) > 0 {
			return x
		}
		return edges[u.rand.IntN(len(edges))]
	})
	return v
}

func TestFunctions(t *testing.T) {
	functions := []func(*G.Node) (*G.Node, error){
		G.Abs, G.Neg, G.Sqrt, G.Square, G.Cube, G.Inverse, G.InverseSqrt, G.Exp, G.Log, G.Tanh, G.Sigmoid, G.Sign, G.Ceil, G.Floor,
		G.Sin, G.Cos, G.Log2, G.Log1p, G.Expm1, G.Softplus,
	}
	property(t, func(rt *rapid.T, u *use) {
		n := extent(rt, "n", 256)
		for range 2 {
			f := functions[u.rand.IntN(len(functions))]
			in, frame := u.compiled(exec.KindUnary, func(x []*G.Node) (*G.Node, error) { return f(x[0]) }, u.low(), u.edged(u.low(), n))
			u.checkInstruction(in, frame)
		}
	})
}

// TestPairings has arguments that are single numbers, and some in float32 beside bfloat16.
func TestPairings(t *testing.T) {
	compare := func(f func(a, b *G.Node, same bool) (*G.Node, error)) func(a, b *G.Node) (*G.Node, error) {
		return func(a, b *G.Node) (*G.Node, error) { return f(a, b, true) }
	}
	property(t, func(rt *rapid.T, u *use) {
		n := 1 + extent(rt, "n", 256)
		var args [2]exec.Value
		single := rapid.IntRange(0, 2).Draw(rt, "single")
		for i := range args {
			form := u.low()
			if rapid.Bool().Draw(rt, "wide") {
				form = wide
			}
			if i == single {
				args[i] = u.edged(form)
			} else {
				args[i] = u.edged(form, n)
			}
		}
		check := func(functions ...func(a, b *G.Node) (*G.Node, error)) {
			for range 3 {
				f := functions[u.rand.IntN(len(functions))]
				both := func(x []*G.Node) (*G.Node, error) { return f(x[0], x[1]) }
				in, frame := u.compiled(exec.KindBinary, both, u.low(), args[0], args[1])
				u.checkInstruction(in, frame)
			}
		}
		check(G.Sub, G.HadamardProd, G.HadamardDiv, G.Pow,
			compare(G.Lt), compare(G.Gt), compare(G.Lte), compare(G.Gte), compare(G.Eq), compare(G.Ne))
		if single < 2 {
			return // Gorgonia has no more of them
		}
		for _, v := range args {
			u.set(v, func(_ int, x float64) float64 {
				if math.IsInf(x, 0) {
					return 7 // math.Min has -Inf for -Inf and NaN, and package vec NaN
				}
				return x
			})
		}
		check(G.MinBetween, G.MaxBetween)
	})
}

// TestFunctionsUnknown: of a function without a kernel no program is made, not even one of another.
func TestFunctionsUnknown(t *testing.T) {
	m := gputest.New(t)
	u := &use{T: t, Machine: m, dtype: tensor.Float32, rand: rand.New(rand.NewPCG(1, 2))}
	shape, x := tensor.Shape{2}, u.value(wide, 2)
	for _, op := range []*exec.Op{
		u.op(exec.KindUnary, exec.Unary{Name: "cosh"}, shape, shape), u.op(exec.KindBinary, exec.Binary{Sign: "%"}, shape, shape, shape),
	} {
		in, f := u.instruction(op, wide, []exec.Value{x, x}[:len(op.In)])
		_, err := m.Try(t, in, f, false)
		require.ErrorContains(t, err, "no kernel for this function")
	}
}

func TestAdd(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		n := extent(rt, "n", 256, 2048)
		sum := func(x []*G.Node) (*G.Node, error) { return G.Add(x[0], x[1]) }
		u.checkInstruction(u.compiled(exec.KindAdd, sum, u.low(), u.edged(u.low(), n), u.edged(u.low(), n)))
	})
}

func TestFromInt(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		n := extent(rt, "n", 256)
		list := make([]int, n)
		for i := range list {
			list[i] = int(u.rand.Int64()>>u.rand.IntN(64)) * (1 - 2*u.rand.IntN(2))
		}
		x := exec.Value{Shape: tensor.Shape{n}, DType: tensor.Int, Bytes: exec.Bytes(list)}
		in, frame := u.compiled(exec.KindFromInt, func(x []*G.Node) (*G.Node, error) { return G.ConvType(x[0], tensor.Int, u.dtype) }, wide, x)
		u.checkInstruction(in, frame)
	})
}

// TestRandomNumbers requires the numbers of the host, those that are not normal to the bit, and
// that dropout drops the same elements.
func TestRandomNumbers(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		n, seed, rate := extent(rt, "n", 256, 2048), rapid.Uint64().Draw(rt, "seed"), rapid.Float64Range(0, 0.999).Draw(rt, "rate")
		check := func(in exec.Instr, f *exec.Frame, exact bool) {
			f.Seed, f.Scratch, f.Kernel = seed, make([]byte, 4*exec.ElementScratch(in.Op)), new(kernel.Context)
			got, run := u.checkInstruction(in, f), in.Op.F32
			switch {
			case in.Half && u.Engine.Float16: // the host has no kernel for it
				run = u.rounded(in.Op.F32)
			case in.Half:
				run = in.Op.BF16
			case u.dtype == tensor.Float64:
				run = in.Op.F64
			}
			require.NoError(u, run(f))
			if exact {
				require.Equal(u, f.Out.Bytes, got.Bytes, "%v", in.Op)
			}
		}
		for _, train := range []bool{true, false} {
			y, err := exec.Dropout(u.node(n), rate, rapid.Uint32().Draw(rt, "stream"))
			in, f := u.instr(y, err, u.low(), []exec.Value{u.value(u.low(), n)})
			f.Train = train
			check(in, f, true)
		}
		for i, numbers := range []func(g *G.ExprGraph) *G.Node{
			func(g *G.ExprGraph) *G.Node { return G.GaussianRandomNode(g, u.dtype, 1, 2, n) },
			func(g *G.ExprGraph) *G.Node { return G.UniformRandomNode(g, u.dtype, -1, 3, n) },
			func(g *G.ExprGraph) *G.Node { return G.BinomialRandomNode(g, u.dtype, 3, rate, n) },
		} {
			sum := func(x []*G.Node) (*G.Node, error) { return G.Add(numbers(x[0].Graph()), x[0]) }
			in, f := u.compiled(exec.KindRandom, sum, wide, u.value(u.low(), n))
			check(in, f, i > 0)
		}
	})
}

// rounded returns a kernel that runs f, for float32, on values of 16 bits.
func (u *use) rounded(f exec.Kernel) exec.Kernel {
	return func(low *exec.Frame) error {
		single := *low
		single.In = nil
		for _, v := range append([]exec.Value{low.Out}, low.In...) {
			x := make([]float32, v.Len())
			for i, w := range u.Floats(v) {
				x[i] = float32(w)
			}
			single.In = append(single.In, exec.Value{Shape: v.Shape, DType: v.DType, Bytes: exec.Bytes(x)})
		}
		single.Out, single.In = single.In[0], single.In[1:]
		err := f(&single)
		out := u.Floats(single.Out)
		u.set(low.Out, func(i int, _ float64) float64 { return out[i] })
		return err
	}
}
