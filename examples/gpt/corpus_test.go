package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
)

// writeFiles makes files by name in a new directory and returns it.
func writeFiles(t *testing.T, files map[string]string) string {
	dir := t.TempDir()
	for name, data := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(data), 0o644))
	}
	return dir
}

func TestLoad(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"a.txt": "aaaa", "b/c.txt": "cccc", "b/d.txt": "dddd", "e.txt": "eeee", "f.txt": "ffff", "empty": "",
		".git/x": "hidden", "z.bin": "bin\x00ary",
	})
	data, err := load(t.Context(), config{vocab: byteVocabulary, data: []string{dir}, maxBytes: 1000, holdout: 3, context: 4})
	require.NoError(t, err)
	files := strings.Fields(strings.ReplaceAll(string(data.train.tokens), "\x00", " "))
	held := strings.TrimSuffix(string(data.held.tokens), "\x00")
	require.ElementsMatch(t, []string{"aaaa", "cccc", "dddd", "eeee", "ffff"}, append(files, held))
	require.Equal(t, 5, data.files)
	require.Equal(t, 1, data.heldFiles)

	data, err = load(t.Context(), config{vocab: byteVocabulary, data: []string{filepath.Join(dir, "a.txt"), filepath.Join(dir, "b")}, maxBytes: 1000, holdout: 4, context: 3})
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"aaa", "ccc", "ddd", ""}, strings.Split(string(data.train.tokens), "\x00"))
	require.ElementsMatch(t, []string{"a", "c", "d", ""}, strings.Split(string(data.held.tokens), "\x00"), "few files: the end of each is held out")
	require.Contains(t, data.String(), "the last 6 B of them held out")
}

func TestLoadErrors(t *testing.T) {
	_, err := load(t.Context(), config{vocab: byteVocabulary, data: []string{filepath.Join(t.TempDir(), "none")}, maxBytes: 10, holdout: 2})
	require.ErrorIs(t, err, os.ErrNotExist)
	dir := writeFiles(t, map[string]string{"a": "short"})
	_, err = load(t.Context(), config{vocab: byteVocabulary, data: []string{dir}, maxBytes: 10, holdout: 2, context: 64})
	require.ErrorContains(t, err, "has 4 bytes to train on and 3 held out: both must fill a window of 65")
}

func TestReadIsLimited(t *testing.T) {
	files := make(map[string]string)
	for i := range 100 {
		files[fmt.Sprintf("%02d", i)] = strings.Repeat(fmt.Sprint(i%10), 50)
	}
	dir := writeFiles(t, files)
	read := func(limit int) *corpus {
		data, err := load(t.Context(), config{vocab: byteVocabulary, data: []string{dir}, maxBytes: limit, holdout: 5, context: 8})
		require.NoError(t, err)
		return data
	}
	few, more := read(1010), read(2000)
	require.Equal(t, 1010, len(few.train.tokens)+len(few.held.tokens)-few.files)
	require.Equal(t, 21, few.files, "the last one is cut")
	require.Equal(t, 40, more.files)
	require.Equal(t, few, read(1010))
	require.NotEqual(t, strings.Repeat("0", 50)+strings.Repeat("1", 50), string(few.train.tokens[:50])+string(few.train.tokens[51:101]), "not just the first files")
}

func TestStandardLibrary(t *testing.T) {
	c := config{vocab: byteVocabulary, maxBytes: 300_000, holdout: 20, context: 128}
	data, err := load(t.Context(), c)
	require.NoError(t, err)
	again, err := load(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, data, again)
	require.Contains(t, string(data.train.tokens), "package ")
}

func TestLibrarySource(t *testing.T) {
	require.True(t, isLibrarySource("fmt/print.go", false))
	for _, name := range []string{"fmt/print_test.go", "fmt/doc.txt"} {
		require.False(t, isLibrarySource(name, false), name)
	}
	for _, name := range []string{"cmd", "vendor", "cmd/vendor", "go/types/testdata"} {
		require.False(t, isLibrarySource(name, true), name)
	}
	require.True(t, isLibrarySource("go/types", true))
}

// TestRanksPartitionTheBatch checks that any number of ranks sees the rows that one rank does.
func TestRanksPartitionTheBatch(t *testing.T) {
	c := &corpus{train: section{tokens: make([]int32, 1000)}, held: section{tokens: make([]int32, 300), bytes: 300}}
	for i := range c.train.tokens {
		c.train.tokens[i] = int32(i * 7 % 256)
	}
	rapid.Check(t, func(rt *rapid.T) {
		ranks := rapid.IntRange(1, 8).Draw(rt, "ranks")
		like := config{vocab: byteVocabulary, context: rapid.IntRange(2, 64).Draw(rt, "context"), batch: rapid.IntRange(ranks, 20).Draw(rt, "rows"),
			seed: rapid.Uint64().Draw(rt, "seed"), evalBytes: 1000}
		for _, of := range []func(comm.Group, config) (*loader, error){c.batches, c.heldBatches} {
			whole := first(t, of, comm.Local(1)[0], like)
			require.Equal(t, []int{like.batch, like.context}, []int(whole[0].Shape()))
			for k := range 2 {
				var parts []int
				for _, g := range comm.Local(ranks) {
					parts = append(parts, first(t, of, g, like)[k].Data().([]int)...)
				}
				require.Equal(t, whole[k].Data(), parts)
			}
		}
	})
}

// first returns the first batch of a loader.
func first(t *testing.T, of func(comm.Group, config) (*loader, error), g comm.Group, like config) []fsdp.Tensor {
	l, err := of(g, like)
	require.NoError(t, err)
	for batch, err := range l.Batches(t.Context()) {
		require.NoError(t, err)
		return []fsdp.Tensor{batch[0].Clone().(fsdp.Tensor), batch[1].Clone().(fsdp.Tensor)} // a batch is valid until the next
	}
	t.Fatal("no batch")
	return nil
}

func TestBatch(t *testing.T) {
	c := &corpus{train: section{tokens: []int32("0123456789abcdefghijklmnopqrstuvwxyz")}, held: section{tokens: []int32("abcdefghi"), bytes: 9}}
	like, alone := config{context: 8, batch: 50, seed: 1}, comm.Local(1)[0]
	batch := first(t, c.batches, alone, like)
	tokens, targets := batch[0].Data().([]int), batch[1].Data().([]int)
	for row := range slices.Chunk(tokens, 8) {
		require.Contains(t, string(c.train.tokens), text(row))
	}
	for i := range tokens {
		if i%8 < 7 {
			require.Equal(t, tokens[i+1], targets[i], "a target is the next token")
		}
	}
	like.seed = 2
	require.NotEqual(t, tokens, first(t, c.batches, alone, like)[0].Data(), "another seed")

	batch = first(t, c.heldBatches, alone, config{context: 4, batch: 3, evalBytes: 12}) // windows of five, spread from end to end
	require.Equal(t, "abcdcdefefgh", text(batch[0].Data().([]int)))
	require.Equal(t, "bcdedefgfghi", text(batch[1].Data().([]int)))
}

func text(tokens []int) string {
	var b []byte
	for _, x := range tokens {
		b = append(b, byte(x))
	}
	return string(b)
}
