package gpu_test

import (
	"context"
	"log"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// A step on the GPU of this rank, under fsdprun or torchrun on a machine that has one. Nothing but
// Config.Device differs from a step on processors.
func Example() {
	ctx := context.Background()
	group, err := comm.FromEnv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	dev, err := gpu.OpenLocal(group)
	if err != nil {
		log.Fatal(err) // without a GPU: what was tried
	}
	m, err := fsdp.Wrap(&nn.GPT{Vocab: 50304, Context: 1024, Layers: 12, Dim: 768, Heads: 12}, fsdp.Config{
		Group: group, Device: dev, WrapPolicy: fsdp.WrapTypes(&nn.Block{}), Precision: fsdp.Precision{Compute: fsdp.BFloat16},
	})
	if err != nil {
		log.Fatal(err)
	}
	opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Params())
	if err != nil {
		log.Fatal(err)
	}
	tokens := tensor.New(tensor.WithShape(8, 1024), tensor.Of(tensor.Int))
	loss, err := m.Forward(ctx, tokens, tokens)
	if err == nil {
		err = m.Backward(ctx)
	}
	if err == nil {
		err = opt.Step(3e-4)
	}
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("loss %.3f on %s", loss, dev.Name())
}
