package ops_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// TestHalf holds every operation in bfloat16, and its gradients, against float64.
func TestHalf(t *testing.T) {
	for _, op := range slices.Concat(operations, native) {
		t.Run(op.name, func(t *testing.T) {
			tr := trial(t, op.f, op.ints, op.intShape, op.shapes...)
			exectest.RequireClose(t, tr.Run(t), tr.Half(t).Run(t), 0.02)
		})
	}
}

// TestAnyFormsMix compiles operations for any mix of operands in float32 and in bfloat16, gradients
// that are added to included, in a module of either.
func TestAnyFormsMix(t *testing.T) {
	all := slices.Concat(operations, native)
	rapid.Check(t, func(t *rapid.T) {
		op := all[rapid.IntRange(0, len(all)-1).Draw(t, "operation")]
		sig := exectest.Signature(tensor.Float64, op.shapes...)
		for i := range sig.Inputs {
			sig.Inputs[i].Acc = rapid.Bool().Draw(t, "acc")
		}
		if op.ints != nil {
			sig.Inputs = append(sig.Inputs, exec.Input{Shape: op.intShape, DType: tensor.Int})
		}
		tr := exectest.New(t, spec(op.f), sig)
		if op.ints != nil {
			tr.In[len(op.shapes)] = op.ints
		}
		mixed := *sig
		mixed.DType, mixed.Half, mixed.Inputs = tensor.Float32, rapid.Bool().Draw(t, "half"), slices.Clone(sig.Inputs)
		for i, in := range mixed.Inputs {
			if in.DType == tensor.Float64 {
				mixed.Inputs[i].DType, mixed.Inputs[i].Half = tensor.Float32, rapid.Bool().Draw(t, "stored")
			}
		}
		exectest.RequireClose(t, tr.Run(t), tr.With(t, &mixed).Run(t), 0.02)
	})
}

// block is a module of many operations: saved, recomputed, packed and summed values.
var block = &exec.Spec{
	Params: []exec.Param{{Name: "gain", Shape: []int{8}}, {Name: "bias", Shape: []int{8}}, {Name: "qkv", Shape: []int{24, 8}}, {Name: "out", Shape: []int{8, 8}}},
	Build: func(b *exec.Builder, in []*G.Node) (G.Nodes, error) {
		p := make(map[string]*G.Node)
		for _, name := range []string{"gain", "bias", "qkv", "out"} {
			var err error
			if p[name], err = b.Param(name); err != nil {
				return nil, err
			}
		}
		x := in[0]
		y := must(ops.LayerNorm(x, p["gain"], p["bias"], 1e-5))
		y = must(ops.SelfAttention(must(ops.Linear(y, p["qkv"], nil)), nil, nil, nil, ops.Attention{Heads: 2, Causal: true}))
		x = must(G.Add(x, must(ops.Dropout(must(ops.Linear(y, p["out"], nil)), 0.2, 1))))
		y = must(ops.GELU(must(ops.Linear(must(ops.RMSNorm(x, p["gain"], 1e-5)), p["out"], p["bias"]))))
		y = must(ops.Linear(must(G.Tanh(y)), p["out"], nil)) // the weight has three gradients
		loss := must(ops.CrossEntropy(y, in[1], -1))
		return G.Nodes{must(G.Add(x, y)), loss}, nil
	},
}

func must(n *G.Node, err error) *G.Node { return G.Must(n, err) }

// blockTrial returns the block in bfloat16, with norms in float32.
func blockTrial(t exectest.T, save exec.Policy) *exectest.Trial {
	sig := exectest.Signature(tensor.Float64, []int{2, 50, 8})
	sig.Inputs, sig.GradOut = append(sig.Inputs, exec.Input{Shape: []int{2, 50}, DType: tensor.Int}), []bool{true, true}
	tr := exectest.New(t, block, sig)
	for i := range tr.In[1] {
		tr.In[1][i] = float64(i * 3 % 8)
	}
	low := *sig
	low.Inputs = slices.Clone(sig.Inputs)
	low.DType, low.Inputs[0].DType, low.Inputs[0].Half, low.Half = tensor.Float32, tensor.Float32, true, true
	low.HalfParam, low.Save = []bool{false, false, true, true}, save
	return tr.With(t, &low)
}

