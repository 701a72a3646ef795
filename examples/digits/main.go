// Digits is a first program: a small transformer learns to read handwritten digits on two ranks. It
// has the parts of every training: data that the ranks share, a screen with the curve of the loss,
// a checkpoint, an end by Ctrl-C, and validation. It takes some seconds on two cores, and prints:
//
//	$ go run ./examples/digits
//	…
//	step 450  validation  accuracy 0.9917
//	…
//	  450 steps over 28 740 img in 2s: 13.3k img/s
//
// It writes the checkpoint digits.ckpt in the current directory. After Ctrl-C the same command
// continues from there, on any number of ranks: with -ranks 3, or as processes of a launcher, go
// run ./fsdp/fsdprun -n 3 ./examples/digits. At the end of the training it only says that the
// training is complete, validates again and draws the curve again.
//
// The data are 1,797 images of 8 by 8 pixels: the test set of "Optical Recognition of Handwritten
// Digits" by E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998,
// https://doi.org/10.24432/C50P49, licence CC BY 4.0 (https://creativecommons.org/licenses/by/4.0).
// They are as load_digits of scikit-learn has them, written by numpy.save as bytes.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/metrics"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// digit is a sample.
type digit struct {
	Pixels []float32 // 0 to 16
	Label  int
}

// collate makes a batch as nn.ViT takes it: images [n, 1, 8, 8] and labels [n].
func collate(b *data.Batch, digits []digit) error {
	err := data.Stack(b, digits, func(d digit) []float32 { return d.Pixels }, 1, 8, 8)
	data.Column(b, digits, func(d digit) int { return d.Label })
	return err
}

// must ends the program, all ranks of it, on an error. A program that trains for days returns
// errors instead.
func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

func check(err error) { must(0, err) }

func main() {
	ranks := flag.Int("ranks", 2, "`number` of ranks, where no launcher has started them")
	flag.Parse()
	interrupt, stop := comm.Interrupt(context.Background()) // Ctrl-C, SIGTERM, SIGHUP
	defer stop()
	check(comm.Run(context.Background(), *ranks, func(ctx context.Context, g comm.Group) error {
		vit := &nn.ViT{Height: 8, Width: 8, Patch: 8, Channels: 1, Classes: 10, Layers: 2, Dim: 64, Heads: 4, Dropout: 0.2, Hidden: 128}
		m := must(fsdp.Wrap(vit, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Layer{})}))
		defer func() { check(m.Close()) }()
		opt := must(optim.AdamW{WeightDecay: 0.05}.New(m.Params()))
		learn, held := data.Split(data.Of(samples()), 360, 1)
		batches := must(data.NewLoader(data.Shuffle(learn, 1, 20), collate, data.Config{Group: g, Batch: 64}))

		var at data.Position
		var shown monitor.State
		if c, err := m.Load(ctx, "digits.ckpt", opt, nil); !errors.Is(err, fsdp.ErrNoCheckpoint) {
			check(err)
			check(errors.Join(c.Extra("data", &at), c.Extra("monitor", &shown)))
			check(batches.Resume(at))
		}

		mon := must(monitor.New(monitor.Config{Group: g, Steps: batches.Steps(), Unit: "img", Out: os.Stdout, State: shown}))
		tellOver(mon, opt.Steps(), batches.Steps())
		for batch, err := range m.Join(ctx, batches.Batches(ctx)) {
			check(err)
			loss, rows := must(m.Forward(ctx, batch...)), data.Rows(batch)
			check(m.Backward(ctx, batches.Share()))
			check(opt.Step(optim.WarmupCosine(3e-3, 6e-5, 30, batches.Steps())(opt.Steps())))
			m.ZeroGrad()
			check(mon.Step(ctx, rows, monitor.Values{"loss": loss}))
			if must(m.Any(ctx, interrupt.Err() != nil)) {
				break
			}
		}
		check(m.Save(ctx, "digits.ckpt", opt, &fsdp.SaveOptions{Extra: map[string]any{"data": batches.Position(), "monitor": mon.State()}}))

		accuracy := &metrics.Accuracy{}
		for batch, err := range m.Join(ctx, must(data.NewLoader(held, collate, data.Config{Group: g, Batch: 128})).Batches(ctx)) {
			check(err)
			if out := must(m.Eval(ctx, batch...)); batch != nil { // the loss and the logits
				check(accuracy.Add(out[1], batch[1]))
			}
		}
		check(mon.Eval(ctx, 1, must(metrics.Set{"accuracy": accuracy}.Reduce(ctx, g))))
		return mon.Close()
	}))
}
