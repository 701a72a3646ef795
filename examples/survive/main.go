// Survive trains a small model on ranks that may be killed: the others go on, and the losses are
// the same as without the loss of a rank. Kill one of the processes that it names:
//
//	$ go run ./fsdp/fsdprun -n 4 -replace 1 ./examples/survive
//	[2] rank 2 of 4 is process 4242, and continues after step 0
//	…
//	$ kill -9 4242
//
// Each rank keeps the last step in memory, and a copy of its neighbour's part
// (fsdp.MemoryCheckpoint). When a rank is lost, the calls of the others fail with a comm.RankError.
// They connect again, together with the process that fsdprun has started in its place, load that
// step from memory, and repeat the step in which the rank was lost. A rank that gets SIGTERM leaves
// after its step, and the others go on at once. A process with FSDP_JOIN=1 that finds the ranks in
// the directory of FSDP_RENDEZVOUS or FSDP_MEMBERS is one more rank from the next step on.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// virtual is the number of micro-batches of a step: 1 to 4 ranks compute the same bits.
const virtual = 4

func main() {
	ranks := flag.Int("ranks", 4, "`number` of ranks, where no launcher has started them: 1 to 4")
	steps := flag.Int("steps", 300, "number of `steps`")
	flag.Parse()
	interrupt, stop := comm.Interrupt(context.Background())
	defer stop()
	err := comm.Run(context.Background(), *ranks, func(ctx context.Context, g comm.Group) error {
		var last fsdp.MemoryCheckpoint
		for {
			err := train(ctx, interrupt, g, &last, *steps)
			if lost := new(comm.RankError); !errors.As(err, &lost) && !errors.Is(err, errGrow) {
				return errors.Join(err, g.Close())
			}
			former := g
			if g, err = comm.Reconnect(ctx, former); err != nil {
				return err
			}
			_ = former.Close() // if it has failed, it says so once more
		}
	})
	if err != nil {
		log.Fatal(err)
	}
}

// errGrow ends train when processes wait to join.
var errGrow = errors.New("processes wait to join")

// train trains from the last step to the end, or until this process is interrupted.
func train(ctx, interrupt context.Context, g comm.Group, last *fsdp.MemoryCheckpoint, steps int) error {
	model := &nn.GPT{Vocab: 32, Context: 16, Layers: 2, Dim: 32, Heads: 4, Dropout: 0.1}
	m, err := fsdp.Wrap(model, fsdp.Config{Group: g, VirtualRanks: virtual, WrapPolicy: fsdp.WrapEach()})
	if err != nil {
		return err
	}
	defer m.Close()
	opt, err := optim.AdamW{}.New(m.Params())
	if err != nil {
		return err
	}
	// In the first group no rank has a step.
	if _, err := last.Load(ctx, m, opt); err != nil && !errors.Is(err, fsdp.ErrNoCheckpoint) {
		return err
	}
	fmt.Printf("rank %d of %d is process %d, and continues after step %d\n", g.Rank(), g.Size(), os.Getpid(), opt.Steps())
	for opt.Steps() < steps && interrupt.Err() == nil {
		loss, err := step(ctx, m, opt, g)
		if err != nil {
			return err
		}
		if err := last.Save(ctx, m, opt, nil); err != nil {
			return err
		}
		if g.Rank() == 0 && opt.Steps()%20 == 0 {
			fmt.Printf("step %d  loss %.6f\n", opt.Steps(), loss)
		}
		if grow, err := m.Any(ctx, comm.Joining(g) > 0); err != nil {
			return err
		} else if grow {
			return errGrow
		}
	}
	return nil
}

// step makes a step, and returns the loss of the first micro-batch of this rank: on rank 0 it is
// the same batch for any number of ranks. On three ranks, only rank 0 has two micro-batches: the
// others take part in the second one without a batch.
func step(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, g comm.Group) (loss float64, err error) {
	for first := 0; first < virtual; first += g.Size() {
		var mine []fsdp.Tensor
		if v := first + g.Rank(); v < virtual {
			tokens, targets := batch(opt.Steps()*virtual + v)
			mine = []fsdp.Tensor{tokens, targets}
		}
		l, err := m.Forward(ctx, mine...)
		if err != nil {
			return 0, err
		}
		if first == 0 {
			loss = l
		}
		if err := m.Backward(ctx); err != nil {
			return 0, err
		}
	}
	err = opt.Step(3e-3)
	m.ZeroGrad()
	return loss, err
}

// batch returns rows that count upwards modulo 32, in steps of 1 to 3.
func batch(seed int) (tokens, targets *tensor.Dense) {
	const rows, cols = 4, 16
	in, out := make([]int, rows*cols), make([]int, rows*cols)
	for i := range in {
		first, by := seed*7+i/cols*5, 1+(seed+i/cols)%3
		in[i], out[i] = (first+i%cols*by)%32, (first+(i%cols+1)*by)%32
	}
	return tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(in)), tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(out))
}
