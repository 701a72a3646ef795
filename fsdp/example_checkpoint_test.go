package fsdp_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// A training on two ranks is interrupted and goes on on three. Checkpoints are written while it
// goes on.
func ExampleSharded_SaveAsync() {
	dir, err := os.MkdirTemp("", "ckpt")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	train := func(ranks, steps int) error {
		return comm.Run(context.Background(), ranks, func(ctx context.Context, g comm.Group) error {
			m, err := fsdp.Wrap(counter(), fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{})})
			if err != nil {
				return err
			}
			defer m.Close()
			opt, err := optim.AdamW{}.New(m.Params())
			if err != nil {
				return err
			}
			next := 0 // sequence of the data
			switch c, err := m.Load(ctx, dir, opt, nil); {
			case errors.Is(err, fsdp.ErrNoCheckpoint): // the first run
			case err != nil:
				return err
			default:
				if err := c.Extra("next sequence", &next); err != nil {
					return err
				}
				if g.Rank() == 0 {
					fmt.Printf("step %d was saved by %d ranks; the next sequence is %d\n", c.Step, c.World, next)
				}
			}
			var saving *fsdp.Saving
			for opt.Steps() < steps {
				tokens, targets := counting(next+g.Rank(), 1, 8)
				if _, err := m.Forward(ctx, tokens, targets); err != nil {
					return err
				}
				if err := m.Backward(ctx); err != nil {
					return err
				}
				if err := opt.Step(1e-2); err != nil {
					return err
				}
				m.ZeroGrad()
				next += g.Size()
				if opt.Steps()%10 == 0 {
					saving, err = m.SaveAsync(ctx, dir, opt, &fsdp.SaveOptions{KeepLast: 2, Extra: map[string]any{"next sequence": next}})
					if err != nil {
						return err
					}
				}
			}
			if saving == nil { // there was nothing left to do
				return nil
			}
			return saving.Wait(ctx)
		})
	}
	if err := train(2, 20); err != nil {
		log.Fatal(err)
	}
	if err := train(3, 30); err != nil {
		log.Fatal(err)
	}
	if err := train(1, 40); err != nil {
		log.Fatal(err)
	}
	// Output:
	// step 20 was saved by 2 ranks; the next sequence is 40
	// step 30 was saved by 3 ranks; the next sequence is 70
}
