// Bench measures this library. Its subcommands compare what is measured with something else in the
// same run, in turns: machines are noisy, so look at the ratios, and run again before believing
// one.
//
//	bench train     steps of a GPT on one and two cores, beside PyTorch and the processor's peak
//	bench models    passes of whole models on one core, beside PyTorch
//	bench overlap   how much communication over a slow link is hidden
//	bench formats   steps and the time to a loss over a slow link by the types in which parameters and gradients travel
//	bench plan      steps of a GPT beside what package plan says of them
//	bench search    what fsdp.Tune chooses beside the fastest of many settings, on random models
//	bench join      what Join costs with even data, and what a rank without a batch takes
//	bench memory    what a rank holds with DDP, in one unit, by blocks, and under each strategy
//	bench state     optimizer state made whole, and checkpoints, beside PyTorch, plain copies and files
//	bench comm      the collectives, beside Gloo, Open MPI, MPICH and memcpy
//	bench growth    what a rank costs as their number grows: open files, goroutines, memory, time to join
//	bench against   steps, collectives and checkpoints beside those of another commit
//
// Each has flags: see bench train -h and so on. The comments of the packages train, models, state and
// comm have figures that were measured, with machine and date. For train, overlap, join and state two
// quiet cores take minutes, for memory half of one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/gofsdp/gofsdp/internal/workshop/bench/comm"
	"github.com/gofsdp/gofsdp/internal/workshop/bench/models"
	"github.com/gofsdp/gofsdp/internal/workshop/bench/state"
	"github.com/gofsdp/gofsdp/internal/workshop/bench/train"
)

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run runs a subcommand.
func run(w io.Writer, args []string) error {
	if len(args) == 0 {
		return errors.New("want one of train, models, overlap, formats, plan, search, join, memory, state, comm, growth, against")
	}
	switch name, args := args[0], args[1:]; name {
	case "train":
		return interruptible(train.Run, w, args)
	case "models":
		return interruptible(models.Run, w, args)
	case "overlap":
		return train.Overlap(w, args)
	case "formats":
		return train.Formats(w, args)
	case "plan":
		return interruptible(train.Plan, w, args)
	case "search":
		return interruptible(train.Search, w, args)
	case "join":
		return train.Join(w, args)
	case "memory":
		return train.Memory(w, args)
	case "state":
		return interruptible(state.Run, w, args)
	case "comm":
		return interruptible(comm.Run, w, args)
	case "growth":
		return interruptible(comm.Growth, w, args)
	case "against":
		return interruptible(against, w, args)
	case state.RankCommand:
		return state.Serve(context.Background(), w, args[0])
	case train.RankCommand:
		return train.Serve(context.Background(), os.Stdin, w, args[0])
	case models.RankCommand:
		return models.Serve(context.Background(), os.Stdin, w, args[0])
	case comm.RankCommand:
		return comm.Serve(args)
	default:
		return fmt.Errorf("unknown subcommand %q", name)
	}
}

// interruptible runs a subcommand that has processes to end and files to remove when it is
// interrupted.
func interruptible(f func(context.Context, io.Writer, []string) error, w io.Writer, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return f(ctx, w, args)
}
