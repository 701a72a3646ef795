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

// A frozen teacher is the moving average of its student. Here the student only learns to make its
// output small; in BYOL, DINO or JEPA the teacher's Eval gives the targets of the student's batch.
func ExampleSharded_FrozenParams() {
	const dim = 4
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		cfg := fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach()}
		student, err := fsdp.Wrap(&Towers{dim}, cfg)
		if err != nil {
			return err
		}
		defer student.Close()
		cfg.Frozen = func(string) bool { return true } // half the memory: no gradients
		teacher, err := fsdp.Wrap(&Towers{dim}, cfg)
		if err != nil {
			return err
		}
		defer teacher.Close()
		opt, err := optim.SGD{}.New(student.Params())
		if err != nil {
			return err
		}
		averages, params := teacher.FrozenParams(), student.Params()
		if err := optim.UpdateEMA(averages, params, 0); err != nil { // a copy
			return err
		}
		for range 3 {
			batch := []fsdp.Tensor{tensor.Ones(tensor.Float32, 2, dim), nil}
			target, err := teacher.Eval(ctx, batch...)
			if err != nil {
				return err
			}
			loss, err := student.Forward(ctx, batch...)
			if err != nil {
				return err
			}
			if err := student.Backward(ctx); err != nil {
				return err
			}
			if err := opt.Step(0.5); err != nil {
				return err
			}
			student.ZeroGrad()
			if err := optim.UpdateEMA(averages, params, 0.9); err != nil {
				return err
			}
			if g.Rank() == 0 {
				fmt.Printf("student %.3f, teacher %.3f\n", loss, target[0].Data().([]float32)[0])
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// student 0.177, teacher 0.177
	// student 0.158, teacher 0.175
	// student 0.140, teacher 0.172
}
