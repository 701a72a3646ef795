// Uneven trains, validates and generates on ranks that have different numbers of batches, some of
// them none. A small encoder and decoder, sharded over four ranks, learns to spell numbers: 373 is
// three hundred seventy three. The first rank has the most numbers to train on and the fewest to
// validate. In generation the ranks have different numbers of prompts, and the answers to them
// different lengths.
//
// Columns are passes, where t is forward and backward, v an evaluation, e the encoder and d one
// step of the decoder. A rank either has a batch, █, or takes part without computing, ░. Rank 0 has
// one in 23 of the 26 passes of the first epoch. Training ranges over Join, as all ranks must step
// alike. Validation and generation are plain loops inside JoinCalls: where the encoder of one rank
// runs, the decoders of the others wait for one pass.
//
//	$ go run ./examples/uneven
//	epoch 1: 3.805 nats per letter in training, 2.100 in validation
//	  passes          ttttttttttttttttttttttvvvv
//	  rank 0  23/26   ███████████████████████░░░
//	  rank 1  18/26   ████████████████░░░░░░██░░
//	  rank 2  14/26   ███████████░░░░░░░░░░░███░
//	  rank 3  10/26   ██████░░░░░░░░░░░░░░░░████
//	epoch 5: 0.141 nats per letter in training, 0.154 in validation
//	epoch 10: 0.032 nats per letter in training, 0.048 in validation
//	epoch 15: 0.012 nats per letter in training, 0.032 in validation
//	generation
//	  rank 0 spells 901 "nine hundred one"
//	  rank 1 spells 323 "three hundred twenty three"
//	  rank 1 spells 427 "four hundred twenty seven"
//	  rank 3 spells 480 "four hundred eighty"
//	  rank 3 spells 513 "five hundred thirteen"
//	  passes          eddddddddddddddddddddeddddddddedddddddddddddddddddddddddd
//	  rank 0  18/57   ██████████████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░
//	  rank 1  55/57   █████████████████████░███████░███████████████████████████
//	  rank 2   0/57   ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░
//	  rank 3  44/57   ██████████████████████████████░██████████████░░░░░░░░░░░░
//
// Without Join and JoinCalls, loops end early on ranks with less data. Instead of a hang, or of
// layers of different passes in one collective, all ranks get an error, of which one is printed:
//
//	$ go run ./examples/uneven -join=false
//	fsdp: rank 2: Forward: ranks disagree: rank 0 runs Forward as call 19, rank 3 runs Eval as call 19
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"iter"
	"log"
	"math/rand/v2"
	"os"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

const (
	ranks = 4   // unless a launcher has started others
	held  = 150 // numbers to test on
	rows  = 16  // numbers in a batch
)

func main() {
	join := flag.Bool("join", true, "keep ranks in step, by Sharded.Join and JoinCalls")
	epochs := flag.Int("epochs", 15, "epochs of the training")
	flag.Parse()
	err := comm.Run(context.Background(), ranks, func(ctx context.Context, g comm.Group) error {
		return run(ctx, g, *join, *epochs, os.Stdout)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// rank is one of the ranks.
type rank struct {
	group comm.Group
	join  bool
	out   io.Writer
	model *fsdp.Sharded
	timeline
}

// run trains, validates and generates, each rank on data of its own.
func run(ctx context.Context, g comm.Group, join bool, epochs int, out io.Writer) (err error) {
	if g.Rank() != 0 {
		out = io.Discard
	}
	r := &rank{group: g, join: join, out: out}
	cfg := fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{}), Seed: 1, Observers: []fsdp.Observer{fsdp.TraceFunc(r.see)}}
	if r.model, err = fsdp.WrapContext(ctx, &speller{layers: 1, dim: 64, heads: 4}, cfg); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.model.Close()) }()
	numbers := rand.New(rand.NewPCG(1, 0)).Perm(limit)
	if err := r.train(ctx, numbers[:held], numbers[held:], epochs); err != nil {
		return err
	}
	return r.generate(ctx, toSpell(numbers, g.Rank()))
}

// toSpell returns the numbers for a rank to spell, some of those held out, or none.
func toSpell(numbers []int, rank int) []int {
	several := [...]int{1, 2, 0, 2}
	return numbers[rank*len(several)%held:][:several[rank%len(several)]]
}

// share returns the numbers that part i of n has. The first part has n times as many as the last.
func share(numbers []int, i, n int) []int {
	end := func(i int) int { return len(numbers) * i * (2*n + 1 - i) / (n * (n + 1)) }
	return numbers[end(i):end(i+1)]
}

// calls runs f by JoinCalls, or without.
func (r *rank) calls(ctx context.Context, f func() error) error {
	if r.join {
		return r.model.JoinCalls(ctx, f)
	}
	return f()
}

// batches goes through the data by Join, or without.
func (r *rank) batches(ctx context.Context, data iter.Seq2[[]fsdp.Tensor, error]) iter.Seq2[[]fsdp.Tensor, error] {
	if r.join {
		return r.model.Join(ctx, data)
	}
	return data
}
