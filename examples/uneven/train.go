package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/optim"
)

// train goes through each rank's share of the numbers some times, and after each through its share
// of those held out.
func (r *rank) train(ctx context.Context, heldOut, numbers []int, epochs int) error {
	opt, err := optim.AdamW{Rules: []optim.Rule{optim.NoDecay()}}.New(r.model.Shards())
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
		var loss mean
		for batch, err := range r.batches(ctx, pairs(mine)) {
			if err != nil {
				return err
			}
			l, err := r.step(ctx, opt, lr(step), batch)
			if err != nil {
				return err
			}
			loss.add(l, letters(batch))
			step++
		}
		valid, err := r.validate(ctx, share(heldOut, n-1-me, n)) // the less to train on, the more to validate
		if err != nil {
			return err
		}
		if err := r.report(ctx, epoch, loss, valid); err != nil {
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
	if err := r.model.Backward(ctx, fsdp.Weight(letters(batch))); err != nil {
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

// validate returns the loss of this rank's numbers.
func (r *rank) validate(ctx context.Context, mine []int) (loss mean, err error) {
	err = r.calls(ctx, func() error {
		for batch := range pairs(mine) {
			results, err := r.model.Eval(ctx, batch...)
			if err != nil {
				return err
			}
			loss.add(float64(results[0].Data().([]float32)[0]), letters(batch))
		}
		return nil
	})
	return loss, err
}

// mean is a mean over letters. Ranks add up what they have, for a mean of their means would count
// letters unequally.
type mean struct{ sum, n float64 }

func (m *mean) add(loss, letters float64) { m.sum, m.n = m.sum+loss*letters, m.n+letters }

// report prints the losses of all ranks in some epochs, and the timeline of the first.
func (r *rank) report(ctx context.Context, epoch int, train, valid mean) error {
	v := []float64{train.sum, train.n, valid.sum, valid.n}
	if err := r.group.AllReduce(comm.Of(v), comm.Sum).Wait(ctx); err != nil {
		return err
	}
	if epoch > 0 && (epoch+1)%5 > 0 {
		r.forget()
		return nil
	}
	fmt.Fprintf(r.out, "epoch %d: %.3f nats per letter in training, %.3f in validation\n", epoch+1, v[0]/v[1], v[2]/v[3])
	if epoch > 0 {
		r.forget()
		return nil
	}
	return r.draw(ctx, r.group, r.out)
}
