package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/examples/internal/text"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/generate"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
	"github.com/gofsdp/gofsdp/optim"
)

const (
	clip        = 1.0 // L2 norm that gradients are scaled down to
	evalBatches = 10  // of an evaluation on each rank
	seed        = 1   // of adapters, batches and what is written
)

// tuner is one rank's part of the training. Every rank runs the same code; what differs is its
// batches, and that only what rank 0 prints is seen.
type tuner struct {
	config
	corpus
	*fsdp.Sharded
	group  comm.Group
	out    io.Writer
	model  *hf.Model
	opt    optim.Optimizer
	writer *generate.Generator
}

// newTuner opens the model, cuts it over the ranks, and gives each its own part of the weights.
func newTuner(ctx context.Context, c config, data corpus, g comm.Group, out io.Writer) (*tuner, error) {
	m, err := hf.Open(c.from)
	if err != nil {
		return nil, err
	}
	block, cache, vocab, err := prepare(m.Model, c.lora)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.from, err)
	}
	if data.words.Size > vocab {
		return nil, fmt.Errorf("%s: the tokenizer has %d tokens, the model %d", c.from, data.words.Size, vocab)
	}
	if c.context > cache.Context {
		return nil, fmt.Errorf("-context %d: the model takes %d tokens", c.context, cache.Context)
	}
	c.context = cmp.Or(c.context, min(defaultContext, cache.Context))
	if err := data.split(c.context); err != nil {
		return nil, err
	}
	sharding := fsdp.Config{Group: g, Wrap: fsdp.WrapTypes(block), Seed: seed}
	if c.lora > 0 {
		sharding.Frozen = func(name string) bool { return !nn.IsAdapter(name) }
	}
	if c.bf16 {
		sharding.Precision = fsdp.BF16()
	}
	s, err := fsdp.WrapContext(ctx, m.Model, sharding)
	if err != nil {
		return nil, err
	}
	t := &tuner{config: c, corpus: data, Sharded: s, group: g, out: out, model: m}
	if err = m.Load(ctx, s); err == nil {
		t.opt, err = (optim.AdamW{}).New(s.Shards())
	}
	if err == nil {
		t.writer, err = generate.New(s, cache, generate.Config{})
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	for _, setting := range m.Ignored {
		fmt.Fprintf(out, "passed over: %s\n", setting)
	}
	return t, nil
}

// prepare gives a model adapters, unless lora is 0, and a loss without all logits in memory. It
// returns the module that most of the model consists of, and sizes.
func prepare(model fsdp.Model, lora int) (block fsdp.Module, cache generate.Size, vocab int, err error) {
	adapter := nn.LoRA{Rank: lora, Alpha: 2 * float64(lora)}
	switch m := model.(type) {
	case *nn.GPT:
		m.LoRA, m.FusedLoss = adapter, true
		return &nn.Block{}, m.Cache(), m.Vocab, nil
	case *nn.Llama:
		m.LoRA, m.FusedLoss = adapter, true
		return &nn.Layer{}, m.Cache(), m.Vocab, nil
	}
	return nil, cache, 0, fmt.Errorf("%T does not go on from text: want a model such as GPT-2 or Llama", model)
}

// run trains, with a look at what the model knows before and after, and writes it.
func (t *tuner) run(ctx context.Context) error {
	plan, err := t.Plan(t.batchOf(t.held, t.random(0))...)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, "documents %d, tokens %d to learn from, %d held out\n%v\n", t.documents, len(t.train), len(t.held), plan)
	if err := t.report(ctx, "before"); err != nil {
		return err
	}
	if err := t.tune(ctx); err != nil {
		return err
	}
	if err := t.report(ctx, "after"); err != nil {
		return err
	}
	return t.save(ctx)
}

// tune trains the model, or its adapters.
func (t *tuner) tune(ctx context.Context) error {
	lr := optim.WarmupCosine(t.lr, t.lr/10, int(t.warmup*float64(t.steps)), t.steps)
	rnd := t.random(1)
	for step := range t.steps {
		loss, err := t.step(ctx, t.batchOf(t.train, rnd), lr(step))
		if err != nil {
			return err
		}
		if done := step + 1; done%max(1, t.steps/10) == 0 || done == t.steps {
			if loss, err = t.mean(ctx, loss); err != nil {
				return err
			}
			fmt.Fprintf(t.out, "step %d/%d  loss %.4f\n", done, t.steps, loss)
		}
	}
	return nil
}

// step makes one update and returns the loss before it.
func (t *tuner) step(ctx context.Context, batch []fsdp.Tensor, lr float64) (loss float64, err error) {
	if loss, err = t.Forward(ctx, batch...); err != nil {
		return 0, err
	}
	if err := t.Backward(ctx); err != nil {
		return 0, err
	}
	if _, err := t.ClipGradNorm(ctx, clip); err != nil {
		return 0, err
	}
	defer t.ZeroGrad()
	return loss, t.opt.Step(lr)
}

// report prints the loss on what is held out, and what the model writes after the prompt.
func (t *tuner) report(ctx context.Context, when string) error {
	rnd := t.random(2)
	sum := 0.0
	for range evalBatches {
		out, err := t.Eval(ctx, t.batchOf(t.held, rnd)...)
		if err != nil {
			return err
		}
		sum += float64(out[0].Data().([]float32)[0]) // a model's first result is its loss
	}
	loss, err := t.mean(ctx, sum/evalBatches)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, "%s: validation loss %.4f nats per token\n", when, loss)
	if t.prompt == "" {
		return nil
	}
	return t.write(ctx)
}

// write prints a continuation of the prompt, which rank 0 alone has.
func (t *tuner) write(ctx context.Context) error {
	var prompts [][]int
	if t.group.Rank() == 0 {
		prompts = [][]int{t.encode(t.prompt)}
	}
	o := generate.Options{MaxTokens: t.tokens, Temperature: t.temperature, Seed: seed}
	if t.words.EOS >= 0 {
		o.Stop = []int{t.words.EOS}
	}
	written, err := t.writer.Generate(ctx, prompts, o)
	if err != nil {
		return err
	}
	for i, ids := range written {
		fmt.Fprintf(t.out, "  %q\n", t.words.Decode(append(prompts[i], ids...)))
	}
	return nil
}

// save adds the adapters to the weights and writes the directory, if one is asked for.
func (t *tuner) save(ctx context.Context) error {
	if t.to == "" {
		return nil
	}
	if err := t.model.Merge(ctx, t.Sharded); err != nil {
		return err
	}
	if err := t.model.Save(ctx, t.Sharded, t.to); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "written to %s\n", t.to)
	return nil
}

// batchOf returns random windows of a text.
func (t *tuner) batchOf(tokens []int, rnd *rand.Rand) []fsdp.Tensor {
	return text.Batch(tokens, rnd, t.batch, t.context)
}

// random returns this rank's random numbers of a purpose.
func (t *tuner) random(purpose uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, purpose<<32|uint64(t.group.Rank())))
}

// mean returns the mean over all ranks.
func (t *tuner) mean(ctx context.Context, loss float64) (float64, error) {
	all := []float64{loss}
	err := t.group.AllReduce(comm.Of(all).Named("loss"), comm.Avg).Wait(ctx)
	return all[0], err
}
