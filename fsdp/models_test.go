package fsdp_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// The models of this file are shapes of computation that a chain of blocks does not have. Modules
// are made of stock Gorgonia operations, as a user's may be. Gradients are compared with central
// differences of the loss that Eval returns: of the forward pass alone, which shares neither code
// nor schedule with the backward pass.

// dense is y = tanh(x·w + m·v) on x [rows, dim] and, if mem, m [rows, dim].
type dense struct {
	dim int
	mem bool
}

func (m *dense) Params() []fsdp.Param {
	params := []fsdp.Param{{Name: "w", Shape: []int{m.dim, m.dim}, Init: fsdp.Uniform(-0.6, 0.6)}}
	if m.mem {
		params = append(params, fsdp.Param{Name: "v", Shape: []int{m.dim, m.dim}, Init: fsdp.Normal(0.4)})
	}
	return params
}

func (m *dense) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	y, err := m.sum(b, in)
	if err != nil {
		return nil, err
	}
	y, err = gorgonia.Tanh(y)
	return gorgonia.Nodes{y}, err
}

// sum is x·w + m·v.
func (m *dense) sum(b *fsdp.Builder, in []*gorgonia.Node) (*gorgonia.Node, error) {
	w, err := b.Param("w")
	if err != nil {
		return nil, err
	}
	y, err := gorgonia.Mul(in[0], w)
	if err != nil {
		return nil, err
	}
	if m.mem {
		v, err := b.Param("v")
		if err != nil {
			return nil, err
		}
		z, err := gorgonia.Mul(in[1], v)
		if err != nil {
			return nil, err
		}
		if y, err = gorgonia.Add(y, z); err != nil {
			return nil, err
		}
	}
	return y, nil
}

// distance is the mean of (x - y)², without parameters, and x - y as a second output.
var distance = &module{build: func(_ *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
	d, err := gorgonia.Sub(in[0], in[1])
	if err != nil {
		return nil, err
	}
	sq, err := gorgonia.Square(d)
	if err != nil {
		return nil, err
	}
	loss, err := gorgonia.Mean(sq)
	return gorgonia.Nodes{loss, d}, err
}}

// product is the element-wise product of its two inputs, scaled by a parameter of the same shape
// [rows, dim].
func product(rows, dim int) *module {
	return &module{[]fsdp.Param{{Name: "scale", Shape: []int{rows, dim}, Init: fsdp.Constant(0.7)}}, func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		scale, err := b.Param("scale")
		if err != nil {
			return nil, err
		}
		y, err := gorgonia.HadamardProd(in[0], in[1])
		if err != nil {
			return nil, err
		}
		y, err = gorgonia.HadamardProd(y, scale)
		return gorgonia.Nodes{y}, err
	}}
}

// halves returns tanh(x·w) and sigmoid(x·w) as two outputs, and a third that nothing uses.
func halves(dim int) *module {
	return &module{[]fsdp.Param{{Name: "w", Shape: []int{dim, dim}, Init: fsdp.Normal(0.5)}}, func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		w, err := b.Param("w")
		if err != nil {
			return nil, err
		}
		h, err := gorgonia.Mul(in[0], w)
		if err != nil {
			return nil, err
		}
		var out gorgonia.Nodes
		for _, f := range []func(*gorgonia.Node) (*gorgonia.Node, error){gorgonia.Tanh, gorgonia.Sigmoid, gorgonia.Square} {
			y, err := f(h)
			if err != nil {
				return nil, err
			}
			out = append(out, y)
		}
		return out, nil
	}}
}

const (
	shapeRows = 3
	shapeDim  = 5
)

// regress ends a model: the distance of x to the second input.
func regress(t *fsdp.Tape, in []fsdp.Ref, x fsdp.Ref) []fsdp.Ref {
	loss := t.Call("distance", distance, x, in[1])
	return []fsdp.Ref{loss, loss.At(1)}
}

