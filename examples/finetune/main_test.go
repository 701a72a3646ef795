package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// words is where the tokenizers are that Hugging Face's library has trained.
const words = "../../fsdp/nn/hf/tokenizer/testdata"

// models are small, with the tokens of the tokenizer of the same name.
var models = map[string]fsdp.Model{
	"gpt2":   &nn.GPT{Vocab: 330, Context: 48, Layers: 2, Dim: 32, Heads: 2, Act: nn.GELUTanh, Tied: true},
	"llama3": &nn.Llama{Vocab: 330, Context: 48, Layers: 2, Dim: 32, Heads: 4, KVHeads: 2, Hidden: 64},
}

// alone calls f on one rank with a model.
func alone(t *testing.T, model fsdp.Model, f func(ctx context.Context, s *fsdp.Sharded) error) {
	t.Helper()
	require.NoError(t, comm.Run(t.Context(), 1, func(ctx context.Context, g comm.Group) error {
		s, err := fsdp.WrapContext(ctx, model, fsdp.Config{Group: g, Seed: 3})
		if err != nil {
			return err
		}
		defer s.Close()
		return f(ctx, s)
	}))
}

// directory makes one with a random model and its tokenizer.
func directory(t *testing.T, name string) string {
	dir := filepath.Join(t.TempDir(), name)
	m, err := hf.New(models[name])
	require.NoError(t, err)
	alone(t, m.Model, func(ctx context.Context, s *fsdp.Sharded) error { return m.Save(ctx, s, dir, nil) })
	for _, file := range []string{"tokenizer.json", "tokenizer_config.json"} {
		text, err := os.ReadFile(filepath.Join(words, name, file))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), text, 0o666))
	}
	return dir
}

// state returns the parameters of the model in a directory, and the logits of some tokens.
func state(t *testing.T, dir string) (params map[string]*tensor.Dense, logits []float32) {
	m, err := hf.Open(dir)
	require.NoError(t, err)
	alone(t, m.Model, func(ctx context.Context, s *fsdp.Sharded) (err error) {
		if err := m.Load(ctx, s); err != nil {
			return err
		}
		if logits, err = logitsOf(ctx, s); err != nil {
			return err
		}
		params, err = s.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		return err
	})
	return params, logits
}

func logitsOf(ctx context.Context, s *fsdp.Sharded) ([]float32, error) {
	ids := make([]int, 40)
	for i := range ids {
		ids[i] = 7 * i
	}
	x := tensor.New(tensor.WithShape(2, 20), tensor.WithBacking(ids))
	out, err := s.Eval(ctx, x, x)
	if err != nil {
		return nil, err
	}
	return out[1].Data().([]float32), nil
}

// lessons writes two files: sentences as JSON lines, and text.
func lessons(t *testing.T) (lines, text string) {
	dir := t.TempDir()
	lines, text = filepath.Join(dir, "lines.jsonl"), filepath.Join(dir, "text.txt")
	var b strings.Builder
	for i := range 60 {
		fmt.Fprintf(&b, "{\"id\": %d, \"story\": \"The %d cats sat on the mat.\\nAll of them sat.\"}\n\n", i, i)
	}
	require.NoError(t, os.WriteFile(lines, []byte(b.String()), 0o666))
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("The dog sat on the mat, too. ", 40)), 0o666))
	return lines, text
}

// command runs the program and returns what it prints.
func command(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), args, &out))
	return out.String()
}

// losses returns the validation losses in what the program prints.
func losses(t *testing.T, out string) (list []float64) {
	for _, match := range regexp.MustCompile(`validation loss ([0-9.]+)`).FindAllStringSubmatch(out, -1) {
		v, err := strconv.ParseFloat(match[1], 64)
		require.NoError(t, err)
		list = append(list, v)
	}
	return list
}

// TestCommand tunes models on two ranks, and goes on from what it has written: the loss before the
// second training is that after the first.
func TestCommand(t *testing.T) {
	lines, text := lessons(t)
	for name, c := range map[string]struct {
		model string
		args  []string
		falls float64 // by this at least
		near  float64 // bf16 rounds
	}{
		"all of GPT-2":           {"gpt2", []string{"-lr", "1e-2"}, 2, 1e-4},
		"adapters of GPT-2":      {"gpt2", []string{"-lora", "4", "-lr", "3e-2"}, 0.2, 1e-4},
		"all of Llama, bf16":     {"llama3", []string{"-lr", "1e-2", "-bf16"}, 2, 0.02},
		"adapters of Llama 3":    {"llama3", []string{"-lora", "4", "-lr", "3e-2"}, 0.2, 1e-4},
		"adapters of it in bf16": {"llama3", []string{"-lora", "4", "-lr", "3e-2", "-bf16"}, 0.2, 0.02},
	} {
		t.Run(name, func(t *testing.T) {
			from := directory(t, c.model)
			to := filepath.Join(t.TempDir(), "tuned")
			args := append(c.args, "-batch", "2", "-context", "24", "-field", "story", "-prompt", "The cats", "-tokens", "8", "-data", lines)
			out := command(t, append(args, "-model", from, "-out", to, "-steps", "80", text)...)
			first := losses(t, out)
			require.Len(t, first, 2, out)
			require.Less(t, first[1], first[0]-c.falls, out)
			require.Contains(t, out, "documents 61, tokens ")
			require.Equal(t, 2, strings.Count(out, `"The cats`), out)
			require.Contains(t, out, "step 80/80")

			again := losses(t, command(t, append(args, "-model", to, "-steps", "1", text)...))
			require.InDelta(t, first[1], again[0], c.near)
		})
	}
}

