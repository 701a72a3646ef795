package exec

import (
	"fmt"
	"slices"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// denied lists the types of stock operations that give wrong results, with the reason and a
// replacement.
var denied = map[string]string{
	"gorgonia.BatchNormOp": statefulOp + "nn.BatchNorm",
	"gorgonia.GroupNormOp": statefulOp + "op.GroupNorm or nn.GroupNorm",
	"gorgonia.avgPoolOp":   "it divides by the width of the image, and its gradient is wrong: use op.AvgPool2D or nn.AvgPool2d",
	"gorgonia.ctcLossOp":   statefulOp + "nn.CrossEntropy, with a target for each position",
	"gorgonia.sparsemaxOp": "its values along the first axis are transposed, its gradient is wrong, and Gorgonia confuses Sparsemaxes along different axes: use a softmax, such as op.Softmax",
	"gorgonia.yoloOp":      "it overwrites its argument, and Gorgonia confuses two of them that have the same anchors: use Slice, Sigmoid, Exp and Concat",
}

const statefulOp = "it stores the values for backward in the operation, which calls and ranks share: use "

// refusal returns why the stock operation of n must not be used, or "" if it may.
func refusal(g *G.ExprGraph, n *G.Node) string {
	op := n.Op()
	switch typeName(op) {
	case "gorgonia.sumOp", "gorgonia.maxOp":
		if isHost(n) && children(g, n)[0].Dims() > 3 { // float reductions are computed here
			return "integers of four or more axes are added up wrongly: convert them to floats first, by ConvType"
		}
	case "gorgonia.dtConvOp":
		if from := children(g, n)[0].Dtype(); (from == tensor.Int) == (n.Dtype() == tensor.Int) {
			return fmt.Sprintf("it cannot convert %v to %v, only int to a float and back: use one float type", from, n.Dtype())
		}
	case "gorgonia.randomOp":
		return stockRandom(n).refused()
	case "gorgonia.maxPoolOp":
		if _, ok := stockPool(op); !ok {
			return "unequal padding of the two sides gives wrong windows, and no window may be all padding: " +
				"use equal pads of at most half of the kernel"
		}
	case "gorgonia.im2colOp":
		if collides(g, n) {
			return "Gorgonia confuses convolutions of one image that differ only in their dilation and have equal shapes: use a larger kernel or a smaller stride"
		}
	case "gorgonia.elemUnaryOp":
		if op.String() == "ln" && isLogSumExp(g, n) {
			return "LogSumExp adds the maximum before it takes the logarithm: use the sum of m = Max(x, axis) and Log(Sum(Exp(x - m), axis))"
		}
	}
	return denied[typeName(op)]
}

// isLogSumExp reports whether n is an expression of gorgonia.LogSumExp: log(Σ exp(x - m) + m) with
// m the maximum of x.
func isLogSumExp(g *G.ExprGraph, n *G.Node) bool {
	is := func(n *G.Node, typ, op string) bool {
		return n.Op() != nil && typeName(n.Op()) == "gorgonia."+typ && strings.HasPrefix(n.Op().String(), op)
	}
	total := children(g, n)[0]
	if !is(total, "elemBinOp", "+ ") {
		return false
	}
	terms := children(g, total)
	if !is(terms[0], "sumOp", "") || !is(terms[1], "maxOp", "") {
		return false
	}
	e := children(g, terms[0])[0]
	if !is(e, "elemUnaryOp", "exp") || !is(children(g, e)[0], "elemBinOp", "- ") {
		return false
	}
	return children(g, children(g, e)[0])[1] == terms[1]
}

// collides reports whether n, the patches that a convolution takes out of an image [B, C, H, W],
// may have the hash of a node with another dilation. The hash covers everything but the dilation.
// So Gorgonia merges two such nodes if their shapes [B, rows, columns, C·kernel] are equal.
func collides(g *G.ExprGraph, n *G.Node) bool {
	var kernel, pad, stride, dilation [2]int
	_, err := fmt.Sscanf(n.Op().String(), "im2col<(%d,%d), (%d, %d), (%d,%d) (%d, %d)>", &kernel[0], &kernel[1], &pad[0],
		&pad[1], &stride[0], &stride[1], &dilation[0], &dilation[1])
	if err != nil {
		return true
	}
	image, patches := children(g, n)[0].Shape(), n.Shape()
	for axis, k := range kernel {
		size := image[2+axis] + 2*pad[axis]
		for d := 1; k > 1 && d < size+stride[axis]; d++ {
			if d != dilation[axis] && (size-d*(k-1)-1)/stride[axis]+1 == patches[1+axis] {
				return true
			}
		}
	}
	return false
}

// guard refuses operations that Gorgonia would compute wrongly without an error.
func (tr *trace) guard() error {
	for _, n := range order(tr.g, slices.Concat(tr.outs, tr.updates), nil) {
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
		if why := refusal(tr.g, n); why != "" {
			return fmt.Errorf("stock operation %v is refused: %s", n.Op(), why)
		}
	}
	return nil
}

// guardConst refuses constants that Gorgonia may have merged with others of the same name. A scalar
// with its default name is safe, since the name is its value.
func (tr *trace) guardConst(n *G.Node) error {
	if _, ours := tr.consts[n]; ours || constSize(n) != nil {
		return nil
	}
	if n.IsScalar() && n.Name() == fmt.Sprintf("%v", constValue(n)) {
		return nil
	}
	return fmt.Errorf("constant %.40q: Gorgonia merges constants by name, so make it with Builder.Const or Builder.ConstTensor", n.Name())
}
