package hf_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/internal/safetensors"
	"github.com/gofsdp/gofsdp/optim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// golden is what transformers has computed: testdata/make.py and ../testdata/models.py say how.
type golden struct {
	batch   []fsdp.Tensor
	logits  []float64
	compute fsdp.DType // and that of its numbers
}

func goldenOf(t *testing.T, dir string) (g golden) {
	text, err := os.ReadFile(filepath.Join(dir, "logits.json"))
	if err != nil {
		return safeGolden(t, filepath.Join(dir, "golden.safetensors"))
	}
	var file struct {
		Tokens [][]int
		Logits []float64
	}
	require.NoError(t, json.Unmarshal(text, &file))
	flat := slices.Concat(file.Tokens...)
	x := tensor.New(tensor.WithShape(len(file.Tokens), len(file.Tokens[0])), tensor.WithBacking(flat))
	return golden{[]fsdp.Tensor{x, x}, file.Logits, fsdp.Float32}
}

// safeGolden reads one of the format safetensors: ints, and floats which become float64.
func safeGolden(t *testing.T, path string) (g golden) {
	g.compute = fsdp.Float64
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	h, err := safetensors.ReadHeader(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	all := make(map[string]safetensors.Tensor)
	for _, v := range h.Tensors {
		all[v.Name] = v
	}
	words := func(name string) (words []uint64, shape tensor.ConsOpt) {
		v := all[name]
		data := file[v.Offset:][:v.Size]
		if v.DType.IsFloat() {
			wide := make([]byte, len(data)/v.DType.Size()*8)
			require.NoError(t, safetensors.Convert(wide, safetensors.F64, data, v.DType))
			data = wide
		}
		for i := 0; i < len(data); i += 8 {
			words = append(words, binary.LittleEndian.Uint64(data[i:]))
		}
		return words, tensor.WithShape(v.Shape...)
	}
	for i := 0; ; i++ {
		name := fmt.Sprint("batch.", i)
		v, ok := all[name]
		if !ok {
			break
		}
		data, shape := words(name)
		ints, floats := make([]int, len(data)), make([]float64, len(data))
		for k, w := range data {
			ints[k], floats[k] = int(w), math.Float64frombits(w)
		}
		if v.DType.IsFloat() {
			g.batch = append(g.batch, tensor.New(shape, tensor.WithBacking(floats)))
		} else {
			g.batch = append(g.batch, tensor.New(shape, tensor.WithBacking(ints)))
		}
	}
	data, _ := words("logits")
	for _, w := range data {
		g.logits = append(g.logits, math.Float64frombits(w))
	}
	return g
}

// numbersIn returns the floats in a file by name, as float64.
func numbersIn(t *testing.T, path string) map[string][]float64 {
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	h, err := safetensors.ReadHeader(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	all := make(map[string][]float64)
	for _, v := range h.Tensors {
		for data := file[v.Offset:][:v.Size]; v.DType == safetensors.F64 && len(data) > 0; data = data[8:] {
			all[v.Name] = append(all[v.Name], math.Float64frombits(binary.LittleEndian.Uint64(data)))
		}
	}
	return all
}

// compare compares the logits of s with those of transformers, relative to the largest.
func (g *golden) compare(ctx context.Context, s *fsdp.Sharded) error {
	logits, err := logitsOf(ctx, s, g.batch)
	if err != nil {
		return err
	}
	var largest, worst float64
	for i, want := range g.logits {
		largest, worst = max(largest, math.Abs(want)), max(worst, math.Abs(logits[i]-want))
	}
	tolerance := 1e-6
	if g.compute == fsdp.Float64 {
		tolerance = 1e-12
	}
	if len(logits) != len(g.logits) || !(worst <= tolerance*largest) {
		return fmt.Errorf("%d logits, want %d; off by %g of %g", len(logits), len(g.logits), worst, largest)
	}
	return nil
}

// logitsOf evaluates a batch.
func logitsOf(ctx context.Context, s *fsdp.Sharded, batch []fsdp.Tensor) (logits []float64, err error) {
	out, err := s.Eval(ctx, batch...)
	if err != nil {
		return nil, err
	}
	result := out[min(1, len(out)-1)]
	if shape := out[0].Shape(); len(shape) == 3 { // the last layer of an encoder
		result = out[0]
	}
	if double, ok := result.Data().([]float64); ok {
		return double, nil
	}
	for _, x := range result.Data().([]float32) {
		logits = append(logits, float64(x))
	}
	return logits, nil
}

// onRanks runs f with a model wrapped on n ranks.
func onRanks(t *testing.T, n int, m fsdp.Model, compute fsdp.DType, f func(ctx context.Context, s *fsdp.Sharded) error) {
	require.NoError(t, comm.Run(t.Context(), n, func(ctx context.Context, g comm.Group) error {
		s, err := fsdp.Wrap(m, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: fsdp.Precision{Compute: compute}, Poison: true, Seed: 1})
		if err != nil {
			return err
		}
		defer s.Close()
		return f(ctx, s)
	}))
}

// tensors returns the tensors in a directory by name: type, shape and bytes.
func tensors(t *testing.T, dir string) map[string]string {
	paths, err := filepath.Glob(filepath.Join(dir, "model*.safetensors"))
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

// keys returns config.json of a directory, with numbers as they are written: 1 is no 1.0 to
// transformers.
func keys(t *testing.T, dir string) (c map[string]any) {
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	require.NoError(t, d.Decode(&c))
	return c
}

// directories are those with goldens, and the type of their weights. That of Llama has several
// files.
var directories = map[string]fsdp.DType{
	"testdata/gpt2": fsdp.Float32, "testdata/llama": fsdp.BFloat16, "../testdata/llama": fsdp.Float32, "../testdata/mistral": fsdp.Float32,
	"../testdata/qwen2": fsdp.Float32, "../testdata/qwen3": fsdp.Float32, "../testdata/gemma3": fsdp.Float32, "../testdata/bert": fsdp.Float32, "../testdata/vit": fsdp.Float32,
	"../testdata/bert_model": fsdp.Float32, "../testdata/bert_sequences": fsdp.Float32, "../testdata/bert_tokens": fsdp.Float32,
	"../testdata/roberta_model": fsdp.Float32, "../testdata/roberta_masked": fsdp.Float32, "../testdata/roberta_sequences": fsdp.Float32,
	"../testdata/distilbert_model": fsdp.Float32, "../testdata/distilbert_masked": fsdp.Float32, "../testdata/distilbert_sequences": fsdp.Float32,
	"../testdata/modernbert_model": fsdp.Float32, "../testdata/modernbert_masked": fsdp.Float32,
	"../testdata/modernbert_sequences": fsdp.Float32, "../testdata/modernbert_tokens": fsdp.Float32,
	"../testdata/xlmroberta_sequences": fsdp.Float32, "../testdata/xlmroberta_masked": fsdp.Float32,
	"../testdata/t5": fsdp.Float32, "../testdata/t5v1_1": fsdp.Float32, "../testdata/t5v1_1tied": fsdp.Float32,
}

// TestDirectories loads directories of transformers, compares the logits with those it has
// computed, and writes them back: the same tensors, in one file and in several, and the same
// configuration.
func TestDirectories(t *testing.T) {
	for dir, dtype := range directories {
		g, want := goldenOf(t, dir), tensors(t, dir)
		for ranks := 1; ranks <= 4; ranks++ {
			t.Run(fmt.Sprintf("%s on %d", dir, ranks), func(t *testing.T) {
				saved := filepath.Join(t.TempDir(), "no", "parent", "saved")
				m, err := hf.Open(dir)
				require.NoError(t, err)
				onRanks(t, ranks, m.Model, g.compute, func(ctx context.Context, s *fsdp.Sharded) error {
					if err := m.Load(ctx, s); err != nil {
						return err
					}
					if err := g.compare(ctx, s); err != nil {
						return err
					}
					return m.Save(ctx, s, saved, &fsdp.ExportOptions{DType: new(dtype), MaxFileSize: 9000})
				})
				require.Equal(t, want, tensors(t, saved))
				require.Equal(t, keys(t, dir), keys(t, saved))
				again, err := hf.Open(saved)
				require.NoError(t, err)
				require.Equal(t, m.Model, again.Model)
				onRanks(t, ranks, again.Model, g.compute, func(ctx context.Context, s *fsdp.Sharded) error {
					if err := again.Load(ctx, s); err != nil {
						return err
					}
					if err := g.compare(ctx, s); err != nil {
						return err
					}
					return again.Save(ctx, s, saved, &fsdp.ExportOptions{DType: new(dtype)}) // over itself, as one file
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
	"Llama": &nn.Llama{Vocab: 11, Context: 9, Layers: 2, Dim: 8, Heads: 4, KVHeads: 2, HeadDim: 4, Hidden: 12, RopeBase: 500, Eps: 1e-5,
		RopeScaling: op.RopeScaling{Factor: 8, LowFreq: 1, HighFreq: 4, Original: 16}},
	"linear":  &nn.Llama{Vocab: 11, Context: 9, Layers: 1, Dim: 8, Heads: 4, KVHeads: 4, HeadDim: 2, Hidden: 12, RopeBase: 1e4, Eps: 1e-6, RopeScaling: op.RopeScaling{Factor: 2}, Tied: true},
	"Mistral": &nn.Llama{Vocab: 11, Context: 9, Layers: 1, Dim: 8, Heads: 2, KVHeads: 1, HeadDim: 4, Hidden: 12, RopeBase: 1e4, Eps: 1e-6, Window: 3},
	"Qwen2":   &nn.Llama{Vocab: 11, Context: 9, Layers: 1, Dim: 8, Heads: 2, KVHeads: 1, HeadDim: 4, Hidden: 12, RopeBase: 1e6, Eps: 1e-6, QKVBias: true, Window: 4},
	"Qwen3":   &nn.Llama{Vocab: 11, Context: 9, Layers: 2, Dim: 8, Heads: 2, KVHeads: 1, HeadDim: 6, Hidden: 12, RopeBase: 1e6, Eps: 1e-6, QKNorm: true},
	"Gemma 3": &nn.Llama{Vocab: 11, Context: 9, Layers: 4, Dim: 8, Heads: 2, KVHeads: 1, HeadDim: 6, Hidden: 12, RopeBase: 1e6, Eps: 1e-6, QKNorm: true, Tied: true, Gemma: true,
		Scale: 0.25, Window: 4, FullEvery: 3, LocalRopeBase: 1e4, RopeScaling: op.RopeScaling{Factor: 8}},
	"Gemma 3 full": &nn.Llama{Vocab: 11, Context: 9, Layers: 1, Dim: 8, Heads: 2, KVHeads: 2, HeadDim: 4, Hidden: 12, RopeBase: 1e4, Eps: 1e-6, QKNorm: true, Gemma: true},
	"BERT":         &nn.BERT{Vocab: 11, Context: 7, Kinds: 3, Layers: 2, Dim: 6, Heads: 2, Hidden: 10, Act: nn.ReLU, Eps: 1e-6},
	"BERT bare":    &nn.BERT{Vocab: 11, Context: 7, Kinds: 2, Layers: 1, Dim: 6, Heads: 2, Hidden: 10, Eps: 1e-6, Task: nn.Encode, NoPooler: true},
	"RoBERTa":      &nn.BERT{Vocab: 11, Context: 7, Kinds: 1, FirstPosition: 2, Layers: 1, Dim: 6, Heads: 2, Hidden: 10, Eps: 1e-5, Task: nn.ClassifySequences, Classes: 1},
	"DistilBERT":   &nn.BERT{Vocab: 11, Context: 7, Kinds: -1, Layers: 1, Dim: 6, Heads: 2, Hidden: 10, Task: nn.ClassifySequences, Classes: 3, Targets: nn.ManyClasses, PoolReLU: true},
	"ModernBERT": &nn.ModernBERT{Vocab: 11, Context: 9, Layers: 4, Dim: 8, Heads: 2, Hidden: 10, Eps: 1e-5, Window: 3, FullEvery: 3, RopeBase: 1e5, LocalRopeBase: 1e4,
		Task: nn.ClassifySequences, Classes: 3, MeanPool: true},
	"ViT":         &nn.ViT{Height: 4, Width: 4, Patch: 2, Channels: 1, Classes: 3, Layers: 2, Dim: 6, Heads: 2, Hidden: 10, Eps: 1e-6},
	"T5":          &nn.T5{Vocab: 11, Encoder: 1, Decoder: 2, Dim: 6, Heads: 2, HeadDim: 4, Hidden: 10, Buckets: 6, MaxDistance: 9, Act: nn.SiLU, Gated: true, Eps: 1e-5},
	"T5 no scale": &nn.T5{Vocab: 11, Encoder: 1, Decoder: 1, Dim: 6, Heads: 2, HeadDim: 3, Hidden: 10, Buckets: 8, MaxDistance: 9, Act: nn.GELUTanh, Gated: true, Tied: true, NoScale: true, Eps: 1e-6},
	"T5 tied":     &nn.T5{Vocab: 11, Encoder: 2, Decoder: 1, Dim: 6, Heads: 2, HeadDim: 3, Hidden: 10, Buckets: 8, MaxDistance: 9, Act: nn.GELU, Tied: true, Eps: 1e-6},
}

// TestNew saves models that were made here, in types that round, and reads them back.
func TestNew(t *testing.T) {
	for name, model := range models {
		t.Run(name, func(t *testing.T) {
			for _, as := range []fsdp.DType{fsdp.Float32, fsdp.BFloat16, fsdp.Float16, fsdp.Float64} {
				dir := filepath.Join(t.TempDir(), "saved")
				m, err := hf.New(model)
				require.NoError(t, err)
				onRanks(t, 2, model, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error {
					return m.Save(ctx, s, dir, &fsdp.ExportOptions{DType: new(as)})
				})
				require.Equal(t, as.String(), keys(t, dir)["dtype"])
				for key, want := range map[string]string{"embd_pdrop": "0.0", "attention_probs_dropout_prob": "0.0", "dropout_rate": "0.0"} {
					if number, ok := keys(t, dir)[key]; ok {
						require.Equal(t, json.Number(want), number, key)
					}
				}
				again, err := hf.Open(dir)
				require.NoError(t, err)
				require.Equal(t, model, again.Model)
				want := tensors(t, dir)
				onRanks(t, 3, again.Model, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error {
					if err := again.Load(ctx, s); err != nil {
						return err
					}
					return again.Save(ctx, s, dir, &fsdp.ExportOptions{DType: new(as)})
				})
				require.Equal(t, want, tensors(t, dir))
			}
		})
	}
	_, err := hf.New(&nn.GPT{NoBias: true})
	require.EqualError(t, err, "hf: nn.GPT without biases has no counterpart in transformers")
	_, err = hf.New(&nn.Llama{QKVBias: true, QKNorm: true, Heads: 1})
	require.EqualError(t, err, "hf: nn.Llama with QKNorm and QKVBias has no counterpart in transformers")
	_, err = hf.New(&nn.Llama{Heads: 1, Dim: 4, Gemma: true})
	require.ErrorContains(t, err, "hf: nn.Llama with Gemma has no counterpart in transformers with QKNorm false")
	_, err = hf.New(&nn.Llama{Heads: 1, Dim: 4, Gemma: true, QKNorm: true, Scale: 0.3})
	require.ErrorContains(t, err, "hf: nn.Llama with Gemma and Scale 0.3 has no counterpart in transformers")
	_, err = hf.New(&nn.Llama{Heads: 1, Window: 3, FullEvery: 2})
	require.ErrorContains(t, err, "hf: nn.Llama without Gemma has no counterpart in transformers with Scale 0, FullEvery 2")
	_, err = hf.New(&nn.ModernBERT{Window: 3})
	require.ErrorContains(t, err, "hf: nn.ModernBERT has no counterpart in transformers with Window 3 and LocalRopeBase 0")
	_, err = hf.New(&nn.T5{Act: nn.SiLU, Heads: 1})
	require.EqualError(t, err, "hf: nn.T5 with activation 3, gated false, has no counterpart in transformers")
	for want, model := range map[string]fsdp.Model{
		"hf: nn.Llama has 0 heads": &nn.Llama{}, "hf: nn.T5 has 0 heads": &nn.T5{HeadDim: 4}, "hf: the *nn.GPT is nil": (*nn.GPT)(nil),
	} {
		_, err := hf.New(model)
		require.EqualError(t, err, want)
	}
	_, err = hf.New(nil)
	require.EqualError(t, err, "hf: <nil> has no counterpart in transformers")
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
		if err := g.compare(ctx, s); err != nil {
			return err
		}
		if err := m.Save(ctx, s, saved, nil); err != nil { // they have not trained
			return err
		}
		opt, err := optim.AdamW{}.New(s.Params())
		if err != nil {
			return err
		}
		for range 3 {
			if _, err := s.Forward(ctx, g.batch...); err != nil {
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
		require.ErrorContains(t, m.Save(ctx, s, saved, nil), "hf: the adapter of blocks.0.qkv is trained: call Merge first")
		now := golden{batch: g.batch, compute: fsdp.Float32}
		if now.logits, err = logitsOf(ctx, s, g.batch); err != nil {
			return err
		}
		if err := m.Merge(ctx, s); err != nil {
			return err
		}
		if err := now.compare(ctx, s); err != nil {
			return fmt.Errorf("after Merge: %w", err)
		}
		if group.Rank() == 0 {
			trained = now
		}
		return m.Save(ctx, s, saved, nil)
	}))
	require.NotEqual(t, tensors(t, dir), tensors(t, saved))
	plain, err := hf.Open(saved)
	require.NoError(t, err)
	onRanks(t, 3, plain.Model, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error {
		if err := plain.Load(ctx, s); err != nil {
			return err
		}
		return trained.compare(ctx, s)
	})
}

// TestMergeAll merges the adapters of every layer that has one, of every kind of model.
func TestMergeAll(t *testing.T) {
	for name, model := range models {
		t.Run(name, func(t *testing.T) {
			adapted := reflect.New(reflect.TypeOf(model).Elem())
			adapted.Elem().Set(reflect.ValueOf(model).Elem())
			adapted.Elem().FieldByName("LoRA").Set(reflect.ValueOf(nn.LoRA{Rank: 2}))
			m, err := hf.New(adapted.Interface().(fsdp.Model))
			require.NoError(t, err)
			dir := filepath.Join(t.TempDir(), "saved")
			onRanks(t, 2, m.Model, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error {
				was, err := s.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
				if err != nil {
					return err
				}
				ups := 0
				for name, v := range was {
					if strings.HasSuffix(name, "lora_b") {
						ups++
						v.Memset(float32(1))
					}
				}
				require.Positive(t, ups)
				if err := s.LoadStateDict(ctx, 0, was); err != nil {
					return err
				}
				if err := m.Merge(ctx, s); err != nil {
					return err
				}
				is, err := s.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
				if err != nil {
					return err
				}
				for name, v := range is {
					if layer, ok := strings.CutSuffix(name, "lora_b"); ok {
						require.NotContains(t, v.Float32s(), float32(1), name)
						require.NotEqual(t, was[layer+"weight"].Float32s(), is[layer+"weight"].Float32s(), name)
					}
				}
				return m.Save(ctx, s, dir, nil)
			})
			again, err := hf.Open(dir)
			require.NoError(t, err)
			require.Equal(t, model, again.Model)
		})
	}
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

// file makes one with tensors of zeros, by name and shape.
func file(t testing.TB, shapes map[string][]int) string {
	var list []safetensors.Tensor
	for name, shape := range shapes {
		list = append(list, safetensors.Tensor{Name: name, DType: safetensors.F32, Shape: shape})
	}
	h, err := safetensors.NewHeader(list, nil)
	require.NoError(t, err)
	size := int64(0)
	for _, v := range h.Tensors {
		size += v.Size
	}
	return string(h.Encode()) + strings.Repeat("\x00", int(size))
}

// llamaFile is one that has what config.json of llama says.
func llamaFile(t testing.TB) string {
	return file(t, map[string][]int{"model.embed_tokens.weight": {5, 4}, "model.layers.1.mlp.down_proj.weight": {4, 4},
		"model.layers.1.self_attn.q_proj.weight": {4, 4}, "model.layers.1.self_attn.k_proj.weight": {4, 4}})
}

// llama is a config.json with some keys more.
func llama(more string) string {
	return `{"model_type": "llama", "vocab_size": 5, "num_hidden_layers": 2, "hidden_size": 4, "num_attention_heads": 2, "intermediate_size": 4, ` + more + "}"
}

// gemma is the same for Gemma 3.
func gemma(more string) string {
	return strings.Replace(llama(more), "llama", "gemma3_text", 1)
}

// modern is a config.json of ModernBERT with some keys more.
func modern(more string) string {
	return `{"model_type": "modernbert", "num_hidden_layers": 2, ` + more + "}"
}

// TestOpenErrors names what is wrong with a directory: the file, the key and the value.
func TestOpenErrors(t *testing.T) {
	for _, c := range []struct{ config, want string }{
		{``, "config.json: unexpected end of JSON input"},
		{`null`, "config.json: null is not an object"},
		{`[]`, "config.json: json: cannot unmarshal array"},
		{`{}`, `config.json: model_type "" is not supported, only ["bert" "distilbert" "gemma3_text" "gpt2"`},
		{`{"model_type": 3}`, `config.json: model_type: 3 is not of type string`},
		{`{"model_type": "mamba"}`, `config.json: model_type "mamba" is not supported, only ["bert" "distilbert" "gemma3_text" "gpt2" "llama" "mistral" "modernbert" "qwen2" "qwen3" "roberta" "t5" "vit" "xlm-roberta"]`},
		{`{"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"]}`, `config.json: architectures ["GPT2ForSequenceClassification"] is not supported, only ["GPT2LMHeadModel"]`},
		{`{"model_type": "gpt2", "n_layer": 0}`, "config.json: n_layer is 0, want a positive number"},
		{`{"model_type": "gpt2", "n_layer": 1.5}`, "config.json: n_layer: 1.5 is not of type int"},
		{`{"model_type": "gpt2", "n_inner": 7}`, "config.json: n_inner 7 is not supported, only 3072"},
		{`{"model_type": "gpt2", "scale_attn_weights": false}`, "config.json: scale_attn_weights false is not supported, only true"},
		{`{"model_type": "gpt2", "activation_function": "swish"}`, `config.json: activation_function "swish" is not supported, only ["gelu" `},
		{`{"model_type": "gpt2", "quantization_config": {"bits": 4}}`, `config.json: quantization_config {"bits":4} is unknown, and may change the model: if it does not, skip it by hf.Open(dir, "quantization_config") (model_type gpt2)`},
		{`{"model_type": "gpt2", "is_encoder_decoder": true}`, `config.json: is_encoder_decoder true is not supported, only false`},
		{`{"model_type": "gpt2", "pruned_heads": {"0": [1]}}`, `config.json: pruned_heads {"0":[1]} is not supported`},
		{llama(`"rope_scaling": {"type": "yarn", "factor": 2}`), `config.json: rope_scaling.type "yarn" is not supported`},
		{llama(`"rope_parameters": {"rope_type": "dynamic"}`), `config.json: rope_parameters.rope_type "dynamic" is not supported`},
		{llama(`"rope_parameters": {"rope_type": "default", "mscale": 2}`), `config.json: rope_parameters.mscale 2 is unknown, and may change the model: if it does not, skip it by hf.Open(dir, "rope_parameters.mscale")`},
		{llama(`"rope_parameters": 3`), `config.json: rope_parameters.`},
		{llama(`"rope_parameters": {"rope_type": "llama3"}`), `config.json: rope_parameters.original_max_position_embeddings is missing`},
		{llama(`"partial_rotary_factor": 0.5`), `config.json: partial_rotary_factor 0.5 is not supported, only 1`},
		{llama(`"rope_interleaved": true`), `config.json: rope_interleaved true is not supported, only false`},
		{llama(`"attention_bias": true`), `config.json: attention_bias true is not supported, only false`},
		{llama(`"hidden_act": "gelu"`), `config.json: hidden_act "gelu" is not supported, only silu`},
		{llama(`"layer_types": ["sliding_attention"]`), `config.json: layer_types "sliding_attention" of layer 0 is not supported: all layers must be "full_attention"`},
		{llama(`"rms_norm_eps": 0`), `config.json: rms_norm_eps is 0, want a positive number`},
		{llama(`"rope_theta": -1`), `config.json: rope_theta is -1, want a positive number`},
		{llama(`"rope_scaling": {"type": "linear", "factor": 0}`), `config.json: rope_scaling.factor is 0, want a positive number`},
		{llama(`"hidden_size": null`), `config.json: hidden_size is missing`},
		{strings.Replace(llama(`"use_sliding_window": true, "sliding_window": 3, "max_window_layers": 1`), "llama", "qwen2", 1),
			"config.json: max_window_layers 1 of 2 layers is not supported: all layers have the same window"},
		{gemma(`"final_logit_softcapping": 30.0`), "config.json: final_logit_softcapping 30.0 is not supported, only null"},
		{gemma(`"use_bidirectional_attention": true`), "config.json: use_bidirectional_attention true is not supported, only false"},
		{gemma(`"layer_types": ["sliding_attention"]`), "config.json: layer_types has 1 layers, but the model has 2"},
		{gemma(`"layer_types": ["full_attention", "sliding_attention"]`), `config.json: layer_types "sliding_attention" of layer 1 is not supported, only "full_attention"`},
		{gemma(`"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2}}`), "config.json: rope_parameters with scaled positions are not supported in these layers"},
		{gemma(`"rope_parameters": {"full_attention": {"rope_type": "yarn"}}`), `config.json: rope_parameters.full_attention.rope_type "yarn" is not supported`},
		{modern(`"norm_bias": true`), "config.json: norm_bias true is not supported, only false"},
		{modern(`"hidden_activation": "tanh"`), `config.json: hidden_activation "tanh" is not supported: no gated unit has it`},
		{modern(`"classifier_activation": "relu"`), `config.json: classifier_activation "relu" is not supported, only hidden_activation, "gelu"`},
		{modern(`"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2}}`), "config.json: rope_parameters with scaled positions are not supported in these layers"},
		{modern(`"layer_types": ["sliding_attention", "full_attention"]`), `config.json: layer_types "sliding_attention" of layer 0 is not supported, only "full_attention"`},
		{`{"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}`, `config.json: model_type "gemma3" is not supported, only`},
		{`{"model_type": "vit", "num_hidden_layers": 1, "hidden_size": 4, "num_attention_heads": 2, "intermediate_size": 4, "patch_size": [2, 3]}`,
			"config.json: patch_size 2·3 is not supported, only squares"},
		{`{"model_type": "vit", "image_size": [2]}`, "config.json: num_hidden_layers is missing"},
		{`{"model_type": "t5", "is_encoder_decoder": true, "feed_forward_proj": "gated-tanh"}`, `config.json: feed_forward_proj "gated-tanh" is not supported`},
		{`{"model_type": "t5", "is_encoder_decoder": false}`, `config.json: is_encoder_decoder false is not supported, only true`},
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
		{map[string]string{"config.json": config, "pytorch_model.bin": ""}, "the directory has neither model.safetensors nor model.safetensors.index.json, and pytorch_model.bin is not read: convert it by save_pretrained of transformers"},
		{map[string]string{"config.json": config, "model.safetensors": "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"}, "model.safetensors is a pointer of Git LFS in place of the file: git lfs pull fetches it"},
		{map[string]string{"adapter_config.json": `{"base_model_name_or_path": "org/base"}`}, `it has an adapter of PEFT and no model: open the directory of its base model, "org/base"`},
		{map[string]string{"config.json": config, "adapter_config.json": "{}"}, "the directory has a model and adapter_config.json, and the adapter may belong to another model: move the adapter's files to their own directory"},
		{map[string]string{"config.json": config, "model.gguf": ""}, "the directory has neither model.safetensors nor model.safetensors.index.json: other formats are not supported"},
		{map[string]string{"config.json": config, "model.safetensors": "x"}, "model.safetensors: safetensors: "},
		{map[string]string{"config.json": config, "model.safetensors.index.json": "x"}, "model.safetensors.index.json: invalid character"},
	} {
		_, err := hf.Open(directory(t, c.files))
		require.ErrorContains(t, err, c.want)
	}
}

// TestWindow reads how far attention looks back: where keys are missing, transformers has values.
func TestWindow(t *testing.T) {
	for _, c := range []struct {
		kind, keys string
		want       int
	}{
		{"mistral", `"x": null`, 4096}, {"mistral", `"sliding_window": null`, 0}, {"mistral", `"sliding_window": 3`, 3}, {"llama", `"x": null`, 0},
		{"qwen2", `"use_sliding_window": true, "sliding_window": 3`, 0}, // the first 28 layers have none
		{"qwen2", `"use_sliding_window": true, "max_window_layers": 0`, 4096}, {"qwen2", `"sliding_window": 3`, 0},
	} {
		config := strings.Replace(llama(strings.Replace(c.keys, `"x"`, `"bos_token_id"`, 1)), "llama", c.kind, 1)
		m, err := hf.Open(directory(t, map[string]string{"config.json": config, "model.safetensors": llamaFile(t)}))
		require.NoError(t, err)
		require.Equal(t, c.want, m.Model.(*nn.Llama).Window, "%s %s", c.kind, c.keys)
	}
}

// TestLoadErrors tells every rank what a directory lacks, and that a later look fails.
func TestLoadErrors(t *testing.T) {
	dir := directory(t, map[string]string{"config.json": `{"model_type": "gpt2", "n_layer": 1, "n_embd": 4, "n_head": 1, "vocab_size": 5}`,
		"model.safetensors": file(t, map[string][]int{"wte.weight": {5, 4}, "wpe.weight": {1024, 4}, "h.0.mlp.c_fc.weight": {4, 16}})})
	m, err := hf.Open(dir)
	require.NoError(t, err)
	onRanks(t, 2, m.Model, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error {
		var unfit *fsdp.StateError
		require.ErrorAs(t, m.Load(ctx, s), &unfit)
		require.Contains(t, unfit.Missing, "h.0.attn.c_attn.weight")
		return nil
	})
	made, err := hf.New(m.Model)
	require.NoError(t, err)
	t.Chdir(dir) // the files there are not those of made
	onRanks(t, 1, m.Model, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error {
		require.ErrorContains(t, made.Load(ctx, s), "there is no directory to load")
		return nil
	})
	require.NoError(t, os.Remove(filepath.Join(dir, "model.safetensors")))
	onRanks(t, 2, m.Model, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error {
		require.ErrorContains(t, m.Load(ctx, s), "neither model.safetensors")
		require.ErrorContains(t, m.Save(ctx, s, filepath.Join(dir, "config.json", "below"), nil), "below")
		require.ErrorContains(t, m.Save(ctx, s, dir, &fsdp.ExportOptions{Exclude: nn.IsAdapter}), "hf: Save sets Rename, Transpose, Concat, Exclude and ExtraFiles itself")
		return nil
	})
}

// TestGamma reads and writes a BERT whose norms have the names of TensorFlow, beside heads that the
// model lacks.
func TestGamma(t *testing.T) {
	dir, saved := t.TempDir(), filepath.Join(t.TempDir(), "saved")
	file, err := os.ReadFile("../testdata/bert/model.safetensors")
	require.NoError(t, err)
	h, err := safetensors.ReadHeader(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	var list []safetensors.Tensor
	for _, v := range h.Tensors {
		v.Name = strings.Replace(strings.Replace(v.Name, "LayerNorm.weight", "LayerNorm.gamma", 1), "LayerNorm.bias", "LayerNorm.beta", 1)
		list = append(list, v)
	}
	list = append(list, safetensors.Tensor{Name: "bert.pooler.dense.bias", DType: safetensors.F32, Shape: []int{2}})
	renamed, err := safetensors.NewHeader(list, nil)
	require.NoError(t, err)
	text := slices.Concat(renamed.Encode(), file[h.DataStart:], make([]byte, 8))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), text, 0o600))
	config, err := os.ReadFile("../testdata/bert/config.json")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600))

	m, err := hf.Open(dir)
	require.NoError(t, err)
	g := goldenOf(t, "../testdata/bert")
	onRanks(t, 2, m.Model, fsdp.Float64, func(ctx context.Context, s *fsdp.Sharded) error {
		if err := m.Load(ctx, s); err != nil {
			return err
		}
		if err := g.compare(ctx, s); err != nil {
			return err
		}
		return m.Save(ctx, s, saved, &fsdp.ExportOptions{DType: new(fsdp.Float32)})
	})
	want := tensors(t, dir)
	delete(want, "bert.pooler.dense.bias")
	require.Equal(t, want, tensors(t, saved))
}

// TestHarmlessKeys reads keys that programs for fine-tuning and generation leave in config.json,
// and keys without a value: the model is the same without them.
func TestHarmlessKeys(t *testing.T) {
	want, err := hf.ReadConfig([]byte(llama(`"use_cache": true`)))
	require.NoError(t, err)
	for _, key := range []string{
		`"unsloth_fixed": true`, `"unsloth_version": "2025.3.19"`, `"model_name": "unsloth/Llama-3.2-1B"`, `"neftune_noise_alpha": 5`,
		`"_flash_attn_2_enabled": true`, `"attn_implementation": "sdpa"`, `"gradient_checkpointing": true`, `"cache_implementation": "static"`,
		`"cross_attention_hidden_size": null`, `"quantization_config": null`, `"unheard_of": null`, `"unheard_of": false`, `"rope_scaling": {"type": "default", "unheard_of": false}`,
	} {
		got, err := hf.ReadConfig([]byte(llama(key)))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// TestIgnored lists settings of training, and copies the files of a tokenizer.
func TestIgnored(t *testing.T) {
	m, err := hf.Open(filepath.Join("testdata", "gpt2"))
	require.NoError(t, err)
	require.Equal(t, []string{"resid_pdrop 0.1", "embd_pdrop 0.1", "attn_pdrop 0.1"}, m.Ignored)

	made, err := hf.New(models["GPT"])
	require.NoError(t, err)
	first, second := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	onRanks(t, 1, made.Model, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error {
		if err := made.Save(ctx, s, first, nil); err != nil {
			return err
		}
		require.NoError(t, os.WriteFile(filepath.Join(first, "tokenizer.json"), []byte("{}"), 0o600))
		m, err := hf.Open(first)
		if err != nil {
			return err
		}
		return m.Save(ctx, s, second, nil)
	})
	text, err := os.ReadFile(filepath.Join(second, "tokenizer.json"))
	require.NoError(t, err)
	require.Equal(t, "{}", string(text))
}

// FuzzConfig opens directories with any config.json: an error, or a model of positive sizes.
func FuzzConfig(f *testing.F) {
	for dir := range directories {
		text, err := os.ReadFile(filepath.Join(dir, "config.json"))
		require.NoError(f, err)
		f.Add(string(text))
	}
	f.Add(`{"model_type": "gpt2", "n_layer": 1e3, "n_embd": null}`)
	weights, err := os.ReadFile("testdata/gpt2/model.safetensors")
	require.NoError(f, err)
	dir := directory(f, map[string]string{"model.safetensors": string(weights)})
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

// TestReadConfig reads a model without its weights, and one that is not supported.
func TestReadConfig(t *testing.T) {
	for _, name := range []string{"gpt2", "llama"} {
		m, err := hf.Open("testdata/" + name)
		require.NoError(t, err)
		text, err := os.ReadFile("testdata/" + name + "/config.json")
		require.NoError(t, err)
		got, err := hf.ReadConfig(text)
		require.NoError(t, err)
		require.Equal(t, m.Model, got)
	}
	_, err := hf.ReadConfig([]byte(`{"model_type": "mamba"}`))
	require.ErrorContains(t, err, "hf: config.json: ")
}
