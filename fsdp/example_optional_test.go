package fsdp_test

import (
	"context"
	"fmt"
	"log"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
)

// Towers is a model that looks at a second tensor where its batch has one.
type Towers struct{ Dim int }

func (m *Towers) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	text := t.Call("text", &Gate{m.Dim}, in[0])
	image := t.Call("image", &Gate{m.Dim}, t.Optional(in[1]))
	return []fsdp.Ref{t.Call("loss", Energy{}, image.Or(text))}, nil
}

// Only rank 1 has an image in the first step, and no rank in the second.
func ExampleTape_Optional() {
	const dim = 4
	ones := func() fsdp.Tensor { return tensor.Ones(tensor.Float32, 2, dim) }
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(&Towers{dim}, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach()})
		if err != nil {
			return err
		}
		defer m.Close()
		for step := range 2 {
			batch := []fsdp.Tensor{ones(), nil}
			if step == 0 && g.Rank() == 1 {
				batch[1] = ones()
			}
			if _, err := m.Forward(ctx, batch...); err != nil {
				return err
			}
			if err := m.Backward(ctx); err != nil {
				return err
			}
			grads, err := m.FullGrads(ctx)
			if err != nil {
				return err
			}
			if g.Rank() == 0 {
				fmt.Printf("step %d: image has a gradient: %t, text has one: %t\n", step, grads["image.w"] != nil, grads["text.w"] != nil)
			}
			m.ZeroGrad()
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// step 0: image has a gradient: true, text has one: true
	// step 1: image has a gradient: false, text has one: true
}
