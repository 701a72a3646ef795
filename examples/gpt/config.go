package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// config is what the flags say.
type config struct {
	data     []string // files and directories; none means the Go standard library
	maxBytes int      // of text read
	holdout  int      // every holdout-th file is for validation
	tokens   string   // path of a tokenizer; "" for bytes
	vocab    vocabulary

	layers, dim, heads, context int
	dropout                     float64

	ranks    int
	virtual  int  // ranks as whose training the run has the bits; 0 for those of ranks
	noSync   bool // what comes before the last micro-batch of a step is not communicated
	prefetch int  // groups gathered ahead
	bf16     bool // compute in bfloat16
	int8     bool // parameters and gradients travel in 8 bits
	seed     uint64
	check    bool // compare the gradients of N ranks with those of one

	steps     int           // 0: as many as fit into budget
	budget    time.Duration // 0: as long as the steps take
	batch     int           // sequences in the global batch of a step
	muon      bool          // the matrices of the blocks are stepped by Muon
	lr        float64       // highest learning rate
	warmup    float64       // share of the run until it is reached
	evalEvery int           // steps between evaluations; 0: an eighth of the run
	evalBytes int           // of held-out text in an evaluation, rounded up to whole batches

	saveDir    string // checkpoints go here; "" for none
	saveEvery  int    // steps between them; 0: an eighth of the run
	keep       int    // checkpoints that are left in saveDir
	resume     bool   // begin with the newest of them
	status     int    // exit status of an interrupted training; 0: as if it were over
	importFrom string // file of the initial weights; "" for random ones
	exportTo   string // file of the trained weights; "" for none

	prompt      string
	sampleBytes int
	temperature float64
	plain       bool
}

// size is a preset of the model.
type size struct {
	name                        string
	layers, dim, heads, context int
}

var sizes = []size{
	{"tiny", 2, 64, 2, 64},
	{"small", 3, 128, 4, 128},
	{"medium", 6, 192, 6, 128},
	{"large", 6, 384, 6, 256},
}

// errUsage is wrapped by every error about the flags.
var errUsage = errors.New("usage")

// defaultTime is the length of a training without -steps or -time. With building the program before
// it, and the sample after it, that is less than three minutes.
const defaultTime = 2 * time.Minute

// parse reads the flags, whose help goes to w, and checks them.
func parse(args []string, w io.Writer) (config, error) {
	var c config
	f := flag.NewFlagSet("gpt", flag.ContinueOnError)
	f.SetOutput(io.Discard) // main prints the errors
	f.Usage = func() {
		fmt.Fprintf(f.Output(), "Gpt trains a language model, sharded over several ranks.\n\n\tgpt [flags] [more files or directories]\n\n")
		f.PrintDefaults()
	}
	preset := c.define(f)
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		f.SetOutput(w)
		f.Usage()
		return c, err
	}
	c.data = append(c.data, f.Args()...)
	if c.steps == 0 && c.budget == 0 {
		c.budget = defaultTime
	}
	if err == nil {
		err = c.resize(*preset)
	}
	if err == nil {
		err = errors.Join(c.validate(), c.open())
	}
	if err != nil {
		return c, fmt.Errorf("%w: %w", errUsage, err)
	}
	return c, nil
}

