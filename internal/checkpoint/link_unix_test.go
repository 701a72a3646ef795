//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package checkpoint_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// TestLockIsNoFile has links, a FIFO and a directory where the lock should be. A save says so,
// waits for nothing, and neither empties nor makes what a link leads to.
func TestLockIsNoFile(t *testing.T) {
	for _, c := range []struct {
		name, want string
		make       func(path, precious string) error
	}{
		{"link", "it is a symbolic link", func(path, precious string) error { return os.Symlink(precious, path) }},
		{"link to nothing", "it is a symbolic link", func(path, precious string) error { return os.Symlink(precious+".new", path) }},
		{"hard link", "it is not a lock file", func(path, precious string) error { return os.Link(precious, path) }},
		{"FIFO", "it is a FIFO", func(path, _ string) error { return unix.Mkfifo(path, 0o644) }},
		{"directory", "it is a directory", func(path, _ string) error { return os.Mkdir(path, 0o755) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, home := t.TempDir(), t.TempDir()
			precious := filepath.Join(home, "thesis")
			require.NoError(t, os.WriteFile(precious, []byte("ten years"), 0o644))
			lock := filepath.Join(dir, "lock")
			require.NoError(t, c.make(lock, precious))
			_, err := save(checkpoint.OS(), dir, 1, 1)
			require.ErrorContains(t, err, "lock "+lock+": "+c.want)
			requirePrecious(t, precious)
			require.Equal(t, []string{"lock"}, bases(t, checkpoint.OS(), dir), "nothing else was made")
		})
	}
}

// requirePrecious checks that a file is as it was, and alone in its directory.
func requirePrecious(t *testing.T, path string) {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "ten years", string(b))
	require.Equal(t, []string{filepath.Base(path)}, bases(t, checkpoint.OS(), filepath.Dir(path)))
}

// A hostile file system puts a link where a file is about to be made.
type hostile struct {
	checkpoint.FS
	to    string
	links []string // that were put there
}

func (h *hostile) Create(path string) (checkpoint.Handle, error) {
	if err := os.Symlink(h.to, path); err != nil {
		return nil, err
	}
	h.links = append(h.links, path)
	return h.FS.Create(path)
}

// TestSaveFollowsNoLink has a link, to a file or to nothing, in the place of a file that a save
// makes.
func TestSaveFollowsNoLink(t *testing.T) {
	for _, suffix := range []string{"", ".new"} {
		dir := t.TempDir()
		precious := filepath.Join(t.TempDir(), "thesis")
		require.NoError(t, os.WriteFile(precious, []byte("ten years"), 0o644))
		h := &hostile{FS: checkpoint.OS(), to: precious + suffix}
		_, err := save(h, dir, 1, 1)
		require.ErrorIs(t, err, os.ErrExist)
		require.ErrorContains(t, err, h.links[0])
		requirePrecious(t, precious)
	}
}

// TestOpenIsNoFile opens what is no file: it does not wait for a writer of a FIFO.
func TestOpenIsNoFile(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o644))
	for path, kind := range map[string]string{fifo: "a FIFO", os.DevNull: "a device"} {
		_, err := checkpoint.OS().Open(path)
		require.ErrorIs(t, err, checkpoint.ErrDamaged)
		require.EqualError(t, err, "open "+path+": damaged: the path is "+kind+", not a file")
	}
}

// TestObstacleInCheckpoint puts a FIFO, a directory or a device in the place of each file of a
// checkpoint: all calls that read report it as damage, and none waits for a writer.
func TestObstacleInCheckpoint(t *testing.T) {
	for kind, put := range map[string]func(path string) error{
		"FIFO":      func(path string) error { return unix.Mkfifo(path, 0o644) },
		"directory": func(path string) error { return os.Mkdir(path, 0o755) },
		"device":    func(path string) error { return os.Symlink(os.DevNull, path) },
	} {
		for _, file := range []string{checkpoint.ManifestName, "rank-00001-of-00002.safetensors"} {
			t.Run(kind+" "+file, func(t *testing.T) {
				dir := t.TempDir()
				older, err := save(checkpoint.OS(), dir, 1, 2)
				require.NoError(t, err)
				newer, err := save(checkpoint.OS(), dir, 2, 2)
				require.NoError(t, err)
				reader, err := checkpoint.OpenReader(ctx, checkpoint.OS(), newer)
				require.NoError(t, err)
				path := filepath.Join(newer, file)
				require.NoError(t, os.Remove(path))
				require.NoError(t, put(path))
				want := "open " + path + ": damaged: the path is a " + kind + ", not a file"
				list, err := checkpoint.List(ctx, checkpoint.OS(), dir)
				require.NoError(t, err)
				require.NoError(t, list[0].Err)
				require.ErrorContains(t, list[1].Err, want)
				latest, err := checkpoint.Latest(ctx, checkpoint.OS(), dir)
				require.NoError(t, err)
				require.Equal(t, older, latest)
				_, err = checkpoint.Latest(ctx, checkpoint.OS(), newer)
				require.ErrorContains(t, err, want)
				_, err = checkpoint.OpenReader(ctx, checkpoint.OS(), newer)
				require.ErrorContains(t, err, want)
				if file != checkpoint.ManifestName { // which the reader has read
					x := reader.Manifest().Tensors[0]
					for _, err := range []error{
						reader.Hold(ctx, x.Key, 0, x.Len()),
						reader.Read(ctx, x.Key, 0, make([]byte, x.Len()*x.DType.Size()), x.DType),
						reader.Verify(ctx, nil),
					} {
						require.ErrorIs(t, err, checkpoint.ErrDamaged)
						require.ErrorContains(t, err, want)
					}
				}
				require.NoError(t, reader.Close())
			})
		}
	}
}
