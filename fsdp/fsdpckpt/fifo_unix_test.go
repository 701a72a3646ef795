//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// TestFIFO has a FIFO in the place of a file: no command waits for its writer. Those that take an
// older checkpoint say so.
func TestFIFO(t *testing.T) {
	for _, file := range []string{checkpoint.ManifestName, "rank-00001-of-00003.safetensors"} {
		dir := t.TempDir()
		older := save(t, checkpoint.OS(), dir, 10, smallMeta, scatter(small(), 3))
		newer := save(t, checkpoint.OS(), dir, 20, smallMeta, scatter(small(), 3))
		path := filepath.Join(newer, file)
		require.NoError(t, os.Remove(path))
		require.NoError(t, unix.Mkfifo(path, 0o644))
		why := "open " + file + ": damaged: the path is a FIFO, not a file\n"

		require.Contains(t, succeed(t, checkpoint.OS(), "list", dir), "000002-step-20 is skipped:\n  "+why)
		for _, args := range [][]string{{"verify", dir}, {"inspect", dir}, {"merge", dir, filepath.Join(dir, "out.safetensors")}} {
			status, out, msg := fsdpckpt(context.Background(), checkpoint.OS(), args...)
			require.Zero(t, status)
			require.Contains(t, out, older)
			require.Equal(t, "fsdpckpt: "+newer+" is newer, but damaged: "+why, msg)
		}
		status, _, msg := fsdpckpt(context.Background(), checkpoint.OS(), "verify", newer)
		require.Equal(t, exitError, status)
		require.Contains(t, msg, path+": damaged: the path is a FIFO")
	}
}
