package data

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// raw returns tokens as they are in a file.
func raw(tokens []int, bits int) (b []byte) {
	for _, x := range tokens {
		b = append(b, binary.LittleEndian.AppendUint32(nil, uint32(x))[:bits/8]...)
	}
	return b
}

// writeTokens writes documents by a TokenWriter, in pieces.
func writeTokens(t require.TestingT, path string, bits int, docs [][]int) {
	w, err := CreateTokens(path, bits)
	require.NoError(t, err)
	defer w.Abort()
	for i, doc := range docs {
		cut := len(doc) / 2
		require.NoError(t, w.Write(doc[:cut]))
		require.NoError(t, w.Write(doc[cut:]))
		if i < len(docs)-1 || i%2 == 0 {
			w.EndDocument() // Close ends the last one
		}
	}
	require.NoError(t, w.Close())
	require.NoError(t, w.Close(), "again")
}

// TestTokens compares what is read, in all ways, with what was written.
func TestTokens(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "train.bin")
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.SampledFrom([]int{16, 32}).Draw(t, "bits")
		token := rapid.IntRange(0, 1<<bits-1)
		docs := rapid.SliceOfN(rapid.SliceOfN(token, 1, 20), 2, 9).Draw(t, "documents")
		all := slices.Concat(docs...)
		writeTokens(t, path, bits, docs)
		written, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, raw(all, bits), written)
		names, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, names, 2, "nothing else is left")

		f, err := OpenTokens(path, bits)
		require.NoError(t, err)
		require.Equal(t, len(all), f.Len())
		from := rapid.IntRange(0, len(all)).Draw(t, "from")
		part := make([]int, rapid.IntRange(0, len(all)-from).Draw(t, "length"))
		require.NoError(t, f.Read(part, from))
		require.Equal(t, all[from:from+len(part)], part)

		documents, lengths, err := f.Documents()
		require.NoError(t, err)
		require.Equal(t, docs, readAll(t, documents))
		for i, n := range readAll(t, lengths) {
			require.Len(t, docs[i], n)
		}
		length, step := rapid.IntRange(1, len(all)).Draw(t, "window"), rapid.IntRange(1, len(all)+1).Draw(t, "step")
		require.Equal(t, readAll(t, Windows(all, length, step)), readAll(t, f.Windows(length, step)))
		require.NoError(t, f.Close())
	})
}

// checkTokens opens any files, which gives what was in them or an error.
func checkTokens(t require.TestingT, path string, tokens, ends []byte, bits, window int) {
	require.NoError(t, os.WriteFile(path, tokens, 0o600))
	require.NoError(t, os.WriteFile(path+".ends", ends, 0o600))
	f, err := OpenTokens(path, bits)
	if bits != 16 && bits != 32 || len(tokens) == 0 || len(tokens)%(bits/8) != 0 {
		require.Error(t, err)
		return
	}
	require.NoError(t, err)
	if windows := f.Windows(window, 2); window < 1 || window > f.Len() {
		_, err := windows.At(0)
		require.ErrorContains(t, err, fmt.Sprintf("data: %s: a window has %d ", path, window))
	} else {
		for i, w := range readAll(t, windows) {
			require.Equal(t, tokens[i*2*bits/8:][:window*bits/8], raw(w, bits))
		}
	}
	if docs, _, err := f.Documents(); err == nil {
		var all, ended []byte
		for _, doc := range readAll(t, docs) {
			all = append(all, raw(doc, bits)...)
			ended = binary.LittleEndian.AppendUint64(ended, uint64(len(all)*8/bits))
		}
		require.Equal(t, tokens, all)
		require.Equal(t, ends, ended)
	}
	require.NoError(t, f.Close())
}

func FuzzTokens(f *testing.F) {
	ends := func(n ...uint64) (b []byte) {
		for _, end := range n {
			b = binary.LittleEndian.AppendUint64(b, end)
		}
		return b
	}
	f.Add([]byte("abcdefgh"), ends(1, 4), 16, 2)
	f.Add([]byte("abcdefgh"), ends(2, 1), 32, 1)
	f.Add([]byte("abc"), ends(1<<63), 16, 0)
	f.Add([]byte("abcd"), ends(2)[:7], 16, 9)
	path := filepath.Join(f.TempDir(), "t.bin")
	f.Fuzz(func(t *testing.T, tokens, ends []byte, bits, window int) {
		checkTokens(t, path, tokens, ends, bits, window)
	})
}