// TestSavedFormsAreSmall shows that what is kept for backward and between modules takes half, but
// for statistics, and that a value which is computed again is rounded again: the policy changes no
// bit.
func TestSavedFormsAreSmall(t *testing.T) {
	want := blockTrial(t, exec.Balanced)
	require.Equal(t, []bool{true, false}, want.Unit.OutHalf, "the loss is float32")
	for _, save := range []exec.Policy{exec.SaveAll, exec.RecomputeAll} {
		tr := blockTrial(t, save)
		exectest.RequireClose(t, want.Run(t), tr.Run(t), 0)
	}
	sig := exectest.Signature(tensor.Float32, []int{2, 50, 8})
	sig.Inputs, sig.GradOut = append(sig.Inputs, exec.Input{Shape: []int{2, 50}, DType: tensor.Int}), []bool{true, true}
	whole, err := exec.Compile(block, sig)
	require.NoError(t, err)
	require.Less(t, float64(want.Unit.Saved), 0.6*float64(whole.Saved))
}

// products have other roundings than in float32: of their results, or of the factors of attention.
// Gradients of norms are rounded before another value is added.
var products = map[exec.Kind]bool{
	ops.KindLinear: true, ops.KindAddLinear: true, ops.KindLinearGradX: true, ops.KindAddLinearGradX: true, ops.KindGELULinearGradX: true, ops.KindLinearGradW: true,
	ops.KindAttention: true, ops.KindAttentionGrad: true, ops.KindSDPA: true, ops.KindSDPAGrad: true,
	ops.KindAttentionBias: true, ops.KindAttentionBiasGrad: true, ops.KindSDPABias: true, ops.KindSDPABiasGrad: true,
	exec.KindProduct: true, ops.KindAddLayerNormGrad: true, ops.KindAddRMSNormGrad: true,
	ops.KindLinearLoss: true, ops.KindLinearLossGradW: true, ops.KindLinearLossGradWB: true, ops.KindEarlyLoss: true, ops.KindEarlyLossB: true,
}

// TestHalfKernelsRound interprets programs in bfloat16. Each kernel must compute what that for
// float32 does with the same values, rounded, to the bit; but for products, which round otherwise.
func TestHalfKernelsRound(t *testing.T) {
	seen := make(map[exec.Kind]bool)
	for _, op := range slices.Concat(operations, native) {
		for _, tr := range trials(t, op) {
			tr = tr.Half(t)
			m := &roundings{interpreter{T: t, seen: seen}}
			c := tr.Call()
			m.run(tr.Unit.Forward, c)
			tr.Turn(c)
			m.run(tr.Unit.Backward, c)
		}
	}
	for _, r := range ops.Table() {
		if r.BF16 != nil && r.Kind != exec.KindCopy && r.Kind != exec.KindOutput && r.Kind != exec.KindAccumulate {
			require.True(t, seen[r.Kind], "no program in bfloat16 has %q", r.Kind)
		}
	}
}

// roundings is an interpreter that compares kernels for bfloat16 with those for float32.
type roundings struct{ interpreter }

func (m *roundings) run(p *exec.Program, c *exec.Call) {
	m.bind(p, c)
	for in := range p.All() {
		f := exec.Frame{
			Op: in.Op, Acc: in.Acc, Kernel: new(kernel.Context), Seed: c.Seed, Train: c.Train, Scratch: make([]byte, in.Scratch.Bytes),
		}
		want := f
		for _, o := range in.In {
			v := m.value(o)
			f.In, want.In = append(f.In, v), append(want.In, wide(v))
		}
		f.Out = m.value(in.Out)
		want.Out = wide(f.Out)
		if !in.Half {
			require.NoError(m, in.Op.F32(&f), in.Op)
			continue
		}
		m.seen[in.Op.Kind] = true
		if in.Op.Scratch != nil {
			want.Scratch = make([]byte, 4*in.Op.Scratch(in.Op))
		}
		require.NoError(m, in.Op.F32(&want), in.Op)
		require.NoError(m, in.Op.BF16(&f), in.Op)
		got := exec.Data[float32](wide(f.Out).Bytes)
		low, _ := f.Out.Parts()
		for i, w := range exec.Data[float32](want.Out.Bytes) {
			if i < len(low) {
				w = half.ToBFloat16(w).Float32()
			}
			if products[in.Op.Kind] {
				require.InDelta(m, w, got[i], 0.02*(1+math.Abs(float64(w))), "%v, element %d", in.Op, i)
			} else {
				require.Equal(m, math.Float32bits(w), math.Float32bits(got[i]), "%v, element %d: %v and %v", in.Op, i, w, got[i])
			}
		}
	}
}

