package hf_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
	"github.com/gofsdp/gofsdp/internal/safetensors"
	"github.com/gofsdp/gofsdp/optim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// golden is what transformers has computed; testdata/make.py says how.
type golden struct {
	Tokens [][]int
	Logits []float64
}

func goldenOf(t *testing.T, dir string) (g golden) {
	text, err := os.ReadFile(filepath.Join(dir, "logits.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &g))
	return g
}

// batch returns tokens, which are their own targets.
func (g *golden) batch() []fsdp.Tensor {
	var flat []int
	for _, row := range g.Tokens {
		flat = append(flat, row...)
	}
	x := tensor.New(tensor.WithShape(len(g.Tokens), len(g.Tokens[0])), tensor.WithBacking(flat))
	return []fsdp.Tensor{x, x}
}

// compare compares the logits of s with those of transformers, relative to the largest.
func (g *golden) compare(ctx context.Context, s *fsdp.Sharded, tolerance float64) error {
	out, err := s.Eval(ctx, g.batch()...)
	if err != nil {
		return err
	}
	var largest, worst float64
	for i, got := range out[1].Data().([]float32) {
		largest, worst = max(largest, math.Abs(g.Logits[i])), max(worst, math.Abs(float64(got)-g.Logits[i]))
	}
	if n := out[1].Shape().TotalSize(); n != len(g.Logits) || !(worst <= tolerance*largest) {
		return fmt.Errorf("%d logits, want %d; off by %g of %g", n, len(g.Logits), worst, largest)
	}
	return nil
}

// onRanks runs f with a model wrapped on n ranks.
func onRanks(t *testing.T, n int, m fsdp.Model, f func(ctx context.Context, s *fsdp.Sharded) error) {
	require.NoError(t, comm.Run(t.Context(), n, func(ctx context.Context, g comm.Group) error {
		s, err := fsdp.Wrap(m, fsdp.Config{Group: g, Wrap: fsdp.WrapEach(), Poison: true, Seed: 1})
		if err != nil {
			return err
		}
		defer s.Close()
		return f(ctx, s)
	}))
}

// tensors returns the tensors in a directory by name: type, shape and bytes.
func tensors(t *testing.T, dir string) map[string]string {
	paths, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	require.NoError(t, err)
	all := make(map[string]string)
	for _, path := range paths {
		file, err := os.ReadFile(path)
		require.NoError(t, err)
		h, err := safetensors.ReadHeader(bytes.NewReader(file), int64(len(file)))
		require.NoError(t, err)
		for _, v := range h.Tensors {
			all[v.Name] = fmt.Sprint(v.DType, v.Shape, file[v.Offset:v.Offset+v.Size])
		}
	}
	return all
}

// keys returns config.json of a directory.
func keys(t *testing.T, dir string) (c map[string]any) {
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &c))
	return c
}

// directories are those in testdata, with the type of their weights.
var directories = map[string]fsdp.DType{"gpt2": fsdp.Float32}

// TestDirectories loads directories of transformers, compares the logits with those it has computed,
// and writes them back: the same tensors, in one file and in several, and the same configuration.
func TestDirectories(t *testing.T) {
	for name, dtype := range directories {
		dir := filepath.Join("testdata", name)
		g, want := goldenOf(t, dir), tensors(t, dir)
		for ranks := 1; ranks <= 4; ranks++ {
			t.Run(fmt.Sprintf("%s on %d", name, ranks), func(t *testing.T) {
				saved := filepath.Join(t.TempDir(), "saved")
				m, err := hf.Open(dir)
				require.NoError(t, err)
				onRanks(t, ranks, m.Model, func(ctx context.Context, s *fsdp.Sharded) error {
					if err := m.Load(ctx, s); err != nil {
						return err
					}
					if err := g.compare(ctx, s, 1e-6); err != nil {
						return err
					}
					return m.Save(ctx, s, saved, fsdp.As(dtype), fsdp.SplitAt(9000))
				})
				require.Equal(t, want, tensors(t, saved))
				require.Equal(t, keys(t, dir), keys(t, saved))
				again, err := hf.Open(saved)
				require.NoError(t, err)
				require.Equal(t, m.Model, again.Model)
				onRanks(t, ranks, again.Model, func(ctx context.Context, s *fsdp.Sharded) error {
					if err := again.Load(ctx, s); err != nil {
						return err
					}
					if err := g.compare(ctx, s, 1e-6); err != nil {
						return err
					}
					return again.Save(ctx, s, saved, fsdp.As(dtype)) // over itself, as one file
				})
				require.Equal(t, want, tensors(t, saved))
				require.NoFileExists(t, filepath.Join(saved, "model.safetensors.index.json"))
			})
		}
	}
}

// models are those that New takes, with what Open makes of what it has written.
var models = map[string]fsdp.Model{
	"GPT":      &nn.GPT{Vocab: 11, Context: 7, Layers: 2, Dim: 6, Heads: 2, Act: nn.GELUTanh, Eps: 1e-6, Tied: true},
	"GPT head": &nn.GPT{Vocab: 11, Context: 7, Layers: 1, Dim: 6, Heads: 3, Act: nn.ReLU, Eps: 1e-5},
}

