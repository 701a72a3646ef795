package main

import (
	"context"
	"fmt"
	"sync"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// batch returns rows lo to hi of the batch: tokens that are a function of their position.
func (s size) rows(lo, hi int) (tokens, targets []int) {
	for i := lo * s.context; i < hi*s.context; i++ {
		tokens = append(tokens, i*2654435761>>7%s.vocab)
		targets = append(targets, (i+1)*2654435761>>7%s.vocab)
	}
	return tokens, targets
}

// newSharded trains with this library on goroutine ranks.
func newSharded(ctx context.Context, s size, ranks int) (*contestant, error) {
	trainers := make([]func() error, ranks)
	groups := comm.Local(ranks)
	errs := make([]error, ranks)
	parallel(ranks, func(r int) { trainers[r], errs[r] = newTrainer(ctx, s, groups[r]) })
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return &contestant{
		name: fmt.Sprintf("%d rank(s)", ranks), cores: ranks,
		step: func() error {
			parallel(ranks, func(r int) { errs[r] = trainers[r]() })
			for _, err := range errs {
				if err != nil {
					return err
				}
			}
			return nil
		},
		close: func() error {
			for _, g := range groups {
				if err := g.Close(); err != nil {
					return err
				}
			}
			return nil
		},
	}, nil
}

// parallel runs f for every rank and waits.
func parallel(ranks int, f func(rank int)) {
	var wg sync.WaitGroup
	for r := range ranks {
		wg.Go(func() { f(r) })
	}
	wg.Wait()
}

// newTrainer returns a function that trains one step on one rank.
func newTrainer(ctx context.Context, s size, g comm.Group) (func() error, error) {
	model := &nn.GPT{Vocab: s.vocab, Context: s.context, Layers: s.layers, Dim: s.dim, Heads: s.heads}
	m, err := fsdp.WrapContext(ctx, model, fsdp.Config{Group: g, Wrap: fsdp.WrapType[*nn.Block]()})
	if err != nil {
		return nil, err
	}
	opt, err := optim.AdamW{Beta2: 0.95, WeightDecay: 0.1}.New(m.Shards())
	if err != nil {
		return nil, err
	}
	x, y := s.rows(s.batch*g.Rank()/g.Size(), s.batch*(g.Rank()+1)/g.Size())
	shape := tensor.WithShape(len(x)/s.context, s.context)
	tokens, targets := tensor.New(shape, tensor.WithBacking(x)), tensor.New(shape, tensor.WithBacking(y))
	return func() error {
		if _, err := m.Forward(ctx, tokens, targets); err != nil {
			return err
		}
		if err := m.Backward(ctx); err != nil {
			return err
		}
		if _, err := m.ClipGradNorm(ctx, 1); err != nil {
			return err
		}
		if err := opt.Step(3e-4); err != nil {
			return err
		}
		m.ZeroGrad()
		return nil
	}, nil
}
