package exec_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// single runs the instructions of p one after the other, as another engine does, each on all elements
// at once.
func single(t exectest.T, p *exec.Program, c *exec.Call) {
	memory := map[exec.Space][][]byte{
		exec.SpaceWork: {c.Work}, exec.SpaceSaved: {c.Saved}, exec.SpaceParam: c.Param, exec.SpaceIn: c.In, exec.SpaceOut: c.Out,
		exec.SpaceGradOut: c.GradOut, exec.SpaceGradIn: c.GradIn, exec.SpaceGradParam: c.GradParam, exec.SpaceUpdate: c.Update,
	}
	for _, v := range p.Consts() {
		memory[exec.SpaceConst] = append(memory[exec.SpaceConst], v.Bytes)
	}
	value := func(o exec.Operand) exec.Value {
		for o.Space == exec.SpaceBlock && o.Index >= len(memory[o.Space]) {
			memory[o.Space] = append(memory[o.Space], make([]byte, 1<<20))
		}
		return exec.Value{Shape: o.Shape, DType: o.DType, Bytes: memory[o.Space][o.Index][o.Offset:][:o.Bytes], Form: o.Form}
	}
	for in := range p.All() {
		f := exec.Frame{
			Op: in.Op, Acc: in.Acc, Kernel: new(kernel.Context), Seed: c.Seed, Train: c.Train,
			Out: value(in.Out), Scratch: make([]byte, in.Scratch.Bytes),
		}
		for _, o := range in.In {
			f.In = append(f.In, value(o))
		}
		run := in.Op.F32
		switch {
		case in.Half:
			run = in.Op.BF16
		case in.Out.DType == tensor.Float64:
			run = in.Op.F64
		}
		require.NoError(t, run(&f), in.Op)
	}
}

// step makes a value of two others.
type step func(b *exec.Builder, x, y *G.Node) (*G.Node, error)

var steps = []step{
	func(_ *exec.Builder, x, _ *G.Node) (*G.Node, error) { return G.Tanh(x) },
	func(_ *exec.Builder, x, _ *G.Node) (*G.Node, error) { return G.Sigmoid(x) },
	func(_ *exec.Builder, x, _ *G.Node) (*G.Node, error) { return G.Neg(x) },
	func(_ *exec.Builder, x, _ *G.Node) (*G.Node, error) { return ops.GELU(x) },
	func(_ *exec.Builder, x, _ *G.Node) (*G.Node, error) { return ops.Dropout(x, 0.25, 3) },
	func(_ *exec.Builder, x, y *G.Node) (*G.Node, error) { return G.Add(x, y) },
	func(_ *exec.Builder, x, y *G.Node) (*G.Node, error) { return G.Sub(x, y) },
	func(_ *exec.Builder, x, y *G.Node) (*G.Node, error) { return G.HadamardProd(x, y) },
	func(_ *exec.Builder, x, y *G.Node) (*G.Node, error) { return G.Gt(x, y, true) },
	func(b *exec.Builder, x, _ *G.Node) (*G.Node, error) { return G.HadamardProd(b.Const(0.5), x) },
	func(b *exec.Builder, x, _ *G.Node) (*G.Node, error) { return G.Add(x, b.Const(1)) },
	func(_ *exec.Builder, x, y *G.Node) (*G.Node, error) { return G.HadamardProd(x, G.Must(G.Mean(y))) },
	func(_ *exec.Builder, x, y *G.Node) (*G.Node, error) {
		return G.BroadcastHadamardProd(x, G.Must(G.Mean(y, 0)), nil, []byte{0})
	},
	func(_ *exec.Builder, x, y *G.Node) (*G.Node, error) {
		return G.BroadcastAdd(x, G.Must(G.Mean(y, 1)), nil, []byte{1})
	},
	func(_ *exec.Builder, x, y *G.Node) (*G.Node, error) { // of other elements of y
		return G.Gt(x, G.Must(exec.NewView(y, 1)), true)
	},
}

