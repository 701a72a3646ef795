package ops_test

import (
	"hash"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// hole says what a row leaves out, if anything.
func hole(r *exec.Row) string {
	switch {
	case r.Kind == "":
		return "Kind"
	case r.Doc == "":
		return "Doc"
	case r.FLOPs == nil:
		return "FLOPs"
	case (r.Diff > 0) != (r.Grad != nil):
		return "Diff or Grad"
	case r.Kind == exec.KindStock: // Gorgonia has the rest
	case r.Shapes == "":
		return "Shapes"
	case r.F32 == nil || r.F64 == nil || r.Naive == nil:
		return "Kernels"
	}
	return ""
}

// TestTableHasNoHoles refuses a row that leaves something out, and two rows of one kind.
func TestTableHasNoHoles(t *testing.T) {
	seen := make(map[exec.Kind]bool)
	for _, r := range ops.Table() {
		require.Empty(t, hole(r), r.Kind)
		require.False(t, seen[r.Kind], r.Kind)
		seen[r.Kind] = true
	}
	whole := *ops.Table()[len(ops.Table())-1]
	for want, change := range map[string]func(*exec.Row){
		"Kind": func(r *exec.Row) { r.Kind = "" }, "Doc": func(r *exec.Row) { r.Doc = "" },
		"FLOPs": func(r *exec.Row) { r.FLOPs = nil }, "Diff or Grad": func(r *exec.Row) { r.Diff = 1 },
		"Shapes": func(r *exec.Row) { r.Shapes = "" }, "Kernels": func(r *exec.Row) { r.Naive = nil },
	} {
		r := whole
		change(&r)
		require.Equal(t, want, hole(&r))
	}
}

// An interpreter runs programs from what Program.All says of them, as another engine does.
type interpreter struct {
	*testing.T
	memory map[exec.Space][][]byte
	seen   map[exec.Kind]bool
}

func (m *interpreter) value(o exec.Operand) exec.Value {
	for o.Space == exec.SpaceBlock && o.Index >= len(m.memory[o.Space]) {
		m.memory[o.Space] = append(m.memory[o.Space], make([]byte, 1<<16))
	}
	return exec.Value{Shape: o.Shape, DType: o.DType, Bytes: m.memory[o.Space][o.Index][o.Offset:][:o.Bytes], Form: o.Form}
}

// bind makes the memory of c that of p.
func (m *interpreter) bind(p *exec.Program, c *exec.Call) {
	m.memory = map[exec.Space][][]byte{
		exec.SpaceWork: {c.Work}, exec.SpaceSaved: {c.Saved}, exec.SpaceParam: c.Param, exec.SpaceIn: c.In, exec.SpaceOut: c.Out,
		exec.SpaceGradOut: c.GradOut, exec.SpaceGradIn: c.GradIn, exec.SpaceGradParam: c.GradParam, exec.SpaceUpdate: c.Update,
		exec.SpaceConst: nil,
	}
	for _, v := range p.Consts() {
		m.memory[exec.SpaceConst] = append(m.memory[exec.SpaceConst], v.Bytes)
	}
}

// run runs p on the memory of c. Every instruction must compute the same by all its kernels.
func (m *interpreter) run(p *exec.Program, c *exec.Call) {
	m.bind(p, c)
	for in := range p.All() {
		require.Equal(m, reflect.TypeOf(in.Op.Attr), reflect.TypeOf(in.Op.Attrs), in.Op)
		require.True(m, in.Op.Attrs == nil || reflect.TypeOf(in.Op.Attrs).Comparable(), in.Op)
		m.seen[in.Op.Kind] = true
		f := exec.Frame{
			Op: in.Op, Acc: in.Acc, Kernel: new(kernel.Context), Seed: c.Seed, Train: c.Train,
			Scratch: make([]byte, in.Scratch.Bytes),
		}
		for _, o := range in.In {
			f.In = append(f.In, m.value(o))
		}
		out := m.value(in.Out)
		want, single := f, narrow(f)
		want.Out, single.Out = copied(out), narrowed(out)
		require.NoError(m, in.Op.Naive(&want), in.Op)
		require.NoError(m, in.Op.F32(&single), in.Op)
		f.Out = out
		require.NoError(m, in.Op.F64(&f), in.Op)
		for i, w := range exec.Data[float64](want.Out.Bytes) {
			require.InDelta(m, w, exec.Data[float64](out.Bytes)[i], 1e-12*(1+math.Abs(w)), "%v, element %d", in.Op, i)
			require.InDelta(m, w, exec.Data[float32](single.Out.Bytes)[i], 1e-5*(1+math.Abs(w)), "%v, element %d", in.Op, i)
		}
	}
}

func copied(v exec.Value) exec.Value { v.Bytes = slices.Clone(v.Bytes); return v }

// narrowed returns v in float32, unless it holds integers.
func narrowed(v exec.Value) exec.Value {
	if v.DType == tensor.Int {
		return copied(v)
	}
	s := make([]float32, v.Len())
	for i, x := range exec.Data[float64](v.Bytes) {
		s[i] = float32(x)
	}
	return exec.Value{Shape: v.Shape, DType: tensor.Float32, Bytes: exec.Bytes(s)}
}

// trials returns the trial of an operation, and the same for a device if it has another program
// there.
func trials(t *testing.T, op operation) []*exectest.Trial {
	t.Helper()
	tr := trial(t, op.f, op.ints, op.intShape, op.shapes...)
	if strings.HasPrefix(op.name, "sums of ") || strings.HasPrefix(op.name, "linear loss") || op.name == "product of gelu" {
		return []*exectest.Trial{tr, tr.Apart(t)}
	}
	return []*exectest.Trial{tr}
}

// kinds lists the kinds of a program.
func kinds(p *exec.Program) (list []exec.Kind) {
	for in := range p.All() {
		list = append(list, in.Op.Kind)
	}
	return list
}

// TestEarlyLoss: a device computes the logits of a loss once if the weight or the bias is trained,
// and not the gradient of the weight if neither is.
func TestEarlyLoss(t *testing.T) {
	for _, shapes := range [][][]int{{{2, 3, 4}, {5, 4}}, {{2, 3, 4}, {5, 4}, {5}}} {
		host := trial(t, linearLoss(kernel.Loss{Ignore: -1}), []float64{4, -1, 0, 2, 2, -1}, []int{2, 3}, shapes...)
		early, late := []exec.Kind{ops.KindEarlyLoss, ops.KindEarlyLossDW}, []exec.Kind{ops.KindLinearLoss, ops.KindLinearLossGradW}
		if len(shapes) == 3 {
			early, late = []exec.Kind{ops.KindEarlyLossB, ops.KindEarlyLossDWDB}, []exec.Kind{ops.KindLinearLoss, ops.KindLinearLossGradWB}
		}
		for first := range shapes { // arguments before this one need no gradient
			freeze := func(sig *exec.Signature, apart bool) {
				sig.Apart, sig.Inputs = apart, slices.Clone(sig.Inputs)
				for i := range first {
					sig.Inputs[i].Grad = false
				}
			}
			want := host.Changed(t, func(sig *exec.Signature) { freeze(sig, false) })
			got := host.Changed(t, func(sig *exec.Signature) { freeze(sig, true) })
			require.Equal(t, late[0], kinds(want.Unit.Forward)[0])
			require.Contains(t, kinds(want.Unit.Backward), late[1])
			require.Equal(t, early[0], kinds(got.Unit.Forward)[0])
			require.Contains(t, kinds(got.Unit.Backward), early[1])
			exectest.RequireClose(t, want.Run(t), got.Run(t), 1e-13)
		}
		frozen := host.Changed(t, func(sig *exec.Signature) {
			sig.Apart, sig.Inputs = true, slices.Clone(sig.Inputs)
			for i := range sig.Inputs {
				sig.Inputs[i].Grad = i == 0
			}
		})
		require.Equal(t, ops.KindLinearLoss, kinds(frozen.Unit.Forward)[0])
	}
}

// TestSumsOfNorms: on a device the gradient of a norm adds to another value, once for all its
// results.
func TestSumsOfNorms(t *testing.T) {
	for _, op := range operations {
		if op.name != "sums of layer norms" && op.name != "sums of rms norms" {
			continue
		}
		tr := trial(t, op.f, nil, nil, op.shapes...)
		apart := tr.Apart(t)
		exectest.RequireClose(t, tr.Run(t), apart.Run(t), 1e-12)
		require.Contains(t, kinds(tr.Unit.Backward), exec.KindAdd)
		list := kinds(apart.Unit.Backward)
		require.NotContains(t, list, exec.KindAdd)
		list = slices.DeleteFunc(list, func(k exec.Kind) bool { return !strings.HasSuffix(string(k), " norm grad") })
		require.Len(t, list, 1)
		require.Contains(t, []exec.Kind{ops.KindAddLayerNormGrad, ops.KindAddRMSNormGrad}, list[0])
	}
}

// TestSumsOfProducts: on a device products add to other values, whatever is saved, and bits do not
// depend on it. The host has sums.
func TestSumsOfProducts(t *testing.T) {
	tr := trial(t, sumsOfProducts, nil, nil, []int{2, 3, 4}, []int{4, 4}, []int{4}, []int{4, 4})
	require.Equal(t, []exec.Kind{ops.KindLinear, exec.KindAdd, ops.KindLinear, exec.KindAdd}, kinds(tr.Unit.Forward))
	require.Contains(t, kinds(tr.Unit.Backward), exec.KindAdd)
	want := tr.Apart(t).Run(t)
	exectest.RequireClose(t, tr.Run(t), want, 1e-12)
	for _, save := range []exec.Policy{exec.Balanced, exec.SaveAll, exec.RecomputeAll} {
		apart := tr.Changed(t, func(sig *exec.Signature) { sig.Apart, sig.Save = true, save })
		require.Equal(t, []exec.Kind{ops.KindAddLinear, ops.KindAddLinear}, kinds(apart.Unit.Forward))
		require.NotContains(t, kinds(apart.Unit.Backward), exec.KindAdd)
		require.Contains(t, kinds(apart.Unit.Backward), ops.KindAddLinearGradX)
		exectest.RequireClose(t, want, apart.Run(t), 0)
	}
}

// TestProductOfGELU: on a device the product that is the gradient of GELU's result is multiplied by
// the slope of GELU, whatever is saved, and bits do not depend on it.
func TestProductOfGELU(t *testing.T) {
	tr := trial(t, productOfGELU, nil, nil, []int{2, 3, 4}, []int{5, 4}, []int{4, 5})
	require.NotContains(t, kinds(tr.Unit.Backward), ops.KindGELULinearGradX)
	want := tr.Apart(t).Run(t)
	exectest.RequireClose(t, tr.Run(t), want, 1e-12)
	for _, save := range []exec.Policy{exec.Balanced, exec.SaveAll, exec.RecomputeAll} {
		apart := tr.Changed(t, func(sig *exec.Signature) { sig.Apart, sig.Save = true, save })
		require.Contains(t, kinds(apart.Unit.Backward), ops.KindGELULinearGradX)
		require.NotContains(t, kinds(apart.Unit.Backward), ops.KindGELUTanhGrad)
		exectest.RequireClose(t, want, apart.Run(t), 0)
	}
}

// narrow returns f on arguments in float32.
func narrow(f exec.Frame) exec.Frame {
	f.In, f.Scratch = slices.Clone(f.In), make([]byte, len(f.Scratch)/2)
	for i, v := range f.In {
		f.In[i] = narrowed(v)
	}
	return f
}

// compilerSpec is a module in which every operation that the compiler emits by itself has a part:
// two outputs that are one value, a view as an output, a sum, and a second input that nothing
// depends on.
var compilerSpec = &exec.Spec{Build: func(_ *exec.Builder, x []*G.Node) (G.Nodes, error) {
	y, err := ops.GELU(x[0])
	if err != nil {
		return nil, err
	}
	y = G.Must(G.Add(y, x[0]))
	v, err := exec.NewView(y, 0, 6)
	return G.Nodes{y, y, v}, err
}}

// TestKernelsEqualNaive interprets the programs of every operation and of its gradient. Each kernel
// computes what the naive reference does, and the whole what the Runner does, to the bit. Every row
// of the table takes part.
func TestKernelsEqualNaive(t *testing.T) {
	// Views and constants are no instructions, stock operations have no kernels, and float64 is not
	// converted.
	m := &interpreter{T: t, seen: map[exec.Kind]bool{
		exec.KindView: true, ops.KindAngles: true, exec.KindStock: true, exec.KindConvert: true,
	}}
	check := func(tr *exectest.Trial) {
		want := tr.Run(t)
		c := tr.Call()
		m.run(tr.Unit.Forward, c)
		require.Equal(t, want.Out[0], exec.Data[float64](c.Out[0]))
		tr.Turn(c)
		m.run(tr.Unit.Backward, c)
		for i, g := range want.GradIn {
			require.Equal(t, len(g), len(exec.Data[float64](c.GradIn[i])))
			for j, w := range g {
				require.Equal(t, math.Float64bits(w), math.Float64bits(exec.Data[float64](c.GradIn[i])[j]))
			}
		}
	}
	for _, op := range slices.Concat(operations, native, []operation{{name: "dropout", shapes: [][]int{{3, 70}}, f: dropout(0.3, 7)}}) {
		for _, tr := range trials(t, op) {
			check(tr)
		}
	}
	sig := exectest.Signature(tensor.Float64, []int{2, 3}, []int{4})
	sig.Inputs[0].Acc, sig.GradOut = true, []bool{true, true, true}
	check(exectest.New(t, compilerSpec, sig))
	for _, r := range ops.Table() {
		require.True(t, m.seen[r.Kind], "no program has %q", r.Kind)
		delete(m.seen, r.Kind)
	}
	require.Empty(t, m.seen, "kinds that are not in the table")
}

// TestCost counts the arithmetic and the bytes of instructions by hand.
func TestCost(t *testing.T) {
	costs := func(op operation, dt tensor.Dtype) map[exec.Kind]exec.Cost {
		u := trial(t, op.f, op.ints, op.intShape, op.shapes...).As(t, dt).Unit
		all := make(map[exec.Kind]exec.Cost)
		for _, p := range []*exec.Program{u.Forward, u.Backward} {
			for in := range p.All() {
				all[in.Op.Kind] = in.Cost()
			}
		}
		return all
	}
	linear := func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return ops.Linear(x[0], x[1], x[2]) }
	const n, in, out = 2 * 3, 5, 7
	for dt, size := range map[tensor.Dtype]int{tensor.Float32: 4, tensor.Float64: 8} {
		require.Equal(t, map[exec.Kind]exec.Cost{
			ops.KindLinear:      {FLOPs: 2 * n * in * out, Read: size * (n*in + out*in + out), Written: size * n * out},
			ops.KindLinearGradX: {FLOPs: 2 * n * in * out, Read: size * (n*out + out*in), Written: size * n * in},
			ops.KindLinearGradW: {FLOPs: 2 * n * in * out, Read: size * (n*out + n*in), Written: size * out * in},
			ops.KindLinearGradB: {FLOPs: n * out, Read: size * n * out, Written: size * out},
		}, costs(operation{f: linear, shapes: [][]int{{2, 3, in}, {out, in}, {out}}}, dt))
	}
	embedding := func(_ *exec.Builder, x []*G.Node) (*G.Node, error) { return ops.Embedding(x[0], x[1]) }
	require.Equal(t, exec.Cost{Read: 8*2*3 + 8*2, Written: 8 * 2 * 3}, costs(operation{
		f: embedding, shapes: [][]int{{1000, 3}}, ints: []float64{4, 1}, intShape: []int{2},
	}, tensor.Float64)[ops.KindEmbedding], "the rows that are named, not the table")
	const heads, tokens, d = 2, 5, 4
	require.Equal(t, 4*d*tokens*(tokens+1)/2, costs(operation{
		f: attention(heads, true, false), shapes: [][]int{{1, tokens, 3 * d}},
	}, tensor.Float64)[ops.KindAttention].FLOPs, "what is hidden is not counted")

	const batch, queries, keys, window = 2, 3, 5, 2
	grouped := costs(operation{
		f:      sdpa(ops.Attention{Heads: 4, KVHeads: 2, Causal: true, Window: window}, false, false),
		shapes: [][]int{{batch, queries, 4 * d}, {batch, keys, 2 * d}, {batch, keys, 2 * d}},
	}, tensor.Float64)
	const seen = batch * queries * window * 4 * d
	require.Equal(t, [2]int{4 * seen, 10 * seen}, [2]int{grouped[ops.KindSDPA].FLOPs, grouped[ops.KindSDPAGrad].FLOPs})

	sig := exectest.Signature(tensor.Float64, []int{2, 3}, []int{4})
	sig.Inputs[0].Acc, sig.GradOut = true, []bool{true, true, true}
	for in := range exectest.New(t, compilerSpec, sig).Unit.Backward.All() {
		if in.Op.Kind == exec.KindAccumulate {
			require.Equal(t, exec.Cost{FLOPs: 6, Read: 2 * 6 * 8, Written: 6 * 8}, in.Cost())
		}
	}
}

// foreign is an operation of Gorgonia's by another type, which has no row, and by another hash.
type foreign struct{ G.Op }

func (f foreign) WriteHash(h hash.Hash) { h.Write([]byte("foreign")) }
func (f foreign) Hashcode() uint32      { return ^f.Op.Hashcode() }

// TestStockInstructions shows a stock operation by its name, with what is known of its cost.
func TestStockInstructions(t *testing.T) {
	sig := exectest.Signature(tensor.Float64, []int{2, 2})
	sig.GradOut = nil
	u := exectest.New(t, spec(unary(func(x *G.Node) (*G.Node, error) { return G.ApplyOp(foreign{G.Must(G.Tanh(x)).Op()}, x) })), sig).Unit
	for in := range u.Forward.All() {
		require.Equal(t, exec.KindStock, in.Op.Kind)
		require.Equal(t, exec.Stock{Name: "tanh"}, in.Op.Attrs)
		require.Equal(t, exec.Cost{FLOPs: 4, Read: 4 * 8, Written: 4 * 8}, in.Cost())
	}
}
