package op

import (
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// GELU returns x·Φ(x) for x [...], with Φ the normal distribution function (Hendrycks and Gimpel,
// 2016, arXiv:1606.08415).
func GELU(x *gorgonia.Node) (*gorgonia.Node, error) { return ops.GELU(x) }

// GELUTanh returns the tanh approximation of GELU for x [...], 0.5x(1 + tanh(sqrt(2/π)(x +
// 0.044715x³))).
func GELUTanh(x *gorgonia.Node) (*gorgonia.Node, error) { return ops.GELUTanh(x) }

// SiLU returns x·σ(x) for x [...], σ(x) = 1/(1 + e⁻ˣ): the sigmoid linear unit, or swish (Elfwing
// et al., 2017, arXiv:1702.03118).
func SiLU(x *gorgonia.Node) (*gorgonia.Node, error) { return ops.SiLU(x) }

// Tanh returns tanh(x) for x [...].
func Tanh(x *gorgonia.Node) (*gorgonia.Node, error) { return ops.Tanh(x) }

// Sigmoid returns σ(x) = 1/(1 + e⁻ˣ) for x [...].
func Sigmoid(x *gorgonia.Node) (*gorgonia.Node, error) { return ops.Sigmoid(x) }

// Softmax returns exp(x) / Σ exp(x) along the last axis of x [..., d].
func Softmax(x *gorgonia.Node) (*gorgonia.Node, error) { return ops.Softmax(x, false) }

// LogSoftmax returns x - log Σ exp(x) along the last axis of x [..., d].
func LogSoftmax(x *gorgonia.Node) (*gorgonia.Node, error) { return ops.Softmax(x, true) }

// SwiGLU returns silu(gate)·up, element by element, for gate and up [..., d]: the gated linear unit
// of Llama (Shazeer, 2020, arXiv:2002.05202). With up nil, gate is [..., 2*d], and its rows hold
// gate and then up, as one product makes them. It is one pass over memory in each direction.
func SwiGLU(gate, up *gorgonia.Node) (*gorgonia.Node, error) { return ops.GLU(vec.GateSiLU, gate, up) }

// GEGLU is [SwiGLU] with [GELU].
func GEGLU(gate, up *gorgonia.Node) (*gorgonia.Node, error) {
	return ops.GLU(vec.GateGELUErf, gate, up)
}

// GEGLUTanh is [SwiGLU] with [GELUTanh], as in T5 v1.1.
func GEGLUTanh(gate, up *gorgonia.Node) (*gorgonia.Node, error) {
	return ops.GLU(vec.GateGELUTanh, gate, up)
}

// ReGLU is [SwiGLU] with [ReLU].
func ReGLU(gate, up *gorgonia.Node) (*gorgonia.Node, error) { return ops.GLU(vec.GateReLU, gate, up) }

// GLU is [SwiGLU] with [Sigmoid], the gated linear unit of Dauphin et al. (2016, arXiv:1612.08083).
func GLU(gate, up *gorgonia.Node) (*gorgonia.Node, error) {
	return ops.GLU(vec.GateSigmoid, gate, up)
}

// ReLU returns max(x, 0) for x [...].
func ReLU(x *gorgonia.Node) (*gorgonia.Node, error) { return ops.ReLU(x) }

// Scale returns c·x for x [...].
func Scale(x *gorgonia.Node, c float64) (*gorgonia.Node, error) { return ops.Scale(x, c) }

// Dropout zeroes each element of x [...] with probability rate, in [0, 1), and divides the others
// by 1-rate while training; in evaluation it is the identity.
//
// The mask is a function of the seed of the call in this pass, of stream and of the element's
// index. Backward draws it again, so nothing is kept. stream is [fsdp.Builder.Stream] of a name in
// Build, or any number in a graph. No two dropouts of one graph draw the same mask: if an earlier
// one has the number, this one takes the next free number.
func Dropout(x *gorgonia.Node, rate float64, stream uint32) (*gorgonia.Node, error) {
	return ops.Dropout(x, rate, stream)
}
