package exec_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// mlpSpec is two linear layers with an activation in between, x [n, 3] -> [n, 2].
var mlpSpec = &exec.Spec{
	Params: []exec.Param{
		{Name: "w1", Shape: []int{4, 3}}, {Name: "b1", Shape: []int{4}}, {Name: "w2", Shape: []int{2, 4}}, {Name: "b2", Shape: []int{2}},
	},
	Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		p, err := params(b, "w1", "b1", "w2", "b2")
		if err != nil {
			return nil, err
		}
		h, err := ops.Linear(x[0], p[0], p[1])
		if err != nil {
			return nil, err
		}
		if h, err = ops.GELU(h); err != nil {
			return nil, err
		}
		return ops.Linear(h, p[2], p[3])
	}),
}

// bits returns the n lowest bits of mask.
func bits(mask, n int) []bool {
	list := make([]bool, n)
	for i := range list {
		list[i] = mask>>i&1 > 0
	}
	return list
}

// TestFrozenParameters freezes every subset of a module's parameters: the gradients of the others
// are right, the memory of a frozen one's is never touched.
func TestFrozenParameters(t *testing.T) {
	for _, policy := range policies {
		for mask := range 32 {
			sig := exectest.Signature(tensor.Float64, []int{5, 3})
			sig.FrozenParam, sig.Inputs[0].Grad, sig.Save = bits(mask, 4), mask&16 > 0, policy
			sig.AccParam = []bool{true, false, true, false}
			trial := exectest.New(t, mlpSpec, sig)
			trial.CheckGradients(t) // a frozen parameter's gradient has no memory here

			var r exec.Runner
			c := trial.Call()
			require.NoError(t, r.Forward(trial.Unit, c))
			trial.Turn(c)
			for i, frozen := range sig.FrozenParam {
				require.Equal(t, !frozen, trial.Unit.HasGrad[i])
				if frozen {
					c.GradParam[i] = slices.Repeat([]byte{0xA5}, 8*len(trial.Param[i]))
				}
			}
			require.NoError(t, r.Backward(trial.Unit, c))
			for i, frozen := range sig.FrozenParam {
				if frozen {
					require.Equal(t, slices.Repeat([]byte{0xA5}, 8*len(trial.Param[i])), c.GradParam[i])
				}
			}
		}
	}
}

// matmulSpec is a product of Gorgonia with a weight, and a gain that the loss uses twice.
var matmulSpec = &exec.Spec{
	Params: []exec.Param{{Name: "w", Shape: []int{3, 4}}, {Name: "gain", Shape: []int{4}}},
	Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		p, err := params(b, "w", "gain")
		if err != nil {
			return nil, err
		}
		h, err := G.Mul(x[0], p[0])
		if err != nil {
			return nil, err
		}
		for range 2 {
			if h, err = ops.RMSNorm(h, p[1], 1e-5); err != nil {
				return nil, err
			}
		}
		return h, nil
	}),
}

// TestHalfGrad: gradients of parameters in bfloat16 are those in float32, rounded once. Products of
// matrices round them; the GPU does so for factors in bfloat16. No other result changes.
func TestHalfGrad(t *testing.T) {
	for _, spec := range []*exec.Spec{mlpSpec, matmulSpec} {
		sig := exectest.Signature(tensor.Float32, []int{5, 3})
		for _, wide := range []*exectest.Trial{exectest.New(t, spec, sig), exectest.New(t, spec, sig).Half(t)} {
			for mask := range 1 << len(spec.Params) {
				for _, apart := range []bool{false, true} {
					narrow := wide.Changed(t, func(sig *exec.Signature) {
						sig.HalfGrad, sig.Apart = bits(mask, len(spec.Params)), apart
					})
					want, got := wide.Run(t), narrow.Run(t)
					for i, low := range bits(mask, len(spec.Params)) {
						if !low {
							continue
						}
						for j, v := range want.GradParam[i] {
							want.GradParam[i][j] = float64(half.ToBFloat16(float32(v)).Float32())
						}
						product := spec.Params[i].Name[0] == 'w' && (!apart || narrow.Unit.OutHalf[0])
						require.Equal(t, !product, narrow.Unit.WideGrad[i], "%s of %v", spec.Params[i].Name, narrow.Unit.Backward)
					}
					exectest.RequireClose(t, want, got, 0)
				}
			}
		}
	}
	sig := exectest.Signature(tensor.Float64, []int{5, 3})
	sig.HalfGrad = []bool{true, false, false, false}
	_, err := exec.Compile(mlpSpec, sig)
	require.EqualError(t, err, "a unit of float64 cannot compute or store in bfloat16: want float32")
}

