package exec_test

import (
	"fmt"
	"runtime"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
	"github.com/gofsdp/gofsdp/internal/ops"
)

var policies = []exec.Policy{exec.Balanced, exec.SaveAll, exec.RecomputeAll}

// params looks parameters up by name.
func params(b *exec.Builder, names ...string) ([]*G.Node, error) {
	list := make([]*G.Node, len(names))
	for i, name := range names {
		var err error
		if list[i], err = b.Param(name); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// mixedSpec is a block in which fused and stock operations take turns: its outputs are x [B, 3, 4]
// transformed, and a scalar.
var mixedSpec = &exec.Spec{
	Params: []exec.Param{
		{Name: "gain", Shape: []int{4}}, {Name: "bias", Shape: []int{4}}, {Name: "w1", Shape: []int{8, 4}},
		{Name: "b1", Shape: []int{8}}, {Name: "w2", Shape: []int{4, 8}}, {Name: "scale", Shape: nil},
	},
	Build: buildMixed,
}

func buildMixed(b *exec.Builder, in []*G.Node) (G.Nodes, error) {
	x := in[0]
	p, err := params(b, "gain", "bias", "w1", "b1", "w2", "scale")
	if err != nil {
		return nil, err
	}
	h, err := ops.LayerNorm(x, p[0], p[1], 1e-5)
	if err != nil {
		return nil, err
	}
	if h, err = ops.Linear(h, p[2], p[3]); err != nil {
		return nil, err
	}
	gate, err := G.Sigmoid(h)
	if err != nil {
		return nil, err
	}
	if h, err = ops.GELU(h); err != nil {
		return nil, err
	}
	if h, err = G.HadamardProd(h, gate); err != nil {
		return nil, err
	}
	flat, err := G.Reshape(h, tensor.Shape{x.Shape()[0] * 3, 8})
	if err != nil {
		return nil, err
	}
	if h, err = G.Mul(flat, G.Must(G.Transpose(p[4], 1, 0))); err != nil {
		return nil, err
	}
	if h, err = exec.NewView(h, 0, x.Shape()...); err != nil {
		return nil, err
	}
	if h, err = ops.Dropout(h, 0.25, 1); err != nil {
		return nil, err
	}
	y, err := G.Add(x, h)
	if err != nil {
		return nil, err
	}
	mean, err := G.Mean(G.Must(G.Square(y)))
	if err != nil {
		return nil, err
	}
	norm, err := G.HadamardProd(mean, p[5])
	return G.Nodes{y, norm}, err
}

// TestMixedModule checks a module of fused and stock operations under every policy, whose gradients
// are the same bits.
func TestMixedModule(t *testing.T) {
	var first exectest.Results
	for i, policy := range policies {
		sig := exectest.Signature(tensor.Float64, []int{2, 3, 4})
		sig.GradOut, sig.Save = []bool{true, true}, policy
		trial := exectest.New(t, mixedSpec, sig)
		trial.CheckGradients(t)
		trial.CheckFloat32(t, 1e-4)
		res := trial.Run(t)
		if i == 0 {
			first = res
		}
		exectest.RequireClose(t, first, res, 0)
	}
}

// TestPolicies checks what each policy keeps.
func TestPolicies(t *testing.T) {
	saved := make(map[exec.Policy]int)
	for _, policy := range policies {
		sig := exectest.Signature(tensor.Float64, []int{2, 3, 4})
		sig.Save = policy
		u, err := exec.Compile(mixedSpec, sig)
		require.NoError(t, err)
		saved[policy] = u.Saved
		require.Equal(t, []bool{true}, u.KeepIn)
	}
	require.Zero(t, saved[exec.RecomputeAll])
	require.Less(t, saved[exec.Balanced], saved[exec.SaveAll])
	require.Positive(t, saved[exec.Balanced])
}

// TestParametersAreNotSaved transposes and scales a weight, which makes values that depend on
// parameters only: kept for backward they would keep an unsharded copy of the weight alive.
func TestParametersAreNotSaved(t *testing.T) {
	sig := exectest.Signature(tensor.Float64, []int{3, 2})
	sig.Save = exec.SaveAll
	trial := exectest.New(t, &exec.Spec{
		Params: []exec.Param{{Name: "w", Shape: []int{100, 2}}},
		Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
			w, err := b.Param("w")
			if err != nil {
				return nil, err
			}
			return G.Mul(x[0], G.Must(G.Tanh(G.Must(G.Transpose(w, 1, 0)))))
		}),
	}, sig)
	require.Zero(t, trial.Unit.Saved)
	trial.CheckGradients(t)
}

