package models

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// TestStockLlama requires the Llama of Gorgonia's operations to be nn.Llama: the same loss and
// gradients, by operations that all run natively.
func TestStockLlama(t *testing.T) {
	m := nn.Llama{Vocab: 17, Layers: 2, Dim: 24, Heads: 6, KVHeads: 3, Hidden: 20}
	batch := ints(m.Vocab, 3, 5)
	exact := fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float64}, Seed: 1}
	stock, err := fsdp.Wrap(&stockLlama{m}, exact)
	require.NoError(t, err)
	defer stock.Close()
	model, err := fsdp.Wrap(&m, exact)
	require.NoError(t, err)
	defer model.Close()
	weights, err := model.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	require.NoError(t, stock.LoadStateDict(t.Context(), 0, weights))

	want, err := model.Forward(t.Context(), batch, batch)
	require.NoError(t, err)
	require.NoError(t, model.Backward(t.Context()))
	got, err := stock.Forward(t.Context(), batch, batch)
	require.NoError(t, err)
	require.NoError(t, stock.Backward(t.Context()))
	require.InDelta(t, want, got, 1e-12)
	grads, err := stock.FullGrads(t.Context())
	require.NoError(t, err)
	wanted, err := model.FullGrads(t.Context())
	require.NoError(t, err)
	require.Len(t, grads, len(wanted))
	for name, w := range wanted {
		require.InDeltaSlice(t, w.Float64s(), grads[name].Float64s(), 1e-12, name)
	}
	plan, err := stock.Plan(batch, batch)
	require.NoError(t, err)
	require.Empty(t, plan.Stock)
}
