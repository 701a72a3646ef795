package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTrain checks that the parts work together on one rank and on two, and that the comment has
// the output.
func TestTrain(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		var out bytes.Buffer
		require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error { return train(ctx, g, &out) }))
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		require.Len(t, lines, 5)
		var w [4]float64
		_, err := fmt.Sscanf(lines[4], "weights [%f %f %f %f]", &w[0], &w[1], &w[2], &w[3])
		require.NoError(t, err)
		require.InDeltaSlice(t, []float64{0, 1, 2, 3}, w[:], 0.2)
		source, err := os.ReadFile("main.go")
		require.NoError(t, err)
		require.Contains(t, string(source), "//\t"+lines[4]+"\n")
	}
}
