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
		y = must(ops.SelfAttention(must(ops.Linear(y, p["qkv"], nil)), nil, 2, true))
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

// products are rounded otherwise than those of float32, and so is what attention multiplies.
var products = map[exec.Kind]bool{
	ops.KindLinear: true, ops.KindAddLinear: true, ops.KindLinearGradX: true, ops.KindLinearGradW: true,
	ops.KindAttention: true, ops.KindAttentionGrad: true,
}

// TestHalfKernelsRound interprets programs in bfloat16. Each kernel must compute what that for
// float32 does with the same values, rounded, to the bit; but for products, which round otherwise.
func TestHalfKernelsRound(t *testing.T) {
	seen := make(map[exec.Kind]bool)
	for _, op := range slices.Concat(operations, native) {
		tr := trial(t, op.f, op.ints, op.intShape, op.shapes...).Half(t)
		m := &roundings{interpreter{T: t, seen: seen}}
		c := tr.Call()
		m.run(tr.Unit.Forward, c)
		tr.Turn(c)
		m.run(tr.Unit.Backward, c)
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
