//go:build linux && cgo

package ops_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
	"github.com/gofsdp/gofsdp/internal/gpu"
	"github.com/gofsdp/gofsdp/internal/gpu/gputest"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// onGPU interprets programs, as the interpreter does, and runs each instruction on a device as
// well.
type onGPU struct {
	interpreter
	*gputest.Machine
	tol float64
}

func (m *onGPU) run(p *exec.Program, c *exec.Call) {
	m.bind(p, c)
	for in := range p.All() {
		f := exec.Frame{
			Op: in.Op, Acc: in.Acc, Kernel: new(kernel.Context), Seed: c.Seed, Train: c.Train, Scratch: make([]byte, in.Scratch.Bytes),
		}
		for _, o := range in.In {
			f.In = append(f.In, m.value(o))
		}
		f.Out = m.value(in.Out)
		if gpu.Supports(in.Op.Kind) {
			m.seen[in.Op.Kind] = true
			m.Check(m.T, in, &f, m.tol)
			if in.Half || slices.ContainsFunc(slices.Concat(f.In, []exec.Value{f.Out}), func(v exec.Value) bool { return v.Form.Half }) {
				m.checkFloat16(in, f)
			}
		}
		switch {
		case in.Half:
			require.NoError(m, in.Op.BF16(&f), in.Op)
		case in.Out.DType == tensor.Float64:
			require.NoError(m, in.Op.F64(&f), in.Op)
		default:
			require.NoError(m, in.Op.F32(&f), in.Op)
		}
	}
}

// checkFloat16 checks an instruction on values of 16 bits in float16, with an eighth of the
// tolerance.
func (m *onGPU) checkFloat16(in exec.Instr, f exec.Frame) {
	m.Engine.Float16 = true
	defer func() { m.Engine.Float16 = false }()
	f.In = slices.Clone(f.In)
	for i := range f.In {
		f.In[i] = m.narrow(f.In[i])
	}
	f.Out = m.narrow(f.Out)
	m.Check(m.T, in, &f, m.tol/8)
}

// narrow returns v with its values of 16 bits in float16.
func (m *onGPU) narrow(v exec.Value) exec.Value {
	v.Bytes = slices.Clone(v.Bytes)
	if v.Form.Half {
		low, _ := v.Parts()
		for i, x := range low {
			low[i] = m.Narrow(x.Float32())
		}
	}
	return v
}

// hostOnly names the operations that package gpu refuses: see its TestWindowOnBothSides.
var hostOnly = []string{"sdpa in a window on both sides"}

// TestGPU runs every operation that GPUs have, and its gradient, on the double of a GPU, in
// float32, float64, bfloat16 and float16.
func TestGPU(t *testing.T) {
	seen := make(map[exec.Kind]bool)
	check := func(t *testing.T, tr *exectest.Trial) {
		machine := gputest.New(t)
		for _, v := range []struct {
			tr  *exectest.Trial
			tol float64
		}{{tr, 1e-12}, {tr.As(t, tensor.Float32), 1e-5}, {tr.Half(t), 1.0 / 128}} {
			m := &onGPU{interpreter{T: t, seen: seen}, machine, v.tol}
			v.tr = v.tr.Apart(t)
			c := v.tr.Call()
			m.run(v.tr.Unit.Forward, c)
			v.tr.Turn(c)
			m.run(v.tr.Unit.Backward, c)
		}
	}
	for _, op := range slices.Concat(operations, native) {
		if slices.Contains(hostOnly, op.name) {
			continue
		}
		t.Run(op.name, func(t *testing.T) { check(t, trial(t, op.f, op.ints, op.intShape, op.shapes...)) })
	}
	sig := exectest.Signature(tensor.Float64, []int{2, 3}, []int{4})
	sig.Inputs[0].Acc, sig.GradOut = true, []bool{true, true, true}
	t.Run("what the compiler emits", func(t *testing.T) { check(t, exectest.New(t, compilerSpec, sig)) })
	t.Run("all kinds", func(t *testing.T) {
		for _, r := range ops.Table() {
			switch r.Kind {
			case exec.KindStock, exec.KindView, ops.KindAngles: // no instructions, or no kernels
			default:
				require.Equal(t, gpu.Supports(r.Kind), seen[r.Kind], "%q", r.Kind)
			}
		}
	})
}
