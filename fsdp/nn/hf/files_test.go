package hf_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// changed copies a directory, with another value of a key.
func changed(t *testing.T, dir, key string, value any) string {
	c := keys(t, dir)
	c[key] = value
	text, err := json.Marshal(c)
	require.NoError(t, err)
	to := t.TempDir()
	require.NoError(t, os.CopyFS(to, os.DirFS(dir)))
	require.NoError(t, os.WriteFile(filepath.Join(to, "config.json"), text, 0o600))
	return to
}

// TestOpenShapes refuses sizes that are not those of the tensors, before a model of them is made:
// the key, the tensor and both shapes.
func TestOpenShapes(t *testing.T) {
	llama := "vocab_size hidden_size intermediate_size num_hidden_layers num_key_value_heads head_dim"
	bert := "hidden_size intermediate_size num_hidden_layers"
	for dir, list := range map[string]string{
		"testdata/gpt2": "vocab_size n_positions n_embd n_layer", "testdata/llama": llama, "../testdata/llama": llama, "../testdata/mistral": llama,
		"../testdata/qwen2": llama, "../testdata/qwen3": llama, "../testdata/bert": bert + " vocab_size max_position_embeddings type_vocab_size",
		"../testdata/vit": bert + " num_channels patch_size image_size",
		"../testdata/t5":  "vocab_size d_model d_kv d_ff num_layers num_decoder_layers num_heads relative_attention_num_buckets",
	} {
		for _, key := range strings.Fields(list) {
			for _, value := range []int{1, 2_000_000_000, 1 << 40} {
				if value == 1 && strings.Contains(key, "layer") {
					continue // Load says which tensors are too many
				}
				_, err := hf.Open(changed(t, dir, key, value))
				require.ErrorContains(t, err, key, "%s: %d", dir, value)
			}
		}
	}
	for _, c := range []struct {
		dir, key string
		value    int
		want     string
	}{
		{"testdata/gpt2", "vocab_size", 50, "config.json: vocab_size requires tensor transformer.wte.weight with shape [50 24], but the shape is [41 24] in model.safetensors"},
		{"testdata/gpt2", "n_layer", 3, "config.json: n_layer requires tensor transformer.h.2.mlp.c_fc.weight of shape [24 96], but the files do not have it"},
		{"testdata/gpt2", "n_layer", 99, "config.json: n_layer is 99, but the files have only 28 tensors"},
		{"testdata/gpt2", "n_head", 2_000_000_000, "config.json: n_embd 24 is not a multiple of n_head, 2000000000"},
		{"../testdata/bert", "num_attention_heads", 1000, "is not a multiple of num_attention_heads, 1000"},
		{"../testdata/vit", "num_attention_heads", 1000, "is not a multiple of num_attention_heads, 1000"},
		{"testdata/gpt2", "n_layer", 1 << 40, "config.json: n_layer is 1099511627776, more than 2147483647"},
		{"testdata/llama", "intermediate_size", 48, "config.json: intermediate_size requires tensor model.layers.1.mlp.down_proj.weight with shape [24 48], but the shape is [24 40] in model-0000"},
		{"testdata/llama", "num_key_value_heads", 4, "config.json: num_key_value_heads and head_dim requires tensor model.layers.1.self_attn.k_proj.weight with shape [24 24], but the shape is [12 24] in model-0000"},
		{"../testdata/vit", "num_channels", 7, "config.json: num_channels requires tensor vit.embeddings.patch_embeddings.projection.weight with shape ["},
	} {
		_, err := hf.Open(changed(t, c.dir, c.key, c.value))
		require.ErrorContains(t, err, c.want)
	}
}

// TestLongContext: how far a model may generate makes nothing larger.
func TestLongContext(t *testing.T) {
	m, err := hf.Open(changed(t, "../testdata/llama", "max_position_embeddings", 2_000_000_000))
	require.NoError(t, err)
	g := goldenOf(t, "../testdata/llama")
	onRanks(t, 1, m.Model, g.compute, func(ctx context.Context, s *fsdp.Sharded) error {
		if err := m.Load(ctx, s); err != nil {
			return err
		}
		return g.compare(ctx, s)
	})
}

