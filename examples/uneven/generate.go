package main

import (
	"context"
	"fmt"

	"github.com/gofsdp/gofsdp/comm"
)

// generate spells numbers, a letter in each pass of the decoder. It is written as for one rank: how
// many numbers the others have, and how long their words become, is no matter here.
func (r *rank) generate(ctx context.Context, mine []int) error {
	var said string
	err := r.calls(ctx, func() error {
		for _, n := range mine {
			words, err := r.say(ctx, n)
			if err != nil {
				return err
			}
			said += fmt.Sprintf("  rank %d spells %d %q\n", r.group.Rank(), n, words)
		}
		return nil
	})
	if err != nil {
		return err
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

// say returns the likeliest words for a number.
func (r *rank) say(ctx context.Context, n int) (words string, err error) {
	states, err := r.model.EvalProgram(ctx, "encode", digits(n))
	if err != nil {
		return "", err
	}
	for len(words) < length-1 {
		logits, err := r.model.EvalProgram(ctx, "decode", states[0], matrix(row(string(rune(end))+words, end)))
		if err != nil {
			return "", err
		}
		letter := likeliest(logits[0].Data().([]float32)[len(words)*vocab:][:vocab])
		if letter == end {
			break
		}
		words += string(rune(letter))
	}
	return words, nil
}

// likeliest returns the letter with the largest logit.
func likeliest(logits []float32) (best int) {
	for i, l := range logits {
		if l > logits[best] {
			best = i
		}
	}
	return best
}
