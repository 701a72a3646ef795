// Bench measures this library. Its subcommands compare measurements with something else in the same
// run, in turns: machines are noisy, so look at the ratios, and run again before believing one.
//
//	bench train     steps of a GPT on one and two cores, against PyTorch and the processor's peak
//	bench models    passes of whole models on one core, against PyTorch
//	bench overlap   how much communication over a slow link is hidden
//	bench formats   steps and the time to a loss over a slow link, by the types of sent parameters and gradients
//	bench plan      steps of a GPT, compared with the predictions of package plan
//	bench search    the choice of Planner.Tune, compared with the fastest of many settings, on random models
//	bench join      the cost of Join with even data, and the time of a rank without a batch
//	bench memory    memory of a rank with DDP, in one unit, by blocks, and under each strategy
//	bench state     consolidation of optimizer state, and checkpoints, against PyTorch, plain copies and files
//	bench comm      the collectives, against Gloo, Open MPI, MPICH and memcpy
//	bench growth    cost of a rank as their number grows: open files, goroutines, memory, time to join
//	bench against   steps, collectives and checkpoints, compared with another commit
//
// Each has flags: see bench train -h and so on. The comments of the packages train, models, state
// and comm have measured figures, with machine and date. train, overlap, join and state take
// minutes on two quiet cores, and memory takes half a minute.
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

// interruptible runs a subcommand that must end processes and remove files when it is interrupted.
func interruptible(f func(context.Context, io.Writer, []string) error, w io.Writer, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return f(ctx, w, args)
}
