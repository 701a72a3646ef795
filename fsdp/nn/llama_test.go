package nn_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

var llamaPairs = []string{
	`embed\.(.*)`, `model.embed_tokens.$1`,
	`norm\.(.*)`, `model.norm.$1`,
	`head\.(.*)`, `lm_head.$1`,
	`layers\.(\d+)\.attn_norm\.(.*)`, `model.layers.$1.input_layernorm.$2`,
	`layers\.(\d+)\.mlp_norm\.(.*)`, `model.layers.$1.post_attention_layernorm.$2`,
	`layers\.(\d+)\.attn\.qkv\.(.*)`, `model.layers.$1.self_attn.q_proj.$2|model.layers.$1.self_attn.k_proj.$2|model.layers.$1.self_attn.v_proj.$2`,
	`layers\.(\d+)\.attn\.proj\.(.*)`, `model.layers.$1.self_attn.o_proj.$2`,
	`layers\.(\d+)\.attn\.([qkv])\.(.*)`, `model.layers.$1.self_attn.${2}_proj.$3`,
	`layers\.(\d+)\.attn\.([qk]_norm)\.(.*)`, `model.layers.$1.self_attn.$2.$3`,
	`layers\.(\d+)\.mlp\.fc\.(.*)`, `model.layers.$1.mlp.gate_proj.$2|model.layers.$1.mlp.up_proj.$2`,
	`layers\.(\d+)\.mlp\.out\.(.*)`, `model.layers.$1.mlp.down_proj.$2`,
}

var llamaNames = renamed(llamaPairs...)

// gemmaNames are the names of Gemma 3, whose layers have two norms more.
var gemmaNames = renamed(append([]string{
	`layers\.(\d+)\.attn_post_norm\.(.*)`, `model.layers.$1.post_attention_layernorm.$2`,
	`layers\.(\d+)\.mlp_norm\.(.*)`, `model.layers.$1.pre_feedforward_layernorm.$2`,
	`layers\.(\d+)\.mlp_post_norm\.(.*)`, `model.layers.$1.post_feedforward_layernorm.$2`,
}, llamaPairs...)...)

// TestLlama compares the settings that are other models, too.
func TestLlama(t *testing.T) {
	for _, g := range []golden{
		{"llama", &nn.Llama{
			Vocab: 19, Layers: 2, Dim: 8, Heads: 4, KVHeads: 2, HeadDim: 8, Hidden: 20, Eps: 1e-5, RopeBase: 100,
			RopeScaling: op.RopeScaling{Factor: 8, LowFreq: 1, HighFreq: 4, Original: 64},
		}, llamaNames},
		{"mistral", &nn.Llama{
			Vocab: 19, Layers: 2, Dim: 8, Heads: 4, KVHeads: 2, HeadDim: 4, Hidden: 20, RopeBase: 1000, Window: 3,
		}, llamaNames},
		{"mistral_packed", &nn.Llama{
			Vocab: 19, Layers: 2, Dim: 8, Heads: 4, KVHeads: 2, HeadDim: 4, Hidden: 20, RopeBase: 1000, Window: 3, Packed: true,
		}, llamaNames},
		{"qwen2", &nn.Llama{
			Vocab: 19, Layers: 2, Dim: 16, Heads: 4, KVHeads: 2, Hidden: 20, RopeBase: 1e6, QKVBias: true, Tied: true,
		}, llamaNames},
		{"qwen3", &nn.Llama{
			Vocab: 19, Layers: 2, Dim: 8, Heads: 4, KVHeads: 2, HeadDim: 6, Hidden: 20, RopeBase: 1e6, QKNorm: true, Tied: true,
		}, llamaNames},
		{"gemma3", &nn.Llama{
			Vocab: 19, Layers: 3, Dim: 16, Heads: 4, KVHeads: 2, HeadDim: 6, Hidden: 20, Scale: 1.0 / 3, QKNorm: true, Tied: true, Gemma: true,
			RopeBase: 1e6, RopeScaling: op.RopeScaling{Factor: 8}, LocalRopeBase: 100, Window: 3, FullEvery: 2,
		}, gemmaNames},
	} {
		g.test(t)
	}
}

// TestLlamaBeyondContext: Context limits generation only, not a batch.
func TestLlamaBeyondContext(t *testing.T) {
	m := wrap(t, &nn.Llama{Vocab: 7, Layers: 1, Dim: 4, Heads: 1, Hidden: 4, Context: 3})
	long := wrap(t, &nn.Llama{Vocab: 7, Layers: 1, Dim: 4, Heads: 1, Hidden: 4, Context: 9})
	x := ints([]int{1, 5}, 1, 2, 3, 4, 5)
	require.Equal(t, eval(t, long, x, x), eval(t, m, x, x))
}
