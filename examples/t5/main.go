// T5 learns to say what functions do. A small model like T5 1.1 (Raffel et al., 2020,
// arXiv:1910.10683), sharded over ranks, reads names and sources of functions of the Go
// distribution, as words in lower case, and writes the first sentences of their comments, without
// the name. Its texts about functions of held-out files are compared with their comments by
// ROUGE-L, and so are two baselines without a model: a sentence that is said of all, and the words
// of the name.
//
//	go run ./examples/t5
//	go run ./examples/t5 -ranks 3 -layers 1 -dim 32 -vocab 512 -source 16 -target 15 -epochs 1
//	go run ./fsdp/fsdprun -n 2 ./examples/t5    # ranks are processes
//
// All functions of a file are with one rank, so ranks have different numbers, in training,
// validation and generation, and no rank's data is filled up or cut: training ranges over Join,
// validation is a plain loop inside JoinCalls, and package generate does the same. Functions and
// sentences of like lengths make a batch, whose lengths are multiples of 8, so that a few compiled
// programs serve all.
//
// It learns to read: most of the sentences below fit the name. But it also learns much by heart, as
// 11472 functions are few: it ends at 2.4 nats on these and at 3.9 on others. On 3670 steps, which
// take two idle cores of an AMD EPYC about five minutes, and took this run, on a share of them, 27
// (2026-11-23):
//
//	$ go run ./examples/t5
//	11472 functions to learn from, 883 held out; 1556224 parameters on 2 ranks
//	epoch 1, step 367, 2m52s: 5.116 nats per token, 4.555 held out
//	epoch 2, step 734, 5m19s: 4.128 nats per token, 4.356 held out
//	…
//	epoch 9, step 3303, 26m18s: 2.552 nats per token, 3.910 held out
//	epoch 10, step 3670, 27m30s: 2.417 nats per token, 3.928 held out
//	rank 0 of 2 has written about 145 functions
//	  writeHeap
//	    comment "writes the current runtime heap profile to w."
//	    model   "writes a single event"
//	  countHeap
//	    comment "returns the number of records in the heap profile."
//	    model   "returns the number of records n in the profile"
//	  newValue2I
//	    comment "adds a new value with two arguments and an auxint value to the
//	    model   "returns the value for the given type"
//	rank 1 of 2 has written about 55 functions
//	  preloadImports
//	    comment "queues a list of imports for preloading."
//	    model   "is the implementation of the module s"
//	  UnknownTime
//	    comment "returns whatever isn't accounted for in TotalTime."
//	    model   "the scavenger to the server"
//	  writeNL
//	    comment "calls out.WriteByte('\\n') but first trims trailing spaces on t
//	    model   "writes the data to the buffer"
//	ROUGE-L over 200 functions:
//	  model 0.216
//	  always "returns a [Value] for the supplied value." 0.178
//	  the words of the name 0.134
//
// The sentence is the comment that is the most like others. ROUGE-L has its own idea of a good
// text: the frequent words "returns the of the", in the place of any, would get 0.209. Beam search
// (-beams 4) gets 0.212.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"go/build"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// config holds the values of the flags.
type config struct {
	ranks              int
	layers, dim, heads int
	vocab              int
	source, target     int // tokens of the longest source and comment
	rows, epochs       int
	lr                 float64
	prompts, samples   int
	beams              int
}

func main() {
	var c config
	flag.IntVar(&c.ranks, "ranks", 2, "`number` of ranks, unless a launcher has started them")
	flag.IntVar(&c.layers, "layers", 2, "`number` of layers of the encoder, and of the decoder")
	flag.IntVar(&c.dim, "dim", 128, "`channels` of the model")
	flag.IntVar(&c.heads, "heads", 4, "`number` of attention heads")
	flag.IntVar(&c.vocab, "vocab", 3000, "`number` of tokens: the most frequent words")
	flag.IntVar(&c.source, "source", 40, "`tokens` of a function that are read; longer ones are cut")
	flag.IntVar(&c.target, "target", 15, "`tokens` of the longest sentence; functions with longer ones are left out")
	flag.IntVar(&c.rows, "rows", 16, "`functions` in a batch of a rank")
	flag.IntVar(&c.epochs, "epochs", 10, "`passes` through the data")
	flag.Float64Var(&c.lr, "lr", 2e-3, "highest learning `rate`")
	flag.IntVar(&c.prompts, "prompts", 200, "`number` of functions held out that the model writes about")
	flag.IntVar(&c.samples, "samples", 3, "`number` of those that each rank shows")
	flag.IntVar(&c.beams, "beams", 1, "`number` of texts that beam search keeps; 1 takes the likeliest token")
	flag.Parse()
	if err := c.check(); err != nil {
		log.Fatal(err)
	}
	data, err := read(os.DirFS(filepath.Join(build.Default.GOROOT, "src")))
	if err != nil {
		log.Fatalf("reading the source of the standard library: %v", err)
	}
	err = comm.Run(context.Background(), c.ranks, func(ctx context.Context, g comm.Group) error {
		return run(ctx, g, c, data, os.Stdout)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// check returns an error for settings that cannot be meant. The model checks the others.
func (c config) check() error {
	switch {
	case min(c.ranks, c.layers, c.source, c.target, c.rows, c.epochs, c.prompts, c.beams) < 1:
		return errors.New("-ranks, -layers, -source, -target, -rows, -epochs, -prompts and -beams: want at least 1")
	case c.vocab < 2:
		return fmt.Errorf("-vocab %d: want at least 2, for the end and a word", c.vocab)
	case c.samples < 0 || c.lr <= 0:
		return errors.New("-samples: want at least 0; -lr: want a positive rate")
	}
	return nil
}

// t5 returns a model like T5 1.1.
func (c config) t5() *nn.T5 {
	return &nn.T5{
		Vocab: c.vocab, Encoder: c.layers, Decoder: c.layers, Dim: c.dim, Heads: c.heads, Hidden: 2 * c.dim,
		Context: c.target + 1, Act: nn.GELUTanh, Gated: true,
	}
}

// rank is one of the ranks.
type rank struct {
	config
	group comm.Group
	data  corpus
	words vocabulary
	out   io.Writer
	model *fsdp.Sharded
}

// run trains and writes, each rank on functions of its own.
func run(ctx context.Context, g comm.Group, c config, data corpus, out io.Writer) (err error) {
	r, err := newRank(ctx, g, c, data, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.model.Close()) }()
	fmt.Fprintf(r.out, "%d functions to learn from, %d held out; %d parameters on %d ranks\n",
		len(r.data.train), len(r.data.held), r.t5().NumParams(), g.Size())
	if err := r.train(ctx); err != nil {
		return err
	}
	return r.write(ctx)
}

func newRank(ctx context.Context, g comm.Group, c config, data corpus, out io.Writer) (*rank, error) {
	if g.Rank() != 0 {
		out = io.Discard
	}
	words := learn(data.train, c.vocab)
	c.vocab = len(words.words)
	data.train, data.held = words.tokenize(data.train, c.source, c.target), words.tokenize(data.held, c.source, c.target)
	if len(data.train) == 0 {
		return nil, fmt.Errorf("no functions have comments of at most %d tokens", c.target)
	}
	m, err := fsdp.WrapContext(ctx, c.t5(), fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Layer{}), Seed: 1})
	return &rank{config: c, group: g, data: data, words: words, out: out, model: m}, err
}

// mine returns the functions of this rank's files.
func (r *rank) mine(all []function) []function { return share(all, r.group.Rank(), r.group.Size()) }
