package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/metrics"
	"github.com/gofsdp/gofsdp/optim"
)

// train goes through each rank's share of the numbers some times, and after each through its share
// of those held out.
func (r *rank) train(ctx context.Context, heldOut, numbers []int, epochs int) error {
	opt, err := optim.AdamW{Rules: []optim.Rule{optim.NoDecay()}}.New(r.model.Params())
	if err != nil {
		return err
	}
	me, n := r.group.Rank(), r.group.Size()
	steps := epochs * ((len(share(numbers, 0, n)) + rows - 1) / rows)
	lr := optim.WarmupCosine(5e-3, 5e-4, steps/20, steps)
	rnd := rand.New(rand.NewPCG(2, uint64(me)))
	mine, step := slices.Clone(share(numbers, me, n)), 0
	for epoch := range epochs {
		rnd.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
		var loss, valid metrics.Mean
		for batch, err := range r.batches(ctx, pairs(mine)) {
			if err != nil {
				return err
			}
			l, err := r.step(ctx, opt, lr(step), batch)
			if err != nil {
				return err
			}
			if err := loss.Add(l, letters(batch)); err != nil {
				return err
			}
			step++
		}
		if err := r.validate(ctx, &valid, share(heldOut, n-1-me, n)); err != nil { // the less to train on, the more to validate
			return err
		}
		if err := r.report(ctx, epoch, &loss, &valid); err != nil {
			return err
		}
	}
	return nil
}

// step trains on a batch, which may be none, and returns its loss. The more letters a rank has, the
// more its gradients count.
func (r *rank) step(ctx context.Context, opt optim.Optimizer, lr float64, batch []fsdp.Tensor) (loss float64, err error) {
	if loss, err = r.model.Forward(ctx, batch...); err != nil {
		return 0, err
	}
	if err := r.model.Backward(ctx, fsdp.Share(batch)); err != nil {
		return 0, err
	}
	if _, err := r.model.ClipGradNorm(ctx, 1); err != nil {
		return 0, err
	}
	if err := opt.Step(lr); err != nil {
		return 0, err
	}
	r.model.ZeroGrad()
	return loss, nil
}

// validate adds the loss of this rank's numbers.
func (r *rank) validate(ctx context.Context, loss *metrics.Mean, mine []int) error {
	return r.calls(ctx, func() error {
		for batch := range pairs(mine) {
			results, err := r.model.Eval(ctx, batch...)
			if err != nil {
				return err
			}
			if err := loss.AddTensor(results[0], letters(batch)); err != nil {
				return err
			}
		}
		return nil
	})
}

// report prints the losses of all ranks in some epochs, and the timeline of the first.
func (r *rank) report(ctx context.Context, epoch int, train, valid *metrics.Mean) error {
	if _, err := (metrics.Set{"training": train, "validation": valid}).Reduce(ctx, r.group); err != nil {
		return err
	}
	if epoch > 0 && (epoch+1)%5 > 0 {
		r.forget()
		return nil
	}
	fmt.Fprintf(r.out, "epoch %d: %.3f nats per letter in training, %.3f in validation\n", epoch+1, train.Value(), valid.Value())
	if epoch > 0 {
		r.forget()
		return nil
	}
	return r.draw(ctx, r.group, r.out)
}
