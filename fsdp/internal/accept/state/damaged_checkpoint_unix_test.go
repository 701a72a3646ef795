//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package state_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// A FIFO has nobody who writes to it.
func init() {
	for _, file := range []string{checkpoint.ManifestName, spoilt} {
		damages["a FIFO for "+file] = damage{func(t *testing.T, path string) {
			path = filepath.Join(path, file)
			require.NoError(t, os.Remove(path))
			require.NoError(t, unix.Mkfifo(path, 0o644))
		}, []string{file, "damaged: the path is a FIFO, not a file"}, atOnce}
	}
}
