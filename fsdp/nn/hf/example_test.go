package hf_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
)

// A directory of transformers, which this program makes itself, is read on three ranks and written
// again.
func Example() {
	parent, err := os.MkdirTemp("", "hf")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(parent)
	dir := filepath.Join(parent, "tiny")
	made := &nn.GPT{Vocab: 17, Context: 8, Layers: 1, Dim: 6, Heads: 2, Act: nn.GELUTanh, Tied: true}
	err = comm.Run(context.Background(), 1, func(ctx context.Context, g comm.Group) error {
		m, err := hf.New(made)
		if err != nil {
			return err
		}
		s, err := fsdp.Wrap(m.Model, fsdp.Config{Group: g})
		if err != nil {
			return err
		}
		return m.Save(ctx, s, dir, &fsdp.ExportOptions{DType: new(fsdp.BFloat16)})
	})
	if err != nil {
		log.Fatal(err)
	}
	err = comm.Run(context.Background(), 3, func(ctx context.Context, g comm.Group) error {
		m, err := hf.Open(dir)
		if err != nil {
			return err
		}
		s, err := fsdp.Wrap(m.Model, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{})})
		if err != nil {
			return err
		}
		if err := m.Load(ctx, s); err != nil { // each rank its own shard
			return err
		}
		gpt := m.Model.(*nn.GPT)
		if g.Rank() == 0 {
			fmt.Println(gpt.Layers, "layer of", gpt.Dim, "channels")
		}
		return m.Save(ctx, s, filepath.Join(parent, "again"), &fsdp.ExportOptions{MaxFileSize: 750})
	})
	if err != nil {
		log.Fatal(err)
	}
	files, err := os.ReadDir(filepath.Join(parent, "again"))
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range files {
		fmt.Println(f.Name())
	}
	// Output:
	// 1 layer of 6 channels
	// config.json
	// model-00001-of-00002.safetensors
	// model-00002-of-00002.safetensors
	// model.safetensors.index.json
}
