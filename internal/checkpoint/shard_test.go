package checkpoint

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/internal/safetensors"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// whole is a tensor of a test with all of its elements.
type whole struct {
	Key
	dtype safetensors.DType
	shape []int
	steps int
	data  []byte
}

func (w *whole) part(from, to int) Part {
	size := w.dtype.Size()
	return Part{Key: w.Key, DType: w.dtype, Shape: w.shape, Steps: w.steps, Offset: from, Data: w.data[from*size : to*size]}
}

func (w *whole) len() int { return len(w.data) / w.dtype.Size() }

// newWhole returns a tensor of normal values. A big one repeats them, at no place of a chunk twice.
func newWhole(r *rand.Rand, k Key, dtype safetensors.DType, shape ...int) *whole {
	n := 1
	for _, d := range shape {
		n *= d
	}
	exact := make([]byte, 0, 8*min(n, 1009))
	for range min(n, 1009) {
		exact = binary.LittleEndian.AppendUint64(exact, math.Float64bits(r.NormFloat64()))
	}
	values := make([]byte, len(exact)/8*dtype.Size())
	if err := safetensors.Convert(values, dtype, exact, safetensors.F64); err != nil {
		panic(err)
	}
	w := &whole{Key: k, dtype: dtype, shape: shape, steps: len(k.Entry), data: make([]byte, n*dtype.Size())}
	for rest := w.data; len(rest) > 0; {
		rest = rest[copy(rest, values):]
	}
	return w
}

// fileOf is the name of a rank's file.
func fileOf(rank, world int) string { return FileName("rank", rank, world) }

// save writes what each rank has to dir, as a save does, and returns the manifest.
func save(fsys FS, dir string, ranks [][]Part) (*Manifest, error) {
	shards := make([]*Shard, len(ranks))
	for rank, parts := range ranks {
		s, err := WriteShard(context.Background(), fsys, dir, fileOf(rank, len(ranks)), parts, nil)
		if err != nil {
			return nil, err
		}
		b, err := s.Encode()
		if err != nil {
			return nil, err
		}
		if shards[rank], err = DecodeShard(b); err != nil {
			return nil, err
		}
	}
	m := &Manifest{Step: 7, World: len(ranks)}
	var err error
	if m.Files, m.Tensors, err = Merge(shards); err != nil {
		return nil, err
	}
	b, err := m.Encode()
	if err != nil {
		return nil, err
	}
	f, err := fsys.Create(filepath.Join(dir, ManifestName))
	if err != nil {
		return nil, err
	}
	_, err = f.Write(b)
	return m, errors.Join(err, f.Close())
}

var dtypes = []safetensors.DType{safetensors.F64, safetensors.F32, safetensors.F16, safetensors.BF16}

// drawWholes draws tensors, some of several chunks.
func drawWholes(t *rapid.T) []*whole {
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	var list []*whole
	for i := range rapid.IntRange(0, 6).Draw(t, "tensors") {
		k := Key{
			Param: fmt.Sprintf("p%d", i),
			Entry: rapid.SampledFrom([]string{"", "exp_avg"}).Draw(t, "entry"),
			Owner: rapid.SampledFrom([]int{Shared, 0}).Draw(t, "owner"),
		}
		dtype := rapid.SampledFrom(dtypes).Draw(t, "dtype")
		shape := rapid.SliceOfN(rapid.IntRange(0, 7), 0, 3).Draw(t, "shape")
		if rapid.IntRange(0, 9).Draw(t, "big") == 5 {
			shape = []int{rapid.IntRange(1, 2).Draw(t, "chunks")*ChunkBytes/dtype.Size() + rapid.IntRange(-2, 2).Draw(t, "more")}
		}
		list = append(list, newWhole(r, k, dtype, shape...))
	}
	return list
}

// drawCuts cuts tensors over ranks, each into a few intervals that go to any of them.
func drawCuts(t *rapid.T, list []*whole) [][]Part {
	ranks := make([][]Part, rapid.IntRange(1, 4).Draw(t, "ranks"))
	for _, w := range list {
		cuts := rapid.SliceOfNDistinct(rapid.IntRange(0, w.len()), 0, min(w.len(), 5), rapid.ID).Draw(t, "cuts")
		slices.Sort(cuts)
		from := 0
		for _, to := range append(cuts, w.len()) {
			rank := rapid.IntRange(0, len(ranks)-1).Draw(t, "rank")
			ranks[rank] = append(ranks[rank], w.part(from, to))
			from = to
		}
	}
	return ranks
}

