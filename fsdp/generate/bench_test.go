package generate_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/generate"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// BenchmarkDecode has a step behind 512 tokens beside a whole forward of them, of 12 layers and 768
// channels on one core: on an AMD EPYC with AVX-512 33 and 980 ms (2026-11-23).
func BenchmarkDecode(b *testing.B) {
	const past = 512
	gpt := &nn.GPT{Vocab: 256, Context: 2 * past, Layers: 12, Dim: 768, Heads: 12}
	m, err := fsdp.Wrap(gpt, fsdp.Config{WrapPolicy: fsdp.WrapEach()})
	require.NoError(b, err)
	defer m.Close()
	prompt := make([]int, past)
	b.Run("forward", func(b *testing.B) {
		x := tensor.New(tensor.WithShape(1, past), tensor.WithBacking(prompt))
		for b.Loop() {
			_, err := m.Eval(b.Context(), x, x)
			require.NoError(b, err)
		}
	})
	b.Run("step", func(b *testing.B) {
		w, err := generate.New(m, gpt.Cache(), generate.Config{})
		require.NoError(b, err)
		written, steps := 0, 0
		for written < b.N { // a text has room for so many
			b.StopTimer()
			for _, err := range w.Stream(b.Context(), [][]int{prompt}, generate.Options{MaxTokens: min(b.N-written, past-1) + 1}) {
				require.NoError(b, err)
				if steps++; steps == 1 {
					b.StartTimer() // behind the prompt
				}
			}
			written, steps = written+steps-1, 0
		}
	})
}
