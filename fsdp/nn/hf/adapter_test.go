package hf_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
)

// adapters are the adapters that testdata/adapters.py has made, and their base models.
var adapters = map[string]string{"llama-qv": "llama", "llama-all": "llama", "gpt2": "gpt2"}

// withAdapter opens a model and an adapter, and runs f on ranks that have loaded both.
func withAdapter(t *testing.T, ranks int, base, adapter string, f func(ctx context.Context, m *hf.Model, s *fsdp.Sharded) error) {
	require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
		m, err := hf.Open(base)
		if err != nil {
			return err
		}
		if err := m.OpenAdapter(adapter); err != nil {
			return err
		}
		s, err := fsdp.Wrap(m.Model, fsdp.Config{Group: g, Precision: fsdp.Precision{Compute: fsdp.Float64},
			Frozen: func(name string) bool { return !nn.IsAdapter(name) }})
		if err != nil {
			return err
		}
		defer s.Close()
		if err := m.Load(ctx, s); err != nil {
			return err
		}
		return f(ctx, m, s)
	}))
}

// TestAdapters: a model with an adapter of PEFT computes the same as in Python, before and after
// the adapter is written and read again, and merged.
func TestAdapters(t *testing.T) {
	for name, base := range adapters {
		t.Run(name, func(t *testing.T) {
			base, dir, again := filepath.Join("testdata", base), filepath.Join("testdata/peft", name), filepath.Join(t.TempDir(), "a", "b")
			g := goldenOf(t, dir)
			g.compute = fsdp.Float64
			for _, ranks := range []int{1, 3} {
				withAdapter(t, ranks, base, dir, func(ctx context.Context, m *hf.Model, s *fsdp.Sharded) error {
					if err := g.compare(ctx, s); err != nil {
						return err
					}
					return m.SaveAdapter(ctx, s, again)
				})
				withAdapter(t, ranks, base, again, func(ctx context.Context, m *hf.Model, s *fsdp.Sharded) error {
					if err := g.compare(ctx, s); err != nil {
						return err
					}
					if err := m.Merge(ctx, s); err != nil {
						return err
					}
					return g.compare(ctx, s)
				})
			}
		})
	}
}

// TestAdapterErrors refuses other methods of PEFT by name, adapters that do not fit, and parameters
// that an adapter has no place for.
func TestAdapterErrors(t *testing.T) {
	edited := func(key string, value any) string {
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(dir, os.DirFS("testdata/peft/llama-qv")))
		path := filepath.Join(dir, "adapter_config.json")
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		var c map[string]any
		require.NoError(t, json.Unmarshal(text, &c))
		c[key] = value
		text, err = json.Marshal(c)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		return dir
	}
	for _, c := range []struct {
		key   string
		value any
		want  string
	}{
		{"peft_type", "LOHA", `adapter_config.json: peft_type "LOHA" is not supported, only LORA`},
		{"use_dora", true, "adapter_config.json: use_dora true is not supported"},
		{"modules_to_save", []string{"lm_head"}, `adapter_config.json: modules_to_save ["lm_head"] is not supported`},
		{"rank_pattern", map[string]int{"q_proj": 4}, `adapter_config.json: rank_pattern {"q_proj":4} is not supported`},
		{"bias", "all", `adapter_config.json: bias "all" is not supported, only none`},
		{"init_lora_weights", "pissa", `adapter_config.json: init_lora_weights "pissa" is not supported: it changes the weights of the base model`},
		{"lora_alpha", 0, "adapter_config.json: lora_alpha is 0, want a positive number"},
		{"r", 4, "adapter_model.safetensors: the matrices [3 24] and [24 3] of base_model.model.model.layers.0.self_attn.q_proj do not fit r 4 and the model"},
	} {
		m, err := hf.Open("testdata/llama")
		require.NoError(t, err)
		require.ErrorContains(t, m.OpenAdapter(edited(c.key, c.value)), c.want)
	}
	m, err := hf.Open("testdata/gpt2")
	require.NoError(t, err)
	require.ErrorContains(t, m.OpenAdapter("testdata/peft/llama-qv"),
		"adapter_model.safetensors: base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight belongs to none of the linear layers that are adapted here")
	require.ErrorContains(t, m.OpenAdapter(t.TempDir()), "adapter_config.json: no such file")

	onRanks(t, 2, m.Model, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error {
		require.ErrorContains(t, m.SaveAdapter(ctx, s, t.TempDir()), "hf: SaveAdapter: the model has no adapters: set its LoRA before Wrap")
		return nil
	})
	m.Model.(*nn.GPT).LoRA = nn.LoRA{Rank: 2}
	onRanks(t, 2, m.Model, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error {
		require.ErrorContains(t, m.SaveAdapter(ctx, s, t.TempDir()), "is trained too, but an adapter cannot contain it: freeze it by Config.Frozen, or call Merge and Save")
		return nil
	})
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
		s, err := fsdp.Wrap(m.Model, fsdp.Config{Group: g, Frozen: func(name string) bool { return !nn.IsAdapter(name) }})
		require.NoError(t, err)
		defer s.Close()
		require.ErrorContains(t, m.SaveAdapter(ctx, s, filepath.Join(file, "a")), "hf: SaveAdapter: open")
		const broken = "blocks.0.qkv.lora_b"
		require.NoError(t, s.Summon(ctx, []string{broken}, func(params map[string]*tensor.Dense) error {
			params[broken].Float32s()[5] = float32(math.NaN())
			return nil
		}, fsdp.WriteBack(0)))
		dir := t.TempDir()
		require.ErrorContains(t, m.SaveAdapter(ctx, s, dir), "hf: SaveAdapter: element 5 of parameter "+broken+" is NaN: load an earlier checkpoint")
		require.NoFileExists(t, filepath.Join(dir, "adapter_model.safetensors"))
		return nil
	}))
}
