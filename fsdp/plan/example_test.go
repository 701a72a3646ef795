package plan_test

import (
	"fmt"
	"log"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/optim"
)

// How long would 128 GPUs take for a step of GPT-3, and do they hold it?
func Example() {
	blocks := fsdp.WrapTypes(&nn.Block{})
	p, err := fsdp.Planner{
		Model: &nn.GPT{Vocab: 50304, Context: 2048, Layers: 96, Dim: 12288, Heads: 96},
		Config: fsdp.Config{
			Group: comm.World{Ranks: 128}, WrapPolicy: blocks,
			Activations: fsdp.Activations{Recompute: blocks}, Precision: fsdp.Precision{Compute: fsdp.BFloat16},
		},
		NewOptimizer: optim.AdamW{}.New,
		Batch:        []fsdp.Shape{fsdp.Ints(1, 2048), fsdp.Ints(1, 2048)},
	}.Plan()
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"a100-40", "h100"} {
		c := plan.Clusters()[name]
		if err := p.Pass.Fits(c.Device.Memory); err != nil {
			fmt.Println(name+":", err)
			continue
		}
		t := p.Pass.Time(c, 1)
		fmt.Printf("%s: %.1f s, %.0f %% of them waiting for the network, MFU %.0f %%\n", name, t.Total, 100*t.Exposed/t.Total, 100*t.MFU)
	}
	// Output:
	// a100-40: plan: 42.9 GB are too few for the memory in use at "backward blocks.94", 54.3 GB: whole gradients 19.5 GB, parameters and gradients of this rank 11.0 GB, optimizer state 11.0 GB, gathered parameters 7.2 GB, activations between calls 4.9 GB, scratch of one call 755.8 MB; most for blocks.94 11.9 GB, blocks.95 7.5 GB, root 5.2 GB: wrap smaller units, or reduce in bfloat16
	// h100: 6.1 s, 1 % of them waiting for the network, MFU 36 %
}
