//go:build unix

package monitor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWritersRefuseLinks: if a link has the name of a file, its target stays as it is.
func TestWritersRefuseLinks(t *testing.T) {
	for _, f := range formats {
		dir := t.TempDir()
		target := filepath.Join(dir, "target")
		require.NoError(t, os.WriteFile(target, []byte("a user's"), 0o600))
		require.NoError(t, os.Symlink(target, filepath.Join(dir, f.name)))
		require.ErrorContains(t, f.make(dir).Open(0), "it is a symbolic link")
		require.Equal(t, "a user's", string(text(t, target)))
	}
}
