package op

import (
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// Conv configures the kernel of [Conv2D] on an image. Pairs are of rows and columns.
type Conv struct {
	// Stride is the distance of neighbouring positions of the kernel. 0 means 1.
	Stride [2]int
	// Pad is the number of zeros before and after each row and column.
	Pad [2]int
	// Dilation is the distance of the pixels under neighbouring elements of the kernel. 0 means 1.
	Dilation [2]int
	// Groups divides the channels: output channels of a group see only the input channels of the
	// same group. 0 means 1. As many groups as channels are a depthwise convolution.
	Groups int
}

// Conv2D returns the convolution (cross-correlation, as everywhere in deep learning) of images x
// [B, C, H, W] with filters w [O, C/Groups, K, L], plus bias [O] unless that is nil: [B, O, P, Q]
// with
//
//	P = (H + 2·Pad - Dilation·(K-1) - 1)/Stride + 1
//
// rows, rounded down, and columns likewise. x, w and bias take gradients.
//
// It is a matrix product over pixels that are copied a few rows at a time (implicit im2col,
// Chellapilla et al., 2006), so it needs little memory in addition to the result, for images of any
// size. Its scratch is in the plan. The gradient of x is a convolution, too. Threads share images
// and rows, and input channels for the gradient of w. A group of one or a few channels is slower
// for each multiply-add. bfloat16 is widened, and computed in float32.
//
// Errors: channels that do not fit, a kernel larger than the padded image, a Stride, Dilation or
// Groups below 1, a negative Pad.
func Conv2D(x, w, bias *gorgonia.Node, c Conv) (*gorgonia.Node, error) {
	return ops.Conv2D(x, w, bias, exec.Conv{Stride: or(c.Stride, one), Pad: c.Pad, Dilation: or(c.Dilation, one), Groups: max(1, c.Groups)})
}

// Pool configures the windows of [MaxPool2D] and [AvgPool2D]. Pairs are of rows and columns.
type Pool struct {
	// Kernel is the size of a window.
	Kernel [2]int
	// Stride is the distance of neighbouring windows. 0 means Kernel: side by side.
	Stride [2]int
	// Pad is how far windows reach beyond the image on each side, at most half of Kernel.
	Pad [2]int
}

// MaxPool2D returns the largest element of each window of each channel of x [B, C, H, W], or NaN if
// there is one: [B, C, P, Q] with P = (H + 2·Pad - Kernel)/Stride + 1 rows, rounded down, and
// columns likewise. Padding is never the largest. The gradient goes to the largest element, the
// first one row by row if several are equal.
func MaxPool2D(x *gorgonia.Node, p Pool) (*gorgonia.Node, error) {
	return ops.MaxPool2D(x, p.windows())
}

// AvgPool2D returns the mean of each window of each channel of x [B, C, H, W], with the same shape
// as [MaxPool2D]. Padding counts as zeros, as in PyTorch by default.
func AvgPool2D(x *gorgonia.Node, p Pool) (*gorgonia.Node, error) {
	return ops.AvgPool2D(x, p.windows())
}

func (p Pool) windows() exec.Pool {
	return exec.Pool{Kernel: p.Kernel, Stride: or(p.Stride, p.Kernel), Pad: p.Pad}
}

// GroupNorm returns (x - mean) / sqrt(var + eps) * gain + bias for x [B, C, ...], with gain and
// bias [C] (Wu and He, 2018, arXiv:1803.08494): [B, C, ...]. mean and the biased var are taken over
// an example's group of C/groups channels and all dimensions after them. With one group it is a
// LayerNorm of whole images with a gain for each channel, with as many groups as channels an
// InstanceNorm.
func GroupNorm(x, gain, bias *gorgonia.Node, groups int, eps float64) (*gorgonia.Node, error) {
	return ops.GroupNorm(x, gain, bias, groups, eps)
}

var one = [2]int{1, 1}

// or returns p, with the values of d in place of zeros.
func or(p, d [2]int) [2]int {
	for i := range p {
		if p[i] == 0 {
			p[i] = d[i]
		}
	}
	return p
}
