package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
)

// TestTrain checks that what should not matter to the weights does not, and that what should does.
func TestTrain(t *testing.T) {
	weights := func(args ...string) []byte {
		dir := t.TempDir()
		file := filepath.Join(dir, "weights")
		o, err := parse(append(args, "-export", file, "-save", filepath.Join(dir, "checkpoint")))
		require.NoError(t, err)
		require.NoError(t, comm.Run(t.Context(), o.ranks, func(ctx context.Context, g comm.Group) error { return run(ctx, g, o) }))
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		return data
	}
	base := weights("-ranks", "3")
	for _, args := range [][]string{{"-strategy", "NoShard"}, {"-recompute", "blocks"}, {"-resume", "-reshape"}, {"-keep-below", "3000"}} {
		require.Equal(t, base, weights(append(args, "-ranks", "3")...), args)
	}
	for _, args := range [][]string{{"-ranks", "2"}, {"-sgd"}, {"-frozen", "ln"}, {"-steps", "5"}, {"-accumulate", "1"}, {"-hold"}, {"-uneven"}} {
		require.NotEqual(t, base, weights(append([]string{"-ranks", "3"}, args...)...), args)
	}
}
