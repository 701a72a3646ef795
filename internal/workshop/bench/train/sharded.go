package train

import (
	"context"
	"runtime"
	"time"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/calibrate"
	"github.com/gofsdp/gofsdp/optim"
)

// rows returns rows lo to hi of the batch: tokens that are a function of their position.
func (s size) rows(lo, hi int) (tokens, targets []int) {
	for i := lo * s.Context; i < hi*s.Context; i++ {
		tokens = append(tokens, i*2654435761>>7%s.Vocab)
		targets = append(targets, (i+1)*2654435761>>7%s.Vocab)
	}
	return tokens, targets
}

// contestant is a way to train in this process; step runs one step.
type contestant struct {
	cores int
	step  func() error
	close func() error
	times []time.Duration
}

// newRanks returns a contestant. Its step runs the function that start returned for each rank, on
// all ranks at once.
func newRanks(groups []comm.Group, start func(comm.Group) (step func() error, err error)) (*contestant, error) {
	steps := make([]func() error, len(groups))
	err := calibrate.Each(len(groups), func(i int) (err error) {
		steps[i], err = start(groups[i])
		return err
	})
	return &contestant{
		cores: len(groups),
		step:  func() error { return calibrate.Each(len(groups), func(i int) error { return steps[i]() }) },
		close: func() error { return calibrate.Each(len(groups), func(i int) error { return groups[i].Close() }) },
	}, err
}

// race runs steps for some seconds, at least one. The first round warms up with one more.
func (c *contestant) race(seconds float64, first bool) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(c.cores))
	if first {
		if err := c.step(); err != nil {
			return err
		}
	}
	for begin := time.Now(); ; {
		t := time.Now()
		if err := c.step(); err != nil {
			return err
		}
		c.times = append(c.times, time.Since(t))
		if time.Since(begin).Seconds() > seconds {
			return nil
		}
	}
}

// trainer is a model on one rank with its batch.
type trainer struct {
	model  *fsdp.Sharded
	opt    optim.Optimizer
	batch  []fsdp.Tensor
	around func(passes func() error) error // runs the passes of a step, or nil
	step   func() error
	loss   float64 // of the last step
}

// model returns the model.
func (s size) model() *nn.GPT {
	return &nn.GPT{Vocab: s.Vocab, Context: s.Context, Layers: s.Layers, Dim: s.Dim, Heads: s.Heads, LoRA: nn.LoRA{Rank: s.adapters}}
}

// optimizer is the optimizer of all.
var optimizer = optim.AdamW{Beta2: 0.95, WeightDecay: 0.1}

// newTrainer wraps the model on one rank, for a batch of some rows.
func newTrainer(ctx context.Context, s size, cfg fsdp.Config, rows int) (*trainer, error) {
	m, err := fsdp.WrapContext(ctx, s.model(), cfg)
	if err != nil {
		return nil, err
	}
	opt, err := optimizer.New(m.Params())
	if err != nil {
		return nil, err
	}
	x, y := s.rows(rows*cfg.Group.Rank(), rows*(cfg.Group.Rank()+1))
	shape := tensor.WithShape(rows, s.Context)
	t := &trainer{model: m, opt: opt, batch: []fsdp.Tensor{tensor.New(shape, tensor.WithBacking(x)), tensor.New(shape, tensor.WithBacking(y))}}
	passes := func() (err error) {
		if t.loss, err = m.Forward(ctx, t.batch...); err != nil {
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
