package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/metrics"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
	"github.com/gofsdp/gofsdp/optim"
)

// clip is the L2 norm that gradients are scaled down to.
const clip = 1.0

// trainer is one rank's part of a training. Every rank runs the same code; what differs is its rows
// of each batch, and that only the screen of rank 0 is seen.
type trainer struct {
	config
	text   *corpus
	group  comm.Group
	model  *fsdp.Sharded
	opt    optim.Optimizer
	screen *monitor.Screen

	mon *monitor.Monitor

	batches, held *loader      // to train and to evaluate on
	losses        metrics.Mean // of this rank in a step
	tokens        int          // likewise
	begun         int          // the step that these are of
	saves         saves
}

// train trains, evaluates and samples as one of c.ranks ranks. When interrupt ends on any rank, all
// of them stop training after the same step, and it is not over. With -interrupted that is all.
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
	opt, err := c.optimizer(m.Shards())
	if err != nil {
		return nil, err
	}
	t := &trainer{config: c, text: text, group: g, model: m, opt: opt, screen: screen}
	if t.batches, err = text.batches(g, c); err != nil {
		return nil, err
	}
	if t.held, err = text.heldBatches(g, c); err != nil {
		return nil, err
	}
	return t, t.watch(monitor.State{})
}

// optimizer makes AdamW of all parameters, or with -muon of those outside of the blocks' matrices.
// Queries, keys and values of each head are matrices of their own.
func (c *config) optimizer(params []optim.Param) (optim.Optimizer, error) {
	adamW := optim.AdamW{Beta2: 0.95, WeightDecay: 0.1, Rules: []optim.Rule{optim.NoDecay()}}
	if !c.muon {
		return adamW.New(params)
	}
	var matrices, rest []optim.Param
	for _, p := range params {
		if strings.HasPrefix(p.Name, "blocks.") && len(p.Shape) == 2 {
			matrices = append(matrices, p)
		} else {
			rest = append(rest, p)
		}
	}
	muon, err := optim.Muon{WeightDecay: 0.1, Blocks: func(p optim.Param) int {
		if strings.HasSuffix(p.Name, ".qkv.weight") {
			return 3 * c.heads
		}
		return 1
	}}.New(matrices)
	if err != nil {
		return nil, err
	}
	others, err := adamW.New(rest)
	if err != nil {
		return nil, err
	}
	return optim.Compose(muon, others)
}

// run prints the plan, then trains until the run is over or interrupted, and saves what it has come
// to.
func (t *trainer) run(ctx, interrupt context.Context) (over bool, err error) {
	if err := t.printPlan(); err != nil {
		return false, err
	}
	lr := t.schedule()
	done := t.mon.Done()
	if done == 1 {
		return true, nil
	}
	for batch, err := range t.batches.Batches(ctx) {
		if err != nil {
			return false, err
		}
		loss, over, err := t.step(ctx, batch, lr(done))
		if err != nil {
			return false, fmt.Errorf("step %d: %w", t.opt.Steps()+1, err)
		}
		if !over {
			continue
		}
		interrupted, err := t.model.Any(ctx, interrupt.Err() != nil)
		if err != nil {
			return false, err
		}
		if err := t.mon.Step(ctx, t.tokens, monitor.Values{"loss": loss, "lr": lr(done)}); err != nil {
			return false, err
		}
		if interrupted {
			t.screen.Printf("interrupted after step %d\n", t.opt.Steps())
			return false, t.saveLast(ctx)
		}
		before := done
		done = t.mon.Done()
		if err := t.pause(ctx, before, done); err != nil {
			return false, err
		}
		if done == 1 {
			break
		}
	}
	return true, t.saveLast(ctx)
}

// pause evaluates and saves, where that is due, when the share of the run that is over has grown.
func (t *trainer) pause(ctx context.Context, before, done float64) error {
	if t.due(t.evalEvery, before, done) {
		if err := t.validate(ctx); err != nil {
			return err
		}
	}
	t.look(ctx)
	if t.saveDir != "" && t.due(t.saveEvery, before, done) {
		return t.save(ctx)
	}
	return nil
}

