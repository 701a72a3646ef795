package main

import (
	"bytes"
	"context"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
	lines "github.com/gofsdp/gofsdp/internal/text"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRun adapts a model that has hardly learned anything; run itself checks that what is frozen
// stays. Then it compares what the last lines say of memory.
func TestRun(t *testing.T) {
	code, prose, err := texts()
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
		return (&rank{g, &out, code, prose}).run(ctx, 10)
	}))
	require.Empty(t, lines.Wider(out.String(), 76), "80 with what fsdprun puts before a line")
	loss := figures(t, out.String(), `loss (?:before|after) +code ([0-9.]+)`)
	require.Len(t, loss, 5, out.String())
	require.Less(t, loss[1], loss[0], "pretraining")
	require.InDelta(t, loss[1], loss[2], 0.0015, "adapters start out as nothing")
	require.InDelta(t, loss[3], loss[4], 0.0015, "merging changes rounding only")

	held, most := figures(t, out.String(), `holds ([0-9.]+) MB`), figures(t, out.String(), `([0-9.]+) MB in a step`)
	require.Len(t, most, 3, out.String())
	require.Equal(t, held[0], held[1])
	require.Less(t, 3*held[0], held[2], "gradients and optimizer state")
	const block = 3.2 // MB
	require.InDelta(t, held[0]+2*block, most[0], block, "one unit that computes and one that is gathered")
	require.InDelta(t, held[1]+float64(wide.Layers)*block, most[1], block, "all units")
	require.Greater(t, most[2], most[1])
}

// figures returns the numbers in out that a pattern has in parentheses.
func figures(t *testing.T, out, pattern string) (list []float64) {
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(out, -1) {
		v, err := strconv.ParseFloat(match[1], 64)
		require.NoError(t, err)
		list = append(list, v)
	}
	return list
}
