package provenance

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"
)

// TestNote travels with a batch as a loop passes it on, and does not show in it.
func TestNote(t *testing.T) {
	a, b := tensor.New(tensor.WithShape(1), tensor.Of(tensor.Int)), tensor.New(tensor.WithShape(2), tensor.Of(tensor.Int))
	p := Provenance{Source: "s", Ranks: 3}
	of := func(batch ...tensor.Tensor) Provenance { return Of(batch) }
	for _, batch := range [][]tensor.Tensor{{a, b}, append(make([]tensor.Tensor, 0, 9), a, b)} {
		require.Zero(t, of(batch...))
		batch = Set(batch, p)
		require.Equal(t, []tensor.Tensor{a, b}, batch)
		require.Equal(t, p, of(batch...))
		require.Equal(t, p, of(batch[1:]...))
		require.Zero(t, of(batch[:1]...), "another batch")
		require.Zero(t, of(batch[0], batch[1]))
		require.Zero(t, of(append(batch, a)...))
	}
	require.Zero(t, of(Set(nil, p)...))
	require.Nil(t, Set(nil, p))
}