func TestTokensRefuse(t *testing.T) {
	_, err := OpenTokens("x", 8)
	require.EqualError(t, err, "data: tokens of 8 bits, want 16 or 32")
	_, err = CreateTokens("x", 64)
	require.EqualError(t, err, "data: tokens of 64 bits, want 16 or 32")
	path := write(t, "a.bin", []byte("abcdef"))
	_, err = OpenTokens(path, 32)
	require.EqualError(t, err, "data: "+path+": 6 bytes are not a whole number of tokens of 4 bytes: the file is truncated, or its tokens have another width")
	f, err := OpenTokens(path, 16)
	require.NoError(t, err)
	for _, at := range []int{-1, 2, 3, 4} {
		require.EqualError(t, f.Read(make([]int, 2), at), fmt.Sprintf("data: %s: 2 tokens from %d on are out of range: there are 3", path, at))
	}
	_, _, err = f.Documents()
	require.ErrorIs(t, err, os.ErrNotExist)
	for ends, want := range map[string]string{
		"1234567":                         "7 bytes are not a multiple of 8",
		string([]byte{4: 1, 7: 0}):        "document 0 ends at token 4294967296, but the document before ends at 0 and the last token is 3",
		string(make([]byte, 8)):           "document 0 ends at token 0, but the document before ends at 0 and the last token is 3",
		string([]byte{0: 2, 8: 1, 15: 0}): "document 1 ends at token 1, but the document before ends at 2 and the last token is 3",
		string([]byte{0: 2, 7: 0}):        "the last document ends at token 2, but there are 3 tokens",
	} {
		require.NoError(t, os.WriteFile(path+".ends", []byte(ends), 0o600))
		_, _, err = f.Documents()
		require.EqualError(t, err, "data: "+path+".ends: "+want)
	}
	require.NoError(t, f.Close())
	require.ErrorIs(t, f.Read(make([]int, 1), 0), os.ErrClosed)
}

// TestTokenWriter: files come into being at Close, or not at all.
func TestTokenWriter(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "train.bin")
	writeTokens(t, path, 16, [][]int{{1, 2}, {3}})
	files := func() (list []string) {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			list = append(list, e.Name())
		}
		return list
	}
	create := func() *TokenWriter {
		w, err := CreateTokens(path, 16)
		require.NoError(t, err)
		return w
	}
	content := func() []byte {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		return b
	}

	w := create() // an error in between
	require.NoError(t, w.Write([]int{7, 65535}))
	const want = "data: writing %s: token %d does not fit 16 bits"
	require.EqualError(t, w.Write([]int{7, 65536}), fmt.Sprintf(want, path, 65536))
	require.EqualError(t, w.Write([]int{7, -1}), fmt.Sprintf(want, path, 65536), "the first one stays")
	require.EqualError(t, w.Close(), fmt.Sprintf(want, path, 65536))
	require.EqualError(t, w.Close(), fmt.Sprintf(want, path, 65536))
	require.Equal(t, []string{"train.bin", "train.bin.ends"}, files())
	require.Equal(t, raw([]int{1, 2, 3}, 16), content())

	w = create() // nothing
	require.EqualError(t, w.Close(), "data: writing "+path+": no tokens were written")
	w = create() // given up
	require.NoError(t, w.Write([]int{7}))
	w.Abort()
	w.Abort()
	require.ErrorIs(t, w.Write([]int{7}), os.ErrClosed)
	require.Equal(t, raw([]int{1, 2, 3}, 16), content())

	w = create() // two at a time; documents without tokens are none
	other := create()
	other.EndDocument()
	require.NoError(t, other.Write([]int{5}))
	other.EndDocument()
	other.EndDocument()
	require.NoError(t, w.Write([]int{9, 9}))
	require.NoError(t, w.Close())
	require.Equal(t, []string{"train.bin", files()[1]}, files(), "documents of other tokens are gone")
	require.NoError(t, other.Close())
	require.Equal(t, []string{"train.bin", "train.bin.ends"}, files())
	require.Equal(t, raw([]int{5}, 16), content())

	require.NoError(t, os.Remove(path+".ends")) // the disk says no
	require.NoError(t, os.MkdirAll(path+".ends/x", 0o700))
	w = create()
	require.NoError(t, w.Write([]int{1}))
	require.ErrorContains(t, w.Close(), "data: writing "+path+": remove ")
	require.Equal(t, []string{"train.bin", "train.bin.ends"}, files())
	require.Equal(t, raw([]int{5}, 16), content())
	_, err := CreateTokens(filepath.Join(dir, "missing", "x.bin"), 16)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestTokensOfAnotherWidth opens files with the wrong number of bits: an error where the second
