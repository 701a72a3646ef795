package op

import (
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/ops"
)

// LayerNorm returns (x - mean) / sqrt(var + eps) * gain + bias over the last dimension of x [...,
// d], with gain and bias [d] and the biased variance (Ba et al., 2016, arXiv:1607.06450): [..., d].
func LayerNorm(x, gain, bias *gorgonia.Node, eps float64) (*gorgonia.Node, error) {
	return ops.LayerNorm(x, gain, bias, eps)
}

// RMSNorm returns x / sqrt(mean(x²) + eps) * gain over the last dimension of x [..., d], with gain
// [d] (Zhang and Sennrich, 2019, arXiv:1910.07467): [..., d].
func RMSNorm(x, gain *gorgonia.Node, eps float64) (*gorgonia.Node, error) {
	return ops.RMSNorm(x, gain, eps)
}

// BatchNorm returns (x - mean) / sqrt(var + eps) * gain + bias for each channel of x [B, C, ...],
// with gain, bias, runningMean and runningVar [C] (Ioffe and Szegedy, 2015, arXiv:1502.03167): y
// [B, C, ...]. So rows [B, C] have their channels last, and images [B, C, H, W] have them before
// the pixels, as for [Conv2D]. In training mean and the biased var are taken over all other
// dimensions of a channel; in evaluation they are runningMean and runningVar. All of y depends on
// the whole batch of the rank.
//
// mean and variance, each [C], are the running statistics after a forward in training: the old ones
// times 1-momentum plus the statistics of x times momentum, with the unbiased var, which is 0 for a
// single element. Pass them to [fsdp.Builder.Update]. They and the running statistics take no
// gradient. momentum is in (0, 1].
func BatchNorm(x, gain, bias, runningMean, runningVar *gorgonia.Node, eps, momentum float64) (y, mean, variance *gorgonia.Node, err error) {
	return ops.BatchNorm(x, gain, bias, runningMean, runningVar, eps, momentum)
}
