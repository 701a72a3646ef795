package exec_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// counted is the identity on a node, and counts in runs how often it is computed.
func counted(x *G.Node, runs *int) (*G.Node, error) {
	run := func(f *exec.Frame) error { *runs++; copy(f.Out.Bytes, f.In[0].Bytes); return nil }
	return (&exec.Row{Kind: "counted", Kernels: exec.Kernels{F32: run, F64: run}}).Apply(nil, x)
}

// centredSpec subtracts from x [n, 3] the means of its columns and keeps running means: running =
// 0.75 running + 0.25 mean, and steps = steps + 1. runs counts how often the running means are
// computed.
func centredSpec(runs *int) *exec.Spec {
	return &exec.Spec{
		Params: []exec.Param{
			{Name: "gain", Shape: []int{3}}, {Name: "norm.running", Shape: []int{3}, Buffer: true}, {Name: "steps", Buffer: true},
			{Name: "unchanged", Shape: []int{2}, Buffer: true},
		},
		Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
			p, err := params(b, "gain", "norm.running", "steps")
			if err != nil {
				return nil, err
			}
			if err := b.Update("steps", G.Must(G.Add(p[2], b.Const(1)))); err != nil {
				return nil, err
			}
			mean := G.Must(G.Mean(x[0], 0))
			next := G.Must(G.Add(G.Must(G.HadamardProd(p[1], b.Const(0.75))), G.Must(G.HadamardProd(mean, b.Const(0.25)))))
			if next, err = counted(next, runs); err != nil {
				return nil, err
			}
			if err := b.Scope("norm").Update("running", next); err != nil {
				return nil, err
			}
			y := G.Must(G.BroadcastSub(x[0], mean, nil, []byte{0}))
			return G.BroadcastHadamardProd(G.Must(G.Tanh(y)), p[0], nil, []byte{0})
		}),
	}
}

// TestBuffers keeps running statistics: right in training, not computed in evaluation or in
// backward, and without an effect on gradients.
func TestBuffers(t *testing.T) {
	for _, policy := range policies {
		for _, forwardAlone := range []bool{false, true} {
			runs := 0
			sig := exectest.Signature(tensor.Float64, []int{4, 3})
			sig.Save = policy
			if forwardAlone {
				sig.GradOut = nil
			}
			trial := exectest.New(t, centredSpec(&runs), sig)
			u := trial.Unit
			require.Equal(t, []exec.Update{{Param: 1, Shape: tensor.Shape{3}}, {Param: 2, Shape: tensor.ScalarShape()}}, u.Updates)
			require.Equal(t, []tensor.Shape{{4, 3}}, u.OutShape)
			require.Equal(t, []bool{!forwardAlone, false, false, false}, u.HasGrad)
			require.Equal(t, make([]bool, 3), u.ReadParam[1:], "no gradient depends on the buffers")

			res := trial.Run(t)
			require.Equal(t, 1, runs)
			require.Equal(t, trial.Param[2][0]+1, res.Update[1][0])
			for j := range 3 {
				mean := (trial.In[0][j] + trial.In[0][3+j] + trial.In[0][6+j] + trial.In[0][9+j]) / 4
				require.InDelta(t, 0.75*trial.Param[1][j]+0.25*mean, res.Update[0][j], 1e-12)
				require.InDelta(t, trial.Param[0][j]*math.Tanh(trial.In[0][j]-mean), res.Out[0][j], 1e-12)
			}
			if !forwardAlone {
				trial.CheckGradients(t)
				trial.CheckFloat32(t, 1e-5)
			}

			runs, trial.Eval = 0, true
			eval := trial.Run(t)
			require.Zero(t, runs)
			require.Empty(t, eval.Update)
			eval.Update = res.Update
			exectest.RequireClose(t, res, eval, 0)
		}
	}
}