// define defines the flags in f. It returns the name of the preset, which f sets.
func (c *config) define(f *flag.FlagSet) (preset *string) {
	f.Func("data", "train on this `path`, a text file or a directory; may be repeated\n(default the Go standard library)",
		func(path string) error { c.data = append(c.data, path); return nil })
	f.IntVar(&c.maxBytes, "max-bytes", 32<<20, "read no more `bytes` of text than this")
	f.IntVar(&c.holdout, "holdout", 20, "hold out every `k`-th file for validation")
	f.StringVar(&c.tokens, "tokenizer", "", "tokens are those of the tokenizer.json in this `directory`, and\nfiles end with eos_token of tokenizer_config.json (default bytes)")
	preset = f.String("size", "small", "`name` of the model's size: "+sizeNames())
	f.IntVar(&c.layers, "layers", 0, "transformer blocks (default by size)")
	f.IntVar(&c.dim, "dim", 0, "channels (default by size)")
	f.IntVar(&c.heads, "heads", 0, "attention heads (default by size)")
	f.IntVar(&c.context, "context", 0, "`tokens` that the model sees at once (default by size)")
	f.Float64Var(&c.dropout, "dropout", 0, "dropout `rate`")
	f.IntVar(&c.ranks, "ranks", 2, "`ranks` to shard over: goroutines, or what a launcher starts")
	f.IntVar(&c.virtual, "virtual", 0, "train to the last bit as on this number of `ranks`, which is a\nmultiple of -ranks")
	f.BoolVar(&c.noSync, "nosync", false, "with -virtual: add a rank's micro-batches up before ranks exchange\ngradients")
	f.IntVar(&c.prefetch, "prefetch", 1, "`groups` of parameters gathered ahead")
	f.BoolVar(&c.bf16, "bf16", false, "compute in bfloat16: fast on processors with AVX512_BF16")
	f.BoolVar(&c.int8, "int8", false, "parameters and gradients travel in 8 bits: fast over slow networks")
	f.Uint64Var(&c.seed, "seed", 1, "`seed` of the parameters, the batches and the sample")
	f.BoolVar(&c.check, "check", true, "first compare the gradients of all ranks to those of one")
	f.IntVar(&c.steps, "steps", 0, "training steps (default as many as -time allows)")
	f.DurationVar(&c.budget, "time", 0, fmt.Sprintf("end training after this `duration`, such as 10m\n(default %v, or no limit with -steps)", defaultTime))
	f.IntVar(&c.batch, "batch", 16, "`sequences` per step, over all ranks")
	f.BoolVar(&c.muon, "muon", false, "step the matrices of the blocks by Muon, and by AdamW only the rest")
	f.Float64Var(&c.lr, "lr", 2e-3, "highest learning `rate`")
	f.Float64Var(&c.warmup, "warmup", 0.05, "`share` of the run in which the learning rate rises")
	f.IntVar(&c.evalEvery, "eval-every", 0, "`steps` between evaluations (default an eighth of the run)")
	f.IntVar(&c.evalBytes, "eval-bytes", 64<<10, "held-out `bytes` in an evaluation, rounded up to batches")
	f.StringVar(&c.saveDir, "save", "", "write checkpoints of the training to this `directory`")
	f.IntVar(&c.saveEvery, "save-every", 0, "`steps` between checkpoints (default an eighth of the run)")
	f.IntVar(&c.keep, "keep", 3, "leave the last `k` checkpoints")
	f.BoolVar(&c.resume, "resume", false, "go on from the newest checkpoint in -save, if there is one")
	f.IntVar(&c.status, "interrupted", 0,
		"exit `status` where a signal ends the training\n(default 0, and a sample as at the end); of 143 a scheduler\nknows that the job is not over")
	f.StringVar(&c.importFrom, "import", "", "begin with the weights in this `file`, safetensors with GPT-2's names")
	f.StringVar(&c.exportTo, "export", "", "write the weights to this `file`, safetensors with GPT-2's names")
	f.StringVar(&c.prompt, "prompt", "func ", "`text` that the sample begins with")
	f.IntVar(&c.sampleBytes, "sample-bytes", 600, "length of the sample in `bytes`; 0 for none")
	f.Float64Var(&c.temperature, "temperature", 0.7, "of sampling: 0 always takes the likeliest token")
	f.BoolVar(&c.plain, "plain", false, "print log lines even to a terminal")
	return preset
}

func sizeNames() string {
	var names []string
	for _, s := range sizes {
		names = append(names, s.name)
	}
	return strings.Join(names, ", ")
}