// TestFusionKeepsBits draws modules of element-wise operations and some others, with values that are
// used once and more often, as outputs and in backward, and gradients that are added to. What runs
// block by block, on any number of threads, has the bits of single instructions.
func TestFusionKeepsBits(t *testing.T) {
	type choice struct{ step, x, y int }
	rapid.Check(t, func(t *rapid.T) {
		shape := []int{rapid.SampledFrom([]int{5, 1000, 1097}).Draw(t, "rows"), rapid.SampledFrom([]int{33, 64}).Draw(t, "columns")}
		var choices []choice
		for i := range rapid.IntRange(2, 12).Draw(t, "steps") {
			of := func(name string) int { return max(0, 2+i-rapid.IntRange(1, 4).Draw(t, name)) }
			choices = append(choices, choice{rapid.IntRange(0, len(steps)-1).Draw(t, "step"), of("x"), of("y")})
		}
		outs := rapid.SliceOfNDistinct(rapid.IntRange(2, len(choices)), 0, 2, rapid.ID).Draw(t, "outputs")
		spec := &exec.Spec{Build: func(b *exec.Builder, in []*G.Node) (G.Nodes, error) {
			values := G.Nodes{in[0], in[1]}
			for _, c := range choices {
				y, err := steps[c.step](b, values[c.x], values[c.y])
				if err != nil {
					return nil, err
				}
				values = append(values, y)
			}
			list := G.Nodes{values[len(values)-1]}
			for _, i := range outs {
				if values[i] != list[0] {
					list = append(list, values[i])
				}
			}
			return list, nil
		}}
		sig := exectest.Signature(rapid.SampledFrom([]tensor.Dtype{tensor.Float32, tensor.Float64}).Draw(t, "type"), shape, shape)
		sig.Inputs[0].Acc, sig.Inputs[1].Acc = rapid.Bool().Draw(t, "acc"), rapid.Bool().Draw(t, "acc")
		sig.Threads, sig.Save = rapid.IntRange(1, 3).Draw(t, "threads"), rapid.SampledFrom([]exec.Policy{exec.Balanced, exec.SaveAll, exec.RecomputeAll}).Draw(t, "policy")
		tr := exectest.New(t, spec, sig)
		if sig.DType == tensor.Float32 && rapid.Bool().Draw(t, "half") {
			tr = tr.Half(t)
		}
		var r exec.Runner
		r.Team.Start(sig.Threads)
		defer r.Team.Close()
		fused, apart := tr.Call(), tr.Call()
		require.NoError(t, r.Forward(tr.Unit, fused))
		single(t, tr.Unit.Forward, apart)
		require.Equal(t, apart.Out, fused.Out)
		require.Equal(t, apart.Saved, fused.Saved)
		tr.Turn(fused)
		tr.Turn(apart)
		require.NoError(t, r.Backward(tr.Unit, fused))
		single(t, tr.Unit.Backward, apart)
		require.Equal(t, apart.GradIn, fused.GradIn)
	})
}

// TestFusionNeedsNoMemory runs SwiGLU, x·σ(x)·y, and its gradient. What is between arguments and
// results takes blocks only, and costs no time of the memory's.
func TestFusionNeedsNoMemory(t *testing.T) {
	const n = 1 << 18
	sig := exectest.Signature(tensor.Float32, []int{n}, []int{n})
	sig.Save = exec.RecomputeAll
	tr := exectest.New(t, &exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		return G.HadamardProd(G.Must(G.HadamardProd(x[0], G.Must(G.Sigmoid(x[0])))), x[1])
	})}, sig)
	for _, c := range []struct {
		p             *exec.Program
		read, written int // values as long as x
	}{{tr.Unit.Forward, 3, 1}, {tr.Unit.Backward, 7, 2}} {
		cost := exec.Cost{}
		for in := range c.p.All() {
			one := in.Cost()
			cost.Read, cost.Written = cost.Read+one.Read, cost.Written+one.Written
			require.NotEqual(t, exec.SpaceWork, in.Out.Space)
		}
		require.Equal(t, exec.Cost{Read: 4 * n * c.read, Written: 4 * n * c.written}, cost)
		require.Less(t, c.p.Work, n/2)
	}
}
