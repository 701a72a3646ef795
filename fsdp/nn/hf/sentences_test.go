package hf_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
)

// sentences are directories of ../testdata/sentences.py.
var sentences = []struct {
	dir       string
	texts     int // of a row
	maxTokens int // of the files, which lack the tokenizer
	mean      bool
	normalize bool
}{
	{"../testdata/bert_sentences", 2, 0, true, true},
	{"../testdata/roberta_sentences", 2, 9, false, false},
	{"../testdata/distilbert_sentences", 4, 9, true, false},
	{"../testdata/modernbert_sentences", 3, 0, false, true},
}

// weightsOf returns the directory of a sentence-transformers directory that has the weights.
func weightsOf(dir string) string {
	if old := filepath.Join(dir, "0_Transformer"); exists(old) {
		return old
	}
	return dir
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// texts returns some texts of a batch.
func texts(batch []fsdp.Tensor, lo, hi int) (part []fsdp.Tensor, err error) {
	for _, b := range batch {
		v, err := b.(*tensor.Dense).Slice(tensor.S(lo, hi))
		if err != nil {
			return nil, err
		}
		part = append(part, v.Materialize().(*tensor.Dense))
	}
	return part, nil
}

// divide returns the batches of a rank: at most n, of whole rows. If there are three ranks or more,
// rank 1 has none.
func divide(batch []fsdp.Tensor, texts_, rank, ranks, n int) (parts [][]fsdp.Tensor, err error) {
	rows := batch[0].Shape()[0] / texts_
	lo, hi := rows*rank/ranks, rows*(rank+1)/ranks
	if ranks > 2 && rank == 1 {
		return nil, nil
	}
	if ranks > 2 && rank == 2 {
		lo = rows / ranks
	}
	for i := range n {
		first, end := lo+(hi-lo)*i*i/n/n, lo+(hi-lo)*(i+1)*(i+1)/n/n
		if first == end {
			continue
		}
		part, err := texts(batch, first*texts_, end*texts_)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// TestInfoNCE compares vectors, losses and all gradients with sentence-transformers, on one to four
// ranks with one to four batches of different sizes, and without any on a rank.
func TestInfoNCE(t *testing.T) {
	for _, c := range sentences {
		g, numbers := safeGolden(t, filepath.Join(c.dir, "golden.safetensors")), numbersIn(t, filepath.Join(c.dir, "golden.safetensors"))
		for ranks := 1; ranks <= 4; ranks++ {
			for _, n := range []int{1, 2, 4} {
				for i, prefix := range []string{"grad.", "symmetric."} {
					t.Run(fmt.Sprintf("%s %s on %d with %d", filepath.Base(c.dir), prefix, ranks, n), func(t *testing.T) {
						saved := filepath.Join(t.TempDir(), "saved")
						m, err := hf.Open(c.dir)
						require.NoError(t, err)
						loss := nn.InfoNCE{Texts: c.texts, Symmetric: prefix == "symmetric."}
						onRanks(t, ranks, m.Model, fsdp.Float64, func(ctx context.Context, s *fsdp.Sharded) error {
							if err := m.Load(ctx, s); err != nil {
								return err
							}
							out, err := s.EvalProgram(ctx, nn.EmbedProgram, g.batch...)
							if err != nil {
								return err
							}
							require.InDeltaSlice(t, numbers["vectors"], out[0].Data(), 1e-10)
							batches, err := divide(g.batch, c.texts, s.Group().Rank(), ranks, n)
							if err != nil {
								return err
							}
							for _, f := range []func(context.Context, *fsdp.Sharded, ...[]fsdp.Tensor) (float64, error){loss.Eval, loss.ForwardBackward} {
								got, err := f(ctx, s, batches...)
								if err != nil {
									return err
								}
								if want := numbers["losses"][i]; !(math.Abs(got-want) <= 1e-10) {
									return fmt.Errorf("the loss is %v, want %v", got, want)
								}
							}
							grads, err := s.FullGrads(ctx)
							if err != nil {
								return err
							}
							if err := s.LoadStateDict(ctx, 0, grads); err != nil {
								return err
							}
							return m.Save(ctx, s, saved, &fsdp.ExportOptions{DType: new(fsdp.Float64)})
						})
						grads := numbersIn(t, filepath.Join(saved, "model.safetensors"))
						for tensor, want := range numbers {
							if tensor, ok := strings.CutPrefix(tensor, prefix); ok {
								require.InDeltaSlice(t, want, grads[tensor], 1e-10, tensor)
								delete(grads, tensor)
							}
						}
						require.Empty(t, grads)
					})
				}
			}
		}
	}
}

// TestSentences opens directories of sentence-transformers in its layouts, and what Save makes of
// them.
func TestSentences(t *testing.T) {
	for _, c := range sentences {
		t.Run(filepath.Base(c.dir), func(t *testing.T) {
			m, err := hf.Open(c.dir)
			require.NoError(t, err)
			require.Equal(t, c.maxTokens, m.MaxTokens)
			require.Empty(t, m.Drawn)
			switch e := m.Model.(type) {
			case *nn.BERT:
				require.Equal(t, []any{nn.EmbedSequences, c.mean, c.normalize}, []any{e.Task, e.MeanPool, e.Normalize})
			case *nn.ModernBERT:
				require.Equal(t, []any{nn.EmbedSequences, c.mean, c.normalize}, []any{e.Task, e.MeanPool, e.Normalize})
			}
			saved := filepath.Join(t.TempDir(), "saved")
			onRanks(t, 2, m.Model, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error {
				if err := m.Load(ctx, s); err != nil {
					return err
				}
				return m.Save(ctx, s, saved, nil)
			})
			want, got := tensors(t, weightsOf(c.dir)), tensors(t, saved)
			for name, value := range want {
				if !strings.HasPrefix(name, "pooler.") {
					require.Equal(t, value, got[name], name)
				}
			}
			require.Equal(t, keys(t, weightsOf(c.dir)), keys(t, saved))
			require.FileExists(t, filepath.Join(saved, "config_sentence_transformers.json"))
			again, err := hf.Open(saved)
			require.NoError(t, err)
			require.Equal(t, m.Model, again.Model)
			require.Equal(t, m.MaxTokens, again.MaxTokens)
		})
	}
}

// TestNewSentences makes encoders of sentences from directories with other heads, and from models
// that were made here.
func TestNewSentences(t *testing.T) {
	for _, dir := range []string{"bert", "bert_model", "bert_sequences", "roberta_masked", "distilbert_masked", "modernbert_masked", "modernbert_tokens", "xlmroberta_masked"} {
		dir := filepath.Join("..", "testdata", dir)
		m, err := hf.OpenWithHead(dir, hf.Head{Task: nn.EmbedSequences, MeanPool: true, Normalize: true})
		require.NoError(t, err)
		require.Empty(t, m.Drawn)
		saved := filepath.Join(t.TempDir(), "saved")
		onRanks(t, 2, m.Model, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error {
			if err := m.Load(ctx, s); err != nil {
				return err
			}
			return m.Save(ctx, s, saved, nil)
		})
		for name := range tensors(t, saved) {
			require.NotRegexp(t, `^(bert|roberta|distilbert|model|cls|lm_head|vocab_.*|head|decoder|classifier|pooler)\.`, name)
		}
		again, err := hf.Open(saved)
		require.NoError(t, err)
		require.Equal(t, m.Model, again.Model)
	}
	for _, model := range []fsdp.Model{
		&nn.BERT{Vocab: 11, Context: 7, Layers: 1, Dim: 6, Heads: 2, Hidden: 10, Eps: 1e-12, Kinds: 2, Task: nn.EmbedSequences, MeanPool: true},
		&nn.ModernBERT{Vocab: 11, Context: 7, Layers: 1, Dim: 6, Heads: 2, Hidden: 10, RopeBase: 1000, Eps: 1e-5, Task: nn.EmbedSequences, Normalize: true},
	} {
		m, err := hf.New(model)
		require.NoError(t, err)
		saved := filepath.Join(t.TempDir(), "saved")
		onRanks(t, 1, m.Model, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error { return m.Save(ctx, s, saved, nil) })
		again, err := hf.Open(saved)
		require.NoError(t, err)
		require.Equal(t, model, again.Model)
	}
}

// TestSentencesErrors refuses modules and settings by name.
func TestSentencesErrors(t *testing.T) {
	const kind = "sentence_transformers.models."
	write := func(t *testing.T, dir string, file string, value any) {
		text, err := json.Marshal(value)
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), text, 0o600))
	}
	module := func(path, kind string) map[string]string { return map[string]string{"path": path, "type": kind} }
	modules := []map[string]string{module("", kind+"Transformer"), module("1_Pooling", kind+"Pooling")}
	for _, c := range []struct {
		file  string
		value any
		want  string
	}{
		{"modules.json", append(modules[:2:2], module("2_Dense", kind+"Dense")), `modules.json: modules ["Transformer" "Pooling" "Dense"] are not supported, only Transformer, Pooling and perhaps Normalize: hf.OpenWithHead opens the encoder with another head`},
		{"modules.json", []map[string]string{module("", "mine.Transformer"), modules[1]}, `modules ["mine.Transformer" "Pooling"] are not supported`},
		{"modules.json", modules[:1], `modules ["Transformer"] are not supported`},
		{"modules.json", []map[string]string{module("../x", kind+"Transformer")}, `modules.json: module 0 has path "../x", want a directory within this one`},
		{"modules.json", 7, "modules.json: json: cannot unmarshal number"},
		{"1_Pooling/config.json", map[string]any{"pooling_mode_max_tokens": true}, `1_Pooling/config.json: pooling_mode ["max"] is not supported, only one of "cls" and "mean"`},
		{"1_Pooling/config.json", map[string]any{"pooling_mode": []string{"cls", "mean"}}, `pooling_mode ["cls" "mean"] is not supported`},
		{"1_Pooling/config.json", map[string]any{"include_prompt": false}, "include_prompt false is not supported, only true"},
		{"1_Pooling/config.json", map[string]any{"temperature": 2}, "temperature 2 is unknown, and may change the model"},
		{"sentence_bert_config.json", map[string]any{"do_lower_case": true}, `sentence_bert_config.json: do_lower_case true is unknown, and may change the model: if it does not, skip it by hf.Open(dir, "do_lower_case")`},
		{"sentence_bert_config.json", map[string]any{"transformer_task": "fill-mask"}, `transformer_task "fill-mask" is not supported, only feature-extraction`},
		{"tokenizer_config.json", 7, "tokenizer_config.json: json: cannot unmarshal number"},
	} {
		dir := filepath.Join(t.TempDir(), "bert")
		require.NoError(t, os.CopyFS(dir, os.DirFS("../testdata/bert_model")))
		write(t, dir, "modules.json", modules)
		write(t, dir, c.file, c.value)
		_, err := hf.Open(dir)
		require.ErrorContains(t, err, c.want)
		if !strings.Contains(c.want, "../x") && c.value != 7 {
			_, err = hf.OpenWithHead(dir, hf.Head{Task: nn.ClassifyTokens, Labels: []string{"a", "b"}})
			require.NoError(t, err)
		}
		if strings.Contains(c.want, "do_lower_case") {
			_, err = hf.Open(dir, "do_lower_case")
			require.NoError(t, err)
		}
	}
}
