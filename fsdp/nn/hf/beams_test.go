package hf_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/generate"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
)

// TestBeams compares the texts of beam search with the texts of transformers: with one stop token
// and several, and with length penalties. testdata/make.py has written them.
func TestBeams(t *testing.T) {
	file, err := os.ReadFile("testdata/beams.json")
	require.NoError(t, err)
	type search struct {
		Model        string
		Prompt, Stop []int
		Beams        int
		Penalty      float64
		Text         []int
	}
	var list []search
	require.NoError(t, json.Unmarshal(file, &list))
	of := make(map[string][]search)
	for _, s := range list {
		of[s.Model] = append(of[s.Model], s)
	}
	require.Len(t, of, 5)
	for dir, searches := range of {
		m, err := hf.Open(filepath.Join("testdata", dir))
		require.NoError(t, err)
		onRanks(t, 1, m.Model, fsdp.Float64, func(ctx context.Context, s *fsdp.Sharded) error {
			if err := m.Load(ctx, s); err != nil {
				return err
			}
			size := m.Model.(interface{ Cache() generate.Size }).Cache()
			writer, err := generate.New(s, size, generate.Config{Float64: true})
			if err != nil {
				return err
			}
			for _, want := range searches {
				o := generate.Options{MaxTokens: 8, Stop: want.Stop, Beams: want.Beams, LengthPenalty: want.Penalty}
				if size.Encoder {
					o.Start = []int{0}
				}
				texts, err := writer.Generate(ctx, [][]int{want.Prompt}, o)
				if err != nil {
					return err
				}
				require.Equal(t, want.Text, append([]int{}, texts[0]...), "%+v", want)
			}
			return nil
		})
	}
}