// wide returns a copy of v all of which is in float32.
func wide(v exec.Value) exec.Value {
	if v.DType != tensor.Float32 {
		return v
	}
	low, tail := v.Parts()
	s := make([]float32, v.Len())
	half.Widen(s, low)
	copy(s[len(low):], tail)
	return exec.Value{Shape: v.Shape, DType: v.DType, Bytes: exec.Bytes(s)}
}

// halfTrial compiles a module that is f of parameters and one input, which are in bfloat16 but for
// buffers.
func halfTrial(t *testing.T, params []exec.Param, shape []int, f func(b *exec.Builder, x *G.Node) *G.Node) *exectest.Trial {
	spec := &exec.Spec{Params: params, Build: func(b *exec.Builder, in []*G.Node) (G.Nodes, error) { return G.Nodes{f(b, in[0])}, nil }}
	return exectest.New(t, spec, exectest.Signature(tensor.Float64, shape)).Half(t)
}

// TestIntegersFromHalf computes integers from floats, as a graph may: they have no form.
func TestIntegersFromHalf(t *testing.T) {
	spec := spec(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		n := must(G.ConvType(must(G.HadamardProd(x[0], x[0])), b.DType(), tensor.Int))
		return G.Add(x[0], must(G.ConvType(n, tensor.Int, b.DType())))
	})
	sig := exectest.Signature(tensor.Float64, []int{3, 4})
	sig.Inputs[0].Grad, sig.GradOut = false, nil
	tr := exectest.New(t, spec, sig).Half(t)
	want := slices.Clone(tr.In[0])
	for i, x := range want {
		want[i] = float64(half.ToBFloat16(float32(x + math.Trunc(float64(half.ToBFloat16(float32(x*x)).Float32())))).Float32())
	}
	require.Equal(t, want, tr.Run(t).Out[0])
}

// TestBuffersMoveBySmallSteps updates a buffer by less than half a unit of bfloat16's last place,
// with a mean in bfloat16.
func TestBuffersMoveBySmallSteps(t *testing.T) {
	tr := halfTrial(t, []exec.Param{{Name: "running", Shape: []int{4}, Buffer: true}}, []int{3, 4}, func(b *exec.Builder, x *G.Node) *G.Node {
		running := must(b.Param("running"))
		next := must(G.Add(must(G.HadamardProd(running, b.Const(0.999))), must(G.HadamardProd(must(G.Mean(x, 0)), b.Const(0.001)))))
		if err := b.Update("running", next); err != nil {
			panic(err)
		}
		return must(G.HadamardProd(x, x))
	})
	tr.Param[0] = []float64{1, 1, 1, 1}
	for j, got := range tr.Run(t).Update[0] {
		mean := (tr.In[0][j] + tr.In[0][4+j] + tr.In[0][8+j]) / 3
		require.InDelta(t, 0.999+0.001*mean, got, 1e-5)
	}
}

// TestGradientsOfParametersAreFloat32 computes them by operations of Gorgonia's own, one as the sum
// of two: they are not rounded to bfloat16.
func TestGradientsOfParametersAreFloat32(t *testing.T) {
	params := []exec.Param{{Name: "w", Shape: []int{3, 5}}, {Name: "gain", Shape: []int{5}}}
	build := func(b *exec.Builder, x *G.Node) *G.Node {
		w := must(b.Param("w"))
		y := must(G.BroadcastHadamardProd(must(G.Mul(x, w)), must(b.Param("gain")), nil, []byte{0}))
		return must(G.Add(y, must(G.Mul(x, w))))
	}
	for i, grad := range halfTrial(t, params, []int{40, 3}, build).Run(t).GradParam {
		exact := 0
		for _, g := range grad {
			if float64(half.ToBFloat16(float32(g)).Float32()) != g {
				exact++
			}
		}
		require.Greater(t, exact, len(grad)/2, params[i].Name)
	}
}

// TestLossStaysFloat32 adds a single number in bfloat16 to a loss in float32.
func TestLossStaysFloat32(t *testing.T) {
	tr := halfTrial(t, []exec.Param{{Name: "w", Shape: []int{1}}}, []int{1, 70}, func(b *exec.Builder, x *G.Node) *G.Node {
		loss := must(G.Sum(must(G.HadamardProd(x, x))))
		return must(G.Add(must(exec.NewView(loss, 0, 1)), must(b.Param("w"))))
	})
	require.Equal(t, []bool{false}, tr.Unit.OutHalf)
	got := tr.Run(t).Out[0][0]
	require.NotEqual(t, float64(half.ToBFloat16(float32(got)).Float32()), got)
}