// step makes one update with a batch, or with all micro-batches of a step. Then it is over, and loss is
// that of this rank's rows before the update, or with -virtual of all rows.
func (t *trainer) step(ctx context.Context, batch []fsdp.Tensor, lr float64) (loss float64, over bool, err error) {
	over = t.batches.StepEnds()
	pass := func() error { return t.pass(ctx, batch) }
	if t.noSync && !over {
		err = t.model.NoSync(pass)
	} else {
		err = pass()
	}
	if err != nil || !over {
		return 0, false, err
	}
	if _, err := t.model.ClipGradNorm(ctx, clip); err != nil {
		return 0, false, err
	}
	if err := t.opt.Step(lr); err != nil {
		return 0, false, err
	}
	t.model.ZeroGrad()
	of := t.group
	if t.virtual == 0 {
		of = nil // the monitor asks the other ranks
	}
	_, err = metrics.Set{"loss": &t.losses}.Reduce(ctx, of)
	return t.losses.Value(), true, err
}

// pass adds the gradients of a batch.
func (t *trainer) pass(ctx context.Context, batch []fsdp.Tensor) error {
	loss, err := t.model.Forward(ctx, batch...)
	if err != nil {
		return err
	}
	if t.begun != t.opt.Steps()+1 {
		t.begun, t.tokens = t.opt.Steps()+1, 0
		t.losses.Reset()
	}
	t.tokens += data.Rows(batch) * t.context
	if err := t.losses.Add(loss, float64(data.Rows(batch))); err != nil {
		return err
	}
	// The share makes the gradient the mean over the step when some ranks have one row more.
	return t.model.Backward(ctx, t.batches.Share())
}

// due says whether it is time for what is done every so many steps, or with 0 eight times in a run.
func (t *trainer) due(every int, before, done float64) bool {
	if done == 1 {
		return false // the last time is not part of the training
	}
	if every > 0 {
		return t.opt.Steps()%every == 0
	}
	const parts, rounding = 8, 1e-9 // 3*0.1 is not 0.3
	return int(before*parts+rounding) < int(done*parts+rounding)
}

// validate evaluates the model, and shows the result.
func (t *trainer) validate(ctx context.Context) error {
	loss, err := t.evaluate(ctx)
	if err != nil {
		return fmt.Errorf("evaluation after step %d: %w", t.opt.Steps(), err)
	}
	return t.mon.Eval(ctx, 1, monitor.Values{"loss": loss, "bits_per_byte": t.bits(loss)})
}

// evaluate returns the mean loss over the tokens of the evaluation's windows, in nats, without
// dropout.
func (t *trainer) evaluate(ctx context.Context) (float64, error) {
	if err := t.held.Rewind(); err != nil {
		return 0, err
	}
	loss := &metrics.Mean{}
	for batch, err := range t.held.Batches(ctx) {
		if err != nil {
			return 0, err
		}
		out, err := t.model.Eval(ctx, batch...)
		if err != nil {
			return 0, err
		}
		if err := loss.AddTensor(out[0], float64(data.Rows(batch))); err != nil { // a model's first result is its loss
			return 0, err
		}
	}
	_, err := metrics.Set{"loss": loss}.Reduce(ctx, t.group)
	return loss.Value(), err
}

// finish evaluates once more, prints the curve and the summary, exports the weights and prints a
// sample.
func (t *trainer) finish(ctx context.Context) error {
	if err := t.validate(ctx); err != nil {
		return err
	}
	if err := t.printResult(); err != nil {
		return err
	}
	if t.virtual > 0 {
		if err := t.printBits(ctx); err != nil {
			return err
		}
	}
	if t.exportTo != "" {
		if err := t.export(ctx); err != nil {
			return err
		}
	}
	if t.sampleBytes == 0 {
		return nil
	}
	return t.printSample(ctx)
}
