package fsdp_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// What a rank keeps and sends under each strategy, on four ranks of which two share a host.
func ExampleStrategy() {
	model := counter()
	model.Layers = 4
	err := comm.Run(context.Background(), 4, func(_ context.Context, g comm.Group) error {
		for _, strategy := range []fsdp.Strategy{fsdp.FullShard, fsdp.ShardGradOp, fsdp.HybridShard, fsdp.SecondaryShard, fsdp.NoShard} {
			m, err := fsdp.Wrap(model, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{}), Strategy: strategy, ShardRanks: 2})
			if err != nil {
				return err
			}
			plan, err := m.Plan(counting(0, 2, 8))
			if err != nil {
				return err
			}
			if g.Rank() == 0 {
				fmt.Printf("%-14v keeps %5.1f kB, sends %5.1f kB in %d gathers, %d reduce-scatters, %d all-reduces\n", strategy,
					float64(plan.ShardBytes)/1e3, float64(plan.Traffic)/1e3, plan.Gathers, plan.Reduces, plan.AllReduces)
			}
			if err := m.Close(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// FullShard      keeps  27.6 kB, sends 102.9 kB in 7 gathers, 5 reduce-scatters, 0 all-reduces
	// ShardGradOp    keeps  27.6 kB, sends  82.9 kB in 5 gathers, 5 reduce-scatters, 0 all-reduces
	// HybridShard    keeps  54.7 kB, sends  95.2 kB in 7 gathers, 5 reduce-scatters, 5 all-reduces
	// SecondaryShard keeps  27.6 kB, sends  96.3 kB in 7 gathers, 5 reduce-scatters, 0 all-reduces
	// NoShard        keeps 108.8 kB, sends  81.6 kB in 0 gathers, 0 reduce-scatters, 5 all-reduces
}

// Rank 0 has one batch, rank 1 has three, and both leave the loop after the third pass. The gradients are means over the
// ranks that have a batch.
func ExampleSharded_Join() {
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(counter(), fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{}), GradAverage: fsdp.ByActive})
		if err != nil {
			return err
		}
		defer m.Close()
		data := func(yield func([]fsdp.Tensor, error) bool) {
			for i := range 1 + 2*g.Rank() {
				tokens, targets := counting(i, 2, 8)
				if !yield([]fsdp.Tensor{tokens, targets}, nil) {
					return
				}
			}
		}
		passes, own := 0, 0
		for batch, err := range m.Join(ctx, data) {
			if err != nil {
				return err
			}
			if _, err := m.Forward(ctx, batch...); err != nil {
				return err
			}
			if err := m.Backward(ctx); err != nil {
				return err
			}
			passes++
			if batch != nil {
				own++
			}
		}
		return inOrder(ctx, g, func() { fmt.Printf("rank %d: %d passes, %d with a batch\n", g.Rank(), passes, own) })
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// rank 0: 3 passes, 1 with a batch
	// rank 1: 3 passes, 3 with a batch
}

