package gpu

import (
	"errors"
	"slices"

	"github.com/gofsdp/gofsdp/internal/exec"
)

// pointwiseKinds are Gorgonia's element-wise operations.
var pointwiseKinds = map[exec.Kind]lowering{
	exec.KindUnary:   unary,
	exec.KindBinary:  binary,
	exec.KindFromInt: fromInt,
}

// These are the names of the operations, in the order of kernels/pointwise.cu.
var (
	functions = []string{
		"abs", "neg", "sqrt", "square", "cube", "inv", "invSqrt", "exp", "ln", "tanh", "sigmoid", "sign", "ceil", "floor", "sin",
		"cos", "log2", "log1p", "expm1", "softplus",
	}
	pairings = []string{"+", "-", "⊙", "÷", "^", "<", ">", "<=", ">=", "==", "!=", "min", "max"}
)

// errUnknown is the error for a function without a kernel.
var errUnknown = errors.New("there is no kernel for this function")

func unary(b *builder, in *exec.Instr) error {
	n, f := exec.Numel(in.Out.Shape), slices.Index(functions, in.Op.Attrs.(exec.Unary).Name)
	if f < 0 {
		return errUnknown
	}
	return b.each("pointwise_unary", n, in.Out, in.In[0], uint64(n), int32(f))
}

func binary(b *builder, in *exec.Instr) error {
	n, f := exec.Numel(in.Out.Shape), slices.Index(pairings, in.Op.Attrs.(exec.Binary).Sign)
	if f < 0 {
		return errUnknown
	}
	var form [2]int32
	for i, o := range in.In {
		if exec.Numel(o.Shape) < n {
			form[i] |= 1
		}
		if in.Half && !o.Form.Half {
			form[i] |= 2
		}
	}
	return b.each("pointwise_binary", n, in.Out, in.In[0], in.In[1], uint64(n), form[0], form[1], int32(f))
}

func fromInt(b *builder, in *exec.Instr) error {
	n := exec.Numel(in.Out.Shape)
	return b.each("pointwise_fromint", n, in.Out, in.In[0], uint64(n))
}
