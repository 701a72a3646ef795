package main

import (
	"context"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/generate"
)

// sample lets the model go on from a prompt, up to n bytes or the end of a file, and gives each to
// emit on rank 0. It is a collective: evaluating gathers the parameters, so the other ranks take part
// without a text. A text that fills the model's context goes on from the last half of that.
func (t *trainer) sample(ctx context.Context, prompt []byte, n int, emit func(byte)) error {
	g, err := generate.New(t.model, t.config.model().Cache(), generate.Config{})
	if err != nil {
		return err
	}
	text := make([]int, len(prompt))
	for i, b := range prompt {
		text[i] = int(b)
	}
	more := []byte{1}
	for stretch := 0; more[0] == 1; stretch++ {
		if len(text) >= t.context {
			text = text[len(text)-t.context/2:]
		}
		var prompts [][]int
		if t.group.Rank() == 0 {
			prompts = [][]int{text}
		}
		seed := source(t.seed, "sample", stretch, 0).Uint64() // places of a context come again
		o := generate.Options{MaxTokens: n, Stop: []int{endOfFile}, Temperature: t.temperature, Seed: seed}
		for token, err := range g.Stream(ctx, prompts, o) {
			if err != nil {
				return err
			}
			emit(byte(token.Token))
			text = append(text, token.Token)
			n--
		}
		more[0] = 0
		if len(text) == t.context && n > 0 {
			more[0] = 1
		}
		if err := t.group.Broadcast(comm.Of(more).Named("sample goes on"), 0).Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}
