package exec

import (
	"fmt"
	"strings"

	G "gorgonia.org/gorgonia"
)

// denied lists stock operations that give wrong results, with what to use instead.
var denied = []struct{ prefix, why string }{
	{"Softmax{", "it is numerically wrong when a row lies far below the tensor's first element, and SoftMax and LogSoftMax collide: use the fused attention or cross-entropy"},
	{"LogSumExp", "it fails on matrices"},
	{"invSqrt", "its gradient is wrong: use Inverse of Sqrt"},
	{"Dropout{", "it draws from a global generator, so recomputation and ranks disagree: use nn.Dropout"},
	{"BatchNorm", "it keeps state in the operation, which ranks share"},
	{"GroupNorm", "it keeps state in the operation, which ranks share"},
}

// guard refuses what Gorgonia would get wrong silently.
func (tr *trace) guard() error {
	for _, n := range order(tr.g, tr.outs, nil) {
		if n.Op() == nil {
			continue
		}
		if _, ours := n.Op().(*Op); ours {
			continue
		}
		if isConst(n) {
			if err := tr.guardConst(n); err != nil {
				return err
			}
			continue
		}
		name := n.Op().String()
		for _, d := range denied {
			if strings.HasPrefix(name, d.prefix) || strings.HasPrefix(strings.ToLower(name), strings.ToLower(d.prefix)) {
				return fmt.Errorf("stock operation %s is refused: %s", name, d.why)
			}
		}
	}
	return nil
}

// guardConst refuses constants that may have been merged with others: Gorgonia merges constants of equal name. A scalar
// under its default name is safe, since the name is its value.
func (tr *trace) guardConst(n *G.Node) error {
	if _, ours := tr.consts[n]; ours {
		return nil
	}
	if n.IsScalar() && n.Name() == fmt.Sprintf("%v", constValue(n)) {
		return nil
	}
	return fmt.Errorf("constant %.40q: Gorgonia merges constants by name, so make it with Builder.Const or Builder.ConstTensor", n.Name())
}
