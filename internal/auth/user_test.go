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
		all.Go(func() { keys[i], _, errs[i] = UserKey(dir) })
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

	other, file, err := UserKey(filepath.Join(t.TempDir(), "gofsdp"))
	require.NoError(t, err)
	require.NotEqual(t, keys[0], other)
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, other, content)
}

// TestUserKeyInDanger finds a directory that others can enter, or something that is no key, or a
// link to a directory of this user that somebody else has chosen.
func TestUserKeyInDanger(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	_, _, err := UserKey(dir)
	require.ErrorContains(t, err, dir+": other users can enter it (drwxr-xr-x): run chmod 700 on it")

	require.NoError(t, os.Chmod(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "key"), []byte("short"), 0o600))
	_, _, err = UserKey(dir)
	require.ErrorContains(t, err, "key has 5 bytes, want 32")

	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	require.NoError(t, private(dir, root, os.Geteuid()))
	require.ErrorContains(t, private(dir, root, os.Geteuid()+1), "it belongs to user ")
	_, _, err = UserKey(filepath.Join(dir, "key"))
	require.Error(t, err, "a file is in the way")

	elsewhere, link := t.TempDir(), filepath.Join(t.TempDir(), "gofsdp")
	require.NoError(t, os.Chmod(elsewhere, 0o700))
	require.NoError(t, os.Symlink(elsewhere, link))
	_, _, err = UserKey(link)
	require.ErrorContains(t, err, link+": it is a link to another directory")
	entries, err := os.ReadDir(elsewhere)
	require.NoError(t, err)
	require.Empty(t, entries)
}
