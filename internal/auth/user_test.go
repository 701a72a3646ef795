//go:build unix

package auth

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUserKey asks from many sides at once: all get one key, which nobody else can read.
func TestUserKey(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gofsdp")
	keys, errs := make([][]byte, 16), make([]error, 16)
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() { keys[i], errs[i] = userKey(dir) })
	}
	all.Wait()
	for i := range keys {
		require.NoError(t, errs[i])
		require.Equal(t, keys[0], keys[i])
	}
	require.NoError(t, Check(keys[0]))
	require.False(t, Guessable(keys[0]))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "drafts are gone")
	for path, mode := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "key"): 0o600} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), path)
	}

	other, err := userKey(filepath.Join(t.TempDir(), "gofsdp"))
	require.NoError(t, err)
	require.NotEqual(t, keys[0], other)
}

// TestUserKeyInDanger finds a directory that others can enter, or something that is no key.
func TestUserKeyInDanger(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	_, err := userKey(dir)
	require.ErrorContains(t, err, dir+": others can enter it (drwxr-xr-x): chmod 700")

	require.NoError(t, os.Chmod(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "key"), []byte("short"), 0o600))
	_, err = userKey(dir)
	require.ErrorContains(t, err, "key has 5 bytes, not 32")

	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.ErrorContains(t, private(info, os.Geteuid()+1), "it belongs to user ")
	_, err = userKey(filepath.Join(dir, "key"))
	require.Error(t, err, "a file is in the way")
}