// shapes are the models.
var shapes = map[string]model{
	"chain": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := in[0]
		for i := range 4 {
			x = t.Call(fmt.Sprint("l", i), &dense{dim: shapeDim}, x)
		}
		return regress(t, in, x), nil
	},
	"encoder and decoder": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		enc := t.Call("enc.0", &dense{dim: shapeDim}, in[0])
		enc = t.Call("enc.1", &dense{dim: shapeDim}, enc)
		x := in[0]
		for i := range 3 {
			x = t.Call(fmt.Sprint("dec.", i), &dense{shapeDim, true}, x, enc)
		}
		return regress(t, in, x), nil
	},
	"recurrence": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		cell := &dense{shapeDim, true}
		h := t.Call("cell", cell, in[0], in[1])
		between := t.Call("between", &dense{dim: shapeDim}, h)
		for range 3 {
			h = t.Again("cell", h, between)
		}
		return regress(t, in, h), nil
	},
	"tied across groups": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("a", &dense{dim: shapeDim}, in[0])
		x = t.Call("b", &dense{dim: shapeDim}, x)
		tied := &module{[]fsdp.Param{weight("own", shapeDim, shapeDim), {Name: "w", Shape: []int{shapeDim, shapeDim}, Tied: "a.w"}}, (&dense{dim: shapeDim}).build}
		tied.params[0].Init = fsdp.Normal(0.3)
		x = t.Call("c", tied, x)
		return regress(t, in, x), nil
	},
	"several outputs": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		a := t.Call("a", halves(shapeDim), in[0])
		b := t.Call("b", halves(shapeDim), a.At(1))
		x := t.Call("x", product(shapeRows, shapeDim), a, b.At(0))
		y := t.Call("y", &dense{dim: shapeDim}, b.At(1))
		x = t.Call("z", &dense{shapeDim, true}, x, y)
		return append(regress(t, in, x), a.At(2), y), nil
	},
	"a value used thrice": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("a", &dense{dim: shapeDim}, in[0])
		square := t.Call("square", product(shapeRows, shapeDim), x, x)
		x = t.Call("b", &dense{shapeDim, true}, square, x)
		return regress(t, in, x), nil
	},
	"an unused call": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("a", &dense{dim: shapeDim}, in[0])
		aside := t.Call("aside", &dense{dim: shapeDim}, x)
		x = t.Call("b", &dense{dim: shapeDim}, x)
		return append(regress(t, in, x), aside), nil
	},
	"an unused parameter": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		m := &dense{shapeDim, true}
		x := t.Call("a", &module{m.Params(), (&dense{dim: shapeDim}).build}, in[0], in[1])
		return regress(t, in, x), nil
	},
	"all in one call": func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("a", stack(shapeDim, 3), in[0])
		return regress(t, in, x), nil
	},
}

func (m *dense) build(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
	return m.Build(b, in...)
}

// stack is depth dense modules as one.
func stack(dim, depth int) *module {
	part := &dense{dim: dim}
	m := &module{}
	for i := range depth {
		m.params = append(m.params, fsdp.Prefix(fmt.Sprint("l", i), part)...)
	}
	m.build = func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		for i := range depth {
			out, err := b.Call(fmt.Sprint("l", i), part, in...)
			if err != nil {
				return nil, err
			}
			in = out
		}
		return in, nil
	}
	return m
}

// shapeBatch is the batch of a rank.
func shapeBatch(rank int) []fsdp.Tensor {
	return []fsdp.Tensor{floats(2*rank+1, shapeRows, shapeDim), floats(2*rank+2, shapeRows, shapeDim)}
}

// meanLoss returns the mean over the ranks of the first result of Eval.
func meanLoss(t require.TestingT, ctx context.Context, m *fsdp.Sharded, g comm.Group, batch []fsdp.Tensor) float64 {
	out, err := m.Eval(ctx, batch...)
	require.NoError(t, err)
	sum := []float64{elements(out[0])[0]}
	require.NoError(t, g.AllReduce(comm.Of(sum), comm.Avg).Wait(ctx))
	return sum[0]
}

// lossAt returns the mean loss with h added to element i of a parameter, which the rank that owns
// it does for the while.
func lossAt(t require.TestingT, ctx context.Context, m *fsdp.Sharded, g comm.Group, batch []fsdp.Tensor, name string, i int, h float64) float64 {
	for _, p := range m.Shards() {
		if at := i - p.Offset; p.Name == name && at >= 0 && at < p.Value.Len() {
			old := copyOf(t, p.Value)
			defer func() { require.NoError(t, p.Value.Write(old)) }()
			edit(t, p.Value.Slice(at, at+1), func(_ int, x float64) float64 { return x + h })
		}
	}
	return meanLoss(t, ctx, m, g, batch)
}

// requireDifferences compares gradients with central differences, at up to three elements of each
// parameter.
func requireDifferences(t require.TestingT, ctx context.Context, m *fsdp.Sharded, g comm.Group, batch []fsdp.Tensor) {
	const h = 1e-5
	grads, err := m.FullGrads(ctx)
	require.NoError(t, err)
	var names []string
	for name := range grads {
		names = append(names, name)
	}
	slices.Sort(names) // every rank evaluates in the same order
	for k, name := range names {
		grad := elements(grads[name])
		for _, i := range []int{0, u24(k, 1) % len(grad), len(grad) - 1} {
			up, down := lossAt(t, ctx, m, g, batch, name, i, h), lossAt(t, ctx, m, g, batch, name, i, -h)
			require.InDelta(t, (up-down)/(2*h), grad[i], 1e-7, "gradient of %s[%d]", name, i)
		}
	}
}

