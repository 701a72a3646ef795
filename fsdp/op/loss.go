package op

import (
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/ops"
)

// CrossEntropy returns the mean of -log softmax(logits)[target] over the targets that are not
// ignore, in nats, for logits [..., classes] and targets, ints [...]: shape [1]. With no target to
// count it is 0, and so is its gradient. A target that is neither ignore nor in [0, classes) is an
// error of the pass.
func CrossEntropy(logits, targets *gorgonia.Node, ignore int) (*gorgonia.Node, error) {
	return ops.CrossEntropy(logits, targets, ignore)
}
