package nn_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// TestModernBERT compares layers with and without a window, and the mean of tokens.
func TestModernBERT(t *testing.T) {
	golden{"modernbert_sequences", &nn.ModernBERT{
		Vocab: 19, Layers: 5, Dim: 8, Heads: 2, Hidden: 12, Window: 4, FullEvery: 2, RopeBase: 1000, LocalRopeBase: 100,
		Task: nn.ClassifySequences, Classes: 3, MeanPool: true,
	}, renamed(
		`embed\.(.*)`, `model.embeddings.tok_embeddings.$1`,
		`embed_norm\.(.*)`, `model.embeddings.norm.$1`,
		`norm\.(.*)`, `model.final_norm.$1`,
		`layers\.(\d+)\.attn\.qkv\.(.*)`, `model.layers.$1.attn.Wqkv.$2`,
		`layers\.(\d+)\.attn\.proj\.(.*)`, `model.layers.$1.attn.Wo.$2`,
		`layers\.(\d+)\.mlp\.fc\.(.*)`, `model.layers.$1.mlp.Wi.$2`,
		`layers\.(\d+)\.mlp\.out\.(.*)`, `model.layers.$1.mlp.Wo.$2`,
		`layers\.(.*)`, `model.layers.$1`,
		`transform\.fc\.(.*)`, `head.dense.$1`,
		`transform\.norm\.(.*)`, `head.norm.$1`,
		`head\.(.*)`, `classifier.$1`,
	)}.test(t)
}

// TestModernBERTWithoutTokens gives a sequence without tokens finite logits.
func TestModernBERTWithoutTokens(t *testing.T) {
	m := &nn.ModernBERT{Vocab: 5, Layers: 1, Dim: 4, Heads: 2, Hidden: 3, Task: nn.ClassifySequences, Classes: 2, MeanPool: true}
	tokens, mask := ints([]int{2, 3}, 1, 2, 3, 1, 2, 3), ints([]int{2, 3}, 1, 1, 0, 0, 0, 0)
	s := wrap(t, m)
	out, err := s.Eval(t.Context(), tokens, mask, ints([]int{2}, 0, 1))
	require.NoError(t, err)
	for _, logit := range out[1].Data().([]float64) {
		require.InDelta(t, 0, logit, 1e3)
	}
}
