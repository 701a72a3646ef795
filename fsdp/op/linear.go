package op

import (
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/ops"
)

// Linear returns x·wᵀ + b for x [..., in], w [out, in] and b [out] or nil: [..., out].
func Linear(x, w, b *gorgonia.Node) (*gorgonia.Node, error) { return ops.Linear(x, w, b) }

// AddLinear returns y + x·wᵀ for y [..., out], x [..., in] and w [out, in]: [..., out]. Unlike the
// sum of y and Linear(x, w, nil), it keeps neither of the two for backward.
func AddLinear(y, x, w *gorgonia.Node) (*gorgonia.Node, error) { return ops.AddLinear(y, x, w) }
