package fsdp_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/optim"
)

// Two of four ranks leave a training, which goes on at once. With VirtualRanks it has the same
// losses as a training whose ranks never changed.
func ExampleCopyState() {
	const dim, virtual = 4, 4
	type training struct {
		group comm.Group
		model *fsdp.Sharded
		opt   optim.Optimizer
	}
	begin := func(g comm.Group) (t training, err error) {
		t.group = g
		if t.model, err = fsdp.Wrap(&Towers{dim}, fsdp.Config{Group: g, VirtualRanks: virtual}); err == nil {
			t.opt, err = optim.AdamW{}.New(t.model.Params())
		}
		return t, err
	}
	step := func(ctx context.Context, t training) (loss float64, err error) {
		for range virtual / t.group.Size() { // micro-batches of this rank
			if loss, err = t.model.Forward(ctx, tensor.Ones(tensor.Float32, 2, dim), nil); err != nil {
				return 0, err
			}
			if err = t.model.Backward(ctx); err != nil {
				return 0, err
			}
		}
		err = t.opt.Step(0.1)
		t.model.ZeroGrad()
		return loss, err
	}
	err := comm.Run(context.Background(), 4, func(ctx context.Context, g comm.Group) error {
		now, err := begin(g)
		if err != nil {
			return err
		}
		for i := range 4 {
			if i == 2 { // ranks 2 and 3 leave
				color := comm.Detached // the others do not end with them
				if g.Rank() >= 2 {
					color = -1
				}
				smaller, err := g.Split(ctx, color, g.Rank())
				if err != nil {
					return err
				}
				var next training
				if smaller != nil {
					if next, err = begin(smaller); err != nil {
						return err
					}
				}
				if err := fsdp.CopyState(ctx, now.model, next.model, now.opt, next.opt); err != nil {
					return err
				}
				if err := now.model.Close(); err != nil {
					return err
				}
				if now = next; smaller == nil {
					return nil
				}
			}
			loss, err := step(ctx, now)
			if err != nil {
				return err
			}
			if g.Rank() == 0 {
				fmt.Printf("%d ranks: loss %.4f\n", now.group.Size(), loss)
			}
		}
		return now.model.Close()
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// 4 ranks: loss 0.1774
	// 4 ranks: loss 0.1096
	// 2 ranks: loss 0.0641
	// 2 ranks: loss 0.0364
}

// Ranks 1 and 3 of four die in a step. The others repeat it as a group of two.
func ExampleMemoryCheckpoint() {
	const dim, virtual, steps = 4, 4, 4
	first, second := comm.Local(4), comm.Local(2) // processes call comm.Reconnect
	rank := func(ctx context.Context, r int) error {
		var last fsdp.MemoryCheckpoint
		var model *fsdp.Sharded
		var opt optim.Optimizer
		begin := func(g comm.Group) (err error) {
			if model, err = fsdp.Wrap(&Towers{dim}, fsdp.Config{Group: g, VirtualRanks: virtual}); err == nil {
				opt, err = optim.AdamW{}.New(model.Params())
			}
			return err
		}
		train := func(size int) (loss float64, err error) {
			for range virtual / size { // micro-batches of this rank
				if loss, err = model.Forward(ctx, tensor.Ones(tensor.Float32, 2, dim), nil); err == nil {
					err = model.Backward(ctx)
				}
				if err != nil {
					return 0, err
				}
			}
			if err = opt.Step(0.1); err != nil {
				return 0, err
			}
			model.ZeroGrad()
			return loss, last.Save(ctx, model, opt, nil)
		}
		g := first[r]
		if err := begin(g); err != nil {
			return err
		}
		for step := 0; step < steps; step++ {
			if step == 2 && r%2 == 1 {
				_, _ = model.Forward(ctx, tensor.Ones(tensor.Float32, 2, dim), nil) // the others are in the step, too
				g.Abort(errors.New("the host is gone"))
				return nil
			}
			loss, err := train(g.Size())
			if gone := new(comm.RankError); errors.As(err, &gone) {
				lost := model
				g = second[r/2]
				if err := begin(g); err != nil {
					return err
				}
				c, err := last.Load(ctx, model, opt)
				if err != nil {
					return err
				}
				if err := lost.Close(); err != nil {
					return err
				}
				if step = c.Step - 1; r == 0 {
					fmt.Printf("%d of %d ranks continue after step %d\n", g.Size(), c.World, c.Step)
				}
				continue
			}
			if err != nil {
				return err
			}
			if r == 0 {
				fmt.Printf("%d ranks: loss %.4f\n", g.Size(), loss)
			}
		}
		return model.Close()
	}
	errs := make([]error, len(first))
	var all sync.WaitGroup
	for r := range first {
		all.Go(func() { errs[r] = rank(context.Background(), r) })
	}
	if all.Wait(); errors.Join(errs...) != nil {
		log.Fatal(errors.Join(errs...))
	}
	// Output:
	// 4 ranks: loss 0.1774
	// 4 ranks: loss 0.1096
	// 2 of 4 ranks continue after step 2
	// 2 ranks: loss 0.0641
	// 2 ranks: loss 0.0364
}
