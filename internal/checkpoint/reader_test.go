package checkpoint

import (
	"context"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/gofsdp/gofsdp/internal/safetensors"
	"github.com/stretchr/testify/require"
)

// cutEvenly cuts tensors over ranks, each into one interval per rank.
func cutEvenly(list []*whole, world int) [][]Part {
	ranks := make([][]Part, world)
	for rank := range ranks {
		for _, w := range list {
			ranks[rank] = append(ranks[rank], w.part(w.len()*rank/world, w.len()*(rank+1)/world))
		}
	}
	return ranks
}

// smallCheckpoint saves a few small tensors of two ranks.
func smallCheckpoint(t *testing.T, fsys FS, dir string) []*whole {
	r := rand.New(rand.NewPCG(3, 4))
	list := []*whole{
		newWhole(r, Key{"blocks.0.w", "", Shared}, safetensors.F32, 3, 5),
		newWhole(r, Key{"blocks.0.w", "exp_avg", Shared}, safetensors.F64, 3, 5),
		newWhole(r, Key{"mean", "", 1}, safetensors.BF16, 4),
	}
	_, err := save(fsys, dir, cutEvenly(list, 2))
	require.NoError(t, err)
	return list
}

// check opens a checkpoint and verifies it.
func check(fsys FS, dir string) error {
	r, err := OpenReader(context.Background(), fsys, dir)
	if err != nil {
		return err
	}
	return errors.Join(r.Verify(context.Background(), nil), r.Close())
}

// TestEveryByteIsChecked changes each byte of a checkpoint in turn, cuts and lengthens each of its
// files, and removes it.
func TestEveryByteIsChecked(t *testing.T) {
	fsys := newMemory()
	smallCheckpoint(t, fsys, "c")
	require.NoError(t, check(fsys, "c"))
	require.Len(t, fsys.files, 3)
	for path, good := range fsys.files {
		name := filepath.Base(path)
		if name == ManifestName {
			name = "manifest"
		}
		for i := range good {
			for _, flip := range []byte{1, 0x20, 0xff} {
				bad := slices.Clone(good)
				bad[i] ^= flip
				fsys.files[path] = bad
				require.ErrorContains(t, check(fsys, "c"), name, "byte %d of %s, %q", i, path, bad[i])
			}
			fsys.files[path] = good[:i]
			err := check(fsys, "c")
			require.ErrorContains(t, err, name, "%s cut to %d", path, i)
			require.ErrorIs(t, err, ErrDamaged)
		}
		fsys.files[path] = append(slices.Clone(good), '\n')
		require.ErrorIs(t, check(fsys, "c"), ErrDamaged)
		delete(fsys.files, path)
		require.ErrorIs(t, check(fsys, "c"), fs.ErrNotExist)
		fsys.files[path] = good
	}
	require.NoError(t, check(fsys, "c"))
}

// TestOtherFiles puts files of the same size in each other's place: the other rank's, and that of a
// later save.
func TestOtherFiles(t *testing.T) {
	fsys := newMemory()
	w := newWhole(rand.New(rand.NewPCG(3, 4)), Key{"w", "", Shared}, safetensors.F32, 8)
	_, err := save(fsys, "c", cutEvenly([]*whole{w}, 2))
	require.NoError(t, err)
	clear(w.data)
	_, err = save(fsys, "later", cutEvenly([]*whole{w}, 2))
	require.NoError(t, err)
	paths := []string{filepath.Join("c", fileOf(0, 2)), filepath.Join("c", fileOf(1, 2)), filepath.Join("later", fileOf(0, 2))}
	for _, pair := range [][2]string{{paths[0], paths[1]}, {paths[0], paths[2]}} {
		a, b := pair[0], pair[1]
		require.Len(t, fsys.files[a], len(fsys.files[b]))
		fsys.files[a], fsys.files[b] = fsys.files[b], fsys.files[a]
		r, err := OpenReader(context.Background(), fsys, "c")
		require.NoError(t, err, "what it opens is not read")
		require.ErrorIs(t, r.Read(t.Context(), w.Key, 0, make([]byte, 4), safetensors.F32), ErrDamaged)
		require.ErrorIs(t, r.Verify(t.Context(), nil), ErrDamaged)
		require.NoError(t, r.Close())
		fsys.files[a], fsys.files[b] = fsys.files[b], fsys.files[a]
	}
}

