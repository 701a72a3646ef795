package main

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
)

// sample lets the model go on from a prompt, byte by byte, up to n bytes or the end of a file, and
// gives each to emit. It is a collective: evaluating gathers the parameters, so all ranks work on
// the same text.
func (t *trainer) sample(ctx context.Context, prompt []byte, n int, emit func(byte)) error {
	text := slices.Clone(prompt)
	for i := range n {
		logits, err := t.next(ctx, text)
		if err != nil {
			return err
		}
		chosen := []byte{choose(logits, t.temperature, source(t.seed, "sample", i, 0))}
		// All ranks have the same logits; that they go on with the same byte should not hang on it.
		if err := t.group.Broadcast(comm.Of(chosen).Named("sample"), 0).Wait(ctx); err != nil {
			return err
		}
		if chosen[0] == endOfFile {
			return nil
		}
		emit(chosen[0])
		text = append(text, chosen[0])
	}
	return nil
}

// next returns the logits of the byte after text, [vocab]. The model sees the last bytes of text,
// as many as its context has.
func (t *trainer) next(ctx context.Context, text []byte) ([]float32, error) {
	text = text[max(0, len(text)-t.context):]
	// Each length would be compiled anew, so short text is filled up to the next power of two with
	// bytes that do not matter: attention looks back only.
	length := 16
	for length < len(text) {
		length *= 2
	}
	tokens := make([]int, min(length, t.context))
	for i, b := range text {
		tokens[i] = int(b)
	}
	batch := tensor.New(tensor.WithShape(1, len(tokens)), tensor.WithBacking(tokens))
	out, err := t.model.Eval(ctx, batch, batch) // the loss of these targets is not looked at
	if err != nil {
		return nil, err
	}
	logits := out[1].Data().([]float32) // [1, len(tokens), vocab]
	return logits[(len(text)-1)*vocab : len(text)*vocab], nil
}

// choose draws a byte with probability softmax(logits/temperature), or takes the likeliest at
// temperature 0.
func choose(logits []float32, temperature float64, random *rand.Rand) byte {
	best := 0
	for i, l := range logits {
		if l > logits[best] {
			best = i
		}
	}
	if temperature == 0 {
		return byte(best)
	}
	weights := make([]float64, len(logits))
	var sum float64
	for i, l := range logits {
		weights[i] = math.Exp(float64(l-logits[best]) / temperature)
		sum += weights[i]
	}
	at := random.Float64() * sum
	for i, w := range weights {
		if at -= w; at < 0 {
			return byte(i)
		}
	}
	return byte(best) // rounding
}
