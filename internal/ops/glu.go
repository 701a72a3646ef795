package ops

import (
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/bf16"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Gated is the attribute of gated linear units: the activation of the gate.
type Gated struct{ Act vec.Gate }

// GLU returns act(gate)·up, element by element. If up is nil, each row of gate [..., 2*d] holds the
// gate followed by the values that it scales, and the result is [..., d].
func GLU(act vec.Gate, gate, up *G.Node) (*G.Node, error) {
	if up == nil {
		return packedGLU.Apply(Gated{act}, gate)
	}
	return glu.Apply(Gated{act}, gate, up)
}

var glu = &exec.Row{
	Kind: KindGLU, Attr: Gated{}, Doc: "act(gate)·up", Shapes: "gate [...], up [...] -> y [...]",
	Kernels: kernels(runGLU(vec.GLU[float32]), runGLU(vec.GLU[float64]), runGLU(kernel.NaiveGLU)),
	BF16:    gluHalf, BF16Scratch: exec.ElementScratch,
	FLOPs: func(o *exec.Op) int { return gateFLOPs(o) * exec.Numel(o.Shape) }, Cheap: true, InPlace: true, Split: exec.ByElement, Diff: 2,
	Grad: func(o *exec.Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
		return o.Gradient(gluGrad, in[0], in[1], dy)
	},
}

var gluGrad = &exec.Row{
	Kind: KindGLUGrad, Attr: Gated{}, Doc: "dy·up times the slope of act at gate, and dy·act(gate)",
	Shapes:  "gate, up, dy -> dgate [...] | dup [...]",
	Kernels: kernels(runGLUGrad(vec.GLUGrad[float32]), runGLUGrad(vec.GLUGrad[float64]), runGLUGrad(kernel.NaiveGLUGrad)),
	BF16:    gluGradHalf, BF16Scratch: func(*exec.Op) int { return bf16.GLUGradScratch },
	FLOPs: func(o *exec.Op) int { return 2 * gateFLOPs(o) * exec.Numel(o.In[0]) }, Split: exec.ByKernel,
}

var packedGLU = &exec.Row{
	Kind: KindPackedGLU, Attr: Gated{}, Doc: "act(gate)·up, of gate and up one after the other in each row of x",
	Shapes: "x [... 2*d] -> y [... d]",
	Fit: func(o *exec.Op) error {
		if o.Dim("2*d")%2 != 0 {
			return fmt.Errorf("x is %v, want [... 2*d]", o.In[0])
		}
		o.SetDim("d", o.Dim("2*d")/2)
		return nil
	},
	Kernels: kernels(runPackedGLU(vec.GLU[float32]), runPackedGLU(vec.GLU[float64]), runPackedGLU(kernel.NaiveGLU)),
	BF16:    packedGLUHalf, BF16Scratch: exec.ElementScratch,
	FLOPs: func(o *exec.Op) int { return gateFLOPs(o) * exec.Numel(o.Shape) }, Cheap: true, Split: exec.ByKernel, Diff: 1,
	Grad: func(o *exec.Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
		return o.Gradient(packedGLUGrad, in[0], dy)
	},
}

var packedGLUGrad = &exec.Row{
	Kind: KindPackedGLUGrad, Attr: Gated{}, Doc: "the gradients of packed glu, one after the other in each row",
	Shapes:  "x, dy -> dx [... 2*d]",
	Kernels: kernels(runPackedGLUGrad(vec.GLUGrad[float32]), runPackedGLUGrad(vec.GLUGrad[float64]), runPackedGLUGrad(kernel.NaiveGLUGrad)),
	BF16:    packedGLUGradHalf, BF16Scratch: func(*exec.Op) int { return bf16.GLUGradScratch },
	FLOPs: func(o *exec.Op) int { return gateFLOPs(o) * exec.Numel(o.Shape) }, InPlace: true, Split: exec.ByKernel,
}

// gateFLOPs returns the FLOPs for an element of a gated linear unit.
func gateFLOPs(o *exec.Op) int {
	return [...]int{vec.GateSiLU: 5, vec.GateGELUErf: 6, vec.GateGELUTanh: 10, vec.GateReLU: 2, vec.GateSigmoid: 5}[act(o)]
}

func act(o *exec.Op) vec.Gate { return o.Attrs.(Gated).Act }

func runGLU[T kernel.Element](run func(act vec.Gate, y, gate, up []T)) exec.Kernel {
	return func(f *exec.Frame) error { run(act(f.Op), result[T](f), arg[T](f, 0), arg[T](f, 1)); return nil }
}

func runGLUGrad[T kernel.Element](run func(act vec.Gate, dgate, dup, gate, up, dy []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		gate, out := arg[T](f, 0), result[T](f)
		dgate, dup := out[:len(gate)], out[len(gate):]
		lo, hi := f.Kernel.Share(len(gate), 64) // whole cache lines
		run(act(f.Op), dgate[lo:hi], dup[lo:hi], gate[lo:hi], arg[T](f, 1)[lo:hi], arg[T](f, 2)[lo:hi])
		return nil
	}
}

func runPackedGLU[T kernel.Element](run func(act vec.Gate, y, gate, up []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		d, x, y := f.Op.Dim("d"), arg[T](f, 0), result[T](f)
		lo, hi := f.Kernel.Share(f.Op.Dim("..."), 1)
		for i := lo; i < hi; i++ {
			row := x[2*i*d:][:2*d]
			run(act(f.Op), y[i*d:][:d], row[:d], row[d:])
		}
		return nil
	}
}

func runPackedGLUGrad[T kernel.Element](run func(act vec.Gate, dgate, dup, gate, up, dy []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		d, x, dx, dy := f.Op.Dim("d"), arg[T](f, 0), result[T](f), arg[T](f, 1)
		lo, hi := f.Kernel.Share(f.Op.Dim("..."), 1)
		for i := lo; i < hi; i++ {
			row, drow := x[2*i*d:][:2*d], dx[2*i*d:][:2*d]
			run(act(f.Op), drow[:d], drow[d:], row[:d], row[d:], dy[i*d:][:d])
		}
		return nil
	}
}

// halfGLU is vec.GLU for bfloat16.
func halfGLU(f *exec.Frame) func(act vec.Gate, y, gate, up []half.BFloat16) {
	return func(act vec.Gate, y, gate, up []half.BFloat16) {
		bf16.GLU(act, y, gate, up, wide(f))
	}
}

func gluHalf(f *exec.Frame) error       { return runGLU(halfGLU(f))(f) }
func packedGLUHalf(f *exec.Frame) error { return runPackedGLU(halfGLU(f))(f) }

// halfGLUGrad is vec.GLUGrad for bfloat16.
func halfGLUGrad(f *exec.Frame) func(act vec.Gate, dgate, dup, gate, up, dy []half.BFloat16) {
	return func(act vec.Gate, dgate, dup, gate, up, dy []half.BFloat16) {
		bf16.GLUGrad(act, dgate, dup, gate, up, dy, wide(f))
	}
}

func gluGradHalf(f *exec.Frame) error       { return runGLUGrad(halfGLUGrad(f))(f) }
func packedGLUGradHalf(f *exec.Frame) error { return runPackedGLUGrad(halfGLUGrad(f))(f) }
