package nn_test

import (
	"context"
	"fmt"
	"log"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// SquaredReLU is an MLP with the activation relu(x)² (So et al., 2021, arXiv:2109.08668), a stock
// Gorgonia operation between two modules of this package. Its parameters are those of its parts.
type SquaredReLU struct{ Dim, Hidden int }

func (m *SquaredReLU) fc() *nn.Linear  { return &nn.Linear{In: m.Dim, Out: m.Hidden} }
func (m *SquaredReLU) out() *nn.Linear { return &nn.Linear{In: m.Hidden, Out: m.Dim, NoBias: true} }

func (m *SquaredReLU) Params() []fsdp.Param {
	return append(fsdp.Prefix("fc", m.fc()), fsdp.Prefix("out", m.out())...)
}

func (m *SquaredReLU) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	h, err := b.Call("fc", m.fc(), in...)
	if err != nil {
		return nil, err
	}
	relu, err := gorgonia.Rectify(h[0])
	if err != nil {
		return nil, err
	}
	squared, err := gorgonia.Square(relu)
	if err != nil {
		return nil, err
	}
	return b.Call("out", m.out(), squared)
}

// Classifier is a model of it, a norm and a head.
type Classifier struct{ Dim, Classes int }

func (m *Classifier) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	x := t.Call("mlp", &SquaredReLU{Dim: m.Dim, Hidden: 4 * m.Dim}, in[0])
	x = t.Call("norm", &nn.RMSNorm{Dim: m.Dim}, x)
	return []fsdp.Ref{t.Call("head", &nn.Head{Dim: m.Dim, Classes: m.Classes}, x, in[1])}, nil
}

// A module of one's own, composed of modules of this package and of stock Gorgonia operations, in a
// model.
func Example() {
	m, err := fsdp.Wrap(&Classifier{Dim: 4, Classes: 3}, fsdp.Config{WrapPolicy: fsdp.WrapTypes(&SquaredReLU{})})
	if err != nil {
		log.Fatal(err)
	}
	x := tensor.New(tensor.WithShape(1, 2, 4), tensor.WithBacking([]float32{1, 2, 3, 4, -1, -2, -3, -4}))
	targets := tensor.New(tensor.WithShape(1, 2), tensor.WithBacking([]int{0, 2}))
	ctx := context.Background()
	loss, err := m.Forward(ctx, x, targets)
	if err != nil {
		log.Fatal(err)
	}
	if err := m.Backward(ctx); err != nil {
		log.Fatal(err)
	}
	for _, p := range m.Params() {
		fmt.Println(p.Name, p.Shape)
	}
	fmt.Printf("loss %.1f\n", loss)
	// Output:
	// norm.weight [4]
	// head.weight [3 4]
	// mlp.fc.weight [16 4]
	// mlp.fc.bias [16]
	// mlp.out.weight [4 16]
	// loss 1.1
}

// Llama 3 8B, and what training it on a token of a full context takes.
func ExampleLlama() {
	m := &nn.Llama{
		Vocab: 128256, Layers: 32, Dim: 4096, Heads: 32, KVHeads: 8, Hidden: 14336, RopeBase: 500000, Eps: 1e-5,
	}
	fmt.Printf("%.2f billion parameters, %.1f GFLOP\n", float64(m.NumParams())/1e9, float64(m.FLOPs(8192))/1e9)
	// Output: 8.03 billion parameters, 57.9 GFLOP
}