// bigCheckpoint saves one tensor of so many chunks and 10 elements, in one piece.
func bigCheckpoint(t *testing.T, fsys FS, n int) *whole {
	w := newWhole(rand.New(rand.NewPCG(3, 4)), Key{"w", "exp_avg", Shared}, safetensors.F32, n*ChunkBytes/4+10)
	_, err := save(fsys, "c", cutEvenly([]*whole{w}, 1))
	require.NoError(t, err)
	return w
}

// TestDamageIsFoundWhereItIs flips a byte in a chunk: intervals in other chunks can be read, those
// in it cannot.
func TestDamageIsFoundWhereItIs(t *testing.T) {
	fsys := newMemory()
	w := bigCheckpoint(t, fsys, 2)
	file := fsys.files[filepath.Join("c", fileOf(0, 1))]
	start := len(file) - len(w.data)
	file[start+ChunkBytes+5] ^= 4
	r, err := OpenReader(context.Background(), fsys, "c")
	require.NoError(t, err)
	const per = ChunkBytes / 4
	read := func(from, to int) error {
		dst := make([]byte, 4*(to-from))
		err := r.Read(t.Context(), w.Key, from, dst, safetensors.F32)
		require.Equal(t, err == nil, string(dst) == string(w.data[4*from:4*to]))
		return err
	}
	require.NoError(t, read(0, per))
	require.NoError(t, read(2*per, 2*per+10))
	for _, interval := range [][2]int{{0, 2*per + 10}, {per, 2 * per}, {2*per - 1, 2 * per}, {per - 1, per + 1}} {
		err := read(interval[0], interval[1])
		require.ErrorIs(t, err, ErrDamaged)
		require.ErrorContains(t, err,
			"rank-00000-of-00001.safetensors: exp_avg:w[262144:524288] in bytes [1048704:2097280]: damaged: CRC-32C is ")
	}
	require.ErrorIs(t, r.Verify(t.Context(), nil), ErrDamaged)

	// A file that becomes shorter while it is open.
	fsys.files[filepath.Join("c", fileOf(0, 1))] = file[:start+ChunkBytes+1]
	require.NoError(t, read(0, per))
	require.ErrorIs(t, read(2*per, 2*per+1), io.ErrUnexpectedEOF)
	require.ErrorContains(t, r.Verify(t.Context(), nil), "exp_avg:w[524288:524298] in bytes [2097280:2097320]: unexpected EOF")
}

// TestReadsWhatIsNeeded counts the bytes that are read of the files.
func TestReadsWhatIsNeeded(t *testing.T) {
	fsys := newMemory()
	w := bigCheckpoint(t, fsys, 3)
	r, err := OpenReader(context.Background(), fsys, "c")
	require.NoError(t, err)
	require.NoError(t, r.Hold(t.Context(), w.Key, 0, w.len()))
	const per = ChunkBytes / 4
	for want, interval := range map[int64][2]int{
		0:                  {7, 7},
		40:                 {3*per + 2, 3*per + 3},
		ChunkBytes:         {per, per + 3},
		2 * ChunkBytes:     {per - 1, per + 1},
		2*ChunkBytes + 40:  {2*per - 1, 3*per + 10},
		int64(len(w.data)): {0, w.len()},
	} {
		before := fsys.read.Load()
		require.NoError(t, r.Read(t.Context(), w.Key, interval[0], make([]byte, 8*(interval[1]-interval[0])), safetensors.F64))
		require.Equal(t, want, fsys.read.Load()-before, interval)
	}
}

