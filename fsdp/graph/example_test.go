package graph_test

import (
	"context"
	"fmt"
	"log"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/graph"
	"github.com/gofsdp/gofsdp/optim"
)

// A graph in the style of Gorgonia's own examples is trained on two ranks, each with its batch.
func Example() {
	g := gorgonia.NewGraph()
	matrix := func(name string, rows, cols int, more ...gorgonia.NodeConsOpt) *gorgonia.Node {
		opts := []gorgonia.NodeConsOpt{gorgonia.WithName(name), gorgonia.WithShape(rows, cols)}
		return gorgonia.NewMatrix(g, tensor.Float32, append(opts, more...)...)
	}
	ones := gorgonia.WithInit(gorgonia.Ones())
	x, y := matrix("x", 4, 2), matrix("y", 4, 1)
	w0, w1 := matrix("w0", 2, 3, ones), matrix("w1", 3, 1, ones)
	h := gorgonia.Must(gorgonia.Tanh(gorgonia.Must(gorgonia.Mul(x, w0))))
	prediction := gorgonia.Must(gorgonia.Mul(h, w1))
	squares := gorgonia.Must(gorgonia.Square(gorgonia.Must(gorgonia.Sub(prediction, y))))
	cost := gorgonia.Must(gorgonia.Mean(squares))

	model, err := graph.Model(cost, gorgonia.Nodes{x, y}, gorgonia.Nodes{w0, w1})
	if err != nil {
		log.Fatal(err)
	}
	err = comm.Run(context.Background(), 2, func(ctx context.Context, group comm.Group) error {
		s, err := fsdp.Wrap(model, fsdp.Config{Group: group, WrapPolicy: fsdp.WrapEach()})
		if err != nil {
			return err
		}
		defer s.Close()
		opt, err := optim.SGD{}.New(s.Params())
		if err != nil {
			return err
		}
		if group.Rank() == 0 {
			for _, p := range s.Params() {
				fmt.Println(p.Name, p.Shape)
			}
		}
		a := float32(group.Rank())
		xs := tensor.New(tensor.WithShape(4, 2), tensor.WithBacking([]float32{a, 0, 0, a, 1, 0, 0, 1}))
		ys := tensor.New(tensor.WithShape(4, 1), tensor.WithBacking([]float32{a, -a, 1, -1}))
		for step := range 51 {
			loss, err := s.Forward(ctx, xs, ys)
			if err != nil {
				return err
			}
			if group.Rank() == 0 && step%25 == 0 {
				fmt.Printf("step %2d: loss %.2f\n", step, loss)
			}
			if err := s.Backward(ctx); err != nil {
				return err
			}
			if err := opt.Step(0.1); err != nil {
				return err
			}
			s.ZeroGrad()
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// w0.w0 [2 3]
	// w1.w1 [3 1]
	// step  0: loss 3.11
	// step 25: loss 0.48
	// step 50: loss 0.43
}
