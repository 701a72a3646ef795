package checkpoint_test

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
)

// TestFS checks what every FS promises.
func TestFS(t *testing.T) {
	t.Run("OS", func(t *testing.T) { requireFS(t, checkpoint.OS(), t.TempDir()) })
	t.Run("crashfs", func(t *testing.T) { requireFS(t, crashfs.New(), "") })
}

func requireFS(t *testing.T, f checkpoint.FS, root string) {
	at := func(base string) string { return filepath.Join(root, base) }
	missing := func(err error, path string) {
		t.Helper()
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, path)
	}

	require.NoError(t, f.Mkdir(at("d")))
	require.ErrorIs(t, f.Mkdir(at("d")), fs.ErrExist)
	missing(f.Mkdir(at("no/d")), at("no/d"))
	_, err := f.ReadDir(at("no"))
	missing(err, at("no"))
	_, err = f.Open(at("no"))
	missing(err, at("no"))
	_, err = f.Open(at("d"))
	require.ErrorIs(t, err, checkpoint.ErrDamaged)
	require.ErrorContains(t, err, at("d")+": damaged: the path is a directory")
	_, err = f.Create(at("no/f"))
	missing(err, at("no/f"))
	missing(f.Rename(at("no"), at("yes")), at("no"))
	missing(f.SyncDir(at("no")), at("no"))
	_, err = f.Lock(at("no/lock"), "me")
	missing(err, at("no/lock"))
	require.NoError(t, f.RemoveAll(at("no")))
	require.NoError(t, f.RemoveAll(at("no/d")))

	for _, base := range []string{"d/b", "d/a", "d/c"} {
		h, err := f.Create(at(base))
		require.NoError(t, err)
		for range 2 {
			n, err := h.Write([]byte("abc"))
			require.NoError(t, err)
			require.Equal(t, 3, n)
		}
		require.NoError(t, h.Sync())
		size, err := h.Size()
		require.NoError(t, err)
		require.EqualValues(t, 6, size)
		require.NoError(t, h.Close())
		require.ErrorIs(t, h.Close(), fs.ErrClosed)
	}
	_, err = f.Create(at("d/a"))
	require.ErrorIs(t, err, fs.ErrExist)
	require.Equal(t, []string{"a", "b", "c"}, bases(t, f, at("d")))
	require.NoError(t, f.SyncDir(at("d")))

	h, err := f.Open(at("d/a"))
	require.NoError(t, err)
	b := make([]byte, 4)
	n, err := h.ReadAt(b, 1)
	require.NoError(t, err)
	require.Equal(t, "bcab", string(b[:n]))
	n, err = h.ReadAt(b, 4)
	require.Equal(t, io.EOF, err)
	require.Equal(t, "bc", string(b[:n]))
	_, err = h.Write(b)
	require.Error(t, err, "it is open for reading")
	require.NoError(t, h.Close())

	require.NoError(t, f.Rename(at("d/a"), at("d/b"))) // replaces
	require.NoError(t, f.Mkdir(at("e")))
	require.Error(t, f.Rename(at("e"), at("d")), "d is not empty")
	require.NoError(t, f.Rename(at("d"), at("f")))
	require.Equal(t, []string{"b", "c"}, bases(t, f, at("f")))
	require.NoError(t, f.RemoveAll(at("f")))
	require.NoError(t, f.SyncDir(at("")))
	entries, err := f.ReadDir(at(""))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.True(t, entries[0].IsDir())
}

// TestDenied checks the errors of a real file system that lets nobody write.
func TestDenied(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ckpt")
	path, err := save(checkpoint.OS(), dir, 1, 1)
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(dir, "lock")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "lock"), 0o755)) // nobody can write to it, not even root
	_, err = save(checkpoint.OS(), dir, 2, 1)
	require.ErrorContains(t, err, filepath.Join(dir, "lock"))
	latest, err := checkpoint.Latest(ctx, checkpoint.OS(), dir)
	require.NoError(t, err)
	require.Equal(t, path, latest)
}
