package fsdp_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"regexp"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/optim"
)

// counting returns rows of the sequence start, start+1, … modulo 10 as tokens, and each token's
// successor as its target.
func counting(start, rows, cols int) (tokens, targets *tensor.Dense) {
	var x, y []int
	for r := range rows {
		for c := range cols {
			x = append(x, (start+3*r+c)%10)
			y = append(y, (start+3*r+c+1)%10)
		}
	}
	shape := tensor.WithShape(rows, cols)
	return tensor.New(shape, tensor.WithBacking(x)), tensor.New(shape, tensor.WithBacking(y))
}

// Two ranks, each holding half of the model and half of every batch, learn to count. A block is
// gathered when it computes and freed right after.
func ExampleWrap() {
	model := &nn.GPT{Vocab: 10, Context: 8, Layers: 2, Dim: 16, Heads: 2}
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(model, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{})})
		if err != nil {
			return err
		}
		defer m.Close()
		opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Params()) // state for this rank's share only
		if err != nil {
			return err
		}
		for step := range 60 {
			tokens, targets := counting(step+5*g.Rank(), 4, 8) // another batch on each rank
			loss, err := m.Forward(ctx, tokens, targets)
			if err != nil {
				return err
			}
			if g.Rank() == 0 && step%20 == 0 {
				fmt.Printf("step %d: loss %.1f\n", step, loss)
			}
			if err := m.Backward(ctx); err != nil {
				return err
			}
			if _, err := m.ClipGradNorm(ctx, 1); err != nil {
				return err
			}
			if err := opt.Step(0.01); err != nil {
				return err
			}
			m.ZeroGrad()
		}
		tokens, targets := counting(4, 1, 5)
		out, err := m.Eval(ctx, tokens, targets) // the loss and the logits [1, 5, 10]
		if err != nil {
			return err
		}
		if g.Rank() == 0 {
			next, err := tensor.Argmax(out[1], 2)
			if err != nil {
				return err
			}
			fmt.Println("after", tokens.Ints(), "comes", next.Data())
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// step 0: loss 2.3
	// step 20: loss 0.4
	// step 40: loss 0.0
	// after [4 5 6 7 8] comes [5 6 7 8 9]
}

// Units by name: the calls that match alike are one unit, here all blocks together; the rest is the
// root group.
func ExampleWrapNames() {
	model := &nn.GPT{Vocab: 10, Context: 8, Layers: 4, Dim: 16, Heads: 2}
	m, err := fsdp.Wrap(model, fsdp.Config{WrapPolicy: fsdp.WrapNames(regexp.MustCompile(`^(wte|blocks)`))})
	if err != nil {
		log.Fatal(err)
	}
	tokens, targets := counting(0, 1, 8)
	plan, err := m.Plan(tokens, targets)
	if err != nil {
		log.Fatal(err)
	}
	for _, g := range plan.Groups {
		fmt.Printf("%s: %d parameters, %d elements\n", g.Name, g.Params, g.Len)
	}
	// Output:
	// root: 4 parameters, 320 elements
	// wte: 1 parameters, 160 elements
	// blocks: 48 parameters, 13120 elements
}

