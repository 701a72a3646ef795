package nn_test

import (
	"testing"

	"github.com/gofsdp/gofsdp/fsdp/nn"
)

var bertNames = renamed(
	`embed\.(.*)`, `bert.embeddings.word_embeddings.$1`,
	`kinds\.(.*)`, `bert.embeddings.token_type_embeddings.$1`,
	`positions\.(.*)`, `bert.embeddings.position_embeddings.$1`,
	`embed_norm\.(.*)`, `bert.embeddings.LayerNorm.$1`,
	`transform\.fc\.(.*)`, `cls.predictions.transform.dense.$1`,
	`transform\.norm\.(.*)`, `cls.predictions.transform.LayerNorm.$1`,
	`head\.bias`, `cls.predictions.bias`,
	`layers\.(\d+)\.attn_norm\.(.*)`, `bert.encoder.layer.$1.attention.output.LayerNorm.$2`,
	`layers\.(\d+)\.mlp_norm\.(.*)`, `bert.encoder.layer.$1.output.LayerNorm.$2`,
	`layers\.(\d+)\.attn\.qkv\.(.*)`, `bert.encoder.layer.$1.attention.self.query.$2|bert.encoder.layer.$1.attention.self.key.$2|bert.encoder.layer.$1.attention.self.value.$2`,
	`layers\.(\d+)\.attn\.proj\.(.*)`, `bert.encoder.layer.$1.attention.output.dense.$2`,
	`layers\.(\d+)\.mlp\.fc\.(.*)`, `bert.encoder.layer.$1.intermediate.dense.$2`,
	`layers\.(\d+)\.mlp\.out\.(.*)`, `bert.encoder.layer.$1.output.dense.$2`,
)

func bert() *nn.BERT {
	return &nn.BERT{Vocab: 19, Context: 11, Layers: 2, Dim: 12, Heads: 3, Hidden: 20}
}

// TestBERT compares a BERT whose sequences have padding.
func TestBERT(t *testing.T) {
	for _, g := range []golden{
		{"bert", bert(), bertNames},
	} {
		g.test(t)
	}
}