// TestRoundTrip writes tensors cut at random and reads other intervals back, as other types too.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := drawWholes(t)
		fsys := newMemory()
		m, err := save(fsys, "c", drawCuts(t, list))
		require.NoError(t, err)
		r, err := OpenReader(context.Background(), fsys, "c")
		require.NoError(t, err)
		require.Equal(t, must(m.Encode()), must(r.Manifest().Encode()))
		require.NoError(t, r.Verify(t.Context(), nil))
		require.Len(t, m.Tensors, len(list))
		for _, w := range list {
			got, ok := r.Lookup(w.Key)
			require.True(t, ok)
			require.Equal(t, w.dtype, got.DType)
			require.True(t, slices.Equal(w.shape, got.Shape))
			require.Equal(t, w.steps, got.Steps)
			for range 3 {
				as := rapid.SampledFrom(dtypes).Draw(t, "as")
				from := rapid.IntRange(0, w.len()).Draw(t, "from")
				to := rapid.OneOf(rapid.IntRange(from, w.len()), rapid.Just(w.len())).Draw(t, "to")
				size := w.dtype.Size()
				want, dst := make([]byte, (to-from)*as.Size()), make([]byte, (to-from)*as.Size())
				require.NoError(t, safetensors.Convert(want, as, w.data[from*size:to*size], w.dtype))
				require.NoError(t, r.Read(t.Context(), w.Key, from, dst, as))
				require.True(t, string(want) == string(dst), "%s[%d:%d] as %s", w.Name(), from, to, as)
			}
		}
		require.NoError(t, r.Close())
	})
}

// TestWriteShard looks at one file on the real file system.
func TestWriteShard(t *testing.T) {
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(1, 2))
	half := newWhole(r, Key{"h", "", Shared}, safetensors.F16, 3)
	w := newWhole(r, Key{"w", "exp_avg", 2}, safetensors.F32, 2, ChunkBytes/4+1)
	none := newWhole(r, Key{"none", "", Shared}, safetensors.F32, 3, 0)

	var told []int
	s, err := WriteShard(t.Context(), OS(), dir, "a.safetensors",
		[]Part{w.part(1000, w.len()), half.part(0, 3), none.part(0, 0), w.part(5, 1000)}, func(n int) { told = append(told, n) })
	require.NoError(t, err)
	require.Equal(t, []int{ChunkBytes, ChunkBytes + 8 - 4000, 995 * 4, 6}, told)

	require.Len(t, s.Tensors, 3)
	require.Equal(t, none.Key, s.Tensors[1].Key)
	require.Empty(t, s.Tensors[1].Pieces)
	pieces := slices.Collect(s.Tensors[2].All())
	require.Equal(t, []int{5, 1000}, []int{pieces[0].Offset, pieces[1].Offset})
	require.Equal(t, 2, pieces[1].Sums.count())

	f := must(OS().Open(filepath.Join(dir, "a.safetensors")))
	defer f.Close()
	require.Equal(t, s.File.Size, must(f.Size()))
	h, err := safetensors.ReadHeader(f, s.File.Size)
	require.NoError(t, err)
	require.Zero(t, h.DataStart%64)
	var names []string
	for _, tensor := range h.Tensors {
		names = append(names, tensor.Name)
		require.Zero(t, tensor.Offset%int64(tensor.DType.Size()), "aligned to its elements")
	}
	require.Equal(t, []string{"exp_avg:w@2[1000:524290]", "exp_avg:w@2[5:1000]", "h[0:3]"}, names)
	require.Equal(t, h.DataStart, pieces[1].At)

	_, err = WriteShard(t.Context(), OS(), dir, "a.safetensors", []Part{half.part(0, 3)}, nil)
	require.ErrorIs(t, err, os.ErrExist)
	_, err = WriteShard(t.Context(), OS(), filepath.Join(dir, "no"), "b.safetensors", []Part{half.part(0, 3)}, nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "b.safetensors: ")
}

