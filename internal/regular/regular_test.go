package regular

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOpen makes, empties and appends to files.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	write := func(flag int, text string) {
		f, err := Open(path, os.O_WRONLY|flag, 0o600)
		require.NoError(t, err)
		_, err = f.WriteString(text)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	requireText := func(path, want string) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
	_, err := Open(path, os.O_WRONLY, 0o600)
	require.ErrorIs(t, err, os.ErrNotExist)
	write(os.O_CREATE|os.O_TRUNC, "first")
	write(os.O_CREATE|os.O_APPEND, ", more")
	requireText(path, "first, more")
	write(os.O_CREATE|os.O_TRUNC, "anew")
	requireText(path, "anew")
}
