package op

import (
	"errors"

	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
)

// Columns returns columns lo to hi-1 of x [..., d], 0 <= lo < hi <= d: [..., hi-lo]. gorgonia.Slice
// does the same on the last axis, but Gorgonia confuses some of many slices of one x, which is an
// error of the model.
func Columns(x *gorgonia.Node, lo, hi int) (*gorgonia.Node, error) {
	if x == nil {
		return nil, errors.New("slice: x is nil")
	}
	return exec.NewSlice(x, x.Dims()-1, lo, hi)
}
