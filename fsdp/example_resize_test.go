package fsdp_test

import (
	"context"
	"fmt"
	"log"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/optim"
)

// Two of four ranks leave a training, which goes on at once. With VirtualRanks it has the same losses as a
// training whose ranks never changed.
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
