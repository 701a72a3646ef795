//go:build linux && cgo

package gpu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/arena"
)

// TestSlabs: a pass takes the smallest slab that holds it. What is too large for the last two steps of
// its kind is given up, and steps of another kind do not count.
func TestSlabs(t *testing.T) {
	cuda := double(t)
	d := open(t, Options{})
	fixed := cuda.Live("bytes")
	step := func(p arena.Phase, n int) (taken int) {
		d.Begin(p)
		s, err := d.takeSlab(n)
		require.NoError(t, err)
		s.taken = false
		require.NoError(t, d.EndStep())
		require.Equal(t, cuda.Live("bytes")-fixed, d.Stats().Reserved)
		return s.Len()
	}
	require.Equal(t, 1000, step(arena.Training, 1000))
	require.Equal(t, 9000, step(arena.Training, 9000), "the smaller one, which nobody uses, makes room")
	for range 5 {
		require.Equal(t, 9000, step(arena.Evaluation, 100))
	}
	require.Equal(t, 9000, step(arena.Training, 8000))
	for range 2 {
		require.Equal(t, 9000, step(arena.Training, 1000))
	}
	require.Equal(t, 1000, step(arena.Training, 1000))

	a, err := d.takeSlab(500)
	require.NoError(t, err)
	b, err := d.takeSlab(500)
	require.NoError(t, err)
	require.NotSame(t, a, b, "a pass is open")
	a.taken, b.taken = false, false
	require.NoError(t, d.dropSlabs(func(*slabOf) bool { return true }))
	require.Zero(t, d.Stats().Reserved)
}
