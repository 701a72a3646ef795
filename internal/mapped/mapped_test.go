//go:build linux || darwin

package mapped

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/arena"
)

func open(t testing.TB) *Files {
	f, err := Open(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

func alloc(t require.TestingT, f *Files, n int) []byte {
	b, err := f.Alloc(n)
	require.NoError(t, err)
	require.Len(t, b, n)
	require.Equal(t, n, cap(b), "no way into the next block")
	align := uintptr(arena.Align)
	if n >= smallBytes {
		align = uintptr(os.Getpagesize())
	}
	require.Zero(t, uintptr(unsafe.Pointer(&b[0]))%align)
	return b
}

// fillWith writes what verify expects.
func fillWith(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i>>12) ^ byte(i) ^ seed
	}
}

func verify(t require.TestingT, b []byte, seed byte) {
	for i, got := range b {
		if want := byte(i>>12) ^ byte(i) ^ seed; got != want {
			require.Equal(t, want, got, "byte %d of %d", i, len(b))
		}
	}
}

// TestBlocks compares random allocations, writes, hints and frees with what was written.
func TestBlocks(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		f, err := Open(dir)
		require.NoError(t, err)
		type block struct {
			data []byte
			seed byte
		}
		var live []block
		for range rapid.IntRange(1, 30).Draw(t, "operations") {
			op := rapid.IntRange(0, 4).Draw(t, "operation")
			if len(live) == 0 || op < 2 {
				small := rapid.IntRange(1, smallBytes-1)
				n := rapid.OneOf(small, rapid.IntRange(smallBytes, 400<<10), rapid.Just(smallBytes)).Draw(t, "bytes")
				b := block{alloc(t, f, n), rapid.Byte().Draw(t, "seed")}
				require.Zero(t, slices.Max(b.data), "new memory is zero")
				fillWith(b.data, b.seed)
				live = append(live, b)
				continue
			}
			i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
			b := live[i].data
			lo := rapid.IntRange(0, len(b)).Draw(t, "from")
			switch part := b[lo:rapid.IntRange(lo, len(b)).Draw(t, "to")]; op {
			case 2:
				require.NoError(t, f.WillNeed(part))
			case 3:
				verify(t, b, live[i].seed)
				require.NoError(t, f.Free(b))
				live = slices.Delete(live, i, i+1)
			case 4:
				verify(t, b, live[i].seed)
				live[i].seed++
				fillWith(b, live[i].seed)
			}
		}
		for _, b := range live {
			verify(t, b.data, b.seed)
			if rapid.Bool().Draw(t, "free") {
				require.NoError(t, f.Free(b.data))
			}
		}
		require.NoError(t, f.Close())
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
	})
}

// TestSmallBlocksShareFiles: a thousand biases do not make a thousand files.
func TestSmallBlocksShareFiles(t *testing.T) {
	f := open(t)
	var blocks [][]byte
	for i := range 1000 {
		b := alloc(t, f, 3000)
		fillWith(b, byte(i))
		blocks = append(blocks, b)
	}
	require.Len(t, f.maps, 3)
	alloc(t, f, smallBytes)
	require.Len(t, f.maps, 4, "a large block has a file of its own")
	for i, b := range blocks {
		verify(t, b, byte(i))
		require.NoError(t, f.Free(b))
	}
	require.Len(t, f.maps, 1, "a shared file goes with its last block")
	verify(t, alloc(t, f, 1), 0)
}

func TestFilesHaveNoNames(t *testing.T) {
	dir := t.TempDir()
	f, err := Open(dir)
	require.NoError(t, err)
	alloc(t, f, 1)
	alloc(t, f, 1<<20)
	left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	require.NoError(t, err)
	require.Empty(t, left)
	info, err := os.Stat(f.dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	require.NoError(t, f.Close())
	require.NoDirExists(t, f.dir)
	require.NoError(t, f.Close())
}

// TestDiskTooSmall: what cannot fit is refused before anything is written.
func TestDiskTooSmall(t *testing.T) {
	f := open(t)
	for _, n := range []int{math.MaxInt / 4, math.MaxInt} {
		b, err := f.Alloc(n)
		require.Nil(t, b)
		var space *SpaceError
		require.ErrorAs(t, err, &space)
		require.ErrorIs(t, err, unix.ENOSPC)
		require.Equal(t, f.dir, space.Dir)
		require.Equal(t, n, space.Size)
		require.Positive(t, space.Free)
		require.ErrorContains(t, err, f.dir)
	}
	require.Empty(t, f.maps)
	verify(t, alloc(t, f, 1), 0)
}

// TestMistakes: what is not a block that is out is an error that says so, and changes nothing.
func TestMistakes(t *testing.T) {
	f, other := open(t), open(t)
	large, small := alloc(t, f, 1<<20), alloc(t, f, 100)
	foreign := alloc(t, other, 1<<20)
	fillWith(large, 1)
	for name, b := range map[string][]byte{"heap": make([]byte, 100), "foreign": foreign, "part": large[:100], "end": large[100:], "cut": small[:99], "nothing": nil} {
		require.ErrorContains(t, f.Free(b), "not allocated here, or were freed before", name)
	}
	require.ErrorContains(t, f.WillNeed(make([]byte, 100)), "100 bytes were not allocated here")
	require.ErrorContains(t, f.WillNeed(foreign), "1048576 bytes were not allocated here")
	require.ErrorContains(t, f.WillNeed(unsafe.Slice(&large[0], len(large)+1)), "only 1048576 were allocated here")
	require.NoError(t, f.WillNeed(nil))
	require.NoError(t, f.WillNeed(large[:0]))
	for _, n := range []int{0, -1, math.MinInt} {
		_, err := f.Alloc(n)
		require.ErrorContains(t, err, "cannot allocate")
	}
	verify(t, large, 1)
	require.NoError(t, f.Free(small))
	require.Error(t, f.Free(small))
	require.NoError(t, f.Free(large))
	require.Error(t, f.Free(large))

	require.NoError(t, other.Close())
	_, err := other.Alloc(1)
	require.EqualError(t, errors.Join(err, other.Free(foreign), other.WillNeed(foreign)),
		"mapped: the files are closed\nmapped: the files are closed\nmapped: the files are closed")
}

func TestOpenFails(t *testing.T) {
	_, err := Open("")
	require.EqualError(t, err, "mapped: no directory is named for the files")
	missing := filepath.Join(t.TempDir(), "missing")
	_, err = Open(missing)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, missing)

	f := open(t)
	require.NoError(t, os.Remove(f.dir)) // somebody cleans up
	_, err = f.Alloc(1 << 20)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.Mkdir(f.dir, 0o700))
}

// TestArena: an arena keeps its shards and spilled values in files, in either order of closing.
func TestArena(t *testing.T) {
	for _, filesFirst := range []bool{false, true} {
		f := open(t)
		a := arena.New(arena.Sources{Shard: f, Spill: f})
		for _, class := range []arena.Class{arena.Shard, arena.State, arena.Spilled} {
			for _, n := range []int{0, 100, 1 << 20} {
				b, err := a.Alloc(n, class)
				require.NoError(t, err)
				fillWith(b.Data, byte(class))
				verify(t, b.Data, byte(class))
				if class == arena.Spilled {
					a.Free(b)
				}
			}
		}
		require.Len(t, f.live, 6)
		if filesFirst {
			require.NoError(t, f.Close())
			require.ErrorIs(t, a.Close(), errClosed)
		} else {
			require.NoError(t, a.Close())
			require.Empty(t, f.maps)
		}
	}
}
