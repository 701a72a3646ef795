package main

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/fsdp"
	lines "github.com/gofsdp/gofsdp/internal/text"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestLossesAreThoseOfOneRank trains in float64, through epochs in which no rank has images, all
// have some, or some only text.
func TestLossesAreThoseOfOneRank(t *testing.T) {
	const epochs = 5
	var kinds []string
	for epoch := range epochs {
		kinds = append(kinds, withImages(epoch*epochSteps))
	}
	require.Equal(t, []string{"0 2", "1 3", "0 2", "none", "0 2"}, kinds)
	double := fsdp.Precision{Compute: fsdp.Float64}
	one, err := train(t.Context(), 1, epochs, double)
	require.NoError(t, err)
	require.Less(t, slices.Min(one), one[0]/2)
	for _, ranks := range []int{2, parts} {
		got, err := train(t.Context(), ranks, epochs, double)
		require.NoError(t, err)
		require.InDeltaSlice(t, one, got, 1e-9, "%d ranks", ranks)
	}
}

// TestRun checks what is printed.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, compare(t.Context(), parts, 1, &out))
	require.Contains(t, out.String(), "    1                0 2")
	require.Empty(t, lines.Wider(out.String(), 76), "80 with what fsdprun puts before a line")
	require.ErrorContains(t, compare(t.Context(), 3, 1, &out), "3 ranks do not divide 4 parts")
}
