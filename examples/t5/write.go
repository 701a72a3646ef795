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

// write has each rank write about its part of some functions held out, as many as it has, and
// prints how good that is, and samples.
func (r *rank) write(ctx context.Context) error {
	mine := r.mine(r.data.held[:min(len(r.data.held), r.prompts)])
	texts, err := r.comments(ctx, mine)
	if err != nil {
		return err
	}
	always := typical(r.data.train)
	var score, constant, name metrics.Mean
	said := fmt.Sprintf("rank %d of %d has written about %d functions\n", r.group.Rank(), r.group.Size(), len(mine))
	for i, f := range mine {
		err := errors.Join(score.Add(rougeL(texts[i], f.comment), 1), constant.Add(rougeL(always, f.comment), 1),
			name.Add(rougeL(f.name, f.comment), 1))
		if err != nil {
			return err
		}
		if i < r.samples {
			said += fmt.Sprintf("  %.72s\n    comment %.64s\n    model   %.64s\n", f.name, strconv.Quote(f.comment), strconv.Quote(texts[i]))
		}
	}
	if _, err := (metrics.Set{"score": &score, "constant": &constant, "name": &name}).Reduce(ctx, r.group); err != nil {
		return err
	}
	all, err := comm.GatherBytes(ctx, r.group, []byte(said))
	if err != nil {
		return err
	}
	for _, s := range all {
		fmt.Fprintf(r.out, "%s", s)
	}
	fmt.Fprintf(r.out, "ROUGE-L over %.0f functions:\n  model %.3f\n  always %.50q %.3f\n  the words of the name %.3f\n",
		score.Weight(), score.Value(), always, constant.Value(), name.Value())
	return nil
}

// typical returns the comment that is most similar to the others: the best result of a model that
// does not read its input.
func typical(all []function) (comment string) {
	const candidates, others = 200, 500
	most := -1.0
	for i := 0; i < len(all); i += max(1, len(all)/candidates) {
		sum := 0.0
		for j := 0; j < len(all); j += max(1, len(all)/others) {
			sum += rougeL(all[i].comment, all[j].comment)
		}
		if sum > most {
			most, comment = sum, all[i].comment
		}
	}
	return comment
}

// comments returns the model's comments on functions. There may be no functions.
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
