package op

import (
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// CrossEntropy returns the mean of -log softmax(logits)[target] over the targets that are not
// ignore, in nats, for logits [..., classes] and targets, ints [...]: shape [1]. If no target
// counts it is 0, and so is its gradient. A target that is neither ignore nor in [0, classes) is an
// error of the pass.
func CrossEntropy(logits, targets *gorgonia.Node, ignore int) (*gorgonia.Node, error) {
	return ops.CrossEntropy(logits, targets, ignore)
}

// Loss configures the loss of a row of logits l with target t. With lse = log Σ exp(l) it is
//
//	lse - (1-Smoothing)·l[t] - Smoothing·mean(l) + Z·lse²
//
// in nats. The zero value is plain cross-entropy that ignores target 0.
type Loss struct {
	// Ignore is the target that does not count.
	Ignore int
	// Smoothing, in [0, 1], is the part of a target's probability that all classes share (label
	// smoothing, Szegedy et al., 2015, arXiv:1512.00567; label_smoothing in PyTorch).
	Smoothing float64
	// Z is the weight of the z-loss, which keeps lse near 0; PaLM has 1e-4 (Chowdhery et al., 2022,
	// arXiv:2204.02311).
	Z float64
}

// SmoothCrossEntropy is [CrossEntropy] with label smoothing and z-loss.
func SmoothCrossEntropy(logits, targets *gorgonia.Node, l Loss) (*gorgonia.Node, error) {
	return ops.SmoothCrossEntropy(logits, targets, kernel.Loss(l))
}

// LinearCrossEntropy returns the same as [SmoothCrossEntropy] for the logits x·weightᵀ + bias, for
// x [..., n, d], weight [classes, d], bias [classes], which may be nil, and targets, ints [..., n],
// without the logits in memory. They are computed in blocks of at most 1024 rows and classes, on
// every thread, and again for the gradients of weight and bias. The memory kept for backward is as
// large as x. So is its total memory, for any number of classes, except that with a bias the
// gradient of weight has its own buffer.
//
// A training pass takes the arithmetic of four products of logits, one more than with logits in
// memory: forward also computes the gradient of x, as attention does (Dao et al., 2022,
// arXiv:2205.14135). In evaluation it is one. Under bfloat16 logits are float32 here.
//
// On a GPU a training pass takes three products: forward also computes the gradients of weight and
// bias, up to the factor that backward finds. They are kept for backward in float32.
func LinearCrossEntropy(x, weight, bias, targets *gorgonia.Node, l Loss) (*gorgonia.Node, error) {
	return ops.LinearCrossEntropy(x, weight, bias, targets, kernel.Loss(l))
}

// MSE returns the mean of (y - target)² over all elements of y and target [...]: shape [1]. target
// takes no gradient.
func MSE(y, target *gorgonia.Node) (*gorgonia.Node, error) { return ops.MSE(y, target, nil) }

// WeightedMSE is [MSE] with a mean that is weighted by weight [...], such as a mask of 0 and 1: Σ
// weight·(y - target)² / Σ weight. If the weights add up to 0 it is 0, and so is its gradient.
// weight takes no gradient; nil weighs all elements equally.
func WeightedMSE(y, target, weight *gorgonia.Node) (*gorgonia.Node, error) {
	return ops.MSE(y, target, weight)
}

// BCE returns the mean binary cross-entropy of the probabilities σ(logits) with the probabilities
// in target, in nats, over all elements of logits and target [...]: log(1 + eˣ) - target·x for a
// logit x, computed without overflow, as BCEWithLogitsLoss in PyTorch. Its shape is [1]. target
// takes no gradient.
func BCE(logits, target *gorgonia.Node) (*gorgonia.Node, error) {
	return ops.BCE(logits, target, nil)
}

// WeightedBCE is [BCE] with a mean that is weighted as in [WeightedMSE]. (BCEWithLogitsLoss in
// PyTorch divides by the number of elements instead.)
func WeightedBCE(logits, target, weight *gorgonia.Node) (*gorgonia.Node, error) {
	return ops.BCE(logits, target, weight)
}