// TestNothingToTrain compiles a backward that does nothing.
func TestNothingToTrain(t *testing.T) {
	for _, policy := range policies {
		sig := exectest.Signature(tensor.Float64, []int{5, 3})
		sig.FrozenParam, sig.Inputs[0].Grad, sig.Save = bits(15, 4), false, policy
		u, err := exec.Compile(mlpSpec, sig)
		require.NoError(t, err)
		require.Zero(t, u.Saved)
		require.Equal(t, [][]bool{{false}, {false}}, [][]bool{u.KeepIn, u.KeepOut})
		require.Equal(t, make([]bool, 4), u.ReadParam)
		require.Equal(t, make([]bool, 4), u.HasGrad)
		var r exec.Runner
		require.NoError(t, r.Backward(u, &exec.Call{}), "any instruction would miss its memory")
	}
}

// TestFrozenBehindNoGradient lets a frozen parameter pass through an operation that has no
// gradient.
func TestFrozenBehindNoGradient(t *testing.T) {
	spec := &exec.Spec{
		Params: []exec.Param{{Name: "frozen", Shape: []int{3}}, {Name: "trained", Shape: []int{3}}},
		Build: returning(func(b *exec.Builder, _ []*G.Node) (*G.Node, error) {
			p, err := params(b, "frozen", "trained")
			if err != nil {
				return nil, err
			}
			run := func(f *exec.Frame) error { copy(f.Out.Bytes, f.In[0].Bytes); return nil }
			y, err := (&exec.Row{Kind: "opaque", Kernels: exec.Kernels{F64: run}, Diff: 1}).Apply(nil, p[0])
			if err != nil {
				return nil, err
			}
			return G.HadamardProd(y, p[1])
		}),
	}
	sig := exectest.Signature(tensor.Float64)
	_, err := exec.Compile(spec, sig)
	require.ErrorContains(t, err, "opaque: not differentiable")
	sig.FrozenParam = []bool{true}
	exectest.New(t, spec, sig).CheckGradients(t)
}

// TestUnusedParameter has no gradient but is not frozen: it is set to zero, or left as it is if it
// is added to.
func TestUnusedParameter(t *testing.T) {
	spec := &exec.Spec{
		Params: []exec.Param{{Name: "used", Shape: []int{3}}, {Name: "unused", Shape: []int{3}}},
		Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
			p, err := b.Param("used")
			if err != nil {
				return nil, err
			}
			return G.HadamardProd(x[0], p)
		}),
	}
	for _, acc := range []bool{false, true} {
		sig := exectest.Signature(tensor.Float64, []int{3})
		sig.AccParam = []bool{acc, acc}
		trial := exectest.New(t, spec, sig)
		require.Equal(t, []bool{true, false}, trial.Unit.HasGrad)
		require.Equal(t, []bool{true, false}, trial.Unit.ReadParam)
		want := 0.0
		if acc {
			want = exectest.Start
		}
		require.Equal(t, slices.Repeat([]float64{want}, 3), trial.Run(t).GradParam[1])
	}
}

