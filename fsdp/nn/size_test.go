package nn_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// sized is a model that says how large it is.
type sized interface {
	fsdp.Model
	NumParams() int
}

// TestNumParams compares what models say with what is planned for them.
func TestNumParams(t *testing.T) {
	tokens := ints([]int{1, 3}, 0, 1, 2)
	for _, c := range []struct {
		model sized
		batch []fsdp.Tensor
	}{
		{gpt2(), []fsdp.Tensor{tokens, tokens}},
		{&nn.Llama{Vocab: 5, Layers: 2, Dim: 6, Heads: 3, KVHeads: 1, Hidden: 5, Tied: true}, []fsdp.Tensor{tokens, tokens}},
		{&nn.Llama{Vocab: 5, Layers: 2, Dim: 6, Heads: 2, HeadDim: 4, Hidden: 5, QKNorm: true, LoRA: nn.LoRA{Rank: 2}}, []fsdp.Tensor{tokens, tokens}},
		{&nn.GPT{Vocab: 5, Context: 4, Layers: 3, Dim: 6, Heads: 2, NoBias: true, LoRA: nn.LoRA{Rank: 2}}, []fsdp.Tensor{tokens, tokens}},
	} {
		s, err := fsdp.Wrap(c.model, fsdp.Config{})
		require.NoError(t, err)
		plan, err := s.Plan(c.batch...)
		require.NoError(t, err)
		require.Equal(t, plan.Params, c.model.NumParams(), "%+v", c.model)
	}
}

// TestSizesOfWellKnownModels has the numbers that their papers and files give.
func TestSizesOfWellKnownModels(t *testing.T) {
	small := &nn.GPT{Vocab: 50257, Context: 1024, Layers: 12, Dim: 768, Heads: 12, Tied: true} // gpt2
	require.Equal(t, 124_439_808, small.NumParams())
	llama2 := &nn.Llama{Vocab: 32000, Layers: 32, Dim: 4096, Heads: 32, Hidden: 11008}
	require.Equal(t, 6_738_415_616, llama2.NumParams()) // 7B
	llama3 := &nn.Llama{Vocab: 128256, Layers: 32, Dim: 4096, Heads: 32, KVHeads: 8, Hidden: 14336}
	require.Equal(t, 8_030_261_248, llama3.NumParams()) // 8B
	mistral := &nn.Llama{Vocab: 32000, Layers: 32, Dim: 4096, Heads: 32, KVHeads: 8, Hidden: 14336, Window: 4096}
	require.Equal(t, 7_241_732_096, mistral.NumParams()) // 7B, v0.1
	qwen2 := &nn.Llama{Vocab: 151936, Layers: 24, Dim: 896, Heads: 14, KVHeads: 2, Hidden: 4864, QKVBias: true, Tied: true}
	require.Equal(t, 494_032_768, qwen2.NumParams()) // 0.5B
	qwen3 := &nn.Llama{Vocab: 151936, Layers: 28, Dim: 1024, Heads: 16, KVHeads: 8, HeadDim: 128, Hidden: 3072, QKNorm: true, Tied: true}
	require.Equal(t, 596_049_920, qwen3.NumParams()) // 0.6B
	require.Equal(t, 6*28*(1024*(16+8+8)*128+16*128*1024+3*1024*3072)+6*151936*1024+12*28*16*128*100, qwen3.FLOPs(100))
	require.Equal(t, mistral.FLOPs(4096), mistral.FLOPs(5000), "no token looks at more than the window")
	// Six for each of the 12·768² weights of a block and the head's, and twelve for each pair.
	require.Equal(t, 6*(12*12*768*768+50257*768)+12*12*768*1024, small.FLOPs(1024))
}