// TestUpdateValues updates buffers by values that are not the update's own: of the module's inputs,
// parameters, constants and outputs, of views, and by one value twice.
func TestUpdateValues(t *testing.T) {
	params6 := []exec.Param{
		{Name: "p", Shape: []int{2, 3}}, {Name: "a", Shape: []int{2, 3}, Buffer: true}, {Name: "b", Shape: []int{2, 3}, Buffer: true},
	}
	type nodes struct{ x, p, a, b, y *G.Node } // y = gelu(x * p)
	type numbers struct{ x, p, a, b, y []float64 }
	three := []float64{3, 3, 3, 3, 3, 3}
	for name, c := range map[string]struct {
		build func(b *exec.Builder, n nodes) (toA, toB *G.Node, err error)
		want  func(v numbers) (a, b []float64)
	}{
		"swap":   {func(_ *exec.Builder, n nodes) (a, b *G.Node, err error) { return n.b, n.a, nil }, func(v numbers) (a, b []float64) { return v.b, v.a }},
		"itself": {func(_ *exec.Builder, n nodes) (a, b *G.Node, err error) { return n.a, n.x, nil }, func(v numbers) (a, b []float64) { return v.a, v.x }},
		"parameter and output": {
			func(_ *exec.Builder, n nodes) (a, b *G.Node, err error) { return n.p, n.y, nil },
			func(v numbers) (a, b []float64) { return v.p, v.y },
		},
		"one twice": {
			func(_ *exec.Builder, n nodes) (a, b *G.Node, err error) {
				y := G.Must(G.Add(n.a, n.x))
				return y, y, nil
			},
			func(v numbers) (a, b []float64) { return sum(v.a, v.x), sum(v.a, v.x) },
		},
		"one of the other": {
			func(_ *exec.Builder, n nodes) (a, b *G.Node, err error) {
				y := G.Must(G.Add(n.a, n.x))
				return y, G.Must(G.Add(y, n.b)), nil
			},
			func(v numbers) (a, b []float64) { return sum(v.a, v.x), sum(sum(v.a, v.x), v.b) },
		},
		"constant and view": {
			func(b *exec.Builder, n nodes) (toA, toB *G.Node, err error) {
				c, err := b.ConstTensor(tensor.New(tensor.WithShape(2, 3), tensor.WithBacking(three)))
				if err != nil {
					return nil, nil, err
				}
				flat, err := exec.NewView(G.Must(G.Add(n.a, n.x)), 0, 6)
				if err != nil {
					return nil, nil, err
				}
				view, err := G.Reshape(flat, tensor.Shape{2, 3})
				return c, view, err
			},
			func(v numbers) (a, b []float64) { return three, sum(v.a, v.x) },
		},
	} {
		for _, policy := range policies {
			t.Run(fmt.Sprint(name, "/", policy), func(t *testing.T) {
				sig := exectest.Signature(tensor.Float64, []int{2, 3})
				sig.Save = policy
				trial := exectest.New(t, &exec.Spec{Params: params6, Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
					p, err := params(b, "p", "a", "b")
					if err != nil {
						return nil, err
					}
					y, err := ops.GELU(G.Must(G.HadamardProd(x[0], p[0])))
					if err != nil {
						return nil, err
					}
					toA, toB, err := c.build(b, nodes{x[0], p[0], p[1], p[2], y})
					if err != nil {
						return nil, err
					}
					if err := b.Update("b", toB); err != nil { // the order is that of Params all the same
						return nil, err
					}
					return y, b.Update("a", toA)
				})}, sig)
				res := trial.Run(t)
				a, b := c.want(numbers{trial.In[0], trial.Param[0], trial.Param[1], trial.Param[2], res.Out[0]})
				require.Equal(t, [][]float64{a, b}, res.Update)
				trial.CheckGradients(t)
				trial.Eval = true
				require.Equal(t, res.Out, trial.Run(t).Out)
			})
		}
	}
}

func sum(x, y []float64) []float64 {
	z := make([]float64, len(x))
	for i := range z {
		z[i] = x[i] + y[i]
	}
	return z
}

// TestBuffersInUse reads a buffer in the module: it has no gradient, what depends on it has. The
// value that the module sees is the one from before the update.
func TestBuffersInUse(t *testing.T) {
	for _, policy := range policies {
		sig := exectest.Signature(tensor.Float64, []int{3})
		sig.Save = policy
		trial := exectest.New(t, &exec.Spec{
			Params: []exec.Param{{Name: "scale", Shape: []int{3}, Buffer: true}},
			Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
				scale, err := b.Param("scale")
				if err != nil {
					return nil, err
				}
				if err := b.Update("scale", x[0]); err != nil {
					return nil, err
				}
				return G.HadamardProd(x[0], G.Must(G.Tanh(scale)))
			}),
		}, sig)
		require.Equal(t, []bool{true}, trial.Unit.ReadParam)
		require.Equal(t, []bool{false}, trial.Unit.HasGrad)
		trial.CheckGradients(t)
		res := trial.Run(t)
		require.Nil(t, res.GradParam[0])
		require.Equal(t, trial.In, res.Update)
		require.InDelta(t, trial.In[0][0]*math.Tanh(trial.Param[0][0]), res.Out[0][0], 1e-12)
	}
}

// TestUpdateOfAChain takes a statistic of the first value of a long chain: the value must not wait
// for the chain's end.
func TestUpdateOfAChain(t *testing.T) {
	work := func(update bool) int {
		u, err := exec.Compile(&exec.Spec{
			Params: []exec.Param{{Name: "sum", Buffer: true}},
			Build: returning(func(b *exec.Builder, x []*G.Node) (y *G.Node, err error) {
				y = x[0]
				for i := range 20 {
					if y, err = ops.Dropout(y, 0.5, uint32(i)); err != nil {
						return nil, err
					}
					if update && i == 0 {
						if err := b.Update("sum", G.Must(G.Sum(y))); err != nil {
							return nil, err
						}
					}
				}
				return y, nil
			}),
		}, exectest.Signature(tensor.Float64, []int{1000}))
		require.NoError(t, err)
		return u.Forward.Work
	}
	require.Equal(t, work(false), work(true))
}

