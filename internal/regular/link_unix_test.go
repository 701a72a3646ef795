//go:build unix

package regular

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOpenRefusesLinks, also those that lead nowhere: nothing that a link leads to changes.
func TestOpenRefusesLinks(t *testing.T) {
	dir := t.TempDir()
	target, nowhere := filepath.Join(dir, "target"), filepath.Join(dir, "nowhere")
	require.NoError(t, os.WriteFile(target, []byte("a user's"), 0o600))
	for _, lead := range []string{target, nowhere} {
		path := filepath.Join(t.TempDir(), "log")
		require.NoError(t, os.Symlink(lead, path))
		_, err := Open(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		require.ErrorContains(t, err, path+": it is a symbolic link")
		text, err := os.ReadFile(target)
		require.NoError(t, err)
		require.Equal(t, "a user's", string(text))
		require.NoFileExists(t, nowhere)
	}
}
