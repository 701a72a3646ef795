package crashfs_test

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
)

const many = 200 // disasters

// read returns what is in a file, or "-" if there is none.
func read(t *testing.T, f *crashfs.FS, path string) string {
	h, err := f.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "-"
	}
	require.NoError(t, err)
	size, err := h.Size()
	require.NoError(t, err)
	b := make([]byte, size)
	_, err = h.ReadAt(b, 0)
	require.NoError(t, err)
	return string(b)
}

// write makes a file that is not synced.
func write(t *testing.T, f *crashfs.FS, path, text string) checkpoint.Handle {
	h, err := f.Create(path)
	require.NoError(t, err)
	_, err = h.Write([]byte(text))
	require.NoError(t, err)
	return h
}

// outcomes returns which results of look many disasters have.
func outcomes(f *crashfs.FS, look func(*crashfs.FS) string) map[string]bool {
	seen := make(map[string]bool)
	for seed := range uint64(many) {
		seen[look(f.Crash(seed))] = true
	}
	return seen
}

func TestData(t *testing.T) {
	f := crashfs.New()
	h := write(t, f, "a", "synced ")
	require.NoError(t, h.Sync())
	require.NoError(t, f.SyncDir(""))
	_, err := h.Write([]byte("fresh"))
	require.NoError(t, err)
	require.NoError(t, h.Close(), "closing is not syncing")

	require.Equal(t, "synced fresh", read(t, f, "a"))
	require.Equal(t, "synced ", read(t, f.Crash(crashfs.Nothing), "a"))
	require.Equal(t, "synced fresh", read(t, f.Crash(crashfs.Everything), "a"))
	require.Equal(t, "synced fresh", read(t, f.Restart(), "a"))
	seen := outcomes(f, func(g *crashfs.FS) string {
		text := read(t, g, "a")
		require.Equal(t, "synced ", text[:7])
		return text
	})
	require.True(t, seen["synced fresh"])
	require.True(t, seen["synced "])
	require.True(t, seen["synced \x00\x00\x00\x00\x00"])
	require.Greater(t, len(seen), 12, "and garbage, and parts")
}

func TestNames(t *testing.T) {
	f := crashfs.New()
	write(t, f, "old", "")
	write(t, f, "gone", "")
	require.NoError(t, f.SyncDir(""))
	write(t, f, "new", "")
	require.NoError(t, f.Rename("old", "other"))
	require.NoError(t, f.RemoveAll("gone"))
	names := func(g *crashfs.FS) (list string) {
		entries, err := g.ReadDir("")
		require.NoError(t, err)
		for _, e := range entries {
			list += e.Name() + " "
		}
		return list
	}
	require.Equal(t, "gone old ", names(f.Crash(crashfs.Nothing)))
	require.Equal(t, "new other ", names(f.Crash(crashfs.Everything)))
	require.Equal(t, map[string]bool{
		"gone old ": true, "old ": true, "gone new old ": true, "new old ": true,
		"gone other ": true, "other ": true, "gone new other ": true, "new other ": true,
	}, outcomes(f, names), "each change on its own, but a rename as one")
}

// TestNamesInOrder checks that a change is lost with one that it builds on.
func TestNamesInOrder(t *testing.T) {
	f := crashfs.New()
	require.NoError(t, f.Mkdir("a"))
	require.NoError(t, f.Rename("a", "b"))
	write(t, f, "b/x", "").Close()
	require.NoError(t, f.SyncDir("b"))
	names := func(g *crashfs.FS) (list string) {
		for _, path := range []string{"a", "b", "a/x", "b/x"} {
			if _, err := g.Open(path); !errors.Is(err, fs.ErrNotExist) {
				list += path + " "
			}
		}
		return list
	}
	require.Equal(t, map[string]bool{"": true, "a a/x ": true, "b b/x ": true}, outcomes(f, names))
}

func TestSeed(t *testing.T) {
	f := crashfs.New()
	for _, path := range []string{"a", "b", "c", "d"} {
		write(t, f, path, "some data that gets torn")
	}
	all := func(g *crashfs.FS) string {
		return read(t, g, "a") + read(t, g, "b") + read(t, g, "c") + read(t, g, "d")
	}
	for seed := range uint64(many) {
		require.Equal(t, all(f.Crash(seed)), all(f.Crash(seed)))
	}
}

func TestFault(t *testing.T) {
	errFull := errors.New("full")
	f := crashfs.New()
	h := write(t, f, "a", "1")
	f.Inject(crashfs.Fault{At: 1, Err: errFull, Only: func(o crashfs.Op) bool { return o == crashfs.Op{Name: "write", Path: "a"} }})
	put := func(text string) (int, error) { return h.Write([]byte(text)) }
	_, err := put("2")
	require.NoError(t, err)
	require.NoError(t, h.Sync())
	n, err := put("3")
	require.ErrorIs(t, err, errFull)
	require.EqualError(t, err, "write a: full")
	require.Zero(t, n)
	_, err = put("4")
	require.NoError(t, err, "once")

	f.Inject(crashfs.Fault{Err: errFull, Done: true})
	n, err = put("5678")
	require.ErrorIs(t, err, errFull)
	require.Equal(t, 2, n)
	require.Equal(t, "12456", read(t, f, "a"))
	f.Inject(crashfs.Fault{Err: errFull, Done: true})
	require.ErrorIs(t, f.Rename("a", "b"), errFull)
	require.Equal(t, "12456", read(t, f, "b"))

	f.Inject(crashfs.Fault{Err: errFull, Forever: true, Only: func(o crashfs.Op) bool { return o.Name == "mkdir" }})
	require.ErrorIs(t, f.Mkdir("d"), errFull)
	require.ErrorIs(t, f.Mkdir("d"), errFull)
	f.Inject(crashfs.Fault{})
	require.NoError(t, f.Mkdir("d"))
	ops := f.Ops()
	require.Equal(t, "mkdir d", ops[len(ops)-1].String())
}

func TestKill(t *testing.T) {
	f := crashfs.New()
	lock, err := f.Lock("lock", "the first")
	require.NoError(t, err)
	f.Kill(1)
	require.NoError(t, f.Mkdir("a"))
	require.ErrorIs(t, f.Mkdir("b"), crashfs.ErrKilled)
	require.ErrorIs(t, f.SyncDir(""), crashfs.ErrKilled)

	g := f.Restart()
	_, err = g.Lock("lock", "the second")
	require.NoError(t, err, "the lock has died with its holder")
	require.NoError(t, lock.Close())
	require.ErrorIs(t, f.Mkdir("c"), crashfs.ErrKilled)
	require.NoError(t, g.Mkdir("a/b"))
	require.ErrorIs(t, g.Mkdir("b/c"), fs.ErrNotExist)
}
