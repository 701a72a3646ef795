package train

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

// rows returns rows lo to hi of the batch: tokens that are a function of their position.
func (s size) rows(lo, hi int) (tokens, targets []int) {
	for i := lo * s.context; i < hi*s.context; i++ {
		tokens = append(tokens, i*2654435761>>7%s.vocab)
		targets = append(targets, (i+1)*2654435761>>7%s.vocab)
	}
	return tokens, targets
}

// newSharded trains with this library on goroutine ranks.
func newSharded(ctx context.Context, s size, ranks int) (*contestant, error) {
	return newRanks(fmt.Sprintf("%d rank(s)", ranks), ranks, func(g comm.Group) (func() error, error) {
		t, err := newTrainer(ctx, s, fsdp.Config{Group: g, Wrap: fsdp.WrapTypes(&nn.Block{})}, s.batch/ranks)
		if err != nil {
			return nil, err
		}
		return t.step, nil
	})
}

// newRanks returns a contestant whose step runs, on every one of some goroutine ranks at once, what
// start returns for it.
func newRanks(name string, ranks int, start func(comm.Group) (step func() error, err error)) (*contestant, error) {
	steps := make([]func() error, ranks)
	groups := comm.Local(ranks)
	errs := make([]error, ranks)
	parallel(ranks, func(r int) { steps[r], errs[r] = start(groups[r]) })
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return &contestant{
		name: name, cores: ranks,
		step: func() error {
			parallel(ranks, func(r int) { errs[r] = steps[r]() })
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

// trainer is a model on one rank with its batch.
type trainer struct {
	model  *fsdp.Sharded
	batch  []fsdp.Tensor
	around func(passes func() error) error // runs the passes of a step, or nil
	step   func() error
}

// newTrainer wraps the model on one rank, for a batch of some rows.
func newTrainer(ctx context.Context, s size, cfg fsdp.Config, rows int) (*trainer, error) {
	gpt := &nn.GPT{Vocab: s.vocab, Context: s.context, Layers: s.layers, Dim: s.dim, Heads: s.heads, LoRA: nn.LoRA{Rank: s.adapters}}
	m, err := fsdp.WrapContext(ctx, gpt, cfg)
	if err != nil {
		return nil, err
	}
	opt, err := optim.AdamW{Beta2: 0.95, WeightDecay: 0.1}.New(m.Shards())
	if err != nil {
		return nil, err
	}
	x, y := s.rows(rows*cfg.Group.Rank(), rows*(cfg.Group.Rank()+1))
	shape := tensor.WithShape(rows, s.context)
	t := &trainer{model: m, batch: []fsdp.Tensor{tensor.New(shape, tensor.WithBacking(x)), tensor.New(shape, tensor.WithBacking(y))}}
	passes := func() error {
		if _, err := m.Forward(ctx, t.batch...); err != nil {
			return err
		}
		return m.Backward(ctx)
	}
	t.step = func() error {
		around := t.around
		if around == nil {
			around = func(passes func() error) error { return passes() }
		}
		if err := around(passes); err != nil {
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
	}
	return t, nil
}
