package exec

import (
	"fmt"
	"strings"

	G "gorgonia.org/gorgonia"
)

// denied lists the types of stock operations that give wrong results, with the reason.
var denied = map[string]string{
	"gorgonia.softmaxOp":   "it is numerically wrong when a row lies far below the tensor's first element, and SoftMax and LogSoftMax collide: use the fused attention or cross-entropy",
	"gorgonia.dropoutOp":   "it draws from a global generator, so recomputation and ranks disagree: use nn.Dropout",
	"gorgonia.randomOp":    "it draws from a global generator, so recomputation and ranks disagree: use nn.Dropout, or pass random numbers as an input",
	"gorgonia.BatchNormOp": statefulOp,
	"gorgonia.GroupNormOp": statefulOp,
	"gorgonia.maxPoolOp":   statefulOp,
	"gorgonia.avgPoolOp":   statefulOp,
	"gorgonia.ctcLossOp":   statefulOp,
	"gorgonia.byIndicesOp": "it takes a wrong row for an index out of range: use nn.Embedding",
}

const statefulOp = "it keeps what backward needs in the operation, which calls and ranks share"

// refusal returns why a stock operation must not be used, or nothing if it may.
func refusal(op G.Op) string {
	switch typeName(op) {
	case "gorgonia.elemUnaryOp":
		if op.String() == "invSqrt" {
			return "its gradient is wrong: use Inverse of Sqrt"
		}
	case "gorgonia.linAlgBinOp":
		if strings.Contains(op.String(), "⊗") {
			return "the gradient of an outer product is wrong: use Mul of a column and a row"
		}
	}
	return denied[typeName(op)]
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
		if why := refusal(n.Op()); why != "" {
			return fmt.Errorf("stock operation %v is refused: %s", n.Op(), why)
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
