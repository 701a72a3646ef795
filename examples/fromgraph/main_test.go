package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
	lines "github.com/gofsdp/gofsdp/internal/text"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Both columns agree at any number of ranks, and every model learns.
func TestRun(t *testing.T) {
	for _, n := range []int{ranks, 3} {
		var out strings.Builder
		require.NoError(t, comm.Run(t.Context(), n, func(ctx context.Context, g comm.Group) error {
			return run(ctx, g, &out)
		}))
		checkOutput(t, out.String())
	}
}

func checkOutput(t *testing.T, out string) {
	require.Empty(t, lines.Wider(out, 76), "80 with what fsdprun puts before a line")
	first := make(map[string]float64)
	rows := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, rows, 3*(1+(steps-1)/every))
	for _, row := range rows {
		var name string
		var step int
		var ours, theirs float64
		_, err := fmt.Sscanf(row, "%s step %d sharded %f tape machine %f", &name, &step, &ours, &theirs)
		require.NoError(t, err, row)
		require.InEpsilon(t, theirs, ours, 1e-3, row)
		if step == 0 {
			first[name] = ours
		} else if step == steps-1 {
			require.Less(t, ours, first[name]/2, row)
		}
	}
}