// TestCopies: a head or an embedding that a file has twice is to be the same. Transformers does not
// tie them otherwise.
func TestCopies(t *testing.T) {
	for dir, copies := range map[string]map[string]string{
		"testdata/gpt2":    {"lm_head.weight": "transformer.wte.weight"},
		"../testdata/bert": {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.bias": "cls.predictions.bias"},
		"../testdata/t5":   {"lm_head.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"},
	} {
		for name, of := range copies {
			for _, same := range []bool{true, false} {
				to := t.TempDir()
				require.NoError(t, os.CopyFS(to, os.DirFS(dir)))
				addCopy(t, filepath.Join(to, "model.safetensors"), name, of, same)
				m, err := hf.Open(to)
				if !same {
					require.ErrorContains(t, err, "model.safetensors: tensor "+name+" differs from "+of+", but the model ties them")
					continue
				}
				require.NoError(t, err)
				g := goldenOf(t, dir)
				onRanks(t, 2, m.Model, g.compute, func(ctx context.Context, s *fsdp.Sharded) error {
					if err := m.Load(ctx, s); err != nil {
						return err
					}
					return g.compare(ctx, s)
				})
			}
		}
	}
}

// TestT5Again opens T5 1.1 as transformers 5 writes it back: config.json says that the head is
// tied, and the files have another one.
func TestT5Again(t *testing.T) {
	const dir = "../testdata/t5v1_1"
	again := changed(t, dir, "tie_word_embeddings", true)
	m, err := hf.Open(again)
	require.NoError(t, err)
	first, err := hf.Open(dir)
	require.NoError(t, err)
	require.Equal(t, first.Model, m.Model)
	g, saved := goldenOf(t, dir), filepath.Join(t.TempDir(), "saved")
	onRanks(t, 2, m.Model, g.compute, func(ctx context.Context, s *fsdp.Sharded) error {
		if err := m.Load(ctx, s); err != nil {
			return err
		}
		if err := g.compare(ctx, s); err != nil {
			return err
		}
		return m.Save(ctx, s, saved, &fsdp.ExportOptions{DType: new(fsdp.Float32)})
	})
	require.Equal(t, tensors(t, again), tensors(t, saved))
	require.Equal(t, keys(t, again), keys(t, saved))
}

// TestTwoTrainings refuses a directory with model.safetensors and an index of other files, and
// warns of newer weights in another format.
func TestTwoTrainings(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	to := t.TempDir()
	require.NoError(t, os.CopyFS(to, os.DirFS("testdata/gpt2")))
	index := filepath.Join(to, "model.safetensors.index.json")
	require.NoError(t, os.WriteFile(index, []byte(`{"weight_map": {"a": "model.safetensors"}}`), 0o600))
	_, err := hf.Open(to)
	require.NoError(t, err, "an index of the same file")
	require.NoError(t, os.WriteFile(index, []byte(`{"weight_map": {"b": "model-1.safetensors", "a": "model.safetensors"}}`), 0o600))
	_, err = hf.Open(to)
	require.ErrorContains(t, err, "the directory has both model.safetensors and model.safetensors.index.json, which has tensor b in model-1.safetensors: "+
		"they may be from two trainings, so remove one of them")
	require.NoError(t, os.Remove(index))

	other, weights := filepath.Join(to, "pytorch_model.bin"), filepath.Join(to, "model.safetensors")
	require.NoError(t, os.WriteFile(other, nil, 0o600))
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, newer := range []bool{false, true} {
		log.Reset()
		require.NoError(t, os.Chtimes(weights, at, at))
		at = at.Add(-time.Hour)
		if newer {
			at = at.Add(2 * time.Hour)
		}
		require.NoError(t, os.Chtimes(other, at, at))
		_, err := hf.Open(to)
		require.NoError(t, err)
		require.Equal(t, newer, strings.Contains(log.String(), "pytorch_model.bin is newer than model.safetensors, which is read"), log.String())
	}
}

// addCopy adds a tensor to a file that is the same as another one, or differs in the last byte.
func addCopy(t *testing.T, path, name, of string, same bool) {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	h, err := safetensors.ReadHeader(bytes.NewReader(text), int64(len(text)))
	require.NoError(t, err)
	i := slices.IndexFunc(h.Tensors, func(v safetensors.Tensor) bool { return v.Name == of })
	data := slices.Clone(text[h.Tensors[i].Offset:][:h.Tensors[i].Size])
	if !same {
		data[len(data)-1] ^= 1
	}
	v := h.Tensors[i]
	v.Name = name
	h2, err := safetensors.NewHeader(append(h.Tensors, v), h.Metadata)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, slices.Concat(h2.Encode(), text[h.DataStart:], data), 0o600))
}

