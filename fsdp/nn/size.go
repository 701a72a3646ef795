package nn

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
)

// A size is a field of a model and the least value that it may have.
type size struct {
	field    string
	n, least int
}

// checkModel returns an error that names the first size of a model that is too small, or the heads
// of its attention that do not fit.
func checkModel(model string, attn *Attention, sizes ...size) error {
	for _, s := range sizes {
		if s.n < s.least {
			return fmt.Errorf("nn: %s: %s is %d, want at least %d", model, s.field, s.n, s.least)
		}
	}
	if err := attn.checkHeads(); err != nil {
		return fmt.Errorf("nn: %s: %w", model, err)
	}
	return nil
}

// inputs returns the names of the tensors of a batch, with positions at the end if rows are packed.
func inputs(packed bool, names ...string) []string {
	if packed {
		names = append(names, "positions")
	}
	return names
}

// positions returns the inputs of a call that follow x: the positions, which are the last tensor
// that names lists, if rows are packed.
func positions(packed bool, in []fsdp.Ref, names []string) []fsdp.Ref {
	if !packed {
		return nil
	}
	return in[len(names)-1 : len(names)]
}

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