// TestForwardAlone compiles no backward when no gradient is asked for.
func TestForwardAlone(t *testing.T) {
	sig := exectest.Signature(tensor.Float64, []int{2, 3, 4})
	trained := exectest.New(t, mixedSpec, sig).Run(t)
	sig.GradOut = nil
	trial := exectest.New(t, mixedSpec, sig)
	require.Nil(t, trial.Unit.Backward)
	require.Zero(t, trial.Unit.Saved)
	require.Equal(t, trained.Out, trial.Run(t).Out)
}

// TestAccumulation adds to gradients instead of writing them, whatever computes them: a kernel that
// accumulates itself, one that does not, a stock operation, nothing.
func TestAccumulation(t *testing.T) {
	spec := &exec.Spec{
		Params: []exec.Param{{Name: "w", Shape: []int{5, 4}}, {Name: "gain", Shape: []int{5}}, {Name: "s", Shape: []int{5}}, {Name: "unused", Shape: []int{2}}},
		Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
			p, err := params(b, "w", "gain", "s")
			if err != nil {
				return nil, err
			}
			y, err := ops.Linear(x[0], p[0], nil)
			if err != nil {
				return nil, err
			}
			if y, err = ops.RMSNorm(y, p[1], 1e-6); err != nil {
				return nil, err
			}
			return G.Mul(y, p[2])
		}),
	}
	for _, policy := range policies {
		for mask := range 16 {
			sig := exectest.Signature(tensor.Float64, []int{3, 4}, []int{2})
			sig.Save = policy
			sig.Inputs[0].Acc, sig.Inputs[1].Acc = mask&1 > 0, mask&2 > 0 // input 1 is not used
			for i := range spec.Params {
				sig.AccParam = append(sig.AccParam, (i+mask)%3 > 0)
			}
			exectest.New(t, spec, sig).CheckGradients(t)
		}
	}
}

// TestSharedGradients are modules in which several gradients are one value: that of another
// parameter, of an input, or the gradient of the output itself.
func TestSharedGradients(t *testing.T) {
	build := func(sum func(x, p, q *G.Node) *G.Node) *exec.Spec {
		return &exec.Spec{
			Params: []exec.Param{{Name: "p", Shape: []int{3}}, {Name: "q", Shape: []int{3}}},
			Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
				p, err := params(b, "p", "q")
				if err != nil {
					return nil, err
				}
				return sum(x[0], p[0], p[1]), nil
			}),
		}
	}
	add := func(x, y *G.Node) *G.Node { return G.Must(G.Add(x, y)) }
	for name, spec := range map[string]*exec.Spec{
		"p + q":       build(func(_, p, q *G.Node) *G.Node { return add(p, q) }),
		"x + p + q":   build(func(x, p, q *G.Node) *G.Node { return add(add(x, p), q) }),
		"p + p":       build(func(_, p, _ *G.Node) *G.Node { return add(p, p) }),
		"tanh(p + q)": build(func(_, p, q *G.Node) *G.Node { return G.Must(G.Tanh(add(p, q))) }),
		"x tanh(p+q)": build(func(x, p, q *G.Node) *G.Node { return G.Must(G.HadamardProd(x, G.Must(G.Tanh(add(p, q))))) }),
		"p":           build(func(_, p, _ *G.Node) *G.Node { return p }),
		"x":           build(func(x, _, _ *G.Node) *G.Node { return x }),
	} {
		for mask := range 8 {
			t.Run(fmt.Sprintf("%s/%03b", name, mask), func(t *testing.T) {
				sig := exectest.Signature(tensor.Float64, []int{3})
				sig.Inputs[0].Acc, sig.AccParam = mask&1 > 0, []bool{mask&2 > 0, mask&4 > 0}
				exectest.New(t, spec, sig).CheckGradients(t)
			})
		}
	}
}

