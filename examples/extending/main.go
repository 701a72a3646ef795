// Extending shows how to write the parts of a training yourself: an operation, two modules, a
// model, an optimizer and a data source. It learns y = 0·x₀² + 1·x₁² + 2·x₂² + 3·x₃² on two ranks.
// It takes a second, and prints the loss and the learned weights:
//
//	$ go run ./examples/extending
//	step 128  loss 6.1930
//	step 256  loss 1.6626
//	step 384  loss 0.0887
//	step 512  loss 0.0558
//	weights [0.01 1.05 2.04 2.84]
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"math/rand/v2"
	"os"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/optim"
)

// square is an operation: y = x², with the gradient 2·x·dy.
var square = &op.Custom{
	Name: "square", Shapes: "x [...] -> y [...]",
	Forward: op.Kernel{F32: func(a op.Args[float32]) error {
		for i, x := range a.In(0) {
			a.Out(0)[i] = x * x
		}
		return nil
	}},
	Backward: op.Kernel{F32: func(a op.Args[float32]) error {
		for i, x := range a.In(0) {
			a.Grad(0)[i] = 2 * x * a.DOut()[i]
		}
		return nil
	}},
}

// weighted is a module with parameters: x² [B, In] times a weight [1, In], summed.
type weighted struct{ In int }

// Params implements fsdp.Module.
func (m *weighted) Params() []fsdp.Param {
	return []fsdp.Param{{Name: "weight", Shape: []int{1, m.In}, Init: fsdp.Normal(0.1)}}
}

// Build implements fsdp.Module.
func (m *weighted) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	w, err := b.Param("weight")
	if err != nil {
		return nil, err
	}
	x, err := square.Apply(in[0])
	if err != nil {
		return nil, err
	}
	y, err := op.Linear(x, w, nil)
	return gorgonia.Nodes{y}, err
}

// distance is a module without parameters: the loss.
type distance struct{}

// Params implements fsdp.Module.
func (distance) Params() []fsdp.Param { return nil }

// Build implements fsdp.Module.
func (distance) Build(_ *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	loss, err := op.MSE(in[0], in[1])
	return gorgonia.Nodes{loss}, err
}

// model calls the modules. Its first result is the loss.
type model struct{}

// Forward implements fsdp.Model.
func (model) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	y := t.Call("weighted", &weighted{In: 4}, in[0])
	return []fsdp.Ref{t.Call("loss", distance{}, y, in[1])}, nil
}

// lion is the formula of an optimizer (https://arxiv.org/abs/2302.06675).
func lion(u optim.Elements[float32]) {
	lr, m := float32(u.LR), u.State[0]
	for i, g := range u.Grad {
		u.Value[i] -= lr * float32(math.Copysign(1, float64(0.9*m[i]+0.1*g)))
		m[i] = 0.99*m[i] + 0.01*g
	}
}

type sample struct{ x, y []float32 }

// samples is a data source. It makes a sample from its number, so every rank can make any of them.
var samples = data.Func(32768, func(i int) (sample, error) {
	random, s := rand.New(rand.NewPCG(1, uint64(i))), sample{make([]float32, 4), []float32{0}}
	for k := range s.x {
		s.x[k] = float32(random.NormFloat64())
		s.y[0] += float32(k) * s.x[k] * s.x[k]
	}
	return s, nil
})

// collate makes a batch for the model: x [B, 4] and y [B, 1].
func collate(b *data.Batch, list []sample) error {
	return errors.Join(
		data.Stack(b, list, func(s sample) []float32 { return s.x }, 4),
		data.Stack(b, list, func(s sample) []float32 { return s.y }, 1))
}

func main() {
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		return train(ctx, g, os.Stdout)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// train is the training on one rank.
func train(ctx context.Context, g comm.Group, out io.Writer) (err error) {
	if g.Rank() != 0 {
		out = io.Discard
	}
	m, err := fsdp.Wrap(model{}, fsdp.Config{Group: g})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	opt, err := optim.Elementwise{Kind: "Lion", State: []string{"exp_avg"}, Float32: lion}.New(m.Params())
	if err != nil {
		return err
	}
	batches, err := data.NewLoader(samples, collate, data.Config{Group: g, Batch: 64})
	if err != nil {
		return err
	}
	rate := optim.WarmupCosine(0.02, 0, 10, batches.Steps())
	for batch, err := range m.Join(ctx, batches.Batches(ctx)) {
		if err != nil {
			return err
		}
		loss, err := m.Forward(ctx, batch...)
		if err != nil {
			return err
		}
		if err := m.Backward(ctx, batches.Share()); err != nil {
			return err
		}
		if err := opt.Step(rate(opt.Steps())); err != nil {
			return err
		}
		m.ZeroGrad()
		if opt.Steps()%128 == 0 {
			fmt.Fprintf(out, "step %3d  loss %.4f\n", opt.Steps(), loss)
		}
	}
	return m.Summon(ctx, nil, func(params map[string]*tensor.Dense) error {
		_, err := fmt.Fprintf(out, "weights %.2f\n", params["weighted.weight"].Float32s())
		return err
	})
}
