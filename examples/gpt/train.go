package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/generate"
	"github.com/gofsdp/gofsdp/fsdp/metrics"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
	"github.com/gofsdp/gofsdp/optim"
)

// trainer is one rank's part of a training. Every rank runs the same code. Ranks differ in their
// rows of each batch, and only rank 0 has a screen that is seen.
type trainer struct {
	config
	text   *corpus
	group  comm.Group
	model  *fsdp.Sharded
	opt    optim.Optimizer
	screen *monitor.Screen
	mon    *monitor.Monitor

	batches, held *loader // to train on and to evaluate on
	loss          float64 // sum over the rows of this rank in the current step
	rows          int     // number of these rows

	saving     *fsdp.Saving // checkpoint that is being written, or nil
	savingStep int          // its step
	saved      int          // step of the last complete checkpoint
	saveErr    error        // of the last checkpoint that has ended
}

// train trains, evaluates and samples as one of the ranks. When interrupt ends on any rank, all of
// them stop after the same step, and the training is not over. With -interrupted the program then
// ends.
func train(ctx, interrupt context.Context, c config, text *corpus, g comm.Group, screen *monitor.Screen) (over bool, err error) {
	t, err := newTrainer(ctx, c, text, g, screen)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, t.model.Close()) }()
	if err := t.restore(ctx); err != nil {
		return false, err
	}
	if over, err = t.run(ctx, interrupt); err != nil || !over && c.status != 0 {
		return over, err
	}
	return over, t.finish(ctx)
}

// newTrainer wraps the model and makes its optimizer.
func newTrainer(ctx context.Context, c config, text *corpus, g comm.Group, screen *monitor.Screen) (*trainer, error) {
	sharding := c.sharding()
	sharding.Group = g
	m, err := fsdp.WrapContext(ctx, c.model(), sharding)
	if err != nil {
		return nil, err
	}
	opt, err := optim.AdamW{Beta2: 0.95, WeightDecay: 0.1, Bits: c.bits, Rules: []optim.Rule{optim.NoDecay()}}.New(m.Params())
	if err != nil {
		return nil, err
	}
	t := &trainer{config: c, text: text, group: g, model: m, opt: opt, screen: screen}
	if t.batches, err = text.batches(g, c); err != nil {
		return nil, err
	}
	t.held, err = text.heldBatches(g, c)
	return t, err
}

// watch begins to show the run, or continues from the state in a checkpoint.
func (t *trainer) watch(from monitor.State) error {
	plan, err := t.plan()
	if err != nil {
		return err
	}
	var writers []monitor.Writer
	if t.log != "" {
		writers = []monitor.Writer{monitor.JSONLines(filepath.Join(t.log, "log.jsonl")), monitor.SVG(filepath.Join(t.log, "run.svg")), monitor.TensorBoard(t.log)}
	}
	t.mon, err = monitor.New(monitor.Config{
		Group: t.group, Steps: t.steps, Budget: t.budget, FLOPs: t.config.model().FLOPs(t.context), Model: t.model, Plan: plan,
		Out: t.screen, CurveUnit: "nats per " + t.vocab.unit, State: from, Writers: writers,
	})
	return err
}

// plan returns the plan of a pass on a rank with the most rows.
func (t *trainer) plan() (*fsdp.Plan, error) {
	parts := max(t.ranks, t.virtual)
	rows := (t.batch + parts - 1) / parts
	like := tensor.New(tensor.WithShape(rows, t.context), tensor.Of(tensor.Int)) // tokens, and targets
	return t.model.Plan(like, like)
}

// run prints the plan, trains until the run is over or interrupted, and saves the result.
func (t *trainer) run(ctx, interrupt context.Context) (over bool, err error) {
	if err := t.printPlan(); err != nil {
		return false, err
	}
	done := t.mon.Done()
	if done == 1 {
		return true, nil
	}
	for batch, err := range t.batches.Batches(ctx) {
		if err != nil {
			return false, err
		}
		rate := t.rate(done)
		if err := t.pass(ctx, batch); err != nil {
			return false, fmt.Errorf("step %d: %w", t.opt.Steps()+1, err)
		}
		if !t.batches.StepEnds() { // with -virtual a step has several batches
			continue
		}
		if err := t.step(ctx, rate); err != nil {
			return false, fmt.Errorf("step %d: %w", t.opt.Steps()+1, err)
		}
		interrupted, err := t.model.Any(ctx, interrupt.Err() != nil)
		if err != nil {
			return false, err
		}
		if err := t.mon.Step(ctx, t.rows*t.context, monitor.Values{"loss": t.loss / float64(t.rows), "lr": rate}); err != nil {
			return false, err
		}
		t.loss, t.rows = 0, 0
		if interrupted {
			t.screen.Printf("interrupted after step %d\n", t.opt.Steps())
			return false, t.saveLast(ctx)
		}
		before := done
		if done = t.mon.Done(); done == 1 {
			break
		}
		if t.due(t.evalEvery, before, done) {
			if err := t.validate(ctx); err != nil {
				return false, err
			}
		}
		t.reportSave(ctx)
		if t.saveDir != "" && t.due(t.saveEvery, before, done) {
			if err := t.save(ctx); err != nil {
				return false, err
			}
		}
	}
	return true, t.saveLast(ctx)
}

// pass adds the gradients of a batch. With Share the sum over all passes is the gradient of the
// mean loss of the whole step, even if some ranks have one row more.
func (t *trainer) pass(ctx context.Context, batch []fsdp.Tensor) error {
	loss, err := t.model.Forward(ctx, batch...)
	if err != nil {
		return err
	}
	t.loss += loss * float64(data.Rows(batch))
	t.rows += data.Rows(batch)
	return t.model.Backward(ctx, t.batches.Share())
}