// TestWriteNothing: a rank without data makes no file, but tells of tensors without elements.
func TestWriteNothing(t *testing.T) {
	none := newWhole(rand.New(rand.NewPCG(1, 2)), Key{"none", "", Shared}, safetensors.F32, 3, 0)
	fsys := newMemory()
	s, err := WriteShard(t.Context(), fsys, "", "a", []Part{none.part(0, 0)}, nil)
	require.NoError(t, err)
	require.Empty(t, fsys.files)
	require.Zero(t, s.File)
	s, err = DecodeShard(must(s.Encode()))
	require.NoError(t, err)
	files, tensors, err := Merge([]*Shard{nil, {}, s})
	require.NoError(t, err)
	require.Empty(t, files)
	require.Len(t, tensors, 1)
	require.Equal(t, none.Key, tensors[0].Key)
	s, err = DecodeShard(must(new(Shard).Encode()))
	require.NoError(t, err)
	require.Equal(t, new(Shard), s)
}

// TestWriteShardRefuses lists parts that make no file.
func TestWriteShardRefuses(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	w := newWhole(r, Key{"w", "", Shared}, safetensors.F32, 4)
	with := func(change func(*Part)) []Part {
		p := w.part(1, 4)
		change(&p)
		return []Part{w.part(0, 1), p}
	}
	for want, parts := range map[string][]Part{
		"w: 11 bytes are not a whole number of F32":                   with(func(p *Part) { p.Data = p.Data[1:] }),
		"w: 3 elements from element 2 on do not fit F32 [4]":          with(func(p *Part) { p.Offset = 2 }),
		"w: 3 elements from element -1 on do not fit F32 [4]":         with(func(p *Part) { p.Offset = -1 }),
		"w: a tensor of F32 cannot have shape [-1]":                   with(func(p *Part) { p.Shape = []int{-1} }),
		`w: element type "F31" is unknown`:                            with(func(p *Part) { p.DType = "F31" }),
		"w is both F32 [4] after 0 steps and F32 [2 2] after 0 steps": with(func(p *Part) { p.Shape = []int{2, 2} }),
		"w is both F32 [4] after 0 steps and F32 [4] after 3 steps":   with(func(p *Part) { p.Steps = 3 }),
		"w[1:4]": append(with(func(*Part) {}), w.part(1, 4)),
	} {
		fsys := newMemory()
		_, err := WriteShard(t.Context(), fsys, "dir", "a.safetensors", parts, nil)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "a.safetensors: ")
		require.Empty(t, fsys.files)
	}
}

// TestWriteShardFails has the file system fail, and stops the writing, at each place in turn.
func TestWriteShardFails(t *testing.T) {
	w := newWhole(rand.New(rand.NewPCG(1, 2)), Key{"w", "", Shared}, safetensors.F32, 2*ChunkBytes/4)
	full := errors.New("no space left on device")
	write := func(ctx context.Context, change func(*memory), wrote func(int)) error {
		fsys := newMemory()
		change(fsys)
		s, err := WriteShard(ctx, fsys, "dir", "a.safetensors", []Part{w.part(0, w.len())}, wrote)
		require.Nil(t, s)
		require.ErrorContains(t, err, "a.safetensors: ")
		return err
	}
	failAt := func(at int, n func([]byte) int, err error) func(*memory) {
		return func(m *memory) {
			written := 0
			m.write = func(_ int, p []byte) (int, error) {
				if written += len(p); written > at {
					return n(p), err
				}
				return len(p), nil
			}
		}
	}
	none, half := func([]byte) int { return 0 }, func(p []byte) int { return len(p) / 2 }

	err := write(t.Context(), failAt(0, none, full), nil)
	require.ErrorIs(t, err, full)
	require.ErrorContains(t, err, "write header: ")
	err = write(t.Context(), failAt(ChunkBytes, none, full), nil)
	require.ErrorIs(t, err, full)
	require.ErrorContains(t, err, "write w[0:524288]: ")
	require.ErrorIs(t, write(t.Context(), failAt(ChunkBytes, half, nil), nil), io.ErrShortWrite)

	sync, end := errors.New("sync"), errors.New("close")
	err = write(t.Context(), func(m *memory) { m.syncErr, m.endErr = sync, end }, nil)
	require.ErrorIs(t, err, sync)
	require.ErrorIs(t, err, end)
	require.ErrorIs(t, write(t.Context(), func(m *memory) { m.endErr = end }, nil), end)

	stop := errors.New("the training has ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	told := 0
	err = write(ctx, func(*memory) {}, func(n int) { told += n; cancel(stop) })
	require.ErrorIs(t, err, stop)
	require.Equal(t, ChunkBytes, told)
}

// TestWriteShardCopiesNothing writes 64 MiB with less memory than a chunk takes.
func TestWriteShardCopiesNothing(t *testing.T) {
	data := make([]byte, 64<<20)
	part := Part{Key: Key{"w", "", Shared}, DType: safetensors.F32, Shape: []int{len(data) / 4}, Data: data}
	fsys := newMemory()
	fsys.write = func(_ int, p []byte) (int, error) { return len(p), nil }
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := WriteShard(t.Context(), fsys, "", "a", []Part{part}, nil)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(ChunkBytes/4))
}

