package main

import (
	"context"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// enough is how long a round of steps takes at least.
const enough = time.Second / 2

// size is a model with its batch on a rank.
type size struct{ layers, dim, heads, context, batch int }

var (
	tiny  = size{4, 128, 4, 64, 4}
	small = size{6, 384, 6, 256, 4}
)

const vocab = 256

// trainer is a model on one rank.
type trainer struct {
	model *fsdp.Sharded
	opt   optim.Optimizer
	batch []fsdp.Tensor
}

func newTrainer(ctx context.Context, s size, g comm.Group) (*trainer, error) {
	gpt := &nn.GPT{Vocab: vocab, Context: s.context, Layers: s.layers, Dim: s.dim, Heads: s.heads}
	m, err := fsdp.WrapContext(ctx, gpt, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapNames(regexp.MustCompile(`^blocks\.\d+`))})
	if err != nil {
		return nil, err
	}
	opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Params())
	if err != nil {
		return nil, err
	}
	n := s.batch * s.context
	x, y := make([]int, n), make([]int, n)
	for i := range n {
		at := int64(i + n*g.Rank())
		x[i], y[i] = int(at*2654435761>>7%vocab), int((at+1)*2654435761>>7%vocab)
	}
	shape := tensor.WithShape(s.batch, s.context)
	batch := []fsdp.Tensor{tensor.New(shape, tensor.WithBacking(x)), tensor.New(shape, tensor.WithBacking(y))}
	return &trainer{m, opt, batch}, nil
}

// step is one update.
func (t *trainer) step(ctx context.Context) error {
	if _, err := t.model.Forward(ctx, t.batch...); err != nil {
		return err
	}
	if err := t.model.Backward(ctx); err != nil {
		return err
	}
	if _, err := t.model.ClipGradNorm(ctx, 1); err != nil {
		return err
	}
	if err := t.opt.Step(3e-4); err != nil {
		return err
	}
	t.model.ZeroGrad()
	return nil
}

// trainers returns the ranks of a training.
func trainers(ctx context.Context, dir string, s size, t comm.Transport) ([]*trainer, error) {
	groups, err := connect(ctx, dir, t)
	if err != nil {
		return nil, err
	}
	list := make([]*trainer, ranks)
	return list, onAll(func(r int) (err error) {
		list[r], err = newTrainer(ctx, s, groups[r])
		return err
	})
}

// steps measures whole training steps. A round is the median of the steps of half a second. Over
// TCP, all gathers and reductions pay for sockets and checksums.
func steps() (list []measurement) {
	for _, way := range []struct {
		name      string
		size      size
		transport comm.Transport
	}{
		{"train tiny", tiny, comm.SharedMemory},
		{"train small", small, comm.SharedMemory},
		{"train small tcp", small, comm.TCP},
	} {
		list = append(list, measurement{way.name, func(ctx context.Context, dir string) (func() (float64, error), error) {
			all, err := trainers(ctx, dir, way.size, way.transport)
			if err != nil {
				return nil, err
			}
			return func() (float64, error) {
				var times []float64
				for begin := time.Now(); time.Since(begin) < enough; {
					t := time.Now()
					if err := onAll(func(r int) error { return all[r].step(ctx) }); err != nil {
						return 0, err
					}
					times = append(times, time.Since(t).Seconds())
				}
				slices.Sort(times)
				return times[len(times)/2], nil
			}, nil
		}})
	}
	return list
}

// states are measurements of the state of the small model after one step.
func states() (list []measurement) {
	for _, way := range []struct {
		name string
		do   func(ctx context.Context, t *trainer, dir string) error
	}{
		{"state whole on rank 0", func(ctx context.Context, t *trainer, _ string) error {
			_, err := t.model.OptimStateDict(ctx, t.opt, nil)
			return err
		}},
		{"state saved", func(ctx context.Context, t *trainer, dir string) error {
			return t.model.Save(ctx, dir, t.opt, &fsdp.SaveOptions{KeepLast: 1})
		}},
		{"state loaded", func(ctx context.Context, t *trainer, dir string) error {
			_, err := t.model.Load(ctx, dir, t.opt, nil)
			return err
		}},
	} {
		list = append(list, measurement{way.name, func(ctx context.Context, dir string) (func() (float64, error), error) {
			all, err := trainers(ctx, dir, small, comm.SharedMemory)
			if err != nil {
				return nil, err
			}
			to := filepath.Join(dir, way.name)
			err = onAll(func(r int) error {
				if err := all[r].step(ctx); err != nil {
					return err
				}
				return all[r].model.Save(ctx, to, all[r].opt, nil)
			})
			return func() (float64, error) {
				begin := time.Now()
				err := onAll(func(r int) error { return way.do(ctx, all[r], to) })
				return time.Since(begin).Seconds(), err
			}, err
		}})
	}
	return list
}