// step updates the parameters.
func (t *trainer) step(ctx context.Context, rate float64) error {
	if _, err := t.model.ClipGradNorm(ctx, 1); err != nil {
		return err
	}
	if err := t.opt.Step(rate); err != nil {
		return err
	}
	t.model.ZeroGrad()
	return nil
}

// due reports whether to do something that happens after each `every` steps or, if every is 0,
// eight times in a run.
func (t *trainer) due(every int, before, done float64) bool {
	if every > 0 {
		return t.opt.Steps()%every == 0
	}
	const parts, rounding = 8, 1e-9 // 3*0.1 is not 0.3
	return int(before*parts+rounding) < int(done*parts+rounding)
}

// validate computes the mean loss over the held-out windows, without dropout, and shows it.
func (t *trainer) validate(ctx context.Context) error {
	if err := t.held.Rewind(); err != nil {
		return err
	}
	loss := &metrics.Mean{}
	for batch, err := range t.model.Join(ctx, t.held.Batches(ctx)) { // with -virtual some ranks have no last batch
		if err != nil {
			return err
		}
		out, err := t.model.Eval(ctx, batch...)
		if err != nil {
			return fmt.Errorf("evaluation after step %d: %w", t.opt.Steps(), err)
		}
		if batch == nil {
			continue
		}
		if err := loss.AddTensor(out[0], float64(data.Rows(batch))); err != nil { // a model's first result is its loss
			return err
		}
	}
	if _, err := (metrics.Set{"loss": loss}).Reduce(ctx, t.group); err != nil {
		return err
	}
	return t.mon.Eval(ctx, 1, monitor.Values{"loss": loss.Value(), "bits_per_byte": t.bits(loss.Value())})
}

// bits returns the bits per byte for a loss in nats per token.
func (t *trainer) bits(loss float64) float64 { return loss / math.Ln2 / t.text.bytesPerToken() }

// finish evaluates once more, prints the curve and a summary, exports the weights and prints a
// sample.
func (t *trainer) finish(ctx context.Context) error {
	if err := t.validate(ctx); err != nil {
		return err
	}
	loss, _ := t.mon.Last("validation/loss")
	if err := t.mon.Close(); err != nil {
		return err
	}
	text := fmt.Sprintf("%.4f nats/byte, %.4f bits/byte", loss/t.text.bytesPerToken(), t.bits(loss))
	if t.config.tokens != "" {
		text = fmt.Sprintf("%.4f nats/token, %s", loss, text)
	}
	t.screen.Printf("  validation loss: %s\n", text)
	if t.exportTo != "" {
		if err := t.export(ctx); err != nil {
			return err
		}
	}
	if t.sampleBytes == 0 {
		return nil
	}
	t.screen.Printf("\n%s at temperature %v\n%s", t.screen.Title("sample"), t.temperature, t.screen.Title(t.prompt))
	out := monitor.Filter{W: t.screen}
	err := t.sample(ctx, t.prompt, t.sampleBytes, func(text string) { out.Write([]byte(text)) }) // a screen reports no errors
	t.screen.Printf("\n")
	return err
}

// printPlan prints the memory and traffic of the training before it begins.
func (t *trainer) printPlan() error {
	p, err := t.plan()
	if err != nil {
		return err
	}
	steps := "steps for " + monitor.Duration(t.budget)
	if t.steps > 0 {
		steps = monitor.Count(t.steps) + " steps"
	}
	if t.virtual > 0 {
		steps += fmt.Sprintf("; as on %d ranks", t.virtual)
	}
	t.screen.Printf("%s\n%d layers of %d channels and %d heads, %d %ss of context\n", t.screen.Title("plan"), t.layers, t.dim, t.heads, t.context, t.vocab.unit)
	t.screen.Printf("%d sequences a step, %s %ss of text; %s\n%v\n\n", t.batch, monitor.Count(t.batch*t.context), t.vocab.unit, steps, p)
	return nil
}

// sample continues a prompt until it has written n bytes or the end of a file, and passes the text
// to emit on rank 0. It is a collective, since evaluating gathers the parameters: the other ranks
// take part without a prompt. Each stretch continues from the last half of the context.
func (t *trainer) sample(ctx context.Context, prompt string, n int, emit func(string)) error {
	g, err := generate.New(t.model, t.config.model().Cache(), generate.Config{})
	if err != nil {
		return err
	}
	all := t.vocab.encode(prompt)
	shown := len(t.vocab.decode(all))
	end := shown + n
	for stretch := range 1 + 2*n/t.context {
		var prompts [][]int
		from, seen := len(all), all[max(0, len(all)-t.context/2):]
		if t.group.Rank() == 0 && shown < end {
			prompts = [][]int{seen}
		}
		seed := rand.New(rand.NewPCG(t.seed, uint64(stretch))).Uint64()
		o := generate.Options{MaxTokens: t.context - len(seen), Stop: []int{t.vocab.end}, Temperature: t.temperature, Seed: seed}
		for token, err := range g.Stream(ctx, prompts, o) {
			if err != nil {
				return err
			}
			all = append(all, token.Token)
			if text := t.vocab.decode(all); len(text) > shown && !strings.HasSuffix(text, string(utf8.RuneError)) { // no part of a character
				emit(text[shown:])
				if shown = len(text); shown >= end {
					break
				}
			}
		}
		if len(all)-from < o.MaxTokens { // the end of a file
			end = shown
		}
	}
	return nil
}
