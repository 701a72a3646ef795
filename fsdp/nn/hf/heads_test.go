package hf_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
)

// part returns the rows of a rank. Rank 0 has one row less than the others, or more.
func part(batch []fsdp.Tensor, rank, ranks int) (rows []fsdp.Tensor, err error) {
	for _, b := range batch {
		n := b.Shape()[0]
		lo, hi := n*rank/ranks, n*(rank+1)/ranks
		if lo > 0 {
			lo--
		}
		if hi < n {
			hi--
		}
		v, err := b.(*tensor.Dense).Slice(tensor.S(lo, hi))
		if err != nil {
			return nil, err
		}
		rows = append(rows, v.Materialize().(*tensor.Dense))
	}
	return rows, nil
}

// TestHeads compares the loss and all gradients of encoders with heads with PyTorch, on one to four
// ranks with different numbers of rows. The gradients are saved under the names of transformers.
func TestHeads(t *testing.T) {
	for _, name := range []string{
		"bert_sequences", "bert_tokens", "roberta_sequences", "roberta_masked", "distilbert_sequences", "distilbert_masked",
		"modernbert_masked", "modernbert_sequences", "modernbert_tokens", "xlmroberta_sequences", "xlmroberta_masked",
	} {
		dir := filepath.Join("..", "testdata", name)
		file := filepath.Join(dir, "golden.safetensors")
		g, numbers := goldenOf(t, dir), numbersIn(t, file)
		for ranks := 1; ranks <= 4; ranks++ {
			t.Run(fmt.Sprintf("%s on %d", name, ranks), func(t *testing.T) {
				saved := filepath.Join(t.TempDir(), "saved")
				m, err := hf.Open(dir)
				require.NoError(t, err)
				require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, group comm.Group) error {
					s, err := fsdp.Wrap(m.Model, fsdp.Config{Group: group, WrapPolicy: fsdp.WrapEach(), Precision: fsdp.Precision{Compute: fsdp.Float64}, Poison: true})
					if err != nil {
						return err
					}
					defer s.Close()
					if err := m.Load(ctx, s); err != nil {
						return err
					}
					out, err := s.Eval(ctx, g.batch...)
					if err != nil {
						return err
					}
					if loss := out[0].Data().([]float64)[0]; !(math.Abs(loss-numbers["losses"][0]) <= 1e-10) {
						return fmt.Errorf("the loss is %v, want %v", loss, numbers["losses"][0])
					}
					batch, err := part(g.batch, group.Rank(), ranks)
					if err != nil {
						return err
					}
					if _, err := s.Forward(ctx, batch...); err != nil {
						return err
					}
					if err := s.Backward(ctx, fsdp.Share(batch)); err != nil {
						return err
					}
					grads, err := s.FullGrads(ctx)
					if err != nil {
						return err
					}
					if err := s.LoadStateDict(ctx, 0, grads); err != nil {
						return err
					}
					return m.Save(ctx, s, saved, &fsdp.ExportOptions{DType: new(fsdp.Float64)})
				}))
				grads := numbersIn(t, filepath.Join(saved, "model.safetensors"))
				for tensor, want := range numbers {
					if tensor, ok := strings.CutPrefix(tensor, "grad."); ok {
						require.InDeltaSlice(t, want, grads[tensor], 1e-10, tensor)
						delete(grads, tensor)
					}
				}
				require.Empty(t, grads)
			})
		}
	}
}

