// Answers teaches a chat model answers with LoRA, sharded over two ranks. It writes an adapter that
// PEFT and vLLM read.
//
//	go run ./examples/answers                                               # learn answers about this library
//	go run ./examples/answers -model DIR -data chats.jsonl -lr 2e-4         # DIR has Llama, Mistral or Qwen
//	go run ./examples/answers -adapter tuned/adapter -out more              # train an adapter further
//	go run ./examples/answers -pack -batch 8 -out packed                    # rows of several conversations
//	go run ./fsdp/fsdprun -n 2 ./examples/answers -ask "What does Load do?" # ranks as processes
//
// A line of the data is a conversation: {"messages": [{"role": "user", "content": "…"}, …]}. Only
// the answers count in the loss. A tenth of the lines is held out. Without -model the program first
// trains a small model on the documentation of Go's standard library, and writes it to tuned/base.
//
// After Ctrl-C the same command continues. The directory tuned has the base model, the adapter, the
// checkpoints of the adapter alone, and training.svg, a picture of the run.
//
// It takes a minute on two cores.
//
//	$ go run ./examples/answers
//	a base model learns the documentation of 946 functions of Go
//	step   1/296  loss 6.6740  left 5m11s  415 targets/s
//	…
//	step 296/296  loss 1.9309  left 0s  977 targets/s
//	step   1/135  loss 5.3233  left 1m36s  615 targets/s
//	…
//	step 27  validation loss 2.3343
//	…
//	step 135  validation loss 0.5370
//	…
//	What does HybridShard do?
//	HybridShard shards within a group of ranks and copies between groups.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/generate"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer"
	"github.com/gofsdp/gofsdp/optim"
)

// config is the flags.
type config struct {
	model, adapter, data, out, ask string
	ranks, batch, epochs, base     int // batch is of all ranks; base is the epochs of the base model
	limit, rank                    int // tokens of a conversation at most; the rank of the adapter
	pack                           bool
	lr                             float64
	packages                       []string // whose documentation the base model learns
}

func main() {
	c := config{packages: library}
	flag.StringVar(&c.model, "model", "", "`directory` of a Llama model and its tokenizer with a chat template")
	flag.StringVar(&c.adapter, "adapter", "", "begin with the adapter in this `directory`")
	flag.StringVar(&c.data, "data", "", "`file` of conversations, one in a line")
	flag.StringVar(&c.out, "out", "tuned", "write everything to this `directory`")
	flag.StringVar(&c.ask, "ask", "What does HybridShard do?", "`question` to answer after the training")
	flag.IntVar(&c.ranks, "ranks", 2, "`ranks` to shard over")
	flag.IntVar(&c.batch, "batch", 16, "`conversations` of a step, over all ranks")
	flag.IntVar(&c.epochs, "epochs", 15, "passes over the conversations")
	flag.IntVar(&c.base, "base", 5, "passes over the documentation that the base model learns")
	flag.IntVar(&c.limit, "limit", 128, "`tokens` of a conversation at most")
	flag.BoolVar(&c.pack, "pack", false, "put several conversations into each row of -limit tokens; a step has -batch rows")
	flag.IntVar(&c.rank, "rank", 8, "`rank` of the adapter")
	flag.Float64Var(&c.lr, "lr", 5e-3, "learning rate; 2e-4 suits published models")
	flag.Parse()
	interrupt, stop := comm.Interrupt(context.Background())
	err := run(context.Background(), interrupt, c, os.Stdout)
	if stop(); err != nil {
		log.Fatal(err)
	}
}

// run runs the ranks of this process. They save and end early once interrupt is done.
func run(ctx, interrupt context.Context, c config, out io.Writer) error {
	return comm.Run(ctx, c.ranks, func(ctx context.Context, g comm.Group) (err error) {
		r := &rank{config: c, group: g, out: io.Discard, interrupted: func() bool { return interrupt.Err() != nil }}
		if g.Rank() == 0 {
			r.out = out
		}
		if r.model == "" {
			r.model = filepath.Join(r.config.out, "base")
			if err := r.makeBase(ctx); err != nil {
				return err
			}
		}
		t, err := r.open(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.Close()) }()
		if err := t.run(ctx); err != nil {
			return err
		}
		return t.answer(ctx)
	})
}

// A rank is the state of the program on one rank.
type rank struct {
	config
	group       comm.Group
	out         io.Writer
	interrupted func() bool
}

// A tuning is one rank's part of the training of an adapter.
type tuning struct {
	training
	rank
	hf    *hf.Model
	words *tokenizer.Tokenizer
	held  loader
	shown monitor.State
}

