package generate_test

import (
	"context"
	"fmt"
	"log"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/generate"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// Two ranks write with a model whose parameters are cut over them: one after two prompts, the other
// after one.
func Example() {
	llama := &nn.Llama{Vocab: 256, Context: 64, Layers: 2, Dim: 32, Heads: 4, KVHeads: 2, Hidden: 64}
	prompts := [][][]int{{{84, 111}, {79, 114, 32}}, {{84}}}
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(llama, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach()})
		if err != nil {
			return err
		}
		defer m.Close()
		w, err := generate.New(m, llama.Cache(), generate.Config{})
		if err != nil {
			return err
		}
		texts, err := w.Generate(ctx, prompts[g.Rank()], generate.Options{MaxTokens: 20, Temperature: 0.8, TopP: 0.95})
		if err != nil {
			return err
		}
		if g.Rank() == 0 {
			fmt.Println(len(texts), "texts of", len(texts[0]), "tokens")
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: 2 texts of 20 tokens
}
