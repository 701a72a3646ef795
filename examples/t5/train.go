package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/metrics"
	"github.com/gofsdp/gofsdp/optim"
)

// train goes through this rank's functions some times, and after each through those held out.
func (r *rank) train(ctx context.Context) error {
	opt, err := optim.AdamW{Beta2: 0.95, WeightDecay: 0.1, Rules: []optim.Rule{optim.NoDecay()}}.New(r.model.Params())
	if err != nil {
		return err
	}
	most := 0 // batches of the rank with the most, which is how many steps all ranks take
	for i := range r.group.Size() {
		most = max(most, len(group(share(r.data.train, i, r.group.Size()), r.rows)))
	}
	steps := r.epochs * most
	lr := optim.WarmupCosine(r.lr, r.lr/10, steps/20, steps)
	mine, rnd, begin := r.mine(r.data.train), rand.New(rand.NewPCG(2, uint64(r.group.Rank()))), time.Now()
	for epoch := range r.epochs {
		rnd.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
		batches := group(mine, r.rows)
		rnd.Shuffle(len(batches), func(i, j int) { batches[i], batches[j] = batches[j], batches[i] })
		var loss, held metrics.Mean
		for batch, err := range r.model.Join(ctx, tensors(batches, r.rows)) {
			if err != nil {
				return err
			}
			l, err := r.step(ctx, opt, lr(opt.Steps()), batch)
			if err != nil {
				return err
			}
			if err := loss.Add(l, targets(batch)); err != nil {
				return err
			}
		}
		if err := r.validate(ctx, &held); err != nil {
			return err
		}
		if _, err := (metrics.Set{"loss": &loss, "held": &held}).Reduce(ctx, r.group); err != nil {
			return err
		}
		fmt.Fprintf(r.out, "epoch %d, step %d, %s: %.3f nats per token, %.3f held out\n", epoch+1, opt.Steps(),
			time.Since(begin).Round(time.Second), loss.Value(), held.Value())
	}
	return nil
}

// step trains on a batch, which may be none, and returns its loss. The more tokens a rank has to
// say, the more its gradients count.
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

// validate adds the loss of this rank's part of the held-out data.
func (r *rank) validate(ctx context.Context, loss *metrics.Mean) error {
	return r.model.JoinCalls(ctx, func() error {
		for batch := range tensors(group(r.mine(r.data.held), r.rows), r.rows) {
			out, err := r.model.Eval(ctx, batch...)
			if err != nil {
				return err
			}
			if err := loss.AddTensor(out[0], targets(batch)); err != nil {
				return err
			}
		}
		return nil
	})
}