// open opens the model, gives each rank its shard, and continues from a checkpoint if there is one.
func (r *rank) open(ctx context.Context) (t *tuning, err error) {
	t = &tuning{rank: *r}
	if t.words, err = tokenizer.Open(t.model); err != nil {
		return nil, err
	}
	chats, err := conversations(t.data)
	if err != nil {
		return nil, err
	}
	learn, held := data.Split(rows(t.words, chats, t.limit), chats.Len()/10, 1)
	if t.held, err = r.loader("validation", held, 1); err != nil {
		return nil, err
	}
	if t.batches, err = r.loader("", learn, t.epochs); err != nil {
		return nil, err
	}
	if t.hf, err = hf.Open(t.model); err != nil {
		return nil, err
	}
	model, ok := t.hf.Model.(*nn.Llama)
	if !ok {
		return nil, fmt.Errorf("%s has a %T, want a model such as Llama, Mistral or Qwen", t.model, t.hf.Model)
	}
	model.Packed = t.pack
	if model.LoRA = (nn.LoRA{Rank: t.config.rank, Alpha: 2 * float64(t.config.rank)}); t.adapter != "" {
		if err := t.hf.OpenAdapter(t.adapter); err != nil {
			return nil, err
		}
	}
	t.Sharded, err = fsdp.Wrap(model, fsdp.Config{
		Group: t.group, WrapPolicy: fsdp.WrapTypes(&nn.Layer{}), Seed: 1,
		Frozen: func(name string) bool { return !nn.IsAdapter(name) },
	})
	if err != nil {
		return nil, err
	}
	if err := t.load(ctx); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// load loads the base model and then, if there is one, the last checkpoint of the adapter.
func (t *tuning) load(ctx context.Context) (err error) {
	if err := t.hf.Load(ctx, t.Sharded); err != nil {
		return err
	}
	if t.opt, err = (optim.AdamW{}).New(t.Params()); err != nil {
		return err
	}
	saved, err := t.Load(ctx, t.checkpoints(), t.opt, nil)
	if errors.Is(err, fsdp.ErrNoCheckpoint) {
		return nil
	}
	var at data.Position
	if err == nil {
		err = errors.Join(saved.Extra("data", &at), saved.Extra("monitor", &t.shown))
	}
	if err == nil {
		err = t.batches.Resume(at)
	}
	fmt.Fprintf(t.out, "continuing after step %d\n", t.opt.Steps())
	return err
}

func (t *tuning) checkpoints() string { return filepath.Join(t.config.out, "checkpoints") }

// run trains. After each fifth of the steps it validates, and saves the adapter alone.
func (t *tuning) run(ctx context.Context) (err error) {
	steps := t.batches.Steps()
	t.rate = optim.WarmupCosine(t.lr, t.lr/10, steps/20, steps)
	t.mon, err = monitor.New(monitor.Config{
		Group: t.group, Steps: steps, Unit: "targets", Out: t.rank.out, State: t.shown,
		Writers: []monitor.Writer{monitor.SVG(filepath.Join(t.config.out, "training.svg"))},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.mon.Close()) }()
	for over := false; !over; {
		if err := t.train(ctx, t.opt.Steps()+max(1, steps/5), t.interrupted); err != nil {
			return err
		}
		if over, err = t.Any(ctx, t.interrupted()); err != nil {
			return err
		}
		over = over || t.opt.Steps() == steps
		if err := t.validate(ctx); err != nil {
			return err
		}
		err := t.Save(ctx, t.checkpoints(), t.opt, &fsdp.SaveOptions{
			TrainedOnly: true, KeepLast: 2, Extra: map[string]any{"data": t.batches.Position(), "monitor": t.mon.State()},
		})
		if err != nil {
			return err
		}
	}
	return t.hf.SaveAdapter(ctx, t.Sharded, filepath.Join(t.config.out, "adapter"))
}

// answer prints the answer of the model to a question, which rank 0 asks.
func (t *tuning) answer(ctx context.Context) error {
	g, err := generate.New(t.Sharded, t.hf.Model.(*nn.Llama).Cache(), generate.Config{})
	if err != nil {
		return err
	}
	var prompts [][]int
	if t.group.Rank() == 0 {
		text, err := t.words.ApplyChatTemplate(tokenizer.Chat{Messages: []tokenizer.Message{{Role: "user", Content: t.ask}}}, true)
		if err != nil {
			return err
		}
		prompts = [][]int{t.words.EncodePlain(text)}
	}
	answers, err := g.Generate(ctx, prompts, generate.Options{MaxTokens: 60, Stop: []int{t.words.EOS}})
	if err != nil {
		return err
	}
	for _, tokens := range answers {
		fmt.Fprintf(t.rank.out, "%s\n%s\n", t.ask, t.words.Decode(tokens))
	}
	return nil
}