// TestBigEndian has a machine refuse whose memory is not as the files.
func TestBigEndian(t *testing.T) {
	defer func(was binary.ByteOrder) { native = was }(native)
	native = binary.BigEndian
	_, err := WriteShard(t.Context(), newMemory(), "", "a", nil, nil)
	require.ErrorContains(t, err, "little-endian")
	_, err = OpenReader(context.Background(), newMemory(), "a")
	require.ErrorContains(t, err, "little-endian")
}

// FuzzDecodeShard looks for bytes that make it panic, or that it takes for something that it cannot
// say again.
func FuzzDecodeShard(f *testing.F) {
	w := newWhole(rand.New(rand.NewPCG(1, 2)), Key{"w", "exp_avg", 1}, safetensors.F32, 2, 3)
	s := must(WriteShard(context.Background(), newMemory(), "", "a", []Part{w.part(0, 2), w.part(2, 6)}, nil))
	f.Add(must(s.Encode()))
	f.Add([]byte("{}"))
	f.Add([]byte(`{"file":{"name":"x","size":9223372036854775807},"tensors":[{"param":"p","dtype":"F64","shape":[1,0]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeShard(b)
		if err != nil {
			return
		}
		b = must(s.Encode())
		require.Equal(t, string(b), string(must(must(DecodeShard(b)).Encode())))
		_, _, _ = Merge([]*Shard{s, s})
		if files, tensors, err := Merge([]*Shard{s}); err == nil {
			m := &Manifest{World: math.MaxInt, Files: files, Tensors: tensors}
			_, _ = m.Encode()
		}
	})
}

// TestWriteShardStreams writes the same parts from memory and in portions of any size: the files
// are equal.
func TestWriteShardStreams(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var parts, streamed []Part
		for _, w := range drawWholes(t) {
			p := w.part(0, w.len())
			q := p
			portion := rapid.SampledFrom([]int{1 + len(p.Data)/7, ChunkBytes - 1, ChunkBytes, 3 * ChunkBytes}).Draw(t, "portion")
			q.Data, q.Len, q.Write = nil, w.len(), func(_ context.Context, out io.Writer) error {
				for portion := range slices.Chunk(p.Data, portion) {
					if _, err := out.Write(portion); err != nil {
						return err
					}
				}
				return nil
			}
			parts, streamed = append(parts, p), append(streamed, q)
		}
		fsys := newMemory()
		want, err := WriteShard(context.Background(), fsys, "a", "x", parts, nil)
		require.NoError(t, err)
		told, total := 0, 0
		got, err := WriteShard(context.Background(), fsys, "b", "x", streamed, func(n int) { told += n })
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, fsys.files["a/x"], fsys.files["b/x"])
		for _, p := range parts {
			total += len(p.Data)
		}
		require.Equal(t, total, told)
	})
}

// TestWriteShardStreamsThatFail has parts write less or more than they say, and fail.
func TestWriteShardStreamsThatFail(t *testing.T) {
	broken := errors.New("broken")
	for want, c := range map[string]struct {
		len, bytes int
		err        error
	}{
		"write w[0:4]: 1 of 16 bytes are missing":             {4, 15, nil},
		"write w[0:4]: there are 3 extra bytes":               {4, 19, nil},
		"write w[0:4]: broken":                                {4, 8, broken},
		"w: 5 elements from element 0 on do not fit F32 [4]":  {5, 20, nil},
		"w: -1 elements from element 0 on do not fit F32 [4]": {-1, 0, nil},
	} {
		_, err := WriteShard(t.Context(), newMemory(), "", "a", []Part{{
			Key: Key{"w", "", Shared}, DType: safetensors.F32, Shape: []int{4}, Len: c.len,
			Write: func(_ context.Context, w io.Writer) error {
				_, err := w.Write(make([]byte, c.bytes))
				return errors.Join(err, c.err)
			},
		}}, nil)
		require.ErrorContains(t, err, want)
	}
}