// TestNewHead gives encoders new heads, over directories with and without a head: the encoder keeps
// its weights, the head is drawn by the seed for any number of ranks, and Open reads what Save
// writes.
func TestNewHead(t *testing.T) {
	pooler, head := []string{"pool.weight", "pool.bias"}, []string{"head.weight", "head.bias"}
	both, transform := append(head[:2:2], pooler...), []string{"transform.fc.weight", "transform.norm.weight"}
	for _, c := range []struct {
		dir, class string
		head       hf.Head
		drawn      []string
	}{
		{"bert_model", "BertForSequenceClassification", hf.Head{Task: nn.ClassifySequences, Labels: []string{"no", "yes"}}, head},
		{"bert", "BertForSequenceClassification", hf.Head{Task: nn.ClassifySequences, Labels: []string{"no", "maybe", "yes"}}, both},
		{"bert_sequences", "BertForSequenceClassification", hf.Head{Task: nn.ClassifySequences, Labels: []string{"x", "y"}, Targets: nn.ManyClasses}, head},
		{"bert_sequences", "BertForTokenClassification", hf.Head{Task: nn.ClassifyTokens, Labels: []string{"O", "B", "I"}}, head},
		{"roberta_model", "RobertaForSequenceClassification", hf.Head{Task: nn.ClassifySequences, Labels: []string{"score"}, Targets: nn.Numbers}, both},
		{"roberta_masked", "RobertaForSequenceClassification", hf.Head{Task: nn.ClassifySequences, Labels: []string{"no", "yes"}}, both},
		{"roberta_masked", "RobertaForTokenClassification", hf.Head{Task: nn.ClassifyTokens, Labels: []string{"O", "B"}}, head},
		{"distilbert_model", "DistilBertForSequenceClassification", hf.Head{Task: nn.ClassifySequences, Labels: []string{"no", "yes"}}, both},
		{"distilbert_masked", "DistilBertForTokenClassification", hf.Head{Task: nn.ClassifyTokens, Labels: []string{"O", "B"}}, head},
		{"modernbert_model", "ModernBertForSequenceClassification", hf.Head{Task: nn.ClassifySequences, Labels: []string{"no", "yes"}}, append(head[:2:2], transform...)},
		{"modernbert_masked", "ModernBertForSequenceClassification", hf.Head{Task: nn.ClassifySequences, Labels: []string{"x", "y", "z"}, Targets: nn.ManyClasses}, head},
		{"modernbert_sequences", "ModernBertForTokenClassification", hf.Head{Task: nn.ClassifyTokens, Labels: []string{"O", "B"}}, head},
		{"xlmroberta_masked", "XLMRobertaForSequenceClassification", hf.Head{Task: nn.ClassifySequences, Labels: []string{"no", "yes"}}, both},
		{"xlmroberta_sequences", "XLMRobertaForTokenClassification", hf.Head{Task: nn.ClassifyTokens, Labels: []string{"O", "B"}}, head},
		{"modernbert_masked", "ModernBertForTokenClassification", hf.Head{Task: nn.ClassifyTokens, Labels: []string{"O", "B"}}, head},
	} {
		t.Run(c.dir+" "+c.class, func(t *testing.T) {
			dir := filepath.Join("..", "testdata", c.dir)
			var before map[string]string
			for _, ranks := range []int{1, 3} {
				saved := filepath.Join(t.TempDir(), "saved")
				m, err := hf.OpenWithHead(dir, c.head)
				require.NoError(t, err)
				require.Equal(t, c.drawn, m.Drawn)
				onRanks(t, ranks, m.Model, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error {
					if err := m.Load(ctx, s); err != nil {
						return err
					}
					return m.Save(ctx, s, saved, nil)
				})
				after := tensors(t, saved)
				if before != nil {
					require.Equal(t, before, after)
				}
				before = after
				encoder, base := 0, strings.ToLower(c.class[:strings.Index(c.class, "For")])+"."
				base = cmp.Or(map[string]string{"modernbert.": "model.", "xlmroberta.": "roberta."}[base], base)
				for name, value := range tensors(t, dir) {
					if same, ok := after[base+strings.TrimPrefix(name, base)]; ok && !oldHead(name) {
						require.Equal(t, value, same, name)
						encoder++
					}
				}
				require.Greater(t, encoder, 15)
				require.Equal(t, []any{c.class}, keys(t, saved)["architectures"])
				again, err := hf.Open(saved)
				require.NoError(t, err)
				require.Equal(t, m.Model, again.Model)
				require.Equal(t, c.head.Labels, again.Labels)
				require.Empty(t, again.Drawn)
				onRanks(t, 2, again.Model, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error { return again.Load(ctx, s) })
			}
		})
	}
	for _, c := range []struct {
		dir, want string
		head      hf.Head
	}{
		{"testdata/gpt2", "config.json: a new head is only for encoders of model_type bert, roberta, distilbert, xlm-roberta, modernbert, not for gpt2", hf.Head{Task: nn.ClassifySequences, Labels: []string{"a"}}},
		{"../testdata/bert", "the new head has task 0, want nn.ClassifySequences, nn.ClassifyTokens or nn.EmbedSequences", hf.Head{Labels: []string{"a"}}},
		{"../testdata/bert", `the new head has labels ["a" "a"], want names that differ`, hf.Head{Task: nn.ClassifyTokens, Labels: []string{"a", "a"}}},
		{"../testdata/bert", `the new head has labels [], want names that differ`, hf.Head{Task: nn.ClassifyTokens}},
	} {
		_, err := hf.OpenWithHead(c.dir, c.head)
		require.EqualError(t, err, "hf: "+c.dir+": "+c.want)
	}
}

