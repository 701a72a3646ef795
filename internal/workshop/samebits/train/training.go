package main

import (
	"context"
	"iter"
	"math/rand/v2"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/optim"
)

// training is one rank's.
type training struct {
	options
	group, experts comm.Group // experts: of block 1, nil without
	model          *fsdp.Sharded
	opt            optim.Optimizer
	scaler         *optim.LossScaler // nil without
	batches        int               // drawn so far
}

// run is one rank.
func run(ctx context.Context, g comm.Group, o options) (err error) {
	t := &training{options: o, group: g}
	if o.experts {
		if t.experts, err = g.Split(ctx, g.Rank()%2, g.Rank()); err != nil {
			return err
		}
		defer t.experts.Close()
	}
	if o.scale > 0 {
		if t.scaler, err = (optim.LossScale{Init: o.scale, Interval: 2}).New(); err != nil {
			return err
		}
	}
	if err := t.wrap(ctx); err != nil {
		return err
	}
	defer func() { t.model.Close() }() // what matters is on disk by then
	half := o.steps / 2
	if err := t.train(ctx, half); err != nil {
		return err
	}
	if err := t.change(ctx); err != nil {
		return err
	}
	if err := t.train(ctx, o.steps-half); err != nil {
		return err
	}
	if err := t.model.Save(ctx, o.save, t.opt, nil); err != nil {
		return err
	}
	return t.model.Export(ctx, o.export, nil)
}

// wrap makes the model and the optimizer.
func (t *training) wrap(ctx context.Context) error {
	cfg, err := t.config(t.group, t.experts)
	if err != nil {
		return err
	}
	if t.model, err = fsdp.WrapContext(ctx, t.options.model(), cfg); err != nil {
		return err
	}
	t.opt, err = t.optimizer(t.model.Params())
	return err
}

// change makes the changes that the options ask for after half of the steps.
func (t *training) change(ctx context.Context) error {
	if t.thaw {
		entries, err := t.model.Freeze(ctx, nil, t.opt)
		if err != nil {
			return err
		}
		steps := t.opt.Steps()
		if t.opt, err = t.optimizer(t.model.Params()); err != nil {
			return err
		}
		return t.opt.Adopt(steps, entries)
	}
	if !t.resume {
		return nil
	}
	if err := t.model.Save(ctx, t.save, t.opt, nil); err != nil {
		return err
	}
	if err := t.model.Close(); err != nil {
		return err
	}
	if t.reshape {
		t.options = t.reshaped()
	}
	if err := t.wrap(ctx); err != nil {
		return err
	}
	_, err := t.model.Load(ctx, t.save, t.opt, nil)
	return err
}

// train makes a number of updates. If uneven is set, rank r has r batches less, and takes part in
// the rest without a batch.
func (t *training) train(ctx context.Context, steps int) error {
	if !t.uneven {
		for range steps {
			if err := t.step(ctx, nil); err != nil {
				return err
			}
		}
		return nil
	}
	for batch, err := range t.model.Join(ctx, t.draw(max(0, steps-t.group.Rank()))) {
		if err != nil {
			return err
		}
		if err := t.step(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// draw returns n batches.
func (t *training) draw(n int) iter.Seq2[[]fsdp.Tensor, error] {
	return func(yield func([]fsdp.Tensor, error) bool) {
		for range n {
			if !yield(t.batch(), nil) {
				return
			}
		}
	}
}

// step makes one update. A nil batch is drawn.
func (t *training) step(ctx context.Context, batch []fsdp.Tensor) error {
	draw := func() []fsdp.Tensor {
		if t.uneven {
			return batch
		}
		return t.batch()
	}
	err := t.model.NoSync(func() error {
		for range t.accumulate {
			if err := t.pass(ctx, draw()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if t.hold {
		if _, err := t.model.Forward(ctx, draw()...); err != nil {
			return err
		}
		first := t.model.Hold()
		if err := t.pass(ctx, draw()); err != nil {
			return err
		}
		err = first.Backward(ctx, t.backward()...)
	} else {
		err = t.pass(ctx, draw())
	}
	if err != nil {
		return err
	}
	return t.update(ctx)
}

// pass is a forward and a backward.
func (t *training) pass(ctx context.Context, batch []fsdp.Tensor) error {
	if _, err := t.model.Forward(ctx, batch...); err != nil {
		return err
	}
	return t.model.Backward(ctx, t.backward()...)
}

// backward returns the options of a backward pass.
func (t *training) backward() (opts []fsdp.BackwardOption) {
	if t.byRows {
		opts = append(opts, fsdp.Weight(float64(t.rows())))
	}
	if t.scaler != nil {
		opts = append(opts, fsdp.Scale(t.scaler.Scale()))
	}
	return opts
}

// update clips the gradients and steps the optimizer.
func (t *training) update(ctx context.Context) error {
	finite := true
	if t.scaler != nil {
		var err error
		if finite, err = t.model.Unscale(ctx, t.scaler); err != nil {
			return err
		}
	}
	if finite {
		if _, err := t.model.ClipGradNorm(ctx, 1); err != nil {
			return err
		}
		if err := t.opt.Step(0.01); err != nil {
			return err
		}
	}
	t.model.ZeroGrad()
	return nil
}

// rows returns the rows of this rank's batches.
func (t *training) rows() int {
	if t.byRows {
		return 1 + t.group.Rank()
	}
	return 2
}

// batch draws tokens and targets [rows, context].
func (t *training) batch() []fsdp.Tensor {
	rnd := rand.New(rand.NewPCG(uint64(t.group.Rank()), uint64(t.batches)))
	t.batches++
	row := func() []int {
		list := make([]int, t.rows()*length)
		for i := range list {
			list[i] = rnd.IntN(vocab)
		}
		return list
	}
	shape := tensor.WithShape(t.rows(), length)
	return []fsdp.Tensor{tensor.New(shape, tensor.WithBacking(row())), tensor.New(shape, tensor.WithBacking(row()))}
}