// TestSharedProducts adds two weights, which have one gradient, computed by a kernel that
// accumulates: it may add to the memory of one only if nothing else reads the gradient.
func TestSharedProducts(t *testing.T) {
	spec := &exec.Spec{
		Params: []exec.Param{{Name: "p", Shape: []int{2, 3}}, {Name: "q", Shape: []int{2, 3}}},
		Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
			p, err := params(b, "p", "q")
			if err != nil {
				return nil, err
			}
			return ops.Linear(x[0], G.Must(G.Add(p[0], p[1])), nil)
		}),
	}
	for mask := range 4 {
		sig := exectest.Signature(tensor.Float64, []int{4, 3})
		sig.AccParam = []bool{mask&1 > 0, mask&2 > 0}
		exectest.New(t, spec, sig).CheckGradients(t)
	}
}

// TestOutputs are modules whose outputs are not values of their own: inputs, parameters, constants,
// views, or one another.
func TestOutputs(t *testing.T) {
	p := []exec.Param{{Name: "p", Shape: []int{2, 3}}}
	for name, build := range map[string]builder{
		"an input":    func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) { return G.Nodes{x[0]}, nil },
		"a parameter": func(b *exec.Builder, _ []*G.Node) (G.Nodes, error) { return params(b, "p") },
		"a constant":  func(b *exec.Builder, x []*G.Node) (G.Nodes, error) { return G.Nodes{x[0], b.Const(3)}, nil },
		"one twice": func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) {
			y := G.Must(G.Tanh(x[0]))
			return G.Nodes{y, y}, nil
		},
		"input twice": func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) { return G.Nodes{x[0], x[0], x[0]}, nil },
		"one and half": func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) {
			y := G.Must(G.Tanh(x[0]))
			return G.Nodes{y, G.Must(G.Square(y))}, nil
		},
		"half and one": func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) {
			y := G.Must(G.Tanh(x[0]))
			return G.Nodes{G.Must(G.Square(y)), y}, nil
		},
		"a view of an input": returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
			return exec.NewView(x[0], 0, 3, 2)
		}),
		"a stock view of an output": func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) {
			y := G.Must(G.Tanh(x[0]))
			return G.Nodes{y, G.Must(G.Reshape(y, tensor.Shape{6}))}, nil
		},
		"views of views": func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) {
			y := G.Must(G.Reshape(G.Must(G.Tanh(x[0])), tensor.Shape{6}))
			z, err := exec.NewView(y, 0, 3, 2)
			return G.Nodes{z, y}, err
		},
		"a scalar": func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) {
			return G.Nodes{G.Must(G.Sum(G.Must(G.Square(x[0]))))}, nil
		},
		"scalar tensor": func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) {
			return G.Nodes{G.Must(G.Reshape(G.Must(G.Sum(G.Must(G.Square(x[0])))), tensor.Shape{1}))}, nil
		},
	} {
		for _, policy := range policies {
			t.Run(fmt.Sprint(name, "/", policy), func(t *testing.T) {
				sig := exectest.Signature(tensor.Float64, []int{2, 3})
				sig.GradOut, sig.Save = []bool{true, true, true}, policy
				trial := exectest.New(t, &exec.Spec{Params: p, Build: build}, sig)
				trial.CheckGradients(t)
				trial.CheckFloat32(t, 1e-6)
			})
		}
	}
}

// TestPartialGradients asks for the gradients of some outputs, with respect to some inputs.
func TestPartialGradients(t *testing.T) {
	spec := &exec.Spec{
		Params: []exec.Param{{Name: "w", Shape: []int{4, 3}}, {Name: "v", Shape: []int{4, 3}}},
		Build: func(b *exec.Builder, x []*G.Node) (G.Nodes, error) {
			p, err := params(b, "w", "v")
			if err != nil {
				return nil, err
			}
			y, err := ops.Linear(x[0], p[0], nil)
			if err != nil {
				return nil, err
			}
			z, err := ops.Linear(x[1], p[1], nil)
			return G.Nodes{y, z, G.Must(G.Tanh(x[2]))}, err
		},
	}
	for mask := range 64 {
		sig := exectest.Signature(tensor.Float64, []int{2, 3}, []int{5, 3}, []int{2})
		sig.GradOut = []bool{mask&1 > 0, mask&2 > 0, mask&4 > 0}
		for i := range sig.Inputs {
			sig.Inputs[i].Grad = mask>>(3+i)&1 > 0
		}
		exectest.New(t, spec, sig).CheckGradients(t)
	}
}

