// Lora adapts a pretrained language model to another text by low-rank adapters (Hu et al., 2021,
// arXiv:2106.09685), with the model itself frozen. A small GPT, sharded over two ranks, first
// learns Go code; it stands for weights that one would load. Then adapters learn the English of the
// code's comments. What is frozen is still cut over the ranks and gathered, but has no gradient, no
// optimizer state and no reduction, and does not change by a bit. At this size a step's memory is
// mostly activations, which freezing hardly changes. The last lines are about a model that is mostly
// parameters: backward frees a frozen unit after each use, and does not let them add up to its end.
//
//	$ go run ./examples/lora
//	pretraining on code
//	parameters 391008, groups 4, ranks 2
//	  group                        parameters     whole  strategy     ranks
//	  root                              55488  222.0 kB  ShardGradOp  2
//	  3 × blocks.*                     111840  447.4 kB  FullShard    2
//	each rank
//	     1.6 MB  parameters and gradients
//	     1.6 MB  optimizer state
//	     9.9 MB  buffers of a pass, at most: groups, gradients, activations
//	    13.0 MB  together
//	    17.2 MB  in RAM: buffers, freed ones included, and 674.6 kB beside
//	     1.8 MB  sent in a pass, in 9 collectives
//	  loss before  code 5.571  prose 5.571 nats per byte
//	  loss after   code 2.523  prose 3.283 nats per byte
//	adapting to prose
//	parameters 427872, groups 7, ranks 2
//	  group                        parameters     whole  strategy     ranks
//	  root                              55488  222.0 kB  ShardGradOp  2
//	  3 × blocks.*                      12288   49.2 kB  FullShard    2
//	  3 × blocks.* (frozen)            111840  447.4 kB  FullShard    2
//	each rank
//	   929.5 kB  parameters and gradients
//	   147.5 kB  optimizer state
//	     9.5 MB  buffers of a pass, at most: groups, gradients, activations
//	    10.6 MB  together
//	    14.5 MB  in RAM: buffers, freed ones included, and 751.7 kB beside
//	     1.2 MB  sent in a pass, in 12 collectives
//	  loss before  code 2.523  prose 3.283 nats per byte
//	  loss after   code 3.048  prose 2.568 nats per byte
//	  the 41 pretrained tensors have the bits they had
//	merged into a plain GPT
//	  loss after   code 3.048  prose 2.568 nats per byte
//	memory of adapting 12 layers of 256 channels to 16 tokens on a rank
//	  frozen, freed after each use         holds 22.4 MB, 31.5 MB in a step
//	  frozen, freed at the end (computed)  holds 22.4 MB, 61.7 MB in a step
//	  nothing frozen                       holds 80.0 MB, 95.6 MB in a step
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/examples/internal/text"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

const (
	ranks  = 2
	rows   = 8  // of a batch on each rank
	length = 64 // of a row, in tokens
)

// adapter is what is added to each linear layer.
var adapter = nn.LoRA{Rank: 8, Alpha: 16}

// base tells whether a parameter is the model's own, and not an adapter's.
func base(name string) bool { return !nn.IsAdapter(name) }

// gpt returns the model, with adapters or without.
func gpt(l nn.LoRA) *nn.GPT {
	return &nn.GPT{Vocab: text.Vocab, Context: length, Layers: 3, Dim: 96, Heads: 4, Act: nn.ReLU, LoRA: l}
}

