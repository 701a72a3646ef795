package nn_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// gpt2 is the model in testdata/gpt2.safetensors; testdata/gpt2.py says how it was made.
func gpt2() *nn.GPT {
	return &nn.GPT{Vocab: 17, Context: 9, Layers: 2, Dim: 12, Heads: 3, Act: nn.GELUTanh, Tied: true}
}

const gpt2File = "testdata/gpt2.safetensors"

// gpt2Masks are the tensors of the file that are no parameters.
var gpt2Masks = []string{"h.0.attn.bias", "h.0.attn.masked_bias", "h.1.attn.bias", "h.1.attn.masked_bias"}

// onRanks runs f with a model wrapped on n ranks, each block by itself.
func onRanks(t *testing.T, n int, m fsdp.Model, compute fsdp.DType, f func(ctx context.Context, s *fsdp.Sharded) error) {
	require.NoError(t, comm.Run(t.Context(), n, func(ctx context.Context, g comm.Group) error {
		s, err := fsdp.Wrap(m, fsdp.Config{
			Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{}), Precision: fsdp.Precision{Compute: compute}, Poison: true, Seed: 1,
		})
		if err != nil {
			return err
		}
		defer s.Close()
		return f(ctx, s)
	}))
}

// tensors returns the tensors of a file by name: type, shape and bytes.
func tensors(t *testing.T, path string) map[string]string {
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	h, err := safetensors.ReadHeader(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	all := make(map[string]string)
	for _, v := range h.Tensors {
		all[v.Name] = fmt.Sprint(v.DType, v.Shape, file[v.Offset:v.Offset+v.Size])
	}
	return all
}

// TestGPT2 compares logits with those that numpy has computed from the same file, and writes the
// file back.
func TestGPT2(t *testing.T) {
	var golden struct {
		Tokens []int
		Logits []float64
	}
	text, err := os.ReadFile("testdata/gpt2.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &golden))
	want := tensors(t, gpt2File)
	for _, mask := range gpt2Masks {
		require.Contains(t, want, mask)
		delete(want, mask)
	}
	// imported gives s the weights and compares its logits.
	imported := func(ctx context.Context, s *fsdp.Sharded, tolerance float64) error {
		if err := s.Import(ctx, gpt2File, nn.FromGPT2("")); err != nil {
			return err
		}
		batch := ints([]int{2, 9}, golden.Tokens...)
		out, err := s.Eval(ctx, batch, batch)
		if err != nil {
			return err
		}
		for i, want := range golden.Logits {
			var got float64
			switch logits := out[1].Data().(type) { // [2, 9, 17]
			case []float32:
				got = float64(logits[i])
			case []float64:
				got = logits[i]
			}
			if !(math.Abs(got-want) < tolerance) {
				return fmt.Errorf("logit %d is %v, want %v", i, got, want)
			}
		}
		return nil
	}
	for ranks := 1; ranks <= 3; ranks++ {
		exported := filepath.Join(t.TempDir(), "exported")
		onRanks(t, ranks, gpt2(), fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error {
			if err := imported(ctx, s, 1e-5); err != nil {
				return err
			}
			return s.Export(ctx, exported, nn.ToGPT2(""))
		})
		got := tensors(t, exported)
		require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)))
		for name := range want {
			require.True(t, want[name] == got[name], "%d ranks: %s has changed", ranks, name)
		}
	}
	onRanks(t, 2, gpt2(), fsdp.Float64, func(ctx context.Context, s *fsdp.Sharded) error { return imported(ctx, s, 1e-12) })
}

// TestGPT2Prefix puts a prefix before every name but that of a head of its own, and reads such a
// file back.
func TestGPT2Prefix(t *testing.T) {
	const prefix = "transformer."
	m := gpt2()
	m.Layers, m.Tied, m.NoBias = 1, false, true
	path := filepath.Join(t.TempDir(), "untied")
	onRanks(t, 2, m, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error {
		if err := s.Export(ctx, path, nn.ToGPT2(prefix)); err != nil {
			return err
		}
		was, err := s.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		if err != nil {
			return err
		}
		for _, p := range s.Params() {
			if err := p.Value.Zero(); err != nil {
				return err
			}
		}
		if err := s.Import(ctx, path, nn.FromGPT2(prefix)); err != nil {
			return err
		}
		is, err := s.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		for name, v := range was {
			if !slices.Equal(v.Float32s(), is[name].Float32s()) {
				return fmt.Errorf("%s has changed", name)
			}
		}
		return err
	})
	require.Equal(t, []string{
		"lm_head.weight", "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_proj.weight", "transformer.h.0.ln_1.bias",
		"transformer.h.0.ln_1.weight", "transformer.h.0.ln_2.bias", "transformer.h.0.ln_2.weight", "transformer.h.0.mlp.c_fc.weight",
		"transformer.h.0.mlp.c_proj.weight", "transformer.ln_f.bias", "transformer.ln_f.weight", "transformer.wpe.weight",
		"transformer.wte.weight",
	}, slices.Sorted(maps.Keys(tensors(t, path))))
}

// TestGPT2Errors names what a file lacks, has too much of, or has in other shapes, by its names
// there.
func TestGPT2Errors(t *testing.T) {
	fails := func(m *nn.GPT, opts *fsdp.ImportOptions) *fsdp.StateError {
		var state *fsdp.StateError
		onRanks(t, 1, m, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error {
			require.ErrorAs(t, s.Import(ctx, gpt2File, opts), &state)
			return nil
		})
		return state
	}
	deeper := gpt2()
	deeper.Layers, deeper.Tied = 3, false
	err := fails(deeper, nn.FromGPT2(""))
	require.Contains(t, err.Missing, "h.2.attn.c_attn.weight")
	require.Contains(t, err.Missing, "lm_head.weight")
	require.Empty(t, err.Extra)

	longer := gpt2()
	longer.Context = 10
	require.Equal(t, []string{"wpe.weight [9 12] -> [10 12]"}, fails(longer, nn.FromGPT2("")).Reshaped)

	names := nn.FromGPT2("")
	names.AllowExtra = nil
	require.ElementsMatch(t, gpt2Masks, fails(gpt2(), names).Extra, "only FromGPT2 passes over them")
	require.Contains(t, fails(gpt2(), nn.FromGPT2("transformer.")).Extra, "wte.weight")
}