// oldHead reports whether a tensor is of a head.
func oldHead(name string) bool {
	return strings.HasPrefix(name, "classifier.") || strings.HasPrefix(name, "cls.") || strings.HasPrefix(name, "lm_head.") || strings.HasPrefix(name, "vocab_")
}

// TestLabels keeps the names of classes in config.json, and changes them with Model.Labels.
func TestLabels(t *testing.T) {
	const dir = "../testdata/bert_sequences"
	m, err := hf.Open(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"bad", "fair", "good"}, m.Labels)
	saved := filepath.Join(t.TempDir(), "saved")
	onRanks(t, 1, m.Model, fsdp.Float32, func(ctx context.Context, s *fsdp.Sharded) error {
		if err := m.Load(ctx, s); err != nil {
			return err
		}
		m.Labels = []string{"one", "two"}
		require.ErrorContains(t, m.Save(ctx, s, saved, nil), "hf: Save: Model.Labels has 2 names, but the model has 3 classes")
		m.Labels = append(m.Labels, "three")
		return m.Save(ctx, s, saved, nil)
	})
	again, err := hf.Open(saved)
	require.NoError(t, err)
	require.Equal(t, m.Labels, again.Labels)

	made, err := hf.New(&nn.BERT{Vocab: 11, Context: 7, Layers: 1, Dim: 6, Heads: 2, Hidden: 10, Task: nn.ClassifyTokens, Classes: 2})
	require.NoError(t, err)
	require.Equal(t, []string{"LABEL_0", "LABEL_1"}, made.Labels)
	for _, c := range []struct {
		key   string
		value any
		want  string
	}{
		{"id2label", map[string]string{"0": "a", "2": "c", "1": "b", "4": "e"}, "id2label has 4 classes, but no class 3"},
		{"num_labels", 7, "num_labels is 7, but id2label has 3 classes"},
		{"num_labels", 1 << 30, "num_labels is 1073741824, want at most 1048576"},
		{"id2label", map[string]string{}, "id2label has no classes"},
		{"id2label", map[string]string{"0": "a", "1": "b"}, "config.json: id2label requires tensor classifier.weight with shape [2 8], but the shape is [3 8]"},
		{"problem_type", "ranking", `problem_type "ranking" is not supported, only`},
		{"architectures", []string{"BertForQuestionAnswering"}, `architectures ["BertForQuestionAnswering"] is not supported, only ["BertForMaskedLM" "BertModel"`},
	} {
		_, err := hf.Open(changed(t, dir, c.key, c.value))
		require.ErrorContains(t, err, c.want)
	}
	text, err := os.ReadFile(filepath.Join("..", "testdata", "distilbert_sequences", "config.json"))
	require.NoError(t, err)
	model, err := hf.ReadConfig(text)
	require.NoError(t, err)
	require.Equal(t, nn.Numbers, model.(*nn.BERT).Targets, "one class without problem_type")
}
