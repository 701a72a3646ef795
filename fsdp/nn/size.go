package nn

import (
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
)

// flops returns the floating-point operations of forward and backward for one token: two for each
// multiply-add, and twice as many in backward as in forward. weights is the number of elements of
// the matrices that the token is multiplied with. pairs is, over all layers, the number of tokens
// that it sees times the columns of all heads.
func flops(weights, pairs int) int { return 6*weights + 12*pairs }

// elements counts the elements of the parameters of modules. A tied parameter counts as none.
func elements(modules ...fsdp.Module) (n int) { return count(modules, 1) }

// matrices counts the elements of the matrices among them.
func matrices(modules ...fsdp.Module) (n int) { return count(modules, 2) }

// count counts the elements of parameters with at least dims dimensions.
func count(modules []fsdp.Module, dims int) (n int) {
	for _, m := range modules {
		for _, p := range m.Params() {
			if p.Tied == "" && len(p.Shape) >= dims {
				n += tensor.Shape(p.Shape).TotalSize()
			}
		}
	}
	return n
}
