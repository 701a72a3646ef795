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
	// Six for each of the 12·768² weights of a block and the head's, and twelve for each pair.
	require.Equal(t, 6*(12*12*768*768+50257*768)+12*12*768*1024, small.FLOPs(1024))
}