// TestReadParam states for modules of linear layers, an embedding and a norm which parameters
// backward reads.
func TestReadParam(t *testing.T) {
	linear := &exec.Spec{
		Params: []exec.Param{{Name: "w", Shape: []int{4, 3}}, {Name: "b", Shape: []int{4}}},
		Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
			p, err := params(b, "w", "b")
			if err != nil {
				return nil, err
			}
			return ops.Linear(x[0], p[0], p[1])
		}),
	}
	stock := &exec.Spec{ // w as a view, transposed
		Params: []exec.Param{{Name: "w", Shape: []int{12}}, {Name: "b", Shape: []int{5, 4}}},
		Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
			p, err := params(b, "w", "b")
			if err != nil {
				return nil, err
			}
			w, err := exec.NewView(p[0], 0, 4, 3)
			if err != nil {
				return nil, err
			}
			return G.Add(G.Must(G.Mul(x[0], G.Must(G.Transpose(w, 1, 0)))), p[1])
		}),
	}
	embedding := &exec.Spec{
		Params: []exec.Param{{Name: "table", Shape: []int{7, 3}}},
		Build: returning(func(b *exec.Builder, _ []*G.Node) (*G.Node, error) {
			p, err := b.Param("table")
			if err != nil {
				return nil, err
			}
			rows, err := b.ConstTensor(tensor.New(tensor.WithShape(2), tensor.WithBacking([]int{6, 1})))
			if err != nil {
				return nil, err
			}
			return ops.Embedding(p, rows)
		}),
	}
	norm := &exec.Spec{
		Params: []exec.Param{{Name: "gain", Shape: []int{3}}, {Name: "bias", Shape: []int{3}}},
		Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
			p, err := params(b, "gain", "bias")
			if err != nil {
				return nil, err
			}
			return ops.LayerNorm(x[0], p[0], p[1], 1e-5)
		}),
	}
	const yes, no = true, false
	for _, c := range []struct {
		name   string
		spec   *exec.Spec
		input  bool   // its gradient is wanted
		frozen []bool // nil: none
		// which are read under Balanced, SaveAll and RecomputeAll
		balanced, save, recompute []bool
	}{
		{"linear", linear, yes, nil, []bool{yes, no}, []bool{yes, no}, []bool{yes, no}},
		{"linear, first layer", linear, no, nil, []bool{no, no}, []bool{no, no}, []bool{no, no}},
		{"linear, frozen", linear, yes, []bool{yes, yes}, []bool{yes, no}, []bool{yes, no}, []bool{yes, no}},
		{"stock linear", stock, yes, nil, []bool{yes, no}, []bool{yes, no}, []bool{yes, no}},
		{"stock linear, first layer", stock, no, nil, []bool{no, no}, []bool{no, no}, []bool{no, no}},
		{"embedding", embedding, yes, nil, []bool{no}, []bool{no}, []bool{no}},
		{"norm", norm, yes, nil, []bool{yes, yes}, []bool{yes, no}, []bool{yes, yes}}, // computed again, or saved
		{"MLP", mlpSpec, yes, nil, []bool{yes, no, yes, no}, []bool{yes, no, yes, no}, []bool{yes, yes, yes, no}},
		{"MLP, first layer", mlpSpec, no, nil, []bool{no, no, yes, no}, []bool{no, no, yes, no}, []bool{yes, yes, yes, no}},
		{"MLP, adapted at the end", mlpSpec, no, []bool{yes, yes, yes, no}, bits(0, 4), bits(0, 4), bits(0, 4)},
		{"MLP, head", mlpSpec, no, []bool{yes, yes, no, no}, bits(0, 4), bits(0, 4), []bool{yes, yes, no, no}},
		{"MLP, frozen", mlpSpec, yes, bits(15, 4), []bool{yes, no, yes, no}, []bool{yes, no, yes, no}, []bool{yes, yes, yes, no}},
	} {
		for i, want := range [][]bool{c.balanced, c.save, c.recompute} {
			t.Run(fmt.Sprint(c.name, "/", policies[i]), func(t *testing.T) {
				sig := exectest.Signature(tensor.Float64, []int{5, 3})
				sig.FrozenParam, sig.Inputs[0].Grad, sig.Save = c.frozen, c.input, policies[i]
				trial := exectest.New(t, c.spec, sig)
				require.Equal(t, want, trial.Unit.ReadParam)
				trial.CheckGradients(t)
				requireReadsAll(t, trial)

				sig.GradOut = nil
				u, err := exec.Compile(c.spec, sig)
				require.NoError(t, err)
				require.Equal(t, make([]bool, len(want)), u.ReadParam)
				require.Equal(t, make([]bool, len(want)), u.HasGrad)
			})
		}
	}
}

