// Fromgraph trains three models that know nothing of sharding: ordinary Gorgonia graphs. Each is
// trained twice, by Gorgonia's own tape machine on one rank and sharded over two.
//
//	go run ./examples/fromgraph
//
// The models, in models.go, are written as one writes them for Gorgonia. What sharding adds to the
// training is in the function sharded. It prints the mean loss over the batches of all ranks:
//
//	mlp      step  0   sharded 1.79813   tape machine 1.79813
//	mlp      step 20   sharded 0.36239   tape machine 0.36239
//	mlp      step 40   sharded 0.21471   tape machine 0.21471
//	mlp      step 60   sharded 0.15911   tape machine 0.15911
//	convnet  step  0   sharded 1.46281   tape machine 1.46281
//	convnet  step 20   sharded 0.17329   tape machine 0.17329
//	convnet  step 40   sharded 0.09112   tape machine 0.09112
//	convnet  step 60   sharded 0.11876   tape machine 0.11876
//	elman    step  0   sharded 0.52010   tape machine 0.52010
//	elman    step 20   sharded 0.22041   tape machine 0.22041
//	elman    step 40   sharded 0.07173   tape machine 0.07173
//	elman    step 60   sharded 0.08455   tape machine 0.08455
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/graph"
	"github.com/gofsdp/gofsdp/optim"
)

const (
	ranks = 2  // unless a launcher has started others
	rows  = 16 // of each rank's batch
	steps = 61
	every = 20 // steps between reports
)

func main() {
	err := comm.Run(context.Background(), ranks, func(ctx context.Context, g comm.Group) error {
		return run(ctx, g, os.Stdout)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// run is one of the ranks. The first of them has the tape machine, too, and prints.
func run(ctx context.Context, g comm.Group, w io.Writer) error {
	for _, m := range nets() {
		model, err := graph.Model(m.cost, m.inputs, m.learn, graph.Constants(m.constants...))
		if err != nil {
			return err
		}
		ours, err := sharded(ctx, g, m, model)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		if g.Rank() != 0 {
			continue
		}
		theirs, err := tapeMachine(m, g.Size())
		if err != nil {
			return fmt.Errorf("%s: tape machine: %w", m.name, err)
		}
		for step := 0; step < steps; step += every {
			fmt.Fprintf(w, "%-8s step %2d   sharded %.5f   tape machine %.5f\n", m.name, step, ours[step], theirs[step])
		}
	}
	return nil
}

// sharded trains the model over the ranks of g and returns the mean loss of each step.
func sharded(ctx context.Context, g comm.Group, m *net, model fsdp.Model) (mean []float64, err error) {
	s, err := fsdp.Wrap(model, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach()})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	opt, err := optim.SGD{}.New(s.Params())
	if err != nil {
		return nil, err
	}
	mean = make([]float64, steps)
	for step := range mean {
		if mean[step], err = s.Forward(ctx, m.batch(step, g.Rank())...); err != nil {
			return nil, err
		}
		if err := s.Backward(ctx); err != nil {
			return nil, err
		}
		if err := opt.Step(m.rate); err != nil {
			return nil, err
		}
		s.ZeroGrad()
	}
	return mean, g.AllReduce(comm.Of(mean), comm.Avg).Wait(ctx)
}

// tapeMachine trains the same graph by Gorgonia alone, with the batches of the ranks one after the
// other in each step.
func tapeMachine(m *net, ranks int) (mean []float64, err error) {
	if _, err := G.Grad(m.cost, m.learn...); err != nil {
		return nil, err
	}
	vm := G.NewTapeMachine(m.graph, G.BindDualValues(m.learn...))
	defer func() { err = errors.Join(err, vm.Close()) }()
	// Gradients add up until Step.
	solver := G.NewVanillaSolver(G.WithLearnRate(m.rate), G.WithBatchSize(float64(ranks)))
	mean = make([]float64, steps)
	for step := range mean {
		for rank := range ranks {
			for i, t := range m.batch(step, rank) {
				if err := G.Let(m.inputs[i], t); err != nil {
					return nil, err
				}
			}
			if err := vm.RunAll(); err != nil {
				return nil, err
			}
			mean[step] += float64(m.cost.Value().Data().(float32)) / float64(ranks)
			vm.Reset()
		}
		if err := solver.Step(G.NodesToValueGrads(m.learn)); err != nil {
			return nil, err
		}
	}
	return mean, nil
}

// batch returns inputs of noise, in the shape of the graph's, and the target of each row
// [rows, 1]: with the mean m of the first half of its numbers, m·(2+m).
func (m *net) batch(step, rank int) []fsdp.Tensor {
	r := rand.New(rand.NewPCG(uint64(step), uint64(rank)))
	shape := m.inputs[0].Shape()
	x, y := make([]float32, shape.TotalSize()), make([]float32, rows)
	per := len(x) / rows
	for i := range x {
		x[i] = float32(r.NormFloat64())
		if i%per < per/2 {
			y[i/per] += x[i] / float32(per/2)
		}
	}
	for i := range y {
		y[i] *= 2 + y[i]
	}
	return []fsdp.Tensor{
		tensor.New(tensor.WithShape(shape...), tensor.WithBacking(x)),
		tensor.New(tensor.WithShape(rows, 1), tensor.WithBacking(y)),
	}
}