// TestNew saves models that were made here, in types that round, and reads them back.
func TestNew(t *testing.T) {
	for name, model := range models {
		t.Run(name, func(t *testing.T) {
			for _, as := range []fsdp.DType{fsdp.Float32, fsdp.BFloat16, fsdp.Float16, fsdp.Float64} {
				dir := filepath.Join(t.TempDir(), "saved")
				m, err := hf.New(model)
				require.NoError(t, err)
				onRanks(t, 2, model, func(ctx context.Context, s *fsdp.Sharded) error { return m.Save(ctx, s, dir, fsdp.As(as)) })
				require.Equal(t, as.String(), keys(t, dir)["dtype"])
				again, err := hf.Open(dir)
				require.NoError(t, err)
				require.Equal(t, model, again.Model)
				want := tensors(t, dir)
				onRanks(t, 3, again.Model, func(ctx context.Context, s *fsdp.Sharded) error {
					if err := again.Load(ctx, s); err != nil {
						return err
					}
					return again.Save(ctx, s, dir, fsdp.As(as))
				})
				require.Equal(t, want, tensors(t, dir))
			}
		})
	}
	_, err := hf.New(&nn.GPT{NoBias: true})
	require.EqualError(t, err, "hf: nn.GPT without biases is no model of transformers")
	_, err = hf.New(nil)
	require.EqualError(t, err, "hf: <nil> is no model of transformers")
}

// TestLoRA loads weights into a model with adapters, trains these, and saves: not before they are
// merged, and then what computes the same.
func TestLoRA(t *testing.T) {
	dir, saved := filepath.Join("testdata", "gpt2"), filepath.Join(t.TempDir(), "saved")
	g := goldenOf(t, dir)
	m, err := hf.Open(dir)
	require.NoError(t, err)
	m.Model.(*nn.GPT).LoRA = nn.LoRA{Rank: 2, Alpha: 3}
	var trained golden
	require.NoError(t, comm.Run(t.Context(), 2, func(ctx context.Context, group comm.Group) error {
		s, err := fsdp.Wrap(m.Model, fsdp.Config{Group: group, Frozen: func(name string) bool { return !nn.IsAdapter(name) }})
		if err != nil {
			return err
		}
		defer s.Close()
		if err := m.Load(ctx, s); err != nil {
			return err
		}
		if err := g.compare(ctx, s, 1e-6); err != nil {
			return err
		}
		if err := m.Save(ctx, s, saved); err != nil { // they have not trained
			return err
		}
		opt, err := optim.AdamW{}.New(s.Shards())
		if err != nil {
			return err
		}
		for range 3 {
			if _, err := s.Forward(ctx, g.batch()...); err != nil {
				return err
			}
			if err := s.Backward(ctx); err != nil {
				return err
			}
			if err := opt.Step(0.01); err != nil {
				return err
			}
			s.ZeroGrad()
		}
		require.ErrorContains(t, m.Save(ctx, s, saved), "hf: the adapter of blocks.0.qkv has trained: call Merge first")
		out, err := s.Eval(ctx, g.batch()...)
		if err != nil {
			return err
		}
		now := golden{Tokens: g.Tokens}
		for _, x := range out[1].Data().([]float32) {
			now.Logits = append(now.Logits, float64(x))
		}
		if err := m.Merge(ctx, s); err != nil {
			return err
		}
		if err := now.compare(ctx, s, 1e-6); err != nil {
			return fmt.Errorf("after Merge: %w", err)
		}
		if group.Rank() == 0 {
			trained = now
		}
		return m.Save(ctx, s, saved)
	}))
	require.NotEqual(t, tensors(t, dir), tensors(t, saved))
	plain, err := hf.Open(saved)
	require.NoError(t, err)
	onRanks(t, 3, plain.Model, func(ctx context.Context, s *fsdp.Sharded) error {
		if err := plain.Load(ctx, s); err != nil {
			return err
		}
		return trained.compare(ctx, s, 1e-6)
	})
}

