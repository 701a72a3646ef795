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
// written in float32, with the files of the tokenizer.
//
// SmolLM2-135M-Instruct, from weights of 4 bits, on this repository's README of 2026-11-23: half a
// minute on two cores.
//
//	$ go run ./examples/finetune -model smol -data README.md -lora 8 -bf16 -steps 10 -context 64 \
//		-batch 1 -prompt "The three ranks of a training" -tokens 20 -out tuned
//	documents 1, tokens 3490 to learn from, 183 held out
//	parameters 136542528, groups 92, ranks 2, bfloat16 by AVX512_BF16
//	  group                        parameters     whole  strategy     ranks
//	  root (frozen)                  28311552   56.6 MB  ShardGradOp  2
//	  root (frozen full)                  576    2.3 kB  ShardGradOp  2
//	  30 × layers.*                     67584  135.2 kB  FullShard    2
//	  30 × layers.* (frozen)          3538944    7.1 MB  FullShard    2
//	  30 × layers.*…frozen full)         1152    4.6 kB  FullShard    2
//	each rank
//	   277.1 MB  parameters and gradients
//	     8.1 MB  optimizer state
//	    94.0 MB  buffers of a pass, at most: groups, gradients, activations
//	   379.3 MB  together
//	   385.1 MB  in RAM: buffers, freed ones included, and 3.8 MB beside
//	   245.3 MB  sent in a pass, in 209 collectives
//	before: validation loss 3.9429 nats per token
//	  "The three ranks of a training dataset are:\n\n- 1st rank: 1000\n- 2"
//	step 1/10  loss 3.9825
//	…
//	step 10/10  loss 3.5748
//	after: validation loss 3.8722 nats per token
//	  "The three ranks of a training dataset are the same if and only if the corresponding labels are the same.\n\nThe dataset is"
//	written to tuned
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
	return comm.Run(ctx, c.ranks, func(ctx context.Context, g comm.Group) (err error) {
		out := stdout
		if g.Rank() != 0 { // the others do the same unseen
			out = io.Discard
		}
		t, err := newTuner(ctx, c, *data, g, out)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.Close()) }()
		return t.run(ctx)
	})
}
