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

// TestNumParams compares what models say with what is planned for them, all of which runs natively.
func TestNumParams(t *testing.T) {
	tokens, zeros := ints([]int{1, 3}, 0, 1, 2), ints([]int{1, 3}, 0, 0, 0)
	for _, c := range []struct {
		model sized
		batch []fsdp.Tensor
	}{
		{gpt2(), []fsdp.Tensor{tokens, tokens}},
		{&nn.Llama{Vocab: 5, Layers: 2, Dim: 6, Heads: 3, KVHeads: 1, Hidden: 5, Tied: true}, []fsdp.Tensor{tokens, tokens}},
		{&nn.Llama{Vocab: 5, Layers: 2, Dim: 6, Heads: 2, HeadDim: 4, Hidden: 5, QKNorm: true, LoRA: nn.LoRA{Rank: 2}}, []fsdp.Tensor{tokens, tokens}},
		{&nn.Llama{Vocab: 5, Layers: 2, Dim: 6, Heads: 2, HeadDim: 4, Hidden: 5, QKNorm: true, Gemma: true, Window: 2, FullEvery: 2, Tied: true}, []fsdp.Tensor{tokens, tokens}},
		{&nn.ModernBERT{Vocab: 5, Layers: 3, Dim: 8, Heads: 2, Hidden: 5, Window: 2, FullEvery: 2, LoRA: nn.LoRA{Rank: 2}}, []fsdp.Tensor{tokens, tokens, tokens}},
		{&nn.ModernBERT{Vocab: 5, Layers: 1, Dim: 8, Heads: 2, Hidden: 5, Task: nn.ClassifySequences, Classes: 3, MeanPool: true}, []fsdp.Tensor{tokens, tokens, ints([]int{1}, 2)}},
		{bert(), []fsdp.Tensor{tokens, tokens, tokens, tokens}},
		{&nn.BERT{Vocab: 5, Context: 4, Kinds: 3, Layers: 1, Dim: 6, Heads: 2, Hidden: 5, LoRA: nn.LoRA{Rank: 2}}, []fsdp.Tensor{tokens, tokens, tokens, tokens}},
		{&nn.BERT{Vocab: 5, Context: 4, Kinds: 1, FirstPosition: 2, Layers: 1, Dim: 6, Heads: 2, Hidden: 5, Task: nn.ClassifyTokens, Classes: 3}, []fsdp.Tensor{tokens, zeros, tokens, tokens}},
		{&nn.BERT{Vocab: 5, Context: 4, Kinds: -1, Layers: 1, Dim: 6, Heads: 2, Hidden: 5, Task: nn.ClassifySequences, Classes: 3}, []fsdp.Tensor{tokens, tokens, ints([]int{1}, 2)}},
		{&nn.BERT{Vocab: 5, Context: 4, Kinds: -1, Layers: 1, Dim: 6, Heads: 2, Hidden: 5, Task: nn.EmbedSequences, Normalize: true}, []fsdp.Tensor{tokens, tokens, floats(1, 6)}},
		{&nn.ModernBERT{Vocab: 5, Layers: 1, Dim: 8, Heads: 2, Hidden: 5, Task: nn.EmbedSequences, MeanPool: true}, []fsdp.Tensor{tokens, tokens, floats(1, 8)}},
		{vit(), []fsdp.Tensor{floats(1, 3, 6, 9), ints([]int{1}, 0)}},
		{&nn.ViT{Height: 4, Width: 4, Patch: 2, Channels: 1, Classes: 3, Layers: 1, Dim: 4, Heads: 2, Hidden: 8, LoRA: nn.LoRA{Rank: 1}}, []fsdp.Tensor{floats(1, 1, 4, 4), ints([]int{1}, 0)}},
		{t5(), []fsdp.Tensor{tokens, tokens, tokens, tokens}},
		{t5v11(), []fsdp.Tensor{tokens, tokens, tokens, tokens}},
		{&nn.T5{Vocab: 5, Encoder: 1, Decoder: 2, Dim: 4, Heads: 2, Hidden: 3, LoRA: nn.LoRA{Rank: 2}}, []fsdp.Tensor{tokens, tokens, tokens, tokens}},
		{&nn.GPT{Vocab: 5, Context: 4, Layers: 3, Dim: 6, Heads: 2, NoBias: true, LoRA: nn.LoRA{Rank: 2}}, []fsdp.Tensor{tokens, tokens}},
	} {
		s, err := fsdp.Wrap(c.model, fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float64}})
		require.NoError(t, err)
		plan, err := s.Plan(c.batch...)
		require.NoError(t, err)
		require.Equal(t, plan.Params, c.model.NumParams(), "%+v", c.model)
		require.Empty(t, plan.Stock, "%+v", c.model)
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
	gemma3 := &nn.Llama{Vocab: 262144, Layers: 26, Dim: 1152, Heads: 4, KVHeads: 1, HeadDim: 256, Hidden: 6912, QKNorm: true, Gemma: true, Window: 512, FullEvery: 6, Tied: true}
	require.Equal(t, 999_885_952, gemma3.NumParams()) // 1B
	require.Equal(t, 12*4*256*(4*100), gemma3.FLOPs(612)-gemma3.FLOPs(512), "four layers have no window")
	base := &nn.BERT{Vocab: 30522, Context: 512, Layers: 12, Dim: 768, Heads: 12, Hidden: 3072}
	require.Equal(t, 109_514_298, base.NumParams()) // bert-base-uncased, for masked tokens
	require.Equal(t, 6*(12*12*768*768+768*768+30522*768)+12*12*768*128, base.FLOPs(128))
	modern := &nn.ModernBERT{Vocab: 50368, Layers: 22, Dim: 768, Heads: 12, Hidden: 1152, Window: 65, FullEvery: 3}
	require.Equal(t, 149_655_232, modern.NumParams()) // base, for masked tokens
	require.Equal(t, 12*768*8*100, modern.FLOPs(612)-modern.FLOPs(512), "eight layers have no window")
	b16 := &nn.ViT{Height: 224, Width: 224, Patch: 16, Classes: 1000, Layers: 12, Dim: 768, Heads: 12, Hidden: 3072}
	require.Equal(t, 86_567_656, b16.NumParams()) // B/16
	require.Equal(t, 6*(197*12*12*768*768+196*768*768+1000*768)+12*12*768*197*197, b16.FLOPs())
	small5 := &nn.T5{Vocab: 32128, Encoder: 6, Decoder: 6, Dim: 512, Heads: 8, Hidden: 2048, Tied: true}
	require.Equal(t, 60_506_624, small5.NumParams()) // t5-small
	const attn, mlp = 4 * 512 * 512, 2 * 512 * 2048
	require.Equal(t, 100*(6*(6*(attn+mlp)+6*attn/2)+12*6*512*100)+30*(6*(6*(attn+attn/2+mlp)+32128*512)+12*6*512*(100+30)), small5.FLOPs(100, 30))
	flan := &nn.T5{Vocab: 32128, Encoder: 8, Decoder: 8, Dim: 512, Heads: 6, HeadDim: 64, Hidden: 1024, Gated: true}
	require.Equal(t, 76_961_152, flan.NumParams()) // t5-v1_1-small
	// Six for each of the 12·768² weights of a block and the head's, and twelve for each pair.
	require.Equal(t, 6*(12*12*768*768+50257*768)+12*12*768*1024, small.FLOPs(1024))
}

// TestLlamaTakesTheMemoryOfGPT compares plans for as many weights in a layer.
func TestLlamaTakesTheMemoryOfGPT(t *testing.T) {
	bytes := func(m fsdp.Model) float64 {
		s, err := fsdp.Wrap(m, fsdp.Config{})
		require.NoError(t, err)
		batch := ints([]int{4, 128}, make([]int, 4*128)...)
		plan, err := s.Plan(batch, batch)
		require.NoError(t, err)
		return float64(plan.PassBytes)
	}
	const vocab, layers, dim, heads = 256, 2, 128, 2
	gpt := bytes(&nn.GPT{Vocab: vocab, Context: 128, Layers: layers, Dim: dim, Heads: heads})
	llama := bytes(&nn.Llama{Vocab: vocab, Layers: layers, Dim: dim, Heads: heads, KVHeads: heads / 2, Hidden: 3 * dim})
	require.Less(t, llama, 1.1*gpt)
}
