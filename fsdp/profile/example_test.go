package profile_test

import (
	"context"
	"fmt"
	"log"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/fsdp/profile"
)

// Three ranks train, and ask which of them holds the others up. What it says depends on the
// machine.
func Example() {
	err := comm.Run(context.Background(), 3, func(ctx context.Context, g comm.Group) error {
		prof := profile.New()
		m, err := fsdp.Wrap(&nn.GPT{Vocab: 10, Context: 8, Layers: 2, Dim: 16, Heads: 2}, fsdp.Config{Group: g, Observers: []fsdp.Observer{fsdp.Profile(prof)}})
		if err != nil {
			return err
		}
		defer m.Close()
		tokens := tensor.New(tensor.WithShape(1, 8), tensor.WithBacking([]int{0, 1, 2, 3, 4, 5, 6, 7}))
		for range 5 {
			if _, err := m.Forward(ctx, tokens, tokens); err != nil {
				return err
			}
			if err := m.Backward(ctx); err != nil {
				return err
			}
		}
		report, err := prof.Stragglers(ctx)
		if err != nil {
			return err
		}
		if g.Rank() == 0 {
			log.Println(report)
			fmt.Println(len(report.Ranks), "ranks have been compared")
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: 3 ranks have been compared
}

// Time and memory of a training beside what they would be on GPUs: what is furthest off here is no
// surprise.
func ExampleProfile_Beside() {
	prof := profile.New()
	m, err := fsdp.Wrap(&nn.GPT{Vocab: 10, Context: 8, Layers: 2, Dim: 16, Heads: 2}, fsdp.Config{Observers: []fsdp.Observer{fsdp.Profile(prof)}})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	tokens := tensor.New(tensor.WithShape(1, 8), tensor.WithBacking([]int{0, 1, 2, 3, 4, 5, 6, 7}))
	for range 5 {
		if _, err := m.Forward(context.Background(), tokens, tokens); err != nil {
			log.Fatal(err)
		}
		if err := m.Backward(context.Background()); err != nil {
			log.Fatal(err)
		}
	}
	p, err := m.Plan(tokens, tokens)
	if err != nil {
		log.Fatal(err)
	}
	b, err := prof.Beside(p.Pass, plan.Clusters()["h100"])
	if err != nil {
		log.Fatal(err)
	}
	log.Println(b)
	fmt.Printf("%d passes, memory as planned: %v\n", b.Passes, b.Memory.Measured == b.Memory.Predicted)
	// Output: 4 passes, memory as planned: true
}
