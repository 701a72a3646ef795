package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/gofsdp/gofsdp/examples/internal/text"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// wide is a model whose memory is mostly parameters, as those of large models are: a batch of one
// row of a few tokens has few activations.
var wide = nn.GPT{Vocab: text.Vocab, Context: 16, Layers: 12, Dim: 256, Heads: 4, Act: nn.ReLU, LoRA: adapter}

// footprint is what one pass takes on a rank, in bytes.
type footprint struct {
	held int // shards of parameters and gradients, and optimizer state
	most int // live at once during the pass, scratch aside
	late int // the same if what is frozen were freed at the end of backward, which is computed
}

// memory prints what freezing the base of wide saves, and how much of that is due to freeing a unit
// of it after each use in backward and not all of them at its end.
func (r *rank) memory(ctx context.Context) error {
	trained, err := r.footprint(ctx, nil)
	if err != nil {
		return err
	}
	frozen, err := r.footprint(ctx, base)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.out, "memory of adapting %d layers of %d channels to %d tokens on a rank\n", wide.Layers, wide.Dim, wide.Context)
	for _, row := range []struct {
		name       string
		held, most int
	}{
		{"frozen, freed after each use", frozen.held, frozen.most},
		{"frozen, freed at the end (computed)", frozen.held, frozen.late},
		{"nothing frozen", trained.held, trained.most},
	} {
		fmt.Fprintf(r.out, "  %-36s holds %.1f MB, %.1f MB in a step\n", row.name, float64(row.held)/1e6, float64(row.most)/1e6)
	}
	return nil
}

// footprint runs a pass of wide and looks at its events. What late freeing would take follows from
// them: the same buffers, of which each frozen group that is freed in backward stays to the end.
func (r *rank) footprint(ctx context.Context, frozen func(string) bool) (f footprint, err error) {
	var events []fsdp.Event
	m, err := fsdp.WrapContext(ctx, &wide, fsdp.Config{
		Group: r.group, Wrap: fsdp.WrapTypes(&nn.Block{}), Frozen: frozen, Trace: func(e fsdp.Event) { events = append(events, e) },
	})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if _, err := (optim.AdamW{}).New(m.Shards()); err != nil {
		return f, err
	}
	batch := text.Batch(r.prose.Train, rand.New(rand.NewPCG(3, uint64(r.group.Rank()))), 1, wide.Context)
	plan, err := m.Plan(batch...)
	if err != nil {
		return f, err
	}
	if _, err := m.Forward(ctx, batch...); err != nil {
		return f, err
	}
	if err := m.Backward(ctx); err != nil {
		return f, err
	}
	whole := make(map[string]int) // bytes of the frozen groups
	for _, g := range plan.Groups {
		if g.Frozen {
			whole[g.Name] = g.Bytes
		}
	}
	f.held = plan.ShardBytes + plan.StateBytes
	turned, kept := false, 0
	for _, e := range events {
		f.most, f.late = max(f.most, e.Live), max(f.late, e.Live+kept)
		if turned = turned || e.Kind == "turn"; turned && e.Kind == "free" {
			kept += whole[e.Group]
		}
	}
	return f, nil
}
