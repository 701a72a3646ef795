package data

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// write makes a file of a directory of the test.
func write(t testing.TB, name string, content []byte) (path string) {
	path = filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

// readAll reads all samples, twice at a time, and checks that both are the same.
func readAll[T any](t require.TestingT, src Source[T]) []T {
	list := make([]T, src.Len())
	again := make([]T, src.Len())
	errs := make([]error, src.Len())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range list {
			list[i], _ = src.At(i)
		}
	})
	for i := range again {
		again[i], errs[i] = src.At(i)
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, again, list)
	for _, i := range []int{-1, src.Len()} {
		_, err := src.At(i)
		require.ErrorContains(t, err, fmt.Sprintf("sample %d", i))
	}
	return list
}

// naiveLines splits a text in memory.
func naiveLines(text string) []string {
	lines := strings.Split(strings.TrimPrefix(text, "\ufeff"), "\n")
	if last := len(lines) - 1; lines[last] == "" {
		lines = lines[:last]
	}
	for i := range lines {
		lines[i] = strings.TrimSuffix(lines[i], "\r")
	}
	return lines
}

// checkText compares the lines of a file, and its JSON lines, with those of the text in memory.
func checkText(t require.TestingT, path string, text []byte) {
	require.NoError(t, os.WriteFile(path, text, 0o600))
	want := naiveLines(string(text))
	utf16 := bytes.HasPrefix(text, []byte{0xff, 0xfe}) || bytes.HasPrefix(text, []byte{0xfe, 0xff})
	lines, err := OpenLines(path)
	if len(want) == 0 || utf16 {
		require.ErrorContains(t, err, path)
		return
	}
	require.NoError(t, err)
	require.Equal(t, want, readAll(t, lines))
	require.NoError(t, lines.Close())

	var numbers []int // of the lines that are not blank
	for i, line := range want {
		if strings.Trim(line, " \t\r") != "" {
			numbers = append(numbers, i)
		}
	}
	values, err := OpenJSON[any](path)
	if len(numbers) == 0 {
		require.ErrorContains(t, err, path+": nothing but space")
		return
	}
	if err != nil { // of the first line
		var value any
		wrong := json.Unmarshal([]byte(strings.TrimRight(want[numbers[0]], " \t\r")), &value)
		require.EqualError(t, err, fmt.Sprintf("data: %s:%d: %v%s", path, numbers[0]+1, wrong, hintLines([]byte(want[numbers[0]]))))
		return
	}
	require.Equal(t, len(numbers), values.Len())
	for i, line := range numbers {
		var value any
		wrong := json.Unmarshal([]byte(strings.TrimRight(want[line], " \t\r")), &value)
		got, err := values.At(i)
		if wrong != nil {
			require.EqualError(t, err, fmt.Sprintf("data: %s:%d: %v", path, line+1, wrong))
			continue
		}
		require.NoError(t, err)
		require.Equal(t, value, got)
	}
	require.NoError(t, values.Close())
}

func TestText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "text")
	for _, text := range []string{"a", "a\n", "\n", "\r\n", "\ufeff", "\ufeffa\r\nb\r", "\n\n{}\n \t\r\n[1\n\n2", "\xff\xfea", "\xfe\xff", "\"a\nb\"\n"} {
		checkText(t, path, []byte(text))
	}
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SampledFrom([]string{"\n", "\r", " ", "\t", "\ufeff", "1", `{"a": 2}`, `"`, "[", "]", "ä", "\xff"})
		checkText(t, path, []byte(strings.Join(rapid.SliceOfN(words, 1, 20).Draw(t, "text"), "")))
	})
}

func FuzzText(f *testing.F) {
	for _, text := range []string{"a\nb", "\ufeff{\"a\": 1}\r\n\r\n[2]", "\xff\xfea", "\n", "\"\n"} {
		f.Add([]byte(text))
	}
	path := filepath.Join(f.TempDir(), "text")
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 0 {
			checkText(t, path, text)
		}
	})
}

