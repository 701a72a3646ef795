package main

import (
	"context"
	"math/rand/v2"
	"strings"
	"unicode/utf8"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/generate"
)

// sample continues a prompt by up to n bytes and the rest of a token, by n tokens, or up to the end
// of a file. It passes the text to emit on rank 0. It is a collective: evaluating gathers the
// parameters, so the other ranks take part without a text. A text that fills the model's context
// goes on from the last half of that.
func (t *trainer) sample(ctx context.Context, prompt string, n int, emit func(string)) error {
	g, err := generate.New(t.model, t.config.model().Cache(), generate.Config{})
	if err != nil {
		return err
	}
	all := t.vocab.encode(prompt)
	shown, tokens := len(t.vocab.decode(all)), len(all)+n
	most := shown + n
	show := func(text string) {
		if len(text) > shown {
			emit(text[shown:])
			shown = len(text)
		}
	}
	more := []byte{1}
	for stretch := 0; more[0] == 1; stretch++ {
		seen, from := all, len(all)
		if len(seen) >= t.context {
			seen = seen[len(seen)-t.context/2:]
		}
		var prompts [][]int
		if t.group.Rank() == 0 {
			prompts = [][]int{seen}
		}
		seed := rand.New(rand.NewPCG(t.seed, uint64(stretch))).Uint64() // places of a context come again
		o := generate.Options{MaxTokens: tokens - len(all), Stop: []int{t.vocab.end()}, Temperature: t.temperature, Seed: seed}
		for token, err := range g.Stream(ctx, prompts, o) {
			if err != nil {
				return err
			}
			all = append(all, token.Token)
			if text := t.vocab.decode(all); !strings.HasSuffix(text, string(utf8.RuneError)) { // part of a character
				show(text)
			}
			if shown >= most {
				break
			}
		}
		more[0] = 0
		if len(seen)+len(all)-from == t.context && len(all) < tokens && shown < most {
			more[0] = 1
		}
		if err := t.group.Broadcast(comm.Of(more).Named("sample goes on"), 0).Wait(ctx); err != nil {
			return err
		}
	}
	show(t.vocab.decode(all))
	return nil
}