// directory writes one.
func directory(t testing.TB, files map[string]string) string {
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// emptyFile is a safetensors file without tensors.
const emptyFile = "\x02\x00\x00\x00\x00\x00\x00\x00{}"

// TestOpenErrors names what is wrong with a directory: the file, the key and the value.
func TestOpenErrors(t *testing.T) {
	for _, c := range []struct{ config, want string }{
		{``, "config.json: unexpected end of JSON input"},
		{`null`, "config.json: null is no object"},
		{`[]`, "config.json: json: cannot unmarshal array"},
		{`{}`, `config.json: model_type "" is not supported, only ["gpt2"`},
		{`{"model_type": 3}`, `config.json: model_type: 3 is no string`},
		{`{"model_type": "mamba"}`, `config.json: model_type "mamba" is not supported, only ["gpt2"`},
		{`{"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"]}`, `config.json: architectures ["GPT2ForSequenceClassification"] is not supported, only "GPT2LMHeadModel"`},
		{`{"model_type": "gpt2", "n_layer": 0}`, "config.json: n_layer is 0, want a positive number"},
		{`{"model_type": "gpt2", "n_layer": 1.5}`, "config.json: n_layer: 1.5 is no int"},
		{`{"model_type": "gpt2", "n_inner": 7}`, "config.json: n_inner 7 is not supported, only 3072"},
		{`{"model_type": "gpt2", "scale_attn_weights": false}`, "config.json: scale_attn_weights false is not supported, only true"},
		{`{"model_type": "gpt2", "activation_function": "swish"}`, `config.json: activation_function "swish" is not supported, only ["gelu" `},
		{`{"model_type": "gpt2", "quantization_config": {"bits": 4}}`, `config.json: quantization_config {"bits":4} is not known`},
		{`{"model_type": "gpt2", "is_encoder_decoder": true}`, `config.json: is_encoder_decoder true is not supported, only false`},
		{`{"model_type": "gpt2", "pruned_heads": {"0": [1]}}`, `config.json: pruned_heads {"0":[1]} is not supported`},
	} {
		dir := directory(t, map[string]string{"config.json": c.config, "model.safetensors": emptyFile})
		_, err := hf.Open(dir)
		require.ErrorContains(t, err, "hf: "+dir+": "+c.want)
	}
	const config = `{"model_type": "gpt2"}`
	for _, c := range []struct {
		files map[string]string
		want  string
	}{
		{map[string]string{}, "config.json: no such file"},
		{map[string]string{"config.json": config, "pytorch_model.bin": ""}, "neither model.safetensors nor model.safetensors.index.json is there: other formats are not supported"},
		{map[string]string{"config.json": config, "model.safetensors": "x"}, "model.safetensors: safetensors: "},
		{map[string]string{"config.json": config, "model.safetensors.index.json": "x"}, "model.safetensors.index.json: invalid character"},
	} {
		_, err := hf.Open(directory(t, c.files))
		require.ErrorContains(t, err, c.want)
	}
}

// TestLoadErrors tells every rank what a directory lacks, and that a later look fails.
func TestLoadErrors(t *testing.T) {
	dir := directory(t, map[string]string{"config.json": `{"model_type": "gpt2", "n_layer": 1, "n_embd": 4, "n_head": 1, "vocab_size": 5}`, "model.safetensors": emptyFile})
	m, err := hf.Open(dir)
	require.NoError(t, err)
	onRanks(t, 2, m.Model, func(ctx context.Context, s *fsdp.Sharded) error {
		var unfit *fsdp.StateError
		require.ErrorAs(t, m.Load(ctx, s), &unfit)
		require.Contains(t, unfit.Missing, "h.0.attn.c_attn.weight")
		return nil
	})
	require.NoError(t, os.Remove(filepath.Join(dir, "model.safetensors")))
	onRanks(t, 2, m.Model, func(ctx context.Context, s *fsdp.Sharded) error {
		require.ErrorContains(t, m.Load(ctx, s), "neither model.safetensors")
		require.ErrorContains(t, m.Save(ctx, s, filepath.Join(dir, "no", "parent")), "parent")
		require.ErrorContains(t, m.Save(ctx, s, dir, fsdp.KeepLast(1)), "option KeepLast is not for this method")
		return nil
	})
}

// TestIgnored lists settings of training, and copies the files of a tokenizer.
func TestIgnored(t *testing.T) {
	m, err := hf.Open(filepath.Join("testdata", "gpt2"))
	require.NoError(t, err)
	require.Equal(t, []string{"resid_pdrop 0.1", "embd_pdrop 0.1", "attn_pdrop 0.1"}, m.Ignored)

	made, err := hf.New(models["GPT"])
	require.NoError(t, err)
	first, second := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	onRanks(t, 1, made.Model, func(ctx context.Context, s *fsdp.Sharded) error {
		if err := made.Save(ctx, s, first); err != nil {
			return err
		}
		require.NoError(t, os.WriteFile(filepath.Join(first, "tokenizer.json"), []byte("{}"), 0o600))
		m, err := hf.Open(first)
		if err != nil {
			return err
		}
		return m.Save(ctx, s, second)
	})
	text, err := os.ReadFile(filepath.Join(second, "tokenizer.json"))
	require.NoError(t, err)
	require.Equal(t, "{}", string(text))
}

// FuzzConfig opens directories with any config.json: an error, or a model of positive sizes.
func FuzzConfig(f *testing.F) {
	for name := range directories {
		text, err := os.ReadFile(filepath.Join("testdata", name, "config.json"))
		require.NoError(f, err)
		f.Add(string(text))
	}
	f.Add(`{"model_type": "gpt2", "n_layer": 1e3, "n_embd": null}`)
	dir := directory(f, map[string]string{"model.safetensors": emptyFile})
	f.Fuzz(func(t *testing.T, config string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600))
		m, err := hf.Open(dir)
		if err != nil {
			require.True(t, strings.HasPrefix(err.Error(), "hf: "), err)
			return
		}
		if gpt, ok := m.Model.(*nn.GPT); ok {
			require.Positive(t, min(gpt.Vocab, gpt.Context, gpt.Layers, gpt.Dim, gpt.Heads))
		}
	})
}
