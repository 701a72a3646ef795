// Multimodal trains a GPT with a vision tower on ranks of which some have images, and some only text.
// The tower is called where a batch has images ([fsdp.Tape.Optional]). Elsewhere it is absent: its
// units are gathered and reduced with the others, and nothing is computed for it. Nobody makes up
// images so that ranks keep in step.
//
// Each of four ranks has only text in every other epoch, and all have in each fourth. The same
// batches are trained on by one rank, joined to one; the losses are the same but for rounding.
//
//	$ go run ./examples/multimodal
//	epoch  parts with images  loss on 4 ranks  on one
//	    1                0 2         3.712420  3.712420
//	    2                1 3         2.729835  2.729835
//	    3                0 2         1.892194  1.892195
//	    4               none         1.240030  1.240029
//	    5                0 2         0.976742  0.976743
//	    6                1 3         0.721184  0.721186
//	    7                0 2         0.501782  0.501778
//	    8               none         0.296539  0.296542
//	    9                0 2         0.313501  0.313503
//	   10                1 3         0.244327  0.244328
//	   11                0 2         0.202529  0.202531
//	   12               none         0.149484  0.149483
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

const (
	parts      = 4 // of the data
	samples    = 6 // of a part in a step, at least
	epochSteps = 10
)

func main() {
	ranks := flag.Int("ranks", parts, "ranks, a divisor of 4")
	epochs := flag.Int("epochs", 12, "epochs of the training, of 10 steps")
	flag.Parse()
	if err := compare(context.Background(), *ranks, *epochs, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// compare trains on ranks and then on one, and prints the losses side by side.
func compare(ctx context.Context, ranks, epochs int, out io.Writer) error {
	many, err := train(ctx, ranks, epochs, fsdp.Precision{})
	if err != nil {
		return err
	}
	one, err := train(ctx, 1, epochs, fsdp.Precision{})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "epoch  parts with images  loss on %d ranks  on one\n", ranks)
	for epoch := range epochs {
		last := (epoch+1)*epochSteps - 1
		fmt.Fprintf(out, "%5d  %17s  %15.6f  %.6f\n", epoch+1, withImages(last), many[last], one[last])
	}
	return nil
}

// withImages names the parts that have images in a step.
func withImages(step int) string {
	text := ""
	for part := range parts {
		if b, _ := batch(draw(step, part), false); b[2] != nil {
			text += fmt.Sprint(" ", part)
		}
	}
	if text == "" {
		return "none"
	}
	return text[1:]
}

// train returns the mean loss of each step.
func train(ctx context.Context, ranks, epochs int, p fsdp.Precision) (losses []float64, err error) {
	if ranks < 1 || parts%ranks != 0 {
		return nil, fmt.Errorf("%d ranks do not divide %d parts of data", ranks, parts)
	}
	err = comm.Run(ctx, ranks, func(ctx context.Context, g comm.Group) error {
		list, err := run(ctx, g, epochs, p)
		if g.Rank() == 0 {
			losses = list
		}
		return err
	})
	return losses, err
}

// run trains one rank on its parts of the data.
func run(ctx context.Context, g comm.Group, epochs int, p fsdp.Precision) (losses []float64, err error) {
	m, err := fsdp.WrapContext(ctx, &captioner{layers: 2, dim: 32, heads: 4}, fsdp.Config{
		Group: g, Wrap: fsdp.WrapTypes(&nn.Block{}, &nn.Layer{}), Precision: p, Seed: 1,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Shards())
	if err != nil {
		return nil, err
	}
	for step := range epochs * epochSteps {
		var mine []sample
		for part := range parts / g.Size() {
			mine = append(mine, draw(step, g.Rank()*parts/g.Size()+part)...)
		}
		b, count := batch(mine, p.Compute == fsdp.Float64)
		loss, err := m.Forward(ctx, b...)
		if err != nil {
			return nil, err
		}
		if loss, err = m.Mean(ctx, loss, count); err != nil {
			return nil, err
		}
		losses = append(losses, loss)
		if err := m.Backward(ctx, fsdp.Share(b)); err != nil {
			return nil, err
		}
		if _, err := m.ClipGradNorm(ctx, 1); err != nil {
			return nil, err
		}
		if err := opt.Step(3e-3); err != nil {
			return nil, err
		}
		m.ZeroGrad()
	}
	return losses, nil
}
