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
	"github.com/gofsdp/gofsdp/examples/internal/text"
	lines "github.com/gofsdp/gofsdp/internal/text"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRun adapts a model that has hardly learned anything; run itself checks that what is frozen
// stays.
func TestRun(t *testing.T) {
	code, prose, err := text.Load()
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
		return (&rank{g, &out, code, prose}).run(ctx, 10)
	}))
	require.Empty(t, lines.Wider(out.String(), 76), "80 with what fsdprun puts before a line")
	losses := regexp.MustCompile(`loss (?:before|after) +code ([0-9.]+)`).FindAllStringSubmatch(out.String(), -1)
	require.Len(t, losses, 5, out.String())
	loss := func(i int) float64 {
		v, err := strconv.ParseFloat(losses[i][1], 64)
		require.NoError(t, err)
		return v
	}
	require.Less(t, loss(1), loss(0), "pretraining")
	require.InDelta(t, loss(1), loss(2), 0.0015, "adapters start out as nothing")
	require.InDelta(t, loss(3), loss(4), 0.0015, "merging changes rounding only")
}