// TestAdapters looks at weights and logits: what is frozen keeps its bits until the adapters are
// merged, and the directory has a plain model that computes what the adapted one does.
func TestAdapters(t *testing.T) {
	for name := range models {
		t.Run(name, func(t *testing.T) {
			from, to := directory(t, name), filepath.Join(t.TempDir(), "tuned")
			lines, _ := lessons(t)
			c, err := parse([]string{"-model", from, "-out", to, "-data", lines, "-field", "story", "-lora", "4", "-lr", "3e-2", "-steps", "10", "-context", "24"})
			require.NoError(t, err)
			data, err := load(c)
			require.NoError(t, err)
			var adapted map[string]*tensor.Dense
			require.NoError(t, comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
				tuner, err := newTuner(ctx, c, *data, g, io.Discard)
				if err != nil {
					return err
				}
				defer tuner.Close()
				if err := tuner.tune(ctx); err != nil {
					return err
				}
				all, err := tuner.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
				if err != nil {
					return err
				}
				if g.Rank() == 0 {
					adapted = all
				}
				return tuner.save(ctx)
			}))
			base, before := state(t, from)
			for name, v := range base {
				require.Equal(t, v.Float32s(), adapted[name].Float32s(), name)
			}
			require.Greater(t, len(adapted), len(base))

			merged, after := state(t, to)
			require.ElementsMatch(t, keys(base), keys(merged), "a plain model")
			var logits []float32
			alone(t, withAdapters(models[name], c.lora), func(ctx context.Context, s *fsdp.Sharded) error {
				if err := s.LoadStateDict(ctx, 0, adapted); err != nil {
					return err
				}
				logits, err = logitsOf(ctx, s)
				return err
			})
			require.InDeltaSlice(t, logits, after, 1e-4)
			require.Greater(t, distance(before, after), float32(0.1))
			require.FileExists(t, filepath.Join(to, "tokenizer.json"))
		})
	}
}

// withAdapters returns the model as the program trains it, but with logits.
func withAdapters(model fsdp.Model, rank int) fsdp.Model {
	adapter := nn.LoRA{Rank: rank, Alpha: 2 * float64(rank)}
	if m, ok := model.(*nn.GPT); ok {
		m := *m
		m.LoRA = adapter
		return &m
	}
	m := *model.(*nn.Llama)
	m.LoRA = adapter
	return &m
}

func keys(params map[string]*tensor.Dense) (names []string) {
	for name := range maps.Keys(params) {
		names = append(names, name)
	}
	return names
}

// distance returns the largest difference of two elements.
func distance(a, b []float32) (d float32) {
	for i := range a {
		d = max(d, a[i]-b[i], b[i]-a[i])
	}
	return d
}

// TestErrors gives the program what it cannot do.
func TestErrors(t *testing.T) {
	gpt2, dir := directory(t, "gpt2"), t.TempDir()
	lines, text := lessons(t)
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o666))
		return path
	}
	for want, args := range map[string][]string{
		"-model is missing":                       {},
		"-data is missing":                        {"-model", gpt2},
		"-steps 0, ":                              {"-model", gpt2, "-steps", "0", text},
		"-out " + dir + "/no/where":               {"-model", gpt2, "-out", dir + "/no/where", text},
		"tokenizer.json":                          {"-model", dir, text},
		"none.txt":                                {"-model", gpt2, dir + "/none.txt"},
		lines + `:1: no string at key "text"`:     {"-model", gpt2, lines},
		"bad.jsonl:2: ":                           {"-model", gpt2, file("bad.jsonl", "{\"text\": \"good\"}\n{")},
		"number.jsonl:1: no string":               {"-model", gpt2, file("number.jsonl", `{"text": 1}`)},
		"-context 49: the model takes at most 48": {"-model", gpt2, "-context", "49", text},
		"the data has 9 tokens, want at least 98: training and test each need -context 48": {"-model", gpt2, file("short.txt", "a b c d e")},
	} {
		err := run(t.Context(), args, io.Discard)
		require.ErrorContains(t, err, want)
	}

	_, _, _, err := prepare(&nn.T5{}, 0)
	require.ErrorContains(t, err, "*nn.T5 does not go on from text")

	small := filepath.Join(dir, "small")
	require.NoError(t, os.CopyFS(small, os.DirFS("../../fsdp/nn/hf/testdata/gpt2")))
	require.NoError(t, os.CopyFS(small, os.DirFS(words+"/gpt2")))
	require.ErrorContains(t, run(t.Context(), []string{"-model", small, text}, io.Discard), "the tokenizer has 330 tokens, the model 41")
}

// TestEncode checks that a document begins as the template says and ends with one token for that.
func TestEncode(t *testing.T) {
	w, err := tokenizer.Open(words + "/llama3")
	require.NoError(t, err)
	d := &corpus{words: w}
	ids := d.encode("cats")
	require.Equal(t, w.BOS, ids[0])
	require.Equal(t, "cats", w.Decode(ids))
	require.Equal(t, ids, d.encode("cats<|end_of_text|>"))
}