// TestModelShapes compares the gradients of every model with differences, at several world sizes
// and under every kind of wrapping, and the parameters after two steps between the policies, bit
// for bit.
func TestModelShapes(t *testing.T) {
	policies := map[string]fsdp.Policy{"root": nil, "each": fsdp.WrapEach(), "two": everyOther, "min": fsdp.WrapMinParams(40)}
	for name, shape := range shapes {
		for world := 1; world <= 3; world++ {
			t.Run(fmt.Sprintf("%s/%d ranks", name, world), func(t *testing.T) {
				want := map[int]bits{}
				for policy, wrapping := range policies {
					for _, checkpoint := range []fsdp.Policy{nil, fsdp.WrapEach()} {
						onRanks(t, world, func(ctx context.Context, g comm.Group) {
							m := wrap(t, shape, fsdp.Config{Group: g, Precision: float64s, Wrap: wrapping, Checkpoint: checkpoint, Poison: true, Seed: 5})
							update := updater(t, m, math.Inf(1))
							batch := shapeBatch(g.Rank())
							plan, err := m.Plan(batch...)
							require.NoError(t, err)
							m.ResetPeak()
							forwardBackward(t, ctx, m, batch)
							require.Equal(t, plan.Peak(), m.Memory().Peak)
							if checkpoint == nil {
								requireDifferences(t, ctx, m, g, batch)
							}
							update(ctx)
							forwardBackward(t, ctx, m, batch)
							update(ctx)
							if got := stateBits(t, ctx, m); g.Rank() == 0 {
								if want[world] == nil {
									want[world] = got
								}
								requireSameBits(t, want[world], got, policy)
							}
						})
					}
				}
			})
		}
	}
}

// TestGPTDifferences compares gradients of a tied GPT, where the embedding's gradient comes from
// two groups.
func TestGPTDifferences(t *testing.T) {
	for world := 1; world <= 3; world++ {
		onRanks(t, world, func(ctx context.Context, g comm.Group) {
			m := wrap(t, &nn.GPT{Vocab: 7, Context: 4, Layers: 1, Dim: 4, Heads: 2, Tied: true}, fsdp.Config{Group: g, Precision: float64s, Wrap: fsdp.WrapEach(), Poison: true})
			batch := []fsdp.Tensor{tokens(g.Rank(), 7, 2, 3), tokens(g.Rank()+9, 7, 2, 3)}
			forwardBackward(t, ctx, m, batch)
			requireDifferences(t, ctx, m, g, batch)
		})
	}
}

// TestOneCallOrMany compares a chain of calls with the same chain in one module, bit for bit.
func TestOneCallOrMany(t *testing.T) {
	run := func(m model) (float64, map[string]*tensor.Dense) {
		s := wrap(t, m, fsdp.Config{Precision: float64s, Wrap: fsdp.WrapEach()})
		for _, p := range s.Shards() {
			edit(t, p.Value, func(i int, _ float64) float64 { return value(i+p.Offset, int(p.Name[len(p.Name)-3])) })
		}
		loss := forwardBackward(t, t.Context(), s, shapeBatch(0))
		grads, err := s.FullGrads(t.Context())
		require.NoError(t, err)
		return loss, grads
	}
	lossMany, many := run(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := in[0]
		for i := range 3 {
			x = t.Call(fmt.Sprint("l", i), &dense{dim: shapeDim}, x)
		}
		return regress(t, in, x), nil
	})
	lossOne, one := run(shapes["all in one call"])
	require.Equal(t, lossMany, lossOne)
	require.Len(t, one, len(many))
	for name, want := range many {
		require.Equal(t, elements(want), elements(one["a."+name]), name)
	}
}

// TestSeveralResults checks shapes and values of what Eval returns, and that it belongs to the
// caller.
func TestSeveralResults(t *testing.T) {
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := wrap(t, shapes["several outputs"], fsdp.Config{Group: g, Precision: float64s, Wrap: fsdp.WrapEach(), Poison: true})
		batch := shapeBatch(g.Rank())
		first, err := m.Eval(ctx, batch...)
		require.NoError(t, err)
		require.Len(t, first, 4)
		var kept [][]float64
		mean := 0.0
		for _, d := range elements(first[1]) {
			mean += d * d / (shapeRows * shapeDim)
		}
		require.InDelta(t, mean, elements(first[0])[0], 1e-12)
		for i, r := range first {
			if i > 0 {
				require.Equal(t, tensor.Shape{shapeRows, shapeDim}, r.Shape())
			}
			kept = append(kept, slices.Clone(elements(r)))
		}
		second, err := m.Eval(ctx, batch...)
		require.NoError(t, err)
		for i := range first {
			require.Equal(t, kept[i], elements(first[i]), "result %d was overwritten", i)
			require.Equal(t, kept[i], elements(second[i]))
		}
	})
}