// The plan shows the memory of a GPT on each of four ranks. Nothing runs: shapes decide, contents
// do not matter.
func ExampleSharded_Plan() {
	err := comm.Run(context.Background(), 4, func(_ context.Context, g comm.Group) error {
		model := &nn.GPT{Vocab: 1000, Context: 64, Layers: 6, Dim: 64, Heads: 4}
		m, err := fsdp.Wrap(model, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{})})
		if err != nil || g.Rank() > 0 {
			return err
		}
		tokens := tensor.New(tensor.WithShape(2, 64), tensor.Of(tensor.Int))
		plan, err := m.Plan(tokens, tokens)
		if err != nil {
			return err
		}
		table, _, _ := strings.Cut(plan.String(), "each rank") // whose programs depend on the machine
		fmt.Print(table)
		for _, operation := range plan.Schedule[:11] {
			fmt.Println(" ", operation)
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// parameters 432128, groups 7, ranks 4
	//   group                        parameters     whole  strategy     ranks
	//   root                             132224  528.9 kB  ShardGradOp  4
	//   6 × blocks.*                      49984  199.9 kB  FullShard    4
	//   gather root
	//   gather blocks.0
	//   wait root
	//   forward wte
	//   gather blocks.1
	//   forward wpe
	//   wait blocks.0
	//   forward blocks.0
	//   free blocks.0
	//   gather blocks.2
	//   wait blocks.1
}

// A plan needs neither ranks nor memory: here is what one of 128 ranks would take to train GPT-3.
func ExamplePlanner_Plan() {
	model := &nn.GPT{Vocab: 50304, Context: 2048, Layers: 96, Dim: 12288, Heads: 96, Tied: true}
	blocks := fsdp.WrapTypes(&nn.Block{})
	plan, err := fsdp.Planner{
		Model: model,
		Config: fsdp.Config{
			Group: comm.World{Ranks: 128}, WrapPolicy: blocks,
			Activations: fsdp.Activations{Recompute: blocks}, Precision: fsdp.Precision{Compute: fsdp.BFloat16},
		},
		NewOptimizer: optim.AdamW{}.New,
		Batch:        []fsdp.Shape{fsdp.Ints(1, 2048), fsdp.Ints(1, 2048)},
	}.Plan()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.1f billion parameters\n", float64(plan.Params)/1e9)
	fmt.Printf("%.1f GB of parameters, gradients and optimizer state\n", float64(plan.ShardBytes+plan.StateBytes)/1e9)
	fmt.Printf("%.1f GB during a pass\n", float64(plan.PassBytes)/1e9)
	fmt.Printf("%d gathers, %.0f GB sent\n", plan.Gathers, float64(plan.Traffic)/1e9)
	// Output:
	// 174.6 billion parameters
	// 21.8 GB of parameters, gradients and optimizer state
	// 30.0 GB during a pass
	// 382 gathers, 1377 GB sent
}

// Why does a model of 13 billion parameters not fit on 8 GPUs of 40 GB, and what would help?
func ExamplePlanner_Fits() {
	model := &nn.GPT{Vocab: 50304, Context: 2048, Layers: 40, Dim: 5120, Heads: 40}
	err := fsdp.Planner{
		Model:        model,
		Config:       fsdp.Config{Group: comm.World{Ranks: 8}, WrapPolicy: fsdp.WrapEach(), Precision: fsdp.BF16()},
		NewOptimizer: optim.AdamW{}.New,
		Batch:        []fsdp.Shape{fsdp.Ints(4, 2048), fsdp.Ints(4, 2048)},
	}.Fits(40e9)
	var misfit *plan.Misfit
	if !errors.As(err, &misfit) {
		log.Fatal(err)
	}
	fmt.Println(misfit.Op, plan.Bytes(misfit.Live.Total()))
	for _, c := range misfit.Changes {
		fmt.Printf("%s saves %s\n", c.Name, plan.Bytes(c.Saved))
	}
	// Output:
	// backward blocks.38 63.8 GB
	// Activations.Recompute: WrapEach() saves 29.1 GB
	// Offload.Dir (on a GPU Offload.Pinned) saves 26.2 GB
	// half the batch saves 16.9 GB
	// training on 16 ranks saves 13.1 GB
	// optim.AdamW{Bits: 8} (rounds differently) saves 9.8 GB
	// Precision.Master: BFloat16 (rounds parameters and gradients) saves 6.6 GB
	// Precision.Reduce: BFloat16 (rounds gradients) saves 1.0 GB
	// Prefetch: NoPrefetch saves 496.7 MB
}

// Which settings train Llama 3 70B fastest on 64 H100, and how fast is that?
func ExamplePlanner_Tune() {
	model := &nn.Llama{Vocab: 128256, Layers: 80, Dim: 8192, Heads: 64, KVHeads: 8, Hidden: 28672, FusedLoss: true}
	c := plan.Clusters()["h100"]
	cfg, choices, err := fsdp.Planner{
		Model:        model,
		Config:       fsdp.Config{Group: comm.World{Ranks: 64}, Precision: fsdp.Precision{Compute: fsdp.BFloat16}},
		NewOptimizer: optim.AdamW{}.New,
		Batch:        []fsdp.Shape{fsdp.Ints(1, 8192), fsdp.Ints(1, 8192)},
	}.Tune(c, c.Device.Memory*85/100)
	if err != nil {
		log.Fatal(err)
	}
	best := choices[0]
	fmt.Println(best.Setting)
	fmt.Printf("%v, %.1f GB, %.0f tokens/s a GPU\n", cfg.Strategy, float64(best.Memory)/1e9, 8192*best.Rate())
	// Output:
	// FullShard by calls, recompute full, prefetch 3, 1 × 1 samples
	// FullShard, 44.3 GB, 778 tokens/s a GPU
}
