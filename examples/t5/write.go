package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/generate"
	"github.com/gofsdp/gofsdp/fsdp/metrics"
)

// always is what a model would say that has learned how comments begin, and does not read.
const always = "returns the"

// write has each rank write about its part of some functions held out, as many as it has, and
// prints how good that is, and samples.
func (r *rank) write(ctx context.Context) error {
	mine := r.mine(r.data.held[:min(len(r.data.held), r.prompts)])
	texts, err := r.comments(ctx, mine)
	if err != nil {
		return err
	}
	var score, trivial metrics.Mean
	said := fmt.Sprintf("rank %d of %d has written about %d functions\n", r.group.Rank(), r.group.Size(), len(mine))
	for i, f := range mine {
		err := errors.Join(score.Add(rougeL(texts[i], f.comment), 1), trivial.Add(rougeL(always, f.comment), 1))
		if err != nil {
			return err
		}
		if i < r.samples {
			said += fmt.Sprintf("  %.72s\n    comment %.64s\n    model   %.64s\n", f.name, strconv.Quote(f.comment), strconv.Quote(texts[i]))
		}
	}
	if _, err := (metrics.Set{"score": &score, "trivial": &trivial}).Reduce(ctx, r.group); err != nil {
		return err
	}
	all, err := comm.GatherBytes(ctx, r.group, []byte(said))
	if err != nil {
		return err
	}
	for _, s := range all {
		fmt.Fprintf(r.out, "%s", s)
	}
	fmt.Fprintf(r.out, "ROUGE-L %.3f over %.0f functions; %.3f if one always said %q\n", score.Value(), score.Weight(), trivial.Value(), always)
	return nil
}

// comments returns what the model says of functions, which may be none.
func (r *rank) comments(ctx context.Context, fs []function) ([]string, error) {
	g, err := generate.New(r.model, r.t5().Cache(), generate.Config{Batch: 16})
	if err != nil {
		return nil, err
	}
	prompts := make([][]int, len(fs))
	for i, f := range fs {
		prompts[i] = f.reads
	}
	o := generate.Options{MaxTokens: r.target, Start: []int{end}, Stop: []int{end}, Beams: r.beams}
	written, err := g.Generate(ctx, prompts, o)
	if err != nil {
		return nil, err
	}
	texts := make([]string, len(fs))
	for i, tokens := range written {
		texts[i] = r.words.text(tokens)
	}
	return texts, nil
}
