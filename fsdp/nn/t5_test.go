package nn_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

var t5Names = renamed(
	`embed\.(.*)`, `shared.$1`,
	`head\.(.*)`, `lm_head.$1`,
	`(..coder)\.positions\.(.*)`, `$1.block.0.layer.0.SelfAttention.relative_attention_bias.$2`,
	`(..coder)\.norm\.(.*)`, `$1.final_layer_norm.$2`,
	`(..coder)\.layers\.(\d+)\.attn_norm\.(.*)`, `$1.block.$2.layer.0.layer_norm.$3`,
	`(..coder)\.layers\.(\d+)\.cross_norm\.(.*)`, `$1.block.$2.layer.1.layer_norm.$3`,
	`encoder\.layers\.(\d+)\.mlp_norm\.(.*)`, `encoder.block.$1.layer.1.layer_norm.$2`,
	`decoder\.layers\.(\d+)\.mlp_norm\.(.*)`, `decoder.block.$1.layer.2.layer_norm.$2`,
	`(..coder)\.layers\.(\d+)\.attn\.qkv\.(.*)`, `$1.block.$2.layer.0.SelfAttention.q.$3|$1.block.$2.layer.0.SelfAttention.k.$3|$1.block.$2.layer.0.SelfAttention.v.$3`,
	`(..coder)\.layers\.(\d+)\.attn\.proj\.(.*)`, `$1.block.$2.layer.0.SelfAttention.o.$3`,
	`(..coder)\.layers\.(\d+)\.cross\.([qkv])\.(.*)`, `$1.block.$2.layer.1.EncDecAttention.$3.$4`,
	`(..coder)\.layers\.(\d+)\.cross\.proj\.(.*)`, `$1.block.$2.layer.1.EncDecAttention.o.$3`,
	`encoder\.layers\.(\d+)\.mlp\.(fc|out)\.(.*)`, `encoder.block.$1.layer.1.DenseReluDense.$2.$3`,
	`decoder\.layers\.(\d+)\.mlp\.(fc|out)\.(.*)`, `decoder.block.$1.layer.2.DenseReluDense.$2.$3`,
)

// t5MLP returns t5Names, with those names for the layer fc of an MLP, and wo for out.
func t5MLP(fc ...string) func(string) []string {
	return func(name string) (names []string) {
		for _, n := range t5Names(name) {
			module, ours, ok := strings.Cut(n, "DenseReluDense.")
			switch {
			case !ok:
				names = append(names, n)
			case ours == "out.weight":
				names = append(names, module+"DenseReluDense.wo.weight")
			default:
				for _, theirs := range fc {
					names = append(names, module+"DenseReluDense."+theirs+".weight")
				}
			}
		}
		return names
	}
}

func t5() *nn.T5 {
	return &nn.T5{Vocab: 19, Encoder: 2, Decoder: 2, Dim: 8, Heads: 3, HeadDim: 4, Hidden: 12, Buckets: 8, MaxDistance: 7, Act: nn.ReLU, Tied: true}
}

func t5v11() *nn.T5 {
	m := t5()
	m.Act, m.Gated, m.Tied = nn.GELUTanh, true, false
	return m
}

func t5v11Tied() *nn.T5 {
	m := t5v11()
	m.Act, m.Tied, m.NoScale = nn.SiLU, true, true
	return m
}

// TestT5 compares both versions, and the second one with a tied head, on sequences with padding.
func TestT5(t *testing.T) {
	for _, g := range []golden{
		{"t5", t5(), t5MLP("wi")},
		{"t5v1_1", t5v11(), t5MLP("wi_0", "wi_1")},
		{"t5v1_1tied", t5v11Tied(), t5MLP("wi_0", "wi_1")},
	} {
		g.test(t)
	}
}

// TestBuckets compares buckets of relative positions with those that transformers computes in
// float32.
func TestBuckets(t *testing.T) {
	file := read(t, "testdata/t5/golden.safetensors")
	for name, causal := range map[string]bool{"bidirectional": false, "causal": true} {
		want := file[name].Ints()
		for i, bucket := range want {
			r := kernel.Relative{Buckets: 32, MaxDistance: 128, Causal: causal}
			require.Equal(t, bucket, r.Bucket(i-len(want)/2), "%s, offset %d", name, i-len(want)/2)
		}
	}
}