// TestReadRefuses has intervals that are none, names that are not there, and types that floats are
// not converted to.
func TestReadRefuses(t *testing.T) {
	fsys := newMemory()
	list := smallCheckpoint(t, fsys, "c")
	r, err := OpenReader(context.Background(), fsys, "c")
	require.NoError(t, err)
	w := list[0]
	for _, c := range []struct {
		offset, bytes int
		as            safetensors.DType
	}{{-1, 4, "F32"}, {0, 64, "F32"}, {15, 4, "F32"}, {16, 0, "F32"}, {0, 6, "F32"}, {0, 4, "F31"}, {0, 4, ""}} {
		err := r.Read(t.Context(), w.Key, c.offset, make([]byte, c.bytes), c.as)
		require.ErrorContains(t, err, "are not within blocks.0.w [3 5]")
	}
	require.ErrorContains(t, r.Read(t.Context(), w.Key, 0, make([]byte, 4), "I32"), "blocks.0.w[0:1]: ")
	require.ErrorContains(t, r.Read(t.Context(), Key{"w", "x", 3}, 0, nil, "F32"), "has no x:w@3")
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	cancel(stop)
	require.ErrorIs(t, r.Read(ctx, w.Key, 0, make([]byte, 4), "F32"), stop)
	require.ErrorIs(t, r.Verify(ctx, nil), stop)
}

// TestVerifyListsFaults damages every piece of a checkpoint.
func TestVerifyListsFaults(t *testing.T) {
	fsys := newMemory()
	var ranks [][]Part
	w := newWhole(rand.New(rand.NewPCG(3, 4)), Key{"w", "", Shared}, safetensors.F32, 2*maxFaults)
	ranks = append(ranks, nil)
	for i := range w.len() {
		ranks[0] = append(ranks[0], w.part(i, i+1))
	}
	_, err := save(fsys, "c", ranks)
	require.NoError(t, err)
	file := fsys.files[filepath.Join("c", fileOf(0, 1))]
	for i := range len(w.data) {
		file[len(file)-1-i] ^= 1
	}
	r, err := OpenReader(context.Background(), fsys, "c")
	require.NoError(t, err)
	bytes := 0
	err = r.Verify(t.Context(), func(n int) { bytes += n })
	require.Equal(t, len(w.data), bytes)
	require.ErrorContains(t, err, "w[19:20]")
	require.ErrorContains(t, err, "and 20 more faults")
}

// TestHeadersAgree has headers that are valid by themselves, and tell another story than the
// manifest.
func TestHeadersAgree(t *testing.T) {
	for want, other := range map[string][]safetensors.Tensor{
		"the file has 2 pieces, the manifest lists 1": {{Name: "w[0:4]", DType: "F32", Shape: []int{3}}, {Name: "v", DType: "F32", Shape: []int{1}}},
		"the file has v[0:4] F32 [4]":                 {{Name: "v[0:4]", DType: "F32", Shape: []int{4}}},
		"the file has w[0:4] I32 [4]":                 {{Name: "w[0:4]", DType: "I32", Shape: []int{4}}},
		"the file has w[0:4] F32 [2 2]":               {{Name: "w[0:4]", DType: "F32", Shape: []int{2, 2}}},
	} {
		fsys := newMemory()
		w := newWhole(rand.New(rand.NewPCG(3, 4)), Key{"w", "", Shared}, safetensors.F32, 4)
		m, err := save(fsys, "c", cutEvenly([]*whole{w}, 1))
		require.NoError(t, err)
		header := must(safetensors.NewHeader(other, nil)).Encode()
		file := append(header, w.data...)
		fsys.files[filepath.Join("c", fileOf(0, 1))] = file
		m.Files[0].Size, m.Files[0].Header = int64(len(file)), crc32.Checksum(header, castagnoli)
		edit(&m.Tensors[0], func(p *Piece) { p.At = int64(len(header)) })
		fsys.files[filepath.Join("c", ManifestName)] = must(m.Encode())
		requireUnreadable(t, fsys, w, want)
	}
}

// edit changes the pieces of a tensor.
func edit(t *Tensor, change func(p *Piece)) {
	list := slices.Collect(t.All())
	for i := range list {
		change(&list[i])
	}
	t.Pieces = pack(list)
}