// A training that Ctrl-C ends: all ranks leave the loop after the same step, and save what they have. The context of the
// training is not the one that the signal ends, so ranks can still talk.
func ExampleSharded_Any() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	err = comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(counter(), fsdp.Config{Group: g})
		if err != nil {
			return err
		}
		defer m.Close()
		opt, err := optim.AdamW{}.New(m.Params())
		if err != nil {
			return err
		}
		interrupt, stop := comm.Interrupt(ctx)
		defer stop()
		tokens, targets := counting(5*g.Rank(), 2, 8)
		data := fsdp.Batches(slices.Repeat([][]fsdp.Tensor{{tokens, targets}}, 1000)...)
		for batch, err := range m.Join(ctx, data) {
			if err != nil {
				return err
			}
			if _, err := m.Forward(ctx, batch...); err != nil {
				return err
			}
			if err := m.Backward(ctx); err != nil {
				return err
			}
			if err := opt.Step(1e-2); err != nil {
				return err
			}
			m.ZeroGrad()
			pressed := interrupt.Err() != nil || g.Rank() == 1 && opt.Steps() == 3 // as if somebody had pressed Ctrl-C
			if over, err := m.Any(ctx, pressed); over || err != nil {
				return errors.Join(err, m.Save(ctx, dir, opt, nil))
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	latest, err := fsdp.LatestCheckpoint(dir)
	fmt.Println(filepath.Base(latest), err)
	// Output: 000001-step-3 <nil>
}

// The mean loss per token, of ranks of which one has no batch and the others have different ones.
func ExampleSharded_Mean() {
	err := comm.Run(context.Background(), 3, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(counter(), fsdp.Config{Group: g})
		if err != nil {
			return err
		}
		defer m.Close()
		data := fsdp.Batches()
		if g.Rank() > 0 {
			tokens, targets := counting(0, g.Rank(), 8)
			data = fsdp.Batches([]fsdp.Tensor{tokens, targets})
		}
		for batch, err := range m.Join(ctx, data) {
			if err != nil {
				return err
			}
			loss, err := m.Forward(ctx, batch...)
			if err != nil {
				return err
			}
			tokens := 0
			if batch != nil {
				tokens = batch[0].Shape().TotalSize()
			}
			mean, err := m.Mean(ctx, loss, float64(tokens))
			if err != nil {
				return err
			}
			all, err := m.Mean(ctx, float64(tokens))
			if err != nil {
				return err
			}
			if g.Rank() == 0 {
				fmt.Printf("loss %.1f, %v tokens on average on a rank that has any\n", mean, all)
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: loss 2.3, 12 tokens on average on a rank that has any
}

// Rank 0 generates until it has counted far enough, while rank 1 validates. Neither knows of the other.
func ExampleSharded_JoinCalls() {
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(counter(), fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{})})
		if err != nil {
			return err
		}
		defer m.Close()
		said := "nothing"
		err = m.JoinCalls(ctx, func() error {
			if g.Rank() == 0 {
				for length := 1; length <= 5; length++ {
					tokens, targets := counting(0, 1, length)
					if _, err := m.Eval(ctx, tokens, targets); err != nil {
						return err
					}
					said = fmt.Sprintf("%d steps of generation", length)
				}
				return nil
			}
			for i := range 2 {
				tokens, targets := counting(i, 2, 8)
				if _, err := m.Eval(ctx, tokens, targets); err != nil {
					return err
				}
				said = fmt.Sprintf("%d batches of validation", i+1)
			}
			return nil
		})
		if err != nil {
			return err
		}
		return inOrder(ctx, g, func() { fmt.Printf("rank %d: %s\n", g.Rank(), said) })
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// rank 0: 5 steps of generation
	// rank 1: 2 batches of validation
}

// classifier tells three classes apart behind a batch norm, whose running statistics are a buffer of each rank.
type classifier struct{}

func (classifier) Inputs() []string { return []string{"features", "classes"} }

func (classifier) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	x := t.Call("bn", &nn.BatchNorm{Dim: 2, Momentum: 1}, in[0])
	logits := t.Call("out", &nn.Linear{In: 2, Out: 3}, x)
	return []fsdp.Ref{t.Call("loss", &nn.CrossEntropy{}, logits, in[1])}, nil
}

// Each rank collects the running statistics of its own batches; they are averaged before they are used or saved.
func ExampleSharded_AverageBuffers() {
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(classifier{}, fsdp.Config{Group: g})
		if err != nil {
			return err
		}
		defer m.Close()
		r := float32(10 * g.Rank())
		x := tensor.New(tensor.WithShape(2, 2), tensor.WithBacking([]float32{r, 1, r + 4, 3}))
		classes := tensor.New(tensor.WithShape(2), tensor.WithBacking([]int{0, 2}))
		if _, err := m.Forward(ctx, x, classes); err != nil {
			return err
		}
		show := func(when string) error {
			state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
			if err != nil {
				return err
			}
			return inOrder(ctx, g, func() { fmt.Printf("%s rank %d: %v\n", when, g.Rank(), state["bn.running_mean"].Data()) })
		}
		if err := show("before"); err != nil {
			return err
		}
		if err := m.AverageBuffers(ctx); err != nil {
			return err
		}
		return show("after")
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// before rank 0: [2 2]
	// before rank 1: [12 2]
	// after rank 0: [7 2]
	// after rank 1: [7 2]
}

// inOrder calls f on one rank after the other.
func inOrder(ctx context.Context, g comm.Group, f func()) error {
	for r := range g.Size() {
		if r == g.Rank() {
			f()
		}
		if err := g.Barrier(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Where the pieces of a block's matrices begin under different cuts, and what they cost.
func ExampleUnitConfig() {
	err := comm.Run(context.Background(), 2, func(_ context.Context, g comm.Group) error {
		for _, cut := range []shard.Cut{{}, {Block: shard.Rows(8)}, {Block: shard.Whole}, {Weights: []float64{2, 1}}} {
			m, err := fsdp.Wrap(counter(), fsdp.Config{
				Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{}), Unit: func(u *fsdp.UnitConfig) { u.Cut = cut },
			})
			if err != nil {
				return err
			}
			plan, err := m.Plan(counting(0, 2, 8))
			if err != nil {
				return err
			}
			owned := 0
			for _, p := range m.Params() {
				if p.Name == "blocks.0.fc.weight" && g.Rank() == 1 {
					fmt.Printf("rank 1 has %4d elements of %s %v, from %4d on, ", p.Value.Len(), p.Name, p.Shape, p.Offset)
				}
				owned += p.Value.Len()
			}
			if g.Rank() == 1 {
				fmt.Printf("%4d in all, and %d bytes of padding\n", owned, plan.CutBytes)
			}
			if err := m.Close(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// rank 1 has  528 elements of blocks.0.fc.weight [64 16], from  496 on, 3504 in all, and 0 bytes of padding
	// rank 1 has  512 elements of blocks.0.fc.weight [64 16], from  512 on, 3424 in all, and 640 bytes of padding
	// rank 1 has 1024 elements of blocks.0.fc.weight [64 16], from    0 on, 4448 in all, and 8064 bytes of padding
	// rank 1 has    0 elements of blocks.0.fc.weight [64 16], from    0 on, 2336 in all, and 9344 bytes of padding
}

// Muon for the matrices of the blocks, queries, keys and values by head, and AdamW for the rest.
func Example_muon() {
	muon := optim.Muon{WeightDecay: 0.1, Blocks: func(p optim.Param) int {
		if strings.HasSuffix(p.Name, "qkv.weight") {
			return 3 * 2
		}
		return 1
	}}
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(counter(), fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{})})
		if err != nil {
			return err
		}
		var hidden, others []optim.Param
		for _, p := range m.Params() {
			if strings.HasPrefix(p.Name, "blocks.") && len(p.Shape) == 2 {
				hidden = append(hidden, p)
			} else {
				others = append(others, p)
			}
		}
		matrices, err := muon.New(hidden)
		if err != nil {
			return err
		}
		rest, err := optim.AdamW{WeightDecay: 0.1, Rules: []optim.Rule{optim.NoDecay()}}.New(others)
		if err != nil {
			return err
		}
		opt, err := optim.Compose(matrices, rest)
		if err != nil {
			return err
		}
		first, last := 0.0, 0.0
		for step := range 30 {
			tokens, targets := counting(2*step+g.Rank(), 2, 8)
			if last, err = m.Forward(ctx, tokens, targets); err != nil {
				return err
			}
			if step == 0 {
				first = last
			}
			if err := m.Backward(ctx); err != nil {
				return err
			}
			if err := opt.Step(0.02); err != nil {
				return err
			}
			m.ZeroGrad()
		}
		plan, err := muon.Plan(hidden)
		if err != nil {
			return err
		}
		if g.Rank() == 0 {
			for _, p := range plan.Matrices[:4] {
				fmt.Printf("%s, %d × %d from row %d on: %v, rank %d\n", p.Param, p.Rows, p.Cols, p.First, p.Method, p.Owner)
			}
			fmt.Printf("loss from %.0f to %.0f\n", first, last)
		}
		return m.Close()
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// blocks.0.fc.weight, 64 × 16 from row 0 on: gram, rank 1
	// blocks.0.out.weight, 16 × 64 from row 0 on: owner, rank 1
	// blocks.0.proj.weight, 16 × 16 from row 0 on: owner, rank 0
	// blocks.0.qkv.weight, 8 × 16 from row 0 on: owner, rank 0
	// loss from 2 to 0
}
