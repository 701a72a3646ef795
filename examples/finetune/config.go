package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// config is the parsed flags.
type config struct {
	from, to string   // directories of models
	data     []string // files
	field    string   // of an object in a .jsonl file

	ranks, lora           int // lora is the rank of the adapters; 0 trains everything
	bf16                  bool
	steps, batch, context int // batch is of one rank; context 0 means the model's context, at most defaultContext
	lr, warmup            float64

	prompt      string
	tokens      int // that are written after the prompt at most
	temperature float64
}

// Defaults that depend on other things.
const (
	defaultContext = 512
	fullLR, loraLR = 2e-5, 2e-4
)

// parse reads the flags and checks them.
func parse(args []string) (c config, err error) {
	f := flag.NewFlagSet("finetune", flag.ContinueOnError)
	c.define(f)
	if err := f.Parse(args); err != nil {
		return c, err
	}
	c.data = append(c.data, f.Args()...)
	if c.lora > 0 {
		c.lr = cmp.Or(c.lr, loraLR)
	}
	c.lr = cmp.Or(c.lr, fullLR)
	return c, c.validate()
}

// define defines the flags in f.
func (c *config) define(f *flag.FlagSet) {
	f.StringVar(&c.from, "model", "", "`directory` of the model and its tokenizer, as transformers has them")
	f.Func("data", "train on this `file`; may be repeated", func(path string) error { c.data = append(c.data, path); return nil })
	f.StringVar(&c.field, "field", "text", "`key` of the text in the objects of a .jsonl file")
	f.StringVar(&c.to, "out", "", "write the model to this `directory`")
	f.IntVar(&c.ranks, "ranks", 2, "`ranks` to shard over: goroutines, or processes of a launcher")
	f.IntVar(&c.lora, "lora", 0, "train adapters of this `rank`, with the model itself frozen\n(default 0, which trains everything)")
	f.BoolVar(&c.bf16, "bf16", false, "compute in bfloat16: fast on processors with AMX, and on AMD processors with AVX512_BF16")
	f.IntVar(&c.steps, "steps", 100, "training steps")
	f.IntVar(&c.batch, "batch", 4, "`sequences` of a step on each rank")
	f.IntVar(&c.context, "context", 0, fmt.Sprintf("`tokens` of a sequence (default %d, or fewer if the model takes fewer)", defaultContext))
	f.Float64Var(&c.lr, "lr", 0, fmt.Sprintf("highest learning `rate` (default %g, with -lora %g)", fullLR, loraLR))
	f.Float64Var(&c.warmup, "warmup", 0.05, "`share` of the steps in which the learning rate rises")
	f.StringVar(&c.prompt, "prompt", "", "`text` that the model goes on from, before the training and after it")
	f.IntVar(&c.tokens, "tokens", 60, "written after the prompt at most")
	f.Float64Var(&c.temperature, "temperature", 0, "of the writing: 0 always takes the likeliest token")
}

// validate returns all faults of the flags at once.
func (c *config) validate() error {
	var errs []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	want(c.from != "", "-model is missing: want the directory of a model")
	want(len(c.data) > 0, "-data is missing: want a file of text or of JSON lines")
	want(min(c.ranks, c.steps, c.batch, c.tokens) > 0, "-ranks %d, -steps %d, -batch %d, -tokens %d: want at least 1 of each",
		c.ranks, c.steps, c.batch, c.tokens)
	want(min(c.lora, c.context) >= 0, "-lora %d, -context %d: want 0 or more", c.lora, c.context)
	want(c.lr > 0 && c.lr < 1 && c.warmup >= 0 && c.warmup < 1, "-lr %v, -warmup %v: want a rate and a share in [0, 1)", c.lr, c.warmup)
	want(c.temperature >= 0 && c.temperature <= 100, "-temperature %v: want a number in [0, 100]", c.temperature)
	if c.to != "" { // it would be a pity to find out at the end
		_, err := os.Stat(filepath.Dir(c.to))
		want(err == nil, "-out %s: %v", c.to, err)
	}
	return errors.Join(errs...)
}
