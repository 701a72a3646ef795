package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/build"
	"hash/crc32"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/fsdp/monitor"
)

// corpus is text to learn from and text held out to test on.
type corpus struct {
	source           string // where it is from
	train, held      section
	files, heldFiles int
}

// section is files one after the other, each with the token that ends it.
type section struct {
	tokens []int32
	bytes  int    // of the files, and one more for each
	sum    uint32 // CRC-32 of these, the one more is endOfFile
}

func (s *section) add(v vocabulary, data []byte) {
	for _, token := range append(v.encode(string(data)), v.end()) {
		s.tokens = append(s.tokens, int32(token))
	}
	s.bytes += len(data) + 1
	s.sum = crc32.Update(crc32.Update(s.sum, crc32.IEEETable, data), crc32.IEEETable, []byte{endOfFile})
}

// bytesPerToken is that of text that was held out.
func (c *corpus) bytesPerToken() float64 { return float64(c.held.bytes) / float64(len(c.held.tokens)) }

// file is a file of a corpus.
type file struct {
	path, name string // name is relative to the root that it was found under, with slashes
	data       []byte
}

// load reads the corpus that c asks for.
func load(ctx context.Context, c config) (*corpus, error) {
	var files []file
	source, keep := strings.Join(c.data, ", "), isText
	if len(c.data) == 0 {
		src, err := standardLibrary(ctx)
		if err != nil {
			return nil, err
		}
		source, keep = src, isHandwritten
		if files, err = find(ctx, src, isLibrarySource); err != nil {
			return nil, err
		}
	}
	for _, root := range c.data {
		more, err := find(ctx, root, notHidden)
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	files, err := read(ctx, files, keep, c.maxBytes)
	if err != nil {
		return nil, err
	}
	data, err := split(ctx, files, c.holdout, c.vocab)
	if err != nil {
		return nil, err
	}
	data.source = source
	if n, train, held := c.context+1, len(data.train.tokens), len(data.held.tokens); train < n || held < n {
		return nil, fmt.Errorf("%s has %d %ss to train on and %d held out: both must fill a window of %d", source, train, c.vocab.unit(), held, n)
	}
	return data, nil
}

// standardLibrary returns the directory of the Go standard library's source.
func standardLibrary(ctx context.Context) (string, error) {
	root := build.Default.GOROOT
	if out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output(); err == nil {
		root = strings.TrimSpace(string(out))
	}
	src := filepath.Join(root, "src")
	if _, err := os.Stat(filepath.Join(src, "fmt", "print.go")); err != nil {
		return "", errors.New("no source of the Go standard library found: name text to train on by -data")
	}
	return src, nil
}

// find lists the regular files under root, in order of their names, that want selects. root may be
// a file itself.
func find(ctx context.Context, root string, want func(name string, dir bool) bool) ([]file, error) {
	var files []file
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err = errors.Join(err, context.Cause(ctx)); err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		switch {
		case path == root && entry.IsDir():
		case path == root:
			files = append(files, file{path: path, name: filepath.Base(path)})
		case !want(name, entry.IsDir()):
			if entry.IsDir() {
				return fs.SkipDir
			}
		case entry.Type().IsRegular():
			files = append(files, file{path: path, name: name})
		}
		return nil
	})
	return files, err
}

// isLibrarySource selects the standard library proper: no commands, tests, or copies of other
// modules.
func isLibrarySource(name string, dir bool) bool {
	if dir {
		base := name[strings.LastIndexByte(name, '/')+1:]
		return name != "cmd" && base != "vendor" && base != "testdata"
	}
	return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
}

// notHidden selects what is not hidden as Unix does it, such as .git.
func notHidden(name string, _ bool) bool {
	return !strings.HasPrefix(name[strings.LastIndexByte(name, '/')+1:], ".")
}

// isText tells text from binary data as git does: text has no zero byte near its beginning.
func isText(data []byte) bool { return bytes.IndexByte(data[:min(len(data), 8000)], 0) < 0 }

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// isHandwritten drops what a program wrote (https://go.dev/s/generatedcode): long tables, easy to
// predict and dull to read.
func isHandwritten(data []byte) bool {
	return isText(data) && !generated.Match(data[:min(len(data), 2000)])
}

// read reads the files that keep accepts, up to a number of bytes in all. If there are more, a hash
// of the names decides which are read, so that the choice is even over directories and always the
// same.
func read(ctx context.Context, files []file, keep func([]byte) bool, limit int) ([]file, error) {
	hash := func(f file) uint64 {
		h := fnv.New64a()
		io.WriteString(h, f.name) // never fails
		return h.Sum64()
	}
	slices.SortStableFunc(files, func(a, b file) int { return cmp.Compare(hash(a), hash(b)) })
	var kept []file
	for _, f := range files {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if limit == 0 {
			break
		}
		var err error
		if f.data, err = readUpTo(f.path, limit); err != nil {
			return nil, err
		}
		if len(f.data) > 0 && keep(f.data) {
			kept = append(kept, f)
			limit -= len(f.data)
		}
	}
	slices.SortStableFunc(kept, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return kept, nil
}

func readUpTo(path string, limit int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, int64(limit)))
}

// split holds out every k-th file, or the last k-th of each if there are fewer than k.
func split(ctx context.Context, files []file, k int, v vocabulary) (*corpus, error) {
	c := &corpus{files: len(files)}
	for i, f := range files {
		switch {
		case ctx.Err() != nil: // a tokenizer takes its time
			return nil, context.Cause(ctx)
		case len(files) < k:
			cut := len(f.data) - len(f.data)/k
			c.train.add(v, f.data[:cut])
			c.held.add(v, f.data[cut:])
		case i%k == k-1:
			c.held.add(v, f.data)
			c.heldFiles++
		default:
			c.train.add(v, f.data)
		}
	}
	return c, nil
}

// describe says what was read, and how long it took.
func (c *corpus) describe(took time.Duration) string {
	held := fmt.Sprintf("%s files, %s, held out", monitor.Count(c.heldFiles), monitor.Bytes(c.held.bytes))
	if c.heldFiles == 0 {
		held = fmt.Sprintf("the last %s of them held out", monitor.Bytes(c.held.bytes))
	}
	return fmt.Sprintf("  %s\n  %s files, %s to train on; %s (%.1fs)\n", c.source, monitor.Count(c.files-c.heldFiles),
		monitor.Bytes(c.train.bytes), held, took.Seconds())
}
