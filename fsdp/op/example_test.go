package op_test

import (
	"context"
	"fmt"
	"log"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/optim"
)

// Gated is x + (gelu(x·gateᵀ) ⊙ x·upᵀ)·downᵀ on x [..., Dim]: operations of this package, and the
// element-wise product of Gorgonia.
type Gated struct{ Dim, Hidden int }

func (m *Gated) Params() []fsdp.Param {
	init := fsdp.Normal(0.3)
	return []fsdp.Param{
		{Name: "gate", Shape: []int{m.Hidden, m.Dim}, Init: init},
		{Name: "up", Shape: []int{m.Hidden, m.Dim}, Init: init},
		{Name: "down", Shape: []int{m.Dim, m.Hidden}, Init: init},
	}
}

func (m *Gated) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	var w [3]*gorgonia.Node
	for i, p := range m.Params() {
		var err error
		if w[i], err = b.Param(p.Name); err != nil {
			return nil, err
		}
	}
	gate, err := op.Linear(in[0], w[0], nil)
	if err != nil {
		return nil, err
	}
	if gate, err = op.GELU(gate); err != nil {
		return nil, err
	}
	up, err := op.Linear(in[0], w[1], nil)
	if err != nil {
		return nil, err
	}
	h, err := gorgonia.HadamardProd(gate, up)
	if err != nil {
		return nil, err
	}
	y, err := op.AddLinear(in[0], h, w[2])
	return gorgonia.Nodes{y}, err
}

// Loss is the cross-entropy of logits. It has no parameters.
type Loss struct{}

func (Loss) Params() []fsdp.Param { return nil }

func (Loss) Build(_ *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	loss, err := op.CrossEntropy(in[0], in[1], -1)
	return gorgonia.Nodes{loss}, err
}

// Net is a model: a gated layer, whose outputs are the logits.
type Net struct{ Dim int }

func (m *Net) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	x := t.Call("gated", &Gated{Dim: m.Dim, Hidden: 2 * m.Dim}, in[0])
	return []fsdp.Ref{t.Call("loss", Loss{}, x, in[1])}, nil
}

// A module of operations of this package, trained for two steps by two ranks.
func Example() {
	x := tensor.New(tensor.WithShape(2, 4), tensor.WithBacking([]float32{1, 2, 3, 4, -1, -2, -3, -4}))
	targets := tensor.New(tensor.WithShape(2), tensor.WithBacking([]int{0, 1}))
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(&Net{Dim: 4}, fsdp.Config{Group: g})
		if err != nil {
			return err
		}
		defer m.Close()
		opt, err := optim.SGD{}.New(m.Params())
		if err != nil {
			return err
		}
		for range 2 {
			loss, err := m.Forward(ctx, x, targets)
			if err != nil {
				return err
			}
			if g.Rank() == 0 {
				fmt.Printf("loss %.2f\n", loss)
			}
			if err := m.Backward(ctx); err != nil {
				return err
			}
			if err := opt.Step(0.05); err != nil {
				return err
			}
			m.ZeroGrad()
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// loss 1.20
	// loss 0.62
}

// square is an operation of one's own: y = x², with the gradient 2·x·dy.
var square = &op.Custom{
	Name: "square", Shapes: "x [...] -> y [...]",
	Forward:  op.Kernel{F32: squareForward[float32], F64: squareForward[float64]},
	Backward: op.Kernel{F32: squareBackward[float32], F64: squareBackward[float64]},
}

func squareForward[T op.Float](a op.Args[T]) error {
	for i, x := range a.In(0) {
		a.Out(0)[i] = x * x
	}
	return nil
}

func squareBackward[T op.Float](a op.Args[T]) error {
	for i, x := range a.In(0) {
		a.Grad(0)[i] = 2 * x * a.DOut()[i]
	}
	return nil
}

// A Custom in a graph of Gorgonia's, with its gradient.
func ExampleCustom() {
	g := gorgonia.NewGraph()
	x := gorgonia.NodeFromAny(g, tensor.New(tensor.WithBacking([]float64{1, 2, 3})), gorgonia.WithName("x"))
	y, err := square.Apply(x)
	if err != nil {
		log.Fatal(err)
	}
	sum, err := gorgonia.Sum(y)
	if err != nil {
		log.Fatal(err)
	}
	grads, err := gorgonia.Grad(sum, x)
	if err != nil {
		log.Fatal(err)
	}
	vm := gorgonia.NewTapeMachine(g)
	defer vm.Close()
	if err := vm.RunAll(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(y.Value(), grads[0].Value())
	// Output:
	// [1  4  9] [2  4  6]
}