// requireReadsAll requires that backward reads every parameter that it says it reads: without its
// memory it cannot run. A Trial shows the converse, for it withholds all others.
func requireReadsAll(t require.TestingT, trial *exectest.Trial) {
	for i, reads := range trial.Unit.ReadParam {
		if !reads {
			continue
		}
		var r exec.Runner
		c := trial.Call()
		require.NoError(t, r.Forward(trial.Unit, c))
		trial.Turn(c)
		c.Param[i] = nil
		require.Panics(t, func() { _ = r.Backward(trial.Unit, c) }, "parameter %d", i)
	}
}

// TestRandomParameters makes the three leaves of a random module trained, frozen or buffers, and
// updates the buffers by random values of it. Outputs and updates are what a direct evaluation
// gives, gradients the central differences; what updates add leaves no trace in anything else.
func TestRandomParameters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, outs := randomModule(t)
		const trained, frozen, buffer = 0, 1, 2
		kinds := rapid.SliceOfN(rapid.IntRange(trained, buffer), 3, 3).Draw(t, "kinds")
		sig := &exec.Signature{DType: tensor.Float64, GradOut: rapid.SliceOfN(rapid.Bool(), 3, 3).Draw(t, "grads")}
		var list []exec.Param
		var updates []int // the new value of each buffer
		for i, kind := range kinds {
			list = append(list, exec.Param{Name: fmt.Sprint("p", i), Shape: []int{2, 3}, Buffer: kind == buffer})
			sig.FrozenParam = append(sig.FrozenParam, kind == frozen)
			sig.AccParam = append(sig.AccParam, rapid.Bool().Draw(t, "acc"))
			if kind == buffer {
				updates = append(updates, rapid.IntRange(0, len(nodes)+2).Draw(t, "update"))
			}
		}
		spec := func(updated bool) *exec.Spec {
			return &exec.Spec{Params: list, Build: func(b *exec.Builder, _ []*G.Node) (G.Nodes, error) {
				leaves, err := params(b, "p0", "p1", "p2")
				if err != nil {
					return nil, err
				}
				values, err := buildRandom(nodes, leaves)
				if err != nil {
					return nil, err
				}
				at := 0
				for i, kind := range kinds {
					if !updated || kind != buffer {
						continue
					}
					if err := b.Update(fmt.Sprint("p", i), values[updates[at]]); err != nil {
						return nil, err
					}
					at++
				}
				var list G.Nodes
				for _, o := range outs {
					list = append(list, values[o])
				}
				return list, nil
			}}
		}
		var first exectest.Results
		for i, policy := range policies {
			sig.Save = policy
			trial, plain := exectest.New(t, spec(true), sig), exectest.New(t, spec(false), sig)
			require.Equal(t, plain.Unit.Saved, trial.Unit.Saved)
			require.Equal(t, plain.Unit.KeepOut, trial.Unit.KeepOut)
			require.Equal(t, plain.Unit.ReadParam, trial.Unit.ReadParam)
			res := trial.Run(t)
			trial.Eval = true // none of the operations is random
			exectest.RequireClose(t, plain.Run(t), trial.Run(t), 0)
			trial.Eval = false
			requireReadsAll(t, trial)
			if i > 0 {
				exectest.RequireClose(t, first, res, 0)
				continue
			}
			first = res
			for k, want := range evaluate(nodes, append(slices.Clone(outs), updates...), trial.Param) {
				require.InDeltaSlice(t, want, slices.Concat(res.Out, res.Update)[k], 1e-9)
			}
			trial.CheckGradients(t)
		}
	})
}
