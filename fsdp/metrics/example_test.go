package metrics_test

import (
	"context"
	"fmt"
	"log"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/metrics"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// corner classifies points [rows, 2] by the corner of the square that they are near: one layer. Its
// results are the loss and the logits.
func corner(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
	logits := t.Call("layer", &nn.Linear{In: 2, Out: 4}, in[0])
	return []fsdp.Ref{t.Call("loss", &nn.CrossEntropy{}, logits, in[1]), logits}, nil
}

type model func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error)

func (f model) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) { return f(t, in) }

// points returns points near corners, and their corners.
func points(from, n int) []fsdp.Tensor {
	x, y := make([]float32, 2*n), make([]int, n)
	for i := range n {
		k := from + i
		y[i] = k % 4
		x[2*i] = float32(k&1)*2 - 1 + float32(k%7-3)/10
		x[2*i+1] = float32(k&2) - 1 + float32(k%5-2)/10
	}
	return []fsdp.Tensor{tensor.New(tensor.WithShape(n, 2), tensor.WithBacking(x)), tensor.New(tensor.WithShape(n), tensor.WithBacking(y))}
}

// A classifier is validated on ranks of which one has three batches, of different sizes, and the
// other one. Every row counts once, whoever has it.
func Example() {
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(model(corner), fsdp.Config{Group: g})
		if err != nil {
			return err
		}
		defer m.Close()
		opt, err := optim.AdamW{}.New(m.Params())
		if err != nil {
			return err
		}
		for i := range 50 {
			if _, err := m.Forward(ctx, points(100*g.Rank()+16*i, 16)...); err != nil {
				return err
			}
			if err := m.Backward(ctx); err != nil {
				return err
			}
			if err := opt.Step(0.1); err != nil {
				return err
			}
			m.ZeroGrad()
		}

		held := fsdp.Batches(points(5000, 32))
		if g.Rank() == 1 {
			held = fsdp.Batches(points(6000, 16), points(7000, 16), points(8000, 5))
		}
		loss, top1, confusion := &metrics.Mean{}, &metrics.Accuracy{}, &metrics.Confusion{Classes: 4}
		set := metrics.Set{"loss": loss, "top1": top1, "f1": confusion}
		for batch, err := range m.Join(ctx, held) {
			if err != nil {
				return err
			}
			out, err := m.Eval(ctx, batch...)
			if err != nil {
				return err
			}
			if batch == nil {
				continue // the rank has run out, and has no results
			}
			rows := batch[1].Shape().TotalSize()
			if err := loss.AddTensor(out[0], float64(rows)); err != nil {
				return err
			}
			if err := top1.Add(out[1], batch[1]); err != nil {
				return err
			}
			if err := confusion.Add(out[1], batch[1]); err != nil {
				return err
			}
		}
		values, err := set.Reduce(ctx, g)
		if err != nil {
			return err
		}
		if g.Rank() == 0 {
			fmt.Printf("%v rows, loss below 0.1: %v, top1 %.2f, f1 %.2f\n", loss.Weight(), values["loss"] < 0.1, values["top1"], values["f1"])
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: 69 rows, loss below 0.1: true, top1 1.00, f1 1.00
}

// How long prompts are: counts between edges, and the median as far as these tell.
func ExampleHistogram() {
	lengths := &metrics.Histogram{Edges: []float64{0, 8, 16, 32}}
	for _, n := range []float64{3, 5, 9, 11, 12, 13, 40} {
		if err := lengths.Add(n); err != nil {
			log.Fatal(err)
		}
	}
	values, err := metrics.Set{"length": lengths}.Reduce(context.Background(), nil) // of one process
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(lengths.Counts(), values["length"])
	// Output: [0 2 4 0 1] 11
}

// Perplexity weighs batches by their tokens: the mean of 2 nats over 100 tokens and 4 over 300.
func ExamplePerplexity() {
	p := &metrics.Perplexity{}
	if err := p.Add(2, 100); err != nil {
		log.Fatal(err)
	}
	if err := p.Add(4, 300); err != nil {
		log.Fatal(err)
	}
	values, err := metrics.Set{"perplexity": p}.Reduce(context.Background(), nil)
	fmt.Printf("%.2f %v\n", values["perplexity"], err) // e^3.5
	// Output: 33.12 <nil>
}

func ExampleConfusion() {
	logits := tensor.New(tensor.WithShape(4, 2), tensor.WithBacking([]float32{2, 1, 0, 3, 5, 4, 1, 2}))
	targets := tensor.New(tensor.WithShape(4), tensor.WithBacking([]int{0, 1, 1, 1}))
	c := &metrics.Confusion{Classes: 2}
	if err := c.Add(logits, targets); err != nil {
		log.Fatal(err)
	}
	if _, err := (metrics.Set{"c": c}).Reduce(context.Background(), nil); err != nil {
		log.Fatal(err)
	}
	precision, recall, f1 := c.Of(1)
	fmt.Printf("precision %.2f, recall %.2f, F1 %.2f; %d ones taken for zeros\n", precision, recall, f1, c.Count(1, 0))
	// Output: precision 1.00, recall 0.67, F1 0.80; 1 ones taken for zeros
}