// TestLongLines: lines are longer and shorter than what is read at once.
func TestLongLines(t *testing.T) {
	var text []byte
	for _, n := range []int{0, 1, 1<<20 - 5, 1, 3 << 20, 1<<20 - 1, 7} {
		text = append(append(text, bytes.Repeat([]byte{'x'}, n)...), '\n')
	}
	lines, err := OpenLines(write(t, "long.txt", text))
	require.NoError(t, err)
	require.Equal(t, naiveLines(string(text)), readAll(t, lines))
	require.NoError(t, lines.Close())
}

// openers open a file in all ways.
var openers = map[string]func(path string) error{
	"lines":       func(path string) error { _, err := OpenLines(path); return err },
	"JSON":        func(path string) error { _, err := OpenJSON[any](path); return err },
	"CSV":         func(path string) error { _, err := OpenCSV[struct{ A int }](path); return err },
	"npy":         func(path string) error { _, err := OpenNpy[struct{ A int }](path); return err },
	"safetensors": func(path string) error { _, err := OpenSafetensors[struct{ A int }](path); return err },
	"tokens":      func(path string) error { _, err := OpenTokens(path, 16); return err },
}

func TestFilesThatCannotBeOpened(t *testing.T) {
	dir := t.TempDir()
	for name, open := range openers {
		require.ErrorContains(t, open(write(t, "a.jsonl.GZ", []byte("1"))), "a.jsonl.GZ is compressed and cannot be read from the middle", name)
		require.ErrorContains(t, open(write(t, "empty", nil)), "empty is empty", name)
		require.ErrorContains(t, open(dir), dir+" is not a regular file", name)
		err := open(filepath.Join(dir, "missing"))
		require.ErrorIs(t, err, os.ErrNotExist, name)
		require.ErrorContains(t, err, filepath.Join(dir, "missing"), name)
	}
}

// TestFilesThatShrink: what is gone is an error, and what is left is not.
func TestFilesThatShrink(t *testing.T) {
	path := write(t, "a.txt", []byte("one\ntwo\nthree\n"))
	lines, err := OpenLines(path)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, 6))
	first, err := lines.At(0)
	require.NoError(t, err)
	require.Equal(t, "one", first)
	_, err = lines.At(1)
	require.EqualError(t, err, fmt.Sprintf("data: %s: byte 6 is missing: the file had 14 bytes when it was opened", path))
	_, err = lines.At(2)
	require.ErrorContains(t, err, "byte 8 is missing")
	require.NoError(t, os.Remove(path)) // it stays open
	_, err = lines.At(0)
	require.NoError(t, err)
	require.NoError(t, lines.Close())
}

func TestDir(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"b.go": "package b", "a/z.go": "\ufeffz", "a/b/c.txt": "c", "empty.go": "", ".git/x.go": "x", "a/.y.go": "y"} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	src, err := OpenDir(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"c", "z", "package b"}, readAll(t, src))
	require.Equal(t, fmt.Sprintf("%s(3 files)", filepath.Base(dir)), src.String())
	src, err = OpenDir(dir, "*.rs", "*.go")
	require.NoError(t, err)
	require.Equal(t, []string{"z", "package b"}, readAll(t, src))
	require.NoError(t, os.Remove(filepath.Join(dir, "b.go")))
	_, err = src.At(1)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, filepath.Join(dir, "b.go"))
	require.NoError(t, src.Close())

	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err == nil || runtime.GOOS != "windows" { // which asks for a privilege there
		require.NoError(t, err)
		src, err = OpenDir(link)
		require.NoError(t, err)
		require.Equal(t, []string{"c", "z"}, readAll(t, src))
		require.Equal(t, "link(2 files)", src.String())
	}

	_, err = OpenDir(dir, "*.c")
	require.ErrorContains(t, err, dir)
	require.ErrorContains(t, err, `"*.c"`)
	_, err = OpenDir(dir, "[")
	require.EqualError(t, err, `data: syntax error in pattern "["`)
	_, err = OpenDir(filepath.Join(dir, "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "more.txt.gz"), []byte("x"), 0o600))
	_, err = OpenDir(dir)
	require.ErrorContains(t, err, "more.txt.gz is compressed")
}
