package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/generate"
	"github.com/gofsdp/gofsdp/fsdp/metrics"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
	"github.com/gofsdp/gofsdp/optim"
)

const (
	clip        = 1.0 // L2 norm that gradients are scaled down to
	evalBatches = 10  // of an evaluation
	seed        = 1   // of adapters, batches and generated text
)

// tuner is one rank's part of the training. Every rank runs the same code on different batches, and
// only the output of rank 0 is shown.
type tuner struct {
	config
	corpus
	*fsdp.Sharded
	group  comm.Group
	out    io.Writer
	model  *hf.Model
	opt    optim.Optimizer
	learn  *data.Loader[[]int]
	test   *data.Loader[[]int]
	writer *generate.Generator
}

// newTuner opens the model, cuts it over the ranks, and gives each its own part of the weights.
func newTuner(ctx context.Context, c config, text corpus, g comm.Group, out io.Writer) (*tuner, error) {
	m, err := hf.Open(c.from)
	if err != nil {
		return nil, err
	}
	block, cache, vocab, err := prepare(m.Model, c.lora)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.from, err)
	}
	if text.words.Size > vocab {
		return nil, fmt.Errorf("%s: the tokenizer has %d tokens, the model %d", c.from, text.words.Size, vocab)
	}
	if c.context > cache.Context {
		return nil, fmt.Errorf("-context %d: the model takes at most %d tokens", c.context, cache.Context)
	}
	c.context = cmp.Or(c.context, min(defaultContext, cache.Context))
	if err := text.split(c.context); err != nil {
		return nil, err
	}
	sharding := fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(block), Seed: seed}
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
	t := &tuner{config: c, corpus: text, Sharded: s, group: g, out: out, model: m}
	if err = m.Load(ctx, s); err == nil {
		t.opt, err = (optim.AdamW{}).New(s.Params())
	}
	if err == nil {
		t.learn, err = t.loader(t.train, data.Endless)
	}
	if err == nil {
		t.test, err = t.loader(t.held, evalBatches*t.batch*g.Size())
	}
	if err == nil {
		t.writer, err = generate.New(s, cache, generate.Config{})
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
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

// run trains, reports on the model before and after, and writes it.
func (t *tuner) run(ctx context.Context) error {
	like := tensor.New(tensor.WithShape(t.batch, t.context), tensor.Of(tensor.Int)) // tokens, and targets
	plan, err := t.Plan(like, like)
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
	for batch, err := range t.learn.Batches(ctx) {
		if err != nil {
			return err
		}
		loss, err := t.step(ctx, batch, lr(t.opt.Steps()))
		if err != nil {
			return err
		}
		done := t.opt.Steps()
		if done%max(1, t.steps/10) == 0 || done == t.steps {
			if loss, err = t.Mean(ctx, loss); err != nil {
				return err
			}
			fmt.Fprintf(t.out, "step %d/%d  loss %.4f\n", done, t.steps, loss)
		}
		if done == t.steps {
			break
		}
	}
	return nil
}

// step makes one update and returns the loss before it.
func (t *tuner) step(ctx context.Context, batch []fsdp.Tensor, lr float64) (loss float64, err error) {
	if loss, err = t.Forward(ctx, batch...); err != nil {
		return 0, err
	}
	if err := t.Backward(ctx, t.learn.Share()); err != nil {
		return 0, err
	}
	if _, err := t.ClipGradNorm(ctx, clip); err != nil {
		return 0, err
	}
	defer t.ZeroGrad()
	return loss, t.opt.Step(lr)
}

// report prints the loss on held-out text, and the model's continuation of the prompt.
func (t *tuner) report(ctx context.Context, when string) error {
	if err := t.test.Rewind(); err != nil {
		return err
	}
	loss := &metrics.Mean{}
	for batch, err := range t.test.Batches(ctx) {
		if err != nil {
			return err
		}
		out, err := t.Eval(ctx, batch...)
		if err != nil {
			return err
		}
		if err := loss.AddTensor(out[0], float64(data.Rows(batch))); err != nil { // a model's first result is its loss
			return err
		}
	}
	if _, err := (metrics.Set{"loss": loss}).Reduce(ctx, t.group); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "%s: validation loss %.4f nats per token\n", when, loss.Value())
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
	if err := t.model.Save(ctx, t.Sharded, t.to, nil); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "written to %s\n", t.to)
	return nil
}

// loader returns batches of the given number of windows of a text, at random places.
func (t *tuner) loader(tokens []int, windows int) (*data.Loader[[]int], error) {
	all := data.Shuffle(data.Windows(tokens, t.context+1, 1), seed, data.Endless)
	return data.NewLoader(data.Range(all, 0, windows), data.TokensAndTargets[int](t.context), data.Config{Group: t.group, Batch: t.batch * t.group.Size()})
}
