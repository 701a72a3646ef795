// Finetune trains a language model that transformers has on text of yours, sharded over several
// ranks, and writes a directory that transformers loads. DIR is one of Hugging Face with a model
// such as GPT-2, Llama, Mistral or Qwen, and its tokenizer:
//
//	go run ./examples/finetune -model DIR -data notes.txt -out tuned          # all weights
//	go run ./examples/finetune -model DIR -data notes.txt -out tuned -lora 8  # adapters of rank 8
//	go run ./examples/finetune -model DIR -data notes.jsonl -field body -bf16 # JSON lines
//	go run ./examples/finetune -model DIR -prompt "Once upon a time" *.txt    # and go on from this
//	go run ./fsdp/fsdprun -n 2 ./examples/finetune -model DIR -data notes.txt # ranks as processes
//
// A document is a file or, where its name ends in .jsonl, the text at a key of each line's object.
// Each gets the tokens that the tokenizer wants before a text and the one that ends it. All
// of them, one after the other, are cut into windows at random places. The last twentieth is held
// out for the validation loss.
//
// With -lora the model itself is frozen: it has no gradients and no optimizer state, and keeps its
// bits. Adapters of rank R and alpha 2R are on all linear layers of the blocks. They are added to
// the weights before these are written, so that the directory has a plain model. Weights are
// written in float32, beside the files of the tokenizer.
//
// A random Llama of four layers of 128 channels, trained on this repository's README and a text
// like it, and then adapted:
//
//	$ finetune -model tiny -data text.txt -lr 3e-3 -steps 300 -context 128 -out tuned
//	…
//	before: validation loss 5.8329 nats per token
//	step 30/300  loss 3.8780
//	…
//	step 300/300  loss 1.6647
//	after: validation loss 2.5545 nats per token
//	written to tuned
//	$ fsdprun -n 2 finetune -model tuned -data notes.jsonl -lora 8 \
//		-lr 2e-3 -bf16 -steps 40 -context 128 -out again
//	[0] documents 43, tokens 16616 to learn from, 874 held out
//	[0] parameters 885376, groups 14, ranks 2, bfloat16 natively
//	[0]   group                        parameters     whole  strategy     ranks
//	[0]   root (frozen)                     84480  169.0 kB  ShardGradOp  2
//	[0]   root (frozen full)                  128    0.5 kB  ShardGradOp  2
//	[0]   4 × layers.*                      15616   31.2 kB  FullShard    2
//	[0]   4 × layers.* (frozen)            184320  368.6 kB  FullShard    2
//	[0]   4 × layers.* (frozen full)          256    1.0 kB  FullShard    2
//	…
//	[0] before: validation loss 2.5542 nats per token
//	…
//	[0] after: validation loss 2.5298 nats per token
//	[0] written to again
//
// The code that uses the library is in tune.go: open, wrap, load, train, merge, save. The rest is
// flags, in config.go, and documents, in data.go.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log"
	"os"

	"github.com/gofsdp/gofsdp/comm"
)

func main() {
	log.SetFlags(0)
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		log.Fatal(err)
	}
}

// run is the program.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	data, err := load(c)
	if err != nil {
		return err
	}
	return comm.Run(ctx, c.ranks, func(ctx context.Context, g comm.Group) error {
		out := stdout
		if g.Rank() != 0 { // the others do the same unseen
			out = io.Discard
		}
		t, err := newTuner(ctx, c, *data, g, out)
		if err != nil {
			return err
		}
		defer t.Close() // the run is over; that memory could not be given back changes nothing
		return t.run(ctx)
	})
}