// TestSameInput passes one value as two inputs: the first carries the gradient of both.
func TestSameInput(t *testing.T) {
	for _, acc := range []bool{false, true} {
		sig := exectest.Signature(tensor.Float64, []int{2, 3}, []int{2, 3}, []int{2, 3})
		sig.Inputs[0].Acc = acc
		sig.Inputs[2] = exec.Input{Shape: []int{2, 3}, DType: tensor.Float64, Same: 1}
		trial := exectest.New(t, &exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
			return G.HadamardProd(x[1], G.Must(G.HadamardProd(x[0], G.Must(G.Tanh(x[2])))))
		})}, sig)
		trial.CheckGradients(t)
	}
}

// TestIntegers passes integers from the batch and as a constant to fused operations.
func TestIntegers(t *testing.T) {
	sig := exectest.Signature(tensor.Float64, []int{5, 3})
	sig.Inputs = append(sig.Inputs, exec.Input{Shape: []int{2, 2}, DType: tensor.Int})
	trial := exectest.New(t, &exec.Spec{Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		rows, err := b.ConstTensor(tensor.New(tensor.WithShape(2, 2), tensor.WithBacking([]int{4, 4, 0, 1})))
		if err != nil {
			return nil, err
		}
		y, err := ops.Embedding(x[0], rows)
		if err != nil {
			return nil, err
		}
		z, err := ops.Embedding(x[0], x[1])
		if err != nil {
			return nil, err
		}
		return G.HadamardProd(y, z)
	})}, sig)
	trial.In[1] = []float64{0, 1, 2, 1}
	trial.CheckGradients(t)
	trial.In[1][3] = 5
	var r exec.Runner
	require.EqualError(t, r.Forward(trial.Unit, trial.Call()), "embedding: index 5 at position 3 is outside the table of 5 rows, 0 to 4: tokens need a model with the Vocab of their tokenizer, positions one with a longer Context")
}

// TestIntegersAreChecked: views of inputs are checked before a run, and constants when they are compiled.
func TestIntegersAreChecked(t *testing.T) {
	sig := exectest.Signature(tensor.Float64, []int{5, 3})
	sig.Inputs = append(sig.Inputs, exec.Input{Shape: []int{3, 2}, DType: tensor.Int})
	u, err := exec.Compile(&exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		rows, err := G.Reshape(x[1], tensor.Shape{6})
		if err != nil {
			return nil, err
		}
		return ops.Embedding(x[0], rows)
	})}, sig)
	require.NoError(t, err)
	require.NoError(t, u.Check(1, []int{4, 3, 0, 1, 2, 4}))
	require.NoError(t, u.Check(0, nil))
	require.EqualError(t, u.Check(1, []int{0, 0, 0, 1, 5, 4}), "embedding: index 5 at position 4 is outside the table of 5 rows, 0 to 4: tokens need a model with the Vocab of their tokenizer, positions one with a longer Context")

	_, err = exec.Compile(&exec.Spec{Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		rows, err := b.ConstTensor(tensor.New(tensor.WithShape(2), tensor.WithBacking([]int{4, -1})))
		if err != nil {
			return nil, err
		}
		return ops.Embedding(x[0], rows)
	})}, sig)
	require.ErrorContains(t, err, "embedding: constant: index -1 at position 1 is outside the table of 5 rows")
}

// TestUnitForgetsGraph compiles modules of fused and of stock operations. Neither unit keeps the
// graph that it was made from alive, which is several times its size.
func TestUnitForgetsGraph(t *testing.T) {
	for name, spec := range map[string]*exec.Spec{"fused": fusedSpec, "mixed": mixedSpec} {
		var graphs []weak.Pointer[G.ExprGraph] // a module is traced twice
		traced := *spec
		traced.Build = func(b *exec.Builder, in []*G.Node) (G.Nodes, error) {
			graphs = append(graphs, weak.Make(b.Graph()))
			return spec.Build(b, in)
		}
		shape := map[string][]int{"fused": {2, 5, 8}, "mixed": {2, 3, 4}}[name]
		u, err := exec.Compile(&traced, exectest.Signature(tensor.Float64, shape))
		require.NoError(t, err)
		runtime.GC()
		for _, g := range graphs {
			require.True(t, g.Value() == nil, name)
		}
		runtime.KeepAlive(u)
	}
}