// resize fills in what the preset decides.
func (c *config) resize(preset string) error {
	i := slices.IndexFunc(sizes, func(s size) bool { return s.name == preset })
	if i < 0 {
		return fmt.Errorf("-size %q: want one of %s", preset, sizeNames())
	}
	s := sizes[i]
	for _, d := range []struct {
		field *int
		value int
	}{{&c.layers, s.layers}, {&c.dim, s.dim}, {&c.heads, s.heads}, {&c.context, s.context}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	return nil
}

// open reads the vocabulary.
func (c *config) open() (err error) {
	if c.tokens != "" {
		if c.vocab, err = openVocabulary(c.tokens); err != nil {
			return fmt.Errorf("-tokenizer %s: %w", c.tokens, err)
		}
	}
	if len(c.vocab.encode(c.prompt)) == 0 {
		return fmt.Errorf("-prompt %q has no tokens: want at least one to go on from", c.prompt)
	}
	return nil
}

// validate says what is wrong with the flags, all of it at once.
func (c *config) validate() error {
	var errs []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	want(c.layers > 0, "-layers %d: want at least 1", c.layers)
	want(c.dim > 0, "-dim %d: want at least 1", c.dim)
	want(c.heads > 0, "-heads %d: want at least 1", c.heads)
	want(c.heads <= 0 || c.dim%c.heads == 0, "-dim %d does not divide into -heads %d", c.dim, c.heads)
	want(c.context > 1, "-context %d: want at least 2", c.context)
	want(c.dropout >= 0 && c.dropout < 1, "-dropout %v: want a rate in [0, 1)", c.dropout)
	want(c.ranks > 0, "-ranks %d: want at least 1", c.ranks)
	if err := c.runs(c.ranks); c.ranks > 0 && err != nil {
		errs = append(errs, err)
	}
	want(!c.noSync || c.virtual > 0, "-nosync: want -virtual too, which makes micro-batches")
	want(c.prefetch >= 0, "-prefetch %d: want 0 or more", c.prefetch)
	want(c.steps >= 0, "-steps %d: want 1 or more", c.steps)
	want(c.budget >= 0, "-time %v: want a positive duration", c.budget)
	want(c.lr > 0 && c.lr < 1, "-lr %v: want a rate in (0, 1)", c.lr)
	want(c.warmup >= 0 && c.warmup < 1, "-warmup %v: want a share in [0, 1)", c.warmup)
	want(c.evalEvery >= 0, "-eval-every %d: want 0 or more", c.evalEvery)
	want(c.evalBytes > 0, "-eval-bytes %d: want at least 1", c.evalBytes)
	want(c.saveEvery >= 0, "-save-every %d: want 0 or more", c.saveEvery)
	want(c.keep > 0, "-keep %d: want at least 1", c.keep)
	want(!c.resume || c.saveDir != "", "-resume: want -save too, the directory to go on from")
	want(c.status >= 0 && c.status < 256, "-interrupted %d: want an exit status in [0, 255]", c.status)
	want(c.maxBytes > 0, "-max-bytes %d: want at least 1", c.maxBytes)
	want(c.holdout > 1, "-holdout %d: want at least 2, or nothing is left to train on", c.holdout)
	want(c.sampleBytes >= 0, "-sample-bytes %d: want 0 or more", c.sampleBytes)
	want(c.temperature >= 0 && c.temperature <= 100, "-temperature %v: want a number in [0, 100]", c.temperature)
	if c.exportTo != "" { // it would be a pity to find out at the end
		_, err := os.Stat(filepath.Dir(c.exportTo))
		want(err == nil, "-export %s: %v", c.exportTo, err)
	}
	return errors.Join(errs...)
}

// runs sets the number of ranks to what it turned out to be: a launcher may have started another
// number than -ranks says.
func (c *config) runs(ranks int) error {
	if most := max(ranks, c.virtual); c.batch < most {
		return fmt.Errorf("-batch %d: want at least a sequence for each of %d ranks", c.batch, most)
	}
	if c.virtual < 0 || ranks > 0 && c.virtual%ranks != 0 {
		return fmt.Errorf("-virtual %d: want a multiple of the %d ranks", c.virtual, ranks)
	}
	c.ranks = ranks
	return nil
}

// model returns the model. It has no weights: those are made, sharded, by fsdp.Wrap.
func (c *config) model() *nn.GPT {
	return &nn.GPT{
		Vocab: c.vocab.size(), FusedLoss: c.vocab.tokenizer != nil, Context: c.context, Layers: c.layers, Dim: c.dim, Heads: c.heads, Dropout: c.dropout,
		Act: nn.ReLU, // learns faster than GELU at this size: 1.97 against 2.07 nats after 1500 steps
	}
}

// sharding returns how the model is sharded: each transformer block is gathered, and freed, by
// itself.
func (c *config) sharding() fsdp.Config {
	s := fsdp.Config{WrapPolicy: fsdp.WrapTypes(&nn.Block{}), Prefetch: c.prefetch, Seed: c.seed, VirtualRanks: c.virtual}
	if c.prefetch == 0 {
		s.Prefetch = fsdp.NoPrefetch
	}
	if c.bf16 {
		s.Precision = fsdp.BF16()
	}
	if c.int8 {
		s.Precision.Gather, s.Precision.Reduce = fsdp.Int8, fsdp.Int8
	}
	return s
}

// schedule returns the learning rate as a function of the share of the run that is over: a linear
// rise, then half a cosine down to a tenth.
func (c *config) schedule() func(done float64) float64 {
	ticks := c.steps
	if ticks == 0 {
		ticks = 10000 // of the time: finer than anyone can see
	}
	lr := optim.WarmupCosine(c.lr, c.lr/10, int(c.warmup*float64(ticks)), ticks)
	return func(done float64) float64 { return lr(int(done*float64(ticks) + 0.5)) }
}