func main() {
	code, prose, err := text.Load()
	if err != nil {
		log.Fatal(err)
	}
	err = comm.Run(context.Background(), ranks, func(ctx context.Context, g comm.Group) error {
		return (&rank{g, os.Stdout, code, prose}).run(ctx, 400)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// rank is one of the ranks.
type rank struct {
	group       comm.Group
	out         io.Writer
	code, prose text.Text
}

// run trains a model on code, adapts it to prose, and merges the adapters into its weights. Then it
// shows what freezing saves.
func (r *rank) run(ctx context.Context, steps int) error {
	if r.group.Rank() != 0 {
		r.out = io.Discard
	}
	pretrained, err := r.stage(ctx, "pretraining on code", gpt(nn.LoRA{}), nil, nil, training{r.code.Train, steps, 3e-3})
	if err != nil {
		return err
	}
	adapted, err := r.stage(ctx, "adapting to prose", gpt(adapter), base, pretrained, training{r.prose.Train, steps / 2, 1e-2})
	if err != nil {
		return err
	}
	for name, v := range pretrained {
		if !slices.Equal(v.Float32s(), adapted[name].Float32s()) {
			return fmt.Errorf("%s is frozen and has changed", name)
		}
	}
	fmt.Fprintf(r.out, "  the %d pretrained tensors have the bits they had\n", len(pretrained))
	if err := adapter.Merge(adapted); err != nil {
		return err
	}
	if _, err := r.stage(ctx, "merged into a plain GPT", gpt(nn.LoRA{}), nil, adapted, training{}); err != nil {
		return err
	}
	return r.memory(ctx)
}

// training is how long a model learns from what.
type training struct {
	text  []byte
	steps int
	lr    float64 // highest learning rate
}

// stage shards a model, gives it weights, which only rank 0 needs to have, trains it and returns
// its weights.
func (r *rank) stage(ctx context.Context, title string, model fsdp.Model, frozen func(string) bool, from map[string]*tensor.Dense, t training) (weights map[string]*tensor.Dense, err error) {
	m, err := fsdp.WrapContext(ctx, model, fsdp.Config{Group: r.group, Wrap: fsdp.WrapTypes(&nn.Block{}), Frozen: frozen, Seed: 1})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := m.SetFull(ctx, 0, from); err != nil {
		return nil, err
	}
	fmt.Fprintln(r.out, title)
	if t.steps > 0 {
		if err := r.train(ctx, m, t); err != nil {
			return nil, err
		}
	}
	if err := r.report(ctx, m, "after"); err != nil {
		return nil, err
	}
	return m.FullState(ctx)
}

// train trains m, each rank on batches of its own.
func (r *rank) train(ctx context.Context, m *fsdp.Sharded, t training) error {
	opt, err := optim.AdamW{Rules: []optim.Rule{optim.NoDecay()}}.New(m.Shards())
	if err != nil {
		return err
	}
	if err := r.plan(m); err != nil {
		return err
	}
	if err := r.report(ctx, m, "before"); err != nil {
		return err
	}
	rnd := rand.New(rand.NewPCG(1, uint64(r.group.Rank())))
	lr := optim.WarmupCosine(t.lr, t.lr/10, t.steps/20, t.steps)
	for step := range t.steps {
		if _, err := m.Forward(ctx, text.Batch(t.text, rnd, rows, length)...); err != nil {
			return err
		}
		if err := m.Backward(ctx); err != nil {
			return err
		}
		if _, err := m.ClipGradNorm(ctx, 1); err != nil {
			return err
		}
		if err := opt.Step(lr(step)); err != nil {
			return err
		}
		m.ZeroGrad()
	}
	return nil
}

// plan prints what a step takes on each rank.
func (r *rank) plan(m *fsdp.Sharded) error {
	p, err := m.Plan(text.Batch(r.code.Held, rand.New(rand.NewPCG(0, 0)), rows, length)...)
	if err != nil {
		return err
	}
	fmt.Fprintln(r.out, p)
	return nil
}

// report prints the losses on what is held out of the texts, the mean over all ranks.
func (r *rank) report(ctx context.Context, m *fsdp.Sharded, when string) error {
	var loss [2]float64
	for i, t := range []text.Text{r.code, r.prose} {
		const batches = 10
		rnd := rand.New(rand.NewPCG(2, uint64(r.group.Rank())))
		for range batches {
			out, err := m.Eval(ctx, text.Batch(t.Held, rnd, rows, length)...)
			if err != nil {
				return err
			}
			loss[i] += float64(out[0].Data().([]float32)[0]) / batches
		}
	}
	if err := r.group.AllReduce(comm.Of(loss[:]), comm.Avg).Wait(ctx); err != nil {
		return err
	}
	fmt.Fprintf(r.out, "  loss %-6s  code %.3f  prose %.3f nats per byte\n", when, loss[0], loss[1])
	return nil
}
