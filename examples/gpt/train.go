package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
	"github.com/gofsdp/gofsdp/optim"
)

// clip is the L2 norm that gradients are scaled down to.
const clip = 1.0

// trainer is one rank's part of a training. Every rank runs the same code; what differs is its rows
// of each batch, and that only the screen of rank 0 is seen.
type trainer struct {
	config
	data   *corpus
	group  comm.Group
	model  *fsdp.Sharded
	opt    optim.Optimizer
	screen *monitor.Screen

	lo, hi  int       // this rank's rows of a global batch
	weight  float64   // its share of them
	begin   time.Time // of the training; of one that goes on, earlier by the time that it had taken
	elapsed time.Duration
	history history
	saves   saves
}

// train trains, evaluates and samples as one of c.ranks ranks. When interrupt ends on any rank, all
// of them stop training after the same step, and it is not over. With -interrupted that is all.
func train(ctx, interrupt context.Context, c config, data *corpus, g comm.Group, screen *monitor.Screen) (over bool, err error) {
	t, err := newTrainer(ctx, c, data, g, screen)
	if err != nil {
		return false, err
	}
	defer t.model.Close() // the run is over; that memory could not be given back changes nothing
	if err := t.restore(ctx); err != nil {
		return false, err
	}
	if over, err = t.run(ctx, interrupt); err != nil || !over && c.status != 0 {
		return over, err
	}
	return over, t.finish(ctx)
}

// newTrainer wraps the model and makes its optimizer.
func newTrainer(ctx context.Context, c config, data *corpus, g comm.Group, screen *monitor.Screen) (*trainer, error) {
	sharding := c.sharding()
	sharding.Group = g
	m, err := fsdp.WrapContext(ctx, c.model(), sharding)
	if err != nil {
		return nil, err
	}
	opt, err := optim.AdamW{Beta2: 0.95, WeightDecay: 0.1, Rules: []optim.Rule{optim.NoDecay()}}.New(m.Shards())
	if err != nil {
		return nil, err
	}
	t := &trainer{config: c, data: data, group: g, model: m, opt: opt, screen: screen}
	t.lo, t.hi = c.share(c.batch, g.Rank())
	t.weight = float64(t.hi-t.lo) / float64(c.batch)
	return t, nil
}

// run prints the plan, then trains until the run is over or interrupted, and saves what it has come
// to.
func (t *trainer) run(ctx, interrupt context.Context) (over bool, err error) {
	if err := t.printPlan(); err != nil {
		return false, err
	}
	lr := t.schedule()
	t.begin = time.Now().Add(-t.elapsed)
	for done := t.done(t.opt.Steps(), t.elapsed); done < 1; {
		begin := time.Now()
		loss, err := t.step(ctx, lr(done))
		if err != nil {
			return false, fmt.Errorf("step %d: %w", t.opt.Steps()+1, err)
		}
		now, err := t.agree(ctx, loss, interrupt.Err() != nil)
		if err != nil {
			return false, err
		}
		t.elapsed = now.elapsed
		t.history.add(t.opt.Steps(), now.loss, time.Since(begin))
		t.screen.Progress(t.progress(now, lr(done)))
		if now.interrupted {
			t.screen.Printf("interrupted after step %d\n", t.opt.Steps())
			return false, t.saveLast(ctx)
		}
		before := done
		done = t.done(t.opt.Steps(), t.elapsed)
		if err := t.pause(ctx, before, done); err != nil {
			return false, err
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

// step makes one update on the next global batch and returns the loss of this rank's rows before
// it.
func (t *trainer) step(ctx context.Context, lr float64) (loss float64, err error) {
	batch := t.data.batch(t.seed, t.opt.Steps(), t.lo, t.hi, t.context) // tokens and targets [rows, context]
	if loss, err = t.model.Forward(ctx, batch...); err != nil {
		return 0, err
	}
	// Gradients are averaged over the ranks; the scale makes that the mean over rows when some ranks
	// have one more.
	if err := t.model.Backward(ctx, fsdp.Scale(t.weight*float64(t.ranks))); err != nil {
		return 0, err
	}
	if _, err := t.model.ClipGradNorm(ctx, clip); err != nil {
		return 0, err
	}
	if err := t.opt.Step(lr); err != nil {
		return 0, err
	}
	t.model.ZeroGrad()
	return loss, nil
}

// moment is what the ranks agree on after a step.
type moment struct {
	loss        float64 // of the global batch, nats per token
	elapsed     time.Duration
	memory      int  // bytes of the rank with the most
	interrupted bool // any rank was
}

// agree combines what each rank knows, so that all take the same way from here: one that stopped
// alone, or stepped with another learning rate, would spoil the run of all.
func (t *trainer) agree(ctx context.Context, loss float64, interrupted bool) (moment, error) {
	mean := []float64{loss * t.weight}
	most := []float64{time.Since(t.begin).Seconds(), float64(t.model.Memory().Peak), 0}
	if interrupted {
		most[2] = 1
	}
	sum := t.group.AllReduce(comm.Of(mean).Named("loss"), comm.Sum)
	maximum := t.group.AllReduce(comm.Of(most).Named("progress"), comm.Max)
	if err := sum.Wait(ctx); err != nil {
		return moment{}, err
	}
	if err := maximum.Wait(ctx); err != nil {
		return moment{}, err
	}
	return moment{mean[0], time.Duration(most[0] * float64(time.Second)), int(most[1]), most[2] > 0}, nil
}

// due says whether it is time for what is done every so many steps, or with 0 eight times in a run.
func (t *trainer) due(every int, before, done float64) bool {
	if done == 1 {
		return false // the last time is not part of the training
	}
	if every > 0 {
		return t.opt.Steps()%every == 0
	}
	return monitor.Crossed(before, done, 8)
}

// validate evaluates the model, keeps the result and prints it.
func (t *trainer) validate(ctx context.Context) error {
	loss, err := t.evaluate(ctx)
	if err != nil {
		return fmt.Errorf("evaluation after step %d: %w", t.opt.Steps(), err)
	}
	t.history.Validation = append(t.history.Validation, monitor.Point{Step: t.opt.Steps(), Loss: loss})
	t.screen.Printf("step %d  validation loss %s\n", t.opt.Steps(), t.lossText(loss))
	return nil
}

// evaluate returns the mean loss over every token of the evaluation's windows, in nats, without
// dropout. The ranks share the windows out as they do those of a training batch.
func (t *trainer) evaluate(ctx context.Context) (float64, error) {
	var sum float64
	tokens := t.batch * t.context
	batches := int(math.Ceil(float64(t.evalBytes) / t.data.bytesPerToken() / float64(tokens)))
	for i := range batches {
		from := i * t.batch
		batch := t.data.heldBatch(batches*t.batch, from+t.lo, from+t.hi, t.context)
		out, err := t.model.Eval(ctx, batch...)
		if err != nil {
			return 0, err
		}
		loss := out[0].Data().([]float32) // a model's first result is its loss
		sum += float64(loss[0]) * t.weight
	}
	mean := []float64{sum / float64(batches)}
	err := t.group.AllReduce(comm.Of(mean).Named("validation loss"), comm.Sum).Wait(ctx)
	return mean[0], err
}

// finish evaluates once more, prints the curve and the summary, exports the weights and prints a
// sample.
func (t *trainer) finish(ctx context.Context) error {
	took := time.Since(t.begin)
	if err := t.validate(ctx); err != nil {
		return err
	}
	t.printResult(took)
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
