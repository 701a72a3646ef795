package main

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
	lines "github.com/gofsdp/gofsdp/internal/text"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRun trains for some steps; run itself checks which ranks share what.
func TestRun(t *testing.T) {
	code, prose, err := texts()
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
		return run(ctx, g, [][]byte{code, prose}, 10, &out)
	}))
	require.Contains(t, out.String(), "rank 3 owns")
	require.Empty(t, lines.Wider(out.String(), 76), "80 with what fsdprun puts before a line")
	require.ErrorContains(t, comm.Run(t.Context(), 3, func(ctx context.Context, g comm.Group) error {
		return run(ctx, g, [][]byte{code, prose}, 10, &out)
	}), "3 ranks do not divide into 2 domains")
}
