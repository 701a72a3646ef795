package gpu

import (
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// These are the activations, with the numbers of kernels/activation.cu.
const (
	actGELU int32 = iota
	actGELUTanh
	actSiLU
	actTanh
	actSigmoid
	actReLU
)

// activationKinds are the activations and the gated linear units.
var activationKinds = map[exec.Kind]lowering{
	ops.KindGELU:          activation(actGELU),
	ops.KindGELUTanh:      activation(actGELUTanh),
	ops.KindSiLU:          activation(actSiLU),
	ops.KindTanh:          activation(actTanh),
	ops.KindSigmoid:       activation(actSigmoid),
	ops.KindReLU:          activation(actReLU),
	ops.KindGELUGrad:      activationGrad(actGELU),
	ops.KindGELUTanhGrad:  activationGrad(actGELUTanh),
	ops.KindSiLUGrad:      activationGrad(actSiLU),
	ops.KindTanhGrad:      activationGrad(actTanh),
	ops.KindSigmoidGrad:   activationGrad(actSigmoid),
	ops.KindReLUGrad:      activationGrad(actReLU),
	ops.KindGLU:           glu,
	ops.KindGLUGrad:       gluGrad,
	ops.KindPackedGLU:     packedGLU,
	ops.KindPackedGLUGrad: packedGLUGrad,
	ops.KindScale:         scale,
}

// lots returns the number of threads for a kernel of kernels/map.h over n elements.
func (b *builder) lots(n int) int {
	if b.size() == 2 {
		return parts(n, 8)
	}
	return n
}

func activation(f int32) lowering {
	return func(b *builder, in *exec.Instr) error {
		n := exec.Numel(in.Out.Shape)
		return b.each("activation_forward", b.lots(n), in.Out, in.In[0], uint64(n), f)
	}
}

func activationGrad(f int32) lowering {
	return func(b *builder, in *exec.Instr) error {
		n := exec.Numel(in.Out.Shape)
		return b.each("activation_backward", b.lots(n), in.Out, in.In[0], in.In[1], uint64(n), f)
	}
}

func scale(b *builder, in *exec.Instr) error {
	n := exec.Numel(in.Out.Shape)
	return b.each("activation_scale", b.lots(n), in.Out, in.In[0], uint64(n), in.Op.Attrs.(ops.Factor).C)
}

// gates are the activations of gated linear units.
var gates = map[vec.Gate]int32{
	vec.GateSiLU: actSiLU, vec.GateGELUErf: actGELU, vec.GateGELUTanh: actGELUTanh, vec.GateReLU: actReLU, vec.GateSigmoid: actSigmoid,
}

func gate(in *exec.Instr) int32 { return gates[in.Op.Attrs.(ops.Gated).Act] }

// elementAddress returns the address of element n of an operand.
func elementAddress(o exec.Operand, n int) address {
	size := int(o.DType.Size())
	if o.Form.Half {
		size = 2
	}
	return operandAddress(o).plus(n * size)
}

func glu(b *builder, in *exec.Instr) error {
	n := exec.Numel(in.Out.Shape)
	return b.each("activation_glu", b.lots(n), in.Out, in.In[0], in.In[1], uint64(1), uint64(n), uint64(0), gate(in))
}

func gluGrad(b *builder, in *exec.Instr) error {
	n := exec.Numel(in.In[0].Shape)
	return b.each("activation_glugrad", b.lots(n), in.Out, elementAddress(in.Out, n), in.In[0], in.In[1], in.In[2],
		uint64(1), uint64(n), uint64(0), gate(in))
}

func packedGLU(b *builder, in *exec.Instr) error {
	rows, d := in.Op.Dim("..."), in.Op.Dim("d")
	return b.each("activation_glu", rows*b.lots(d), in.Out, in.In[0], elementAddress(in.In[0], d), uint64(rows), uint64(d), uint64(2*d), gate(in))
}

func packedGLUGrad(b *builder, in *exec.Instr) error {
	rows, d := in.Op.Dim("..."), in.Op.Dim("d")
	return b.each("activation_glugrad", rows*b.lots(d), in.Out, elementAddress(in.Out, d), in.In[0], elementAddress(in.In[0], d), in.In[1],
		uint64(rows), uint64(d), uint64(2*d), gate(in))
}
