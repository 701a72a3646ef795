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

// hostOnly names the operations that package gpu refuses: see its TestWindowOnBothSides.
var hostOnly = []string{"sdpa in a window on both sides"}

// TestGPU runs every operation that GPUs have, and its gradient, on the double of a GPU, in
// float32, float64 and bfloat16.
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
