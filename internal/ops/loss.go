package ops

import (
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// CrossEntropy returns the mean of -log softmax(logits)[target] over the targets that are not ignore, in nats: shape [1].
// logits is [..., classes], targets ints [...]. With no target to count it is 0, and so is its gradient.
func CrossEntropy(logits, targets *G.Node, ignore int) (*G.Node, error) {
	if err := wantInts("cross-entropy", "targets", targets); err != nil {
		return nil, err
	}
	if err := wantRank("cross-entropy", "logits", logits, 2); err != nil {
		return nil, err
	}
	lead := logits.Shape()[:logits.Shape().Dims()-1]
	if err := wantShape("cross-entropy", "targets", targets, lead...); err != nil {
		return nil, err
	}
	n, classes := rows(logits)
	c := crossEntropy{n, classes, ignore}
	packed, err := body{crossEntropyRun[float32](c), crossEntropyRun[float64](c)}.apply(exec.Op{ // [loss | log-sum-exp per row]
		Name: fmt.Sprintf("cross-entropy(%d)", ignore), Shape: tensor.Shape{1 + n}, Diff: []bool{true, false},
		Check: func(v []int) error { return kernel.CheckTargets(v, classes, ignore) },
		Ints:  []bool{false, true}, Scratch: kernel.CrossEntropyScratch(classes), Grad: c.grad,
	}, logits, targets)
	if err != nil {
		return nil, err
	}
	return part(packed, 0, tensor.Shape{1}, true)
}

type crossEntropy struct{ n, classes, ignore int }

func (c crossEntropy) grad(in G.Nodes, packed, dy *G.Node) (G.Nodes, error) {
	d, err := body{crossEntropyGrad[float32](c), crossEntropyGrad[float64](c)}.apply(exec.Op{
		Name: fmt.Sprintf("cross-entropy grad(%d)", c.ignore), Shape: in[0].Shape().Clone(), Ints: []bool{false, true}, InPlace: true,
	}, in[0], in[1], packed, dy)
	return G.Nodes{d, nil}, err
}

func crossEntropyRun[T kernel.Float](c crossEntropy) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		out := result[T](f)
		loss, _, err := kernel.CrossEntropy(out[1:], arg[T](f, 0), ints(f, 1), c.n, c.classes, c.ignore, exec.Data[T](f.Scratch))
		out[0] = T(loss)
		return err
	}
}

func crossEntropyGrad[T kernel.Float](c crossEntropy) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		targets, counted := ints(f, 1), 0
		for _, t := range targets {
			if t != c.ignore {
				counted++
			}
		}
		kernel.CrossEntropyGrad(result[T](f), arg[T](f, 0), arg[T](f, 2)[1:], targets, c.n, c.classes, c.ignore, counted, arg[T](f, 3)[0])
		return nil
	}
}
