package main

import (
	"context"
	"fmt"
	"iter"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
)

// generate spells numbers, a letter in each pass of the decoder. Ranks have different numbers of
// them, the outer loop, and their words different numbers of letters, the inner one, after which
// all ranks encode their next numbers together.
func (r *rank) generate(ctx context.Context, mine []int) error {
	var said string
	for batch, err := range r.batches(ctx, prompts(mine)) {
		if err != nil {
			return err
		}
		r.mark = 'e'
		states, err := r.model.EvalProgram(ctx, "encode", batch...)
		if err != nil {
			return err
		}
		r.mark = 'd'
		var s speech
		for batch, err := range r.batches(ctx, s.steps(states)) {
			if err != nil {
				return err
			}
			logits, err := r.model.EvalProgram(ctx, "decode", batch...)
			if err != nil {
				return err
			}
			if len(logits) > 0 {
				s.say(logits[0].Data().([]float32))
			}
		}
		if len(mine) > 0 {
			said += fmt.Sprintf("  rank %d spells %d %q\n", r.group.Rank(), mine[0], s.words)
			mine = mine[1:]
		}
	}
	all, err := comm.GatherBytes(ctx, r.group, []byte(said))
	if err != nil {
		return err
	}
	fmt.Fprintln(r.out, "generation")
	for _, s := range all {
		fmt.Fprintf(r.out, "%s", s)
	}
	return r.draw(ctx, r.group, r.out)
}

// prompts are batches of one number for the encoder.
func prompts(numbers []int) iter.Seq[[]fsdp.Tensor] {
	return func(yield func([]fsdp.Tensor) bool) {
		for _, n := range numbers {
			if !yield([]fsdp.Tensor{digits(n)}) {
				return
			}
		}
	}
}

// speech is what the decoder has said.
type speech struct {
	words string
	ended bool
}

// steps are batches for the decoder until it has come to an end. There are none without states.
func (s *speech) steps(states []fsdp.Tensor) iter.Seq[[]fsdp.Tensor] {
	return func(yield func([]fsdp.Tensor) bool) {
		for len(states) > 0 && !s.ended {
			if !yield([]fsdp.Tensor{states[0], matrix(row(string(rune(end))+s.words, end))}) {
				return
			}
		}
	}
}

// say adds the likeliest letter, from logits [1, length, vocab].
func (s *speech) say(logits []float32) {
	now := logits[len(s.words)*vocab:][:vocab]
	best := 0
	for i, l := range now {
		if l > now[best] {
			best = i
		}
	}
	if s.ended = best == end || len(s.words) == length-1; !s.ended {
		s.words += string(rune(best))
	}
}
