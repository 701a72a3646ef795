package op

import (
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/ops"
)

// GELU returns x·Φ(x) for x [...], with Φ the normal distribution function (Hendrycks and Gimpel,
// 2016, arXiv:1606.08415).
func GELU(x *gorgonia.Node) (*gorgonia.Node, error) { return ops.GELU(x) }

// GELUTanh returns the tanh approximation of GELU for x [...], 0.5x(1 + tanh(sqrt(2/π)(x +
// 0.044715x³))).
func GELUTanh(x *gorgonia.Node) (*gorgonia.Node, error) { return ops.GELUTanh(x) }

// ReLU returns max(x, 0) for x [...].
func ReLU(x *gorgonia.Node) (*gorgonia.Node, error) { return ops.ReLU(x) }

// Scale returns c·x for x [...].
func Scale(x *gorgonia.Node, c float64) (*gorgonia.Node, error) { return ops.Scale(x, c) }

// Dropout zeroes each element of x [...] with probability rate, in [0, 1), and divides the others
// by 1-rate while training; in evaluation it is the identity.
//
// The mask is a function of the seed of the call in this pass, of stream and of the element's
// index: backward draws it again, and nothing is kept. stream is [fsdp.Builder.Stream] of a name in
// Build, any number in a graph. No two dropouts of one graph draw the same mask: if an earlier one
// has the number, this one takes the next that is free.
func Dropout(x *gorgonia.Node, rate float64, stream uint32) (*gorgonia.Node, error) {
	return ops.Dropout(x, rate, stream)
}