// first returns the first piece of a tensor.
func first(t *Tensor) Piece { return slices.Collect(t.All())[0] }

// requireUnreadable checks that a tensor can be neither verified, held nor read.
func requireUnreadable(t *testing.T, fsys FS, w *whole, want string) {
	r, err := OpenReader(t.Context(), fsys, "c")
	require.NoError(t, err)
	for _, err := range []error{
		r.Verify(t.Context(), nil),
		r.Hold(t.Context(), w.Key, 0, 1),
		r.Read(t.Context(), w.Key, 0, make([]byte, 4), w.dtype),
	} {
		require.ErrorIs(t, err, ErrDamaged)
		require.ErrorContains(t, err, "rank-00000-of-00001.safetensors: header: damaged: "+want)
	}
	require.NoError(t, r.Close())
}

// TestSwappedNames swaps the names of two tensors of one shape, in the file and in the manifest,
// and makes all checksums right again.
func TestSwappedNames(t *testing.T) {
	for name, swap := range map[string]func(fsys *memory, m *Manifest){
		"file": func(fsys *memory, m *Manifest) {
			file := fsys.files[filepath.Join("c", fileOf(0, 1))]
			at := first(&m.Tensors[0]).At
			for i := range at {
				switch string(file[i : i+2]) {
				case `"a`:
					file[i+1] = 'b'
				case `"b`:
					file[i+1] = 'a'
				}
			}
			m.Files[0].Header = crc32.Checksum(file[:at], castagnoli)
		},
		"manifest": func(_ *memory, m *Manifest) {
			m.Tensors[0].Pieces, m.Tensors[1].Pieces = m.Tensors[1].Pieces, m.Tensors[0].Pieces
		},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := newMemory()
			r := rand.New(rand.NewPCG(3, 4))
			list := []*whole{
				newWhole(r, Key{"a", "", Shared}, safetensors.F32, 2, 2), newWhole(r, Key{"b", "", Shared}, safetensors.F32, 2, 2),
			}
			m, err := save(fsys, "c", cutEvenly(list, 1))
			require.NoError(t, err)
			require.NoError(t, check(fsys, "c"))
			swap(fsys, m)
			fsys.files[filepath.Join("c", ManifestName)] = must(m.Encode())
			for _, w := range list {
				requireUnreadable(t, fsys, w, "the file has ")
			}
		})
	}
}

// TestHeaderIsAsWritten has text in a header, in place of spaces, that is in nobody's way.
func TestHeaderIsAsWritten(t *testing.T) {
	fsys := newMemory()
	w := newWhole(rand.New(rand.NewPCG(3, 4)), Key{"w", "", Shared}, safetensors.F32, 4)
	_, err := save(fsys, "c", cutEvenly([]*whole{w}, 1))
	require.NoError(t, err)
	same := []safetensors.Tensor{{Name: "w[0:4]", DType: "F32", Shape: []int{4}}}
	header := must(safetensors.NewHeader(same, map[string]string{"a": "b"})).Encode()
	copy(fsys.files[filepath.Join("c", fileOf(0, 1))], header)
	err = check(fsys, "c")
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "header: ")
	require.ErrorContains(t, err, "CRC-32C is ")
}

// TestManyReadAtOnce shares a Reader of files on the real file system between goroutines.
func TestManyReadAtOnce(t *testing.T) {
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(3, 4))
	list := []*whole{
		newWhole(r, Key{"w", "", Shared}, safetensors.F32, ChunkBytes/4+1),
		newWhole(r, Key{"w", "exp_avg", Shared}, safetensors.F32, 100),
	}
	_, err := save(OS(), dir, cutEvenly(list, 3))
	require.NoError(t, err)
	reader, err := OpenReader(context.Background(), OS(), dir)
	require.NoError(t, err)
	var group sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		group.Go(func() {
			w := list[i%2]
			dst := make([]byte, len(w.data)-4*i)
			errs[i] = reader.Read(t.Context(), w.Key, i, dst, w.dtype)
			if errs[i] == nil && string(dst) != string(w.data[4*i:]) {
				errs[i] = errors.New("other values")
			}
		})
	}
	group.Wait()
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, reader.Close())
	require.NoError(t, os.Remove(filepath.Join(dir, fileOf(1, 3))))
	_, err = OpenReader(context.Background(), OS(), dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, fileOf(1, 3))
}

