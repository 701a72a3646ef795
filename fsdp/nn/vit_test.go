package nn_test

import (
	"testing"

	"github.com/gofsdp/gofsdp/fsdp/nn"
)

var vitNames = renamed(
	`patches\.class`, `vit.embeddings.cls_token`,
	`patches\.positions`, `vit.embeddings.position_embeddings`,
	`patches\.(.*)`, `vit.embeddings.patch_embeddings.projection.$1`,
	`norm\.(.*)`, `vit.layernorm.$1`,
	`head\.(.*)`, `classifier.$1`,
	`layers\.(\d+)\.attn_norm\.(.*)`, `vit.encoder.layer.$1.layernorm_before.$2`,
	`layers\.(\d+)\.mlp_norm\.(.*)`, `vit.encoder.layer.$1.layernorm_after.$2`,
	`layers\.(\d+)\.attn\.qkv\.(.*)`, `vit.encoder.layer.$1.attention.attention.query.$2|vit.encoder.layer.$1.attention.attention.key.$2|vit.encoder.layer.$1.attention.attention.value.$2`,
	`layers\.(\d+)\.attn\.proj\.(.*)`, `vit.encoder.layer.$1.attention.output.dense.$2`,
	`layers\.(\d+)\.mlp\.fc\.(.*)`, `vit.encoder.layer.$1.intermediate.dense.$2`,
	`layers\.(\d+)\.mlp\.out\.(.*)`, `vit.encoder.layer.$1.output.dense.$2`,
)

func vit() *nn.ViT {
	return &nn.ViT{Height: 6, Width: 9, Patch: 3, Classes: 5, Layers: 2, Dim: 12, Heads: 3, Hidden: 20}
}

// TestViT compares one on images that are not square.
func TestViT(t *testing.T) {
	for _, g := range []golden{
		{"vit", vit(), vitNames},
	} {
		g.test(t)
	}
}