// TestUpdateMistakes are mistakes with updates, each with its message.
func TestUpdateMistakes(t *testing.T) {
	update := func(name string, value func(x *G.Node) *G.Node) builder {
		return func(b *exec.Builder, x []*G.Node) (G.Nodes, error) {
			return G.Nodes{x[0]}, b.Scope("norm").Update(name, value(x[0]))
		}
	}
	same := func(x *G.Node) *G.Node { return x }
	for want, build := range map[string]builder{
		`update of "norm.var": Params has no such parameter`:                          update("var", same),
		`update of "norm.gain": it is a parameter to train, not a buffer`:             update("gain", same),
		`update of "norm.mean": the value is nil`:                                     update("mean", func(*G.Node) *G.Node { return nil }),
		`update of "norm.mean": the value is float64 of shape (3), want float64 of`:   update("mean", func(x *G.Node) *G.Node { return G.Must(G.Slice(x, G.S(0, 3))) }),
		`update of "norm.mean": the value is float64 of shape (), want float64 of sh`: update("mean", func(x *G.Node) *G.Node { return G.Must(G.Sum(x)) }),
		`update of "norm.mean": the value is float32 of shape (4), want float64 of s`: update("mean", func(x *G.Node) *G.Node {
			return G.NewVector(x.Graph(), G.Float32, G.WithName("other type"), G.WithShape(4))
		}),
		`update of "norm.mean": the value is a node of another graph`: update("mean", func(*G.Node) *G.Node {
			return G.NewVector(G.NewGraph(), G.Float64, G.WithName("other graph"), G.WithShape(4))
		}),
		`update of "norm.mean": it has been updated before`: func(b *exec.Builder, x []*G.Node) (G.Nodes, error) {
			if err := b.Update("norm.mean", x[0]); err != nil {
				return nil, err
			}
			return G.Nodes{x[0]}, b.Update("norm.mean", x[0])
		},
		"is refused: its values along the first axis are transposed": update("mean", func(x *G.Node) *G.Node { return G.Must(G.Sparsemax(x)) }),
	} {
		t.Run(want, func(t *testing.T) {
			spec := &exec.Spec{
				Params: []exec.Param{{Name: "norm.gain", Shape: []int{4}}, {Name: "norm.mean", Shape: []int{4}, Buffer: true}},
				Build:  build,
			}
			for _, grads := range [][]bool{nil, {true}} {
				sig := exectest.Signature(tensor.Float64, []int{4})
				sig.GradOut = grads
				_, err := exec.Compile(spec, sig)
				require.ErrorContains(t, err, want)
			}
		})
	}
}

// TestUpdatesMustBeDeterministic refuses a module that updates another buffer, or by another value,
// the second time.
func TestUpdatesMustBeDeterministic(t *testing.T) {
	calls := 0
	for name, build := range map[string]builder{
		"another buffer": func(b *exec.Builder, x []*G.Node) (G.Nodes, error) {
			return G.Nodes{x[0]}, b.Update([]string{"a", "b"}[calls%2], x[1])
		},
		"another value": func(b *exec.Builder, x []*G.Node) (G.Nodes, error) {
			return G.Nodes{G.Must(G.Add(x[0], x[1]))}, b.Update("a", x[calls%2])
		},
		"another constant": func(b *exec.Builder, x []*G.Node) (G.Nodes, error) {
			return G.Nodes{x[0]}, b.Update("a", G.Must(G.Add(x[1], b.Const(float64(calls)))))
		},
		"no update": func(b *exec.Builder, x []*G.Node) (G.Nodes, error) {
			if calls%2 > 0 {
				return G.Nodes{x[0]}, nil
			}
			return G.Nodes{x[0]}, b.Update("a", x[0])
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := exec.Compile(&exec.Spec{
				Params: []exec.Param{{Name: "a", Shape: []int{4}, Buffer: true}, {Name: "b", Shape: []int{4}, Buffer: true}},
				Build:  func(b *exec.Builder, x []*G.Node) (G.Nodes, error) { calls++; return build(b, x) },
			}, exectest.Signature(tensor.Float64, []int{4}, []int{4}))
			require.ErrorContains(t, err, "not deterministic")
		})
	}
}

// TestCheckOfUpdates finds a wrong integer that nothing but an update reads before anything runs.
func TestCheckOfUpdates(t *testing.T) {
	sig := exectest.Signature(tensor.Float64, []int{4, 2})
	sig.Inputs = append(sig.Inputs, exec.Input{Shape: []int{3}, DType: tensor.Int})
	u, err := exec.Compile(&exec.Spec{
		Params: []exec.Param{{Name: "rows", Shape: []int{3, 2}, Buffer: true}},
		Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
			rows, err := ops.Embedding(x[0], x[1])
			if err != nil {
				return nil, err
			}
			return G.Must(G.Tanh(x[0])), b.Update("rows", rows)
		}),
	}, sig)
	require.NoError(t, err)
	require.NoError(t, u.Check(1, []int{3, 0, 3}))
	require.ErrorContains(t, u.Check(1, []int{3, 0, 4}), "index 4")
}