// file says how many tokens there are, and otherwise a warning if the tokens look like it.
func TestTokensOfAnotherWidth(t *testing.T) {
	log := logged(t)
	for bits, want := range map[int]string{16: "open it with 16 bits", 32: "open it with 32 bits"} {
		for _, ends := range []bool{true, false} {
			path := filepath.Join(t.TempDir(), "train.bin")
			w, err := CreateTokens(path, bits)
			require.NoError(t, err)
			for i := range 100 {
				require.NoError(t, w.Write([]int{1000 + 5*i*i, 20}))
			}
			if ends {
				w.EndDocument()
			}
			require.NoError(t, w.Close())
			log.Reset()
			right, err := OpenTokens(path, bits)
			require.NoError(t, err)
			require.NoError(t, right.Close())
			require.Empty(t, log.String())
			wrong, err := OpenTokens(path, 48-bits)
			if ends {
				require.ErrorContains(t, err, want)
				continue
			}
			require.NoError(t, errors.Join(err, wrong.Close()))
			require.Contains(t, log.String(), fmt.Sprintf("the first tokens look like %d-bit tokens, but it is opened with %d bits", bits, 48-bits))
		}
	}
}

// TestWindowsAllocateLittle: a loader reads windows of a file, in an order of an order of parts,
// into memory that is there. Only the two tensors of a batch are new.
func TestWindowsAllocateLittle(t *testing.T) {
	windows := manyWindows(t, 1<<16)
	lengths := Func(100, func(i int) (int, error) { return i, nil })
	src := Concat[[]int](Bucket(Range(windows, 0, 100), lengths, 10, 50, 1), Mix(1, Part[[]int]{windows, 1}, Part[[]int]{Repeat(windows, 2), 2}))
	l, err := NewLoader(Shuffle(Range(src, 0, 1<<20), 1, Endless), TokensAndTargets[int](256), Config{Batch: 8, Workers: 2})
	require.NoError(t, err)
	next, stop := iter.Pull2(l.Batches(t.Context()))
	defer stop()
	pull := func() {
		if batch, err, more := next(); err != nil || !more || len(batch) != 2 {
			panic(err)
		}
	}
	for range 200 {
		pull()
	}
	require.Less(t, testing.AllocsPerRun(1000, pull), 26.0, "22, and at times one or two of pools; a slice for each row makes it 29")
}

// TestIntoOfSharedMemory: sources whose samples others use, too, are not read into.
func TestIntoOfSharedMemory(t *testing.T) {
	windows := manyWindows(t, 1<<10)
	shared := Of([][]int{{1, 2, 3}})
	for _, src := range []Source[[]int]{shared, Concat[[]int](windows, shared), Shuffle(Concat[[]int](shared, windows), 1, 2), Range(Map[[]int](windows, func(w []int) ([]int, error) { return w, nil }), 0, 1)} {
		require.Nil(t, intoOf(src))
	}
	require.NotNil(t, intoOf[[]int](windows))
	require.NotNil(t, intoOf(Shuffle[[]int](windows, 1, 1)))
}

// manyWindows are windows of 256 tokens, and one more each, of a file of n.
func manyWindows(t testing.TB, n int) *File[[]int] {
	path := write(t, "w.bin", make([]byte, 2*n))
	f, err := OpenTokens(path, 16)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f.Windows(257, 256)
}

// BenchmarkWindows reads windows of 256 tokens of 16 bits, in any order, from a file that is in the
// page cache.
func BenchmarkWindows(b *testing.B) {
	const length = 256
	windows := manyWindows(b, 64<<20)
	r := rand.New(rand.NewPCG(1, 2))
	into := make([]int, length+1)
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if into, err = windows.Into(r.IntN(windows.Len()), into); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*length/b.Elapsed().Seconds()/1e6, "Mtokens/s")
}
