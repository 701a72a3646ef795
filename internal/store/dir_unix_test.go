//go:build unix

package store

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFIFO plants what would block whoever opens it.
func TestFIFO(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path, config)
	require.NoError(t, syscall.Mkfifo(filepath.Join(path, d.seal.fileName("k")), 0o600))
	_, err := d.Get(t.Context(), "k")
	require.ErrorContains(t, err, "is not a file of this store")
}

// TestStaleHandles has an NFS that loses sight of files now and then.
func TestStaleHandles(t *testing.T) {
	d := openDir(t, t.TempDir(), config)
	failures := 3
	d.link = func(old, new string) error {
		if failures--; failures >= 0 {
			return &fs.PathError{Op: "link", Path: old, Err: syscall.ESTALE}
		}
		return os.Link(old, new)
	}
	holder, err := d.Claim(t.Context(), "k", []byte("mine"))
	require.NoError(t, err)
	require.Equal(t, "mine", string(holder))
	require.Negative(t, failures)
}

// TestNoLinks has a file system that says of links what vfat does.
func TestNoLinks(t *testing.T) {
	d := openDir(t, t.TempDir(), config)
	d.link = func(old, new string) error { return &fs.PathError{Op: "link", Path: old, Err: syscall.EPERM} }
	for range 2 {
		holder, err := d.Claim(t.Context(), "k", []byte("mine"))
		require.NoError(t, err)
		require.Equal(t, "mine", string(holder))
	}
}
