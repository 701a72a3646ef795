package hf_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
)

// A published is a config.json with the keys of a public model, and the reason if it is refused.
type published struct{ Model, Refused string }

// TestPublished reads files with the keys that public models have. A file of another architecture,
// or with a setting that is not supported, is an error that names the architecture and the setting.
func TestPublished(t *testing.T) {
	text, err := os.ReadFile("testdata/published.json")
	require.NoError(t, err)
	var files []struct {
		published
		Config json.RawMessage
	}
	require.NoError(t, json.Unmarshal(text, &files))
	read := 0
	for _, f := range files {
		m, err := hf.ReadConfig(f.Config)
		if f.Refused == "" {
			require.NoError(t, err, f.Model)
			require.NotNil(t, m, f.Model)
			read++
			continue
		}
		require.ErrorContains(t, err, f.Refused, f.Model)
		require.Regexp(t, `model_type|architectures`, err.Error(), f.Model)
	}
	require.Greater(t, read, len(files)/2)
}

// TestSkip accepts keys of config.json and tensors that match a pattern, and no others.
func TestSkip(t *testing.T) {
	const dir = "testdata/gpt2"
	to := changed(t, dir, "my_note", "none")
	_, err := hf.Open(to, "my_noted")
	require.ErrorContains(t, err, `my_note "none" is unknown, and may change the model: if it does not, skip it by hf.Open(dir, "my_note")`)
	_, err = hf.Open(to, "[")
	require.ErrorContains(t, err, `pattern "[": syntax error in pattern`)
	addCopy(t, filepath.Join(to, "model.safetensors"), "vision.0.weight", "transformer.wte.weight", true)
	load := func(skip ...string) error {
		m, err := hf.Open(to, skip...)
		require.NoError(t, err)
		onRanks(t, 2, m.Model, fsdp.Float64, func(ctx context.Context, s *fsdp.Sharded) error {
			err = m.Load(ctx, s)
			return nil
		})
		return err
	}
	require.ErrorContains(t, load("my_*"), `if a tensor does not belong to the model, skip it by hf.Open(dir, "vision.0.weight")`)
	require.NoError(t, load("my_*", "vision.*"))

	config := llama(`"rope_scaling": {"type": "default", "note": 3}`)
	_, err = hf.ReadConfig([]byte(config))
	require.ErrorContains(t, err, `rope_scaling.note 3 is unknown`)
	m, err := hf.ReadConfig([]byte(config), "rope_scaling.note")
	require.NoError(t, err)
	want, err := hf.ReadConfig([]byte(strings.Replace(config, `, "note": 3`, "", 1)))
	require.NoError(t, err)
	require.Equal(t, want.(*nn.Llama), m)
}

// TestHandOver saves a model in the type of the weights that were opened, with the files of its
// tokenizer and of generation, whatever type the training computed in.
func TestHandOver(t *testing.T) {
	const dir = "testdata/llama" // bfloat16
	from := t.TempDir()
	require.NoError(t, os.CopyFS(from, os.DirFS(dir)))
	beside := []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", "special_tokens_map.json"}
	for _, name := range beside {
		require.NoError(t, os.WriteFile(filepath.Join(from, name), []byte(name), 0o600))
	}
	for _, compute := range []fsdp.DType{fsdp.Float32, fsdp.Float64} {
		m, err := hf.Open(from)
		require.NoError(t, err)
		same, wide := filepath.Join(t.TempDir(), "same"), filepath.Join(t.TempDir(), "wide")
		onRanks(t, 2, m.Model, compute, func(ctx context.Context, s *fsdp.Sharded) error {
			if err := m.Load(ctx, s); err != nil {
				return err
			}
			if err := m.Save(ctx, s, same, nil); err != nil {
				return err
			}
			return m.Save(ctx, s, wide, &fsdp.ExportOptions{DType: new(fsdp.Float32)})
		})
		require.Equal(t, tensors(t, from), tensors(t, same))
		require.Equal(t, "bfloat16", keys(t, same)["dtype"])
		require.Equal(t, "float32", keys(t, wide)["dtype"])
		for _, name := range beside {
			text, err := os.ReadFile(filepath.Join(same, name))
			require.NoError(t, err)
			require.Equal(t, name, string(text))
		}
	}
}