// TestSum tells checkpoints apart.
func TestSum(t *testing.T) {
	fsys := newMemory()
	smallCheckpoint(t, fsys, "a")
	smallCheckpoint(t, fsys, "b")
	bigCheckpoint(t, fsys, 1)
	a := must(OpenReader(context.Background(), fsys, "a")).Sum()
	require.Equal(t, a, must(OpenReader(context.Background(), fsys, "b")).Sum())
	require.NotEqual(t, a, must(OpenReader(context.Background(), fsys, "c")).Sum())
}

// counting counts the files that are open for reading.
type counting struct {
	FS
	mu         sync.Mutex
	open, most int
}

func (c *counting) Open(path string) (Handle, error) {
	h, err := c.FS.Open(path)
	if err != nil {
		return nil, err
	}
	c.add(1)
	return &countingHandle{h, c}, nil
}

func (c *counting) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open += n
	c.most = max(c.most, c.open)
}

type countingHandle struct {
	Handle
	c *counting
}

func (h *countingHandle) Close() error {
	h.c.add(-1)
	return h.Handle.Close()
}

// TestManyFiles reads a checkpoint of more ranks than files may be open.
func TestManyFiles(t *testing.T) {
	const world = maxOpen + 30
	fsys := &counting{FS: newMemory()}
	w := newWhole(rand.New(rand.NewPCG(1, 2)), Key{"w", "", Shared}, safetensors.F32, 3*world)
	_, err := save(fsys, "c", cutEvenly([]*whole{w}, world))
	require.NoError(t, err)
	r, err := OpenReader(context.Background(), fsys, "c")
	require.NoError(t, err)
	require.Equal(t, 1, fsys.most)
	require.Zero(t, fsys.open)
	for range 2 {
		got := make([]byte, len(w.data))
		require.NoError(t, r.Read(t.Context(), w.Key, 0, got, w.dtype))
		require.Equal(t, w.data, got)
		require.NoError(t, r.Verify(t.Context(), nil))
		require.Equal(t, maxOpen, fsys.open)
		require.Equal(t, maxOpen+1, fsys.most)
	}
	require.NoError(t, r.Close())
	require.Zero(t, fsys.open)
	require.ErrorIs(t, r.Read(t.Context(), w.Key, 0, make([]byte, 4), w.dtype), fs.ErrClosed)
	require.Zero(t, fsys.open)
}

// TestHold removes files after some elements were held: the others are gone.
func TestHold(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // which does not remove what is open
	}
	dir := t.TempDir()
	w := newWhole(rand.New(rand.NewPCG(1, 2)), Key{"w", "", Shared}, safetensors.F32, 12)
	_, err := save(OS(), dir, cutEvenly([]*whole{w}, 4))
	require.NoError(t, err)
	r, err := OpenReader(context.Background(), OS(), dir)
	require.NoError(t, err)
	require.NoError(t, r.Hold(t.Context(), w.Key, 5, 2))
	require.NoError(t, r.Hold(t.Context(), Key{"no", "", Shared}, 5, 2))
	require.NoError(t, os.RemoveAll(dir))
	got := make([]byte, 6*4)
	require.NoError(t, r.Read(t.Context(), w.Key, 3, got, w.dtype))
	require.Equal(t, w.data[3*4:9*4], got)
	for _, offset := range []int{2, 9} {
		require.ErrorIs(t, r.Read(t.Context(), w.Key, offset, got[:4], w.dtype), fs.ErrNotExist)
		require.ErrorIs(t, r.Hold(t.Context(), w.Key, offset, 1), fs.ErrNotExist)
	}
	require.NoError(t, r.Close())
}
