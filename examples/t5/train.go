package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/optim"
)

// train goes through this rank's functions some times, and after each through those held out.
func (r *rank) train(ctx context.Context) error {
	opt, err := optim.AdamW{Beta2: 0.95, WeightDecay: 0.1, Rules: []optim.Rule{optim.NoDecay()}}.New(r.model.Shards())
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
		var loss mean
		for batch, err := range r.model.Join(ctx, tensors(batches, r.rows)) {
			if err != nil {
				return err
			}
			l, err := r.step(ctx, opt, lr(opt.Steps()), batch)
			if err != nil {
				return err
			}
			loss.add(l, targets(batch))
		}
		held, err := r.validate(ctx)
		if err != nil {
			return err
		}
		if err := r.sum(ctx, &loss, &held); err != nil {
			return err
		}
		fmt.Fprintf(r.out, "epoch %d, step %d, %s: %.3f nats per token, %.3f held out\n", epoch+1, opt.Steps(),
			time.Since(begin).Round(time.Second), loss.value(), held.value())
	}
	return nil
}

// step trains on a batch, which may be none, and returns its loss. The more tokens a rank has to say,
// the more its gradients count.
func (r *rank) step(ctx context.Context, opt optim.Optimizer, lr float64, batch []fsdp.Tensor) (loss float64, err error) {
	if loss, err = r.model.Forward(ctx, batch...); err != nil {
		return 0, err
	}
	if err := r.model.Backward(ctx, fsdp.Weight(targets(batch))); err != nil {
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

// validate returns the loss of this rank's part of what is held out.
func (r *rank) validate(ctx context.Context) (loss mean, err error) {
	err = r.model.JoinCalls(ctx, func() error {
		for batch := range tensors(group(r.mine(r.data.held), r.rows), r.rows) {
			out, err := r.model.Eval(ctx, batch...)
			if err != nil {
				return err
			}
			loss.add(float64(out[0].Data().([]float32)[0]), targets(batch))
		}
		return nil
	})
	return loss, err
}

// mean is a mean of values that count differently.
type mean struct{ total, n float64 }

func (m *mean) add(value, n float64) { m.total, m.n = m.total+value*n, m.n+n }

func (m *mean) value() float64 { return m.total / max(m.n, 1) }

// sum makes each mean that of all ranks.
func (r *rank) sum(ctx context.Context, means ...*mean) error {
	var v []float64
	for _, m := range means {
		v = append(v, m.total, m.n)
	}
	if err := r.group.AllReduce(comm.Of(v), comm.Sum).Wait(ctx); err != nil {
		return err
	}
	for i, m := range means {
		m.total, m.n = v[2*i], v[2*i+1]
	}
	return nil
}
