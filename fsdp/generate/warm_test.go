package generate_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/generate"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// TestNothingIsCompiledAgain runs passes of the sizes that a model with 32 layers and 4096 tokens
// of context needs, all of them twice. In the second round a pass allocates no more than a compiled
// pass needs.
func TestNothingIsCompiledAgain(t *testing.T) {
	gpt := &nn.Llama{Vocab: 5, Layers: 32, Dim: 4, Heads: 2, KVHeads: 1, Hidden: 1}
	size := gpt.Cache()
	require.NoError(t, comm.Run(t.Context(), 1, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(gpt, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach()})
		require.NoError(t, err)
		defer m.Close()
		for round := range 2 {
			for rows := 1; rows <= 8; rows *= 2 {
				for news := 1; news <= 64; news *= 2 {
					for cached := max(news, 16); cached <= size.Context; cached *= 2 {
						in := inputs(size, rows, news, cached)
						first, again := allocations(t, ctx, m, in), allocations(t, ctx, m, in)
						if round == 1 {
							require.Less(t, first, 2*again, "%d rows, %d new tokens, %d cached", rows, news, cached)
						}
					}
				}
			}
		}
		return nil
	}))
}

// allocations counts those of a pass.
func allocations(t *testing.T, ctx context.Context, m *fsdp.Sharded, in []fsdp.Tensor) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := m.EvalProgram(ctx, generate.Program, in...)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	return after.Mallocs - before.Mallocs
}

// inputs returns those of a pass on tokens that are all 0.
func inputs(size generate.Size, rows, news, cached int) (in []fsdp.Tensor) {
	for _, shape := range [][]int{{rows, news}, {rows, news}, {rows, cached + news}, {rows}, {rows}} {
		in = append(in, tensor.New(tensor.WithShape(shape...), tensor.Of(tensor.Int)))
	}
	for range 2 * size.Layers {
		in = append(in, tensor.New(tensor.WithShape(rows, cached, size.Width), tensor.Of(tensor.Float32)))
	}
	return in
}

// TestProgramsShareAngles: the angles of all positions, 2 MB here, are there once for the programs
// of all sizes, or few of these would be kept.
func TestProgramsShareAngles(t *testing.T) {
	gpt := &nn.Llama{Vocab: 5, Layers: 1, Dim: 128, Heads: 1, Hidden: 1}
	require.NoError(t, comm.Run(t.Context(), 1, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(gpt, fsdp.Config{Group: g})
		require.NoError(t, err)
		defer m.Close()
		allocations(t, ctx, m, inputs(gpt.Cache(), 1, 1, 16))
		first := m.Memory().Programs
		for cached := 32; cached <= 4096; cached *= 2 {
			allocations(t, ctx, m, inputs(gpt.Cache(), 1, 1, cached))
		}
		require.Less(t, m.Memory().Programs-first, 1<<20)
		return nil
	}))
}
