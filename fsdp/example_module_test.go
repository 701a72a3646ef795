package fsdp_test

import (
	"context"
	"fmt"
	"log"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
)

// Gate is y = x ⊙ sigmoid(x·w) on x [rows, Dim]: a module of stock Gorgonia operations.
type Gate struct{ Dim int }

func (m *Gate) Params() []fsdp.Param {
	return []fsdp.Param{{Name: "w", Shape: []int{m.Dim, m.Dim}, Init: fsdp.Normal(0.5)}}
}

func (m *Gate) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	w, err := b.Param("w")
	if err != nil {
		return nil, err
	}
	h, err := gorgonia.Mul(in[0], w)
	if err != nil {
		return nil, err
	}
	if h, err = gorgonia.Sigmoid(h); err != nil {
		return nil, err
	}
	y, err := gorgonia.HadamardProd(in[0], h)
	return gorgonia.Nodes{y}, err
}

// Energy is the mean of x², the loss of the example. It has no parameters.
type Energy struct{}

func (Energy) Params() []fsdp.Param { return nil }

func (Energy) Build(_ *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	sq, err := gorgonia.Square(in[0])
	if err != nil {
		return nil, err
	}
	loss, err := gorgonia.Mean(sq)
	return gorgonia.Nodes{loss}, err
}

// Gates is a model: two gates, of which the first is used twice, and the loss.
type Gates struct{ Dim int }

func (m *Gates) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	x := t.Call("first", &Gate{m.Dim}, in[0])
	x = t.Again("first", x)
	x = t.Call("second", &Gate{m.Dim}, x)
	return []fsdp.Ref{t.Call("loss", Energy{}, x), x}, nil
}

func ExampleModule() {
	m, err := fsdp.Wrap(&Gates{Dim: 4}, fsdp.Config{WrapPolicy: fsdp.WrapEach()})
	if err != nil {
		log.Fatal(err)
	}
	x := tensor.New(tensor.WithShape(2, 4), tensor.WithBacking([]float32{1, 2, 3, 4, -1, -2, -3, -4}))
	ctx := context.Background()
	loss, err := m.Forward(ctx, x)
	if err != nil {
		log.Fatal(err)
	}
	if err := m.Backward(ctx); err != nil {
		log.Fatal(err)
	}
	for _, p := range m.Params() {
		fmt.Println(p.Name, p.Shape, p.Grad.Len(), "gradients")
	}
	fmt.Printf("loss %.2f\n", loss)
	// Output:
	// first.w [4 4] 16 gradients
	// second.w [4 4] 16 gradients
	// loss 0.45
}