// TestChangedSettings: what has been changed in a model after Open or New stands in the config.json
// that Save writes, or is an error if it makes the model one of another kind.
func TestChangedSettings(t *testing.T) {
	save := func(t *testing.T, m *hf.Model) (map[string]any, fsdp.Model) {
		dir := filepath.Join(t.TempDir(), "saved")
		onRanks(t, 2, m.Model, fsdp.Float64, func(ctx context.Context, s *fsdp.Sharded) error { return m.Save(ctx, s, dir, nil) })
		again, err := hf.Open(dir)
		require.NoError(t, err)
		return keys(t, dir), again.Model
	}
	m, err := hf.Open("testdata/llama")
	require.NoError(t, err)
	llama := m.Model.(*nn.Llama)
	llama.RopeBase, llama.Context, llama.RopeScaling = 7e6, 99, op.RopeScaling{}
	c, again := save(t, m)
	require.Equal(t, json.Number("99"), c["max_position_embeddings"])
	require.Equal(t, map[string]any{"rope_type": "default", "rope_theta": json.Number("7e+06")}, c["rope_parameters"])
	require.Equal(t, json.Number("1"), c["bos_token_id"])
	require.Equal(t, llama, again)

	llama.Window = 3 // which Mistral has
	onRanks(t, 1, m.Model, fsdp.Float64, func(ctx context.Context, s *fsdp.Sharded) error {
		require.ErrorContains(t, m.Save(ctx, s, t.TempDir(), nil), "hf: Save: the model has changed since it was opened: it is mistral, and was llama")
		return nil
	})

	m, err = hf.Open("../testdata/qwen2")
	require.NoError(t, err)
	require.Contains(t, keys(t, "../testdata/qwen2"), "layer_types")
	qwen := m.Model.(*nn.Llama)
	qwen.Window = 5
	c, again = save(t, m)
	require.NotContains(t, c, "layer_types")
	require.Equal(t, qwen, again)

	m, err = hf.Open("testdata/gpt2")
	require.NoError(t, err)
	gpt := m.Model.(*nn.GPT)
	gpt.Dropout, gpt.Act = 0.25, nn.ReLU
	c, again = save(t, m)
	require.Equal(t, []any{json.Number("0.25"), json.Number("0.1"), "relu"}, []any{c["resid_pdrop"], c["embd_pdrop"], c["activation_function"]})
	gpt.Dropout = 0
	require.Equal(t, gpt, again)

	made := &nn.Llama{Vocab: 5, Layers: 1, Dim: 4, Heads: 2, KVHeads: 2, HeadDim: 2, Hidden: 4, RopeBase: 1e4, Eps: 1e-6, QKVBias: true, Window: 3, Context: 9}
	m, err = hf.New(made)
	require.NoError(t, err)
	made.Window, made.Eps = 0, 1e-3
	_, again = save(t, m)
	require.Equal(t, made, again)
}
