package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer"
)

// vocabulary turns text into tokens and back.
type vocabulary struct {
	name, unit string // unit is the name of a token
	size, end  int    // end is the token after each file
	encode     func(text string) []int
	decode     func(tokens []int) string
}

// byteVocabulary has a token for each byte. The zero byte, which does not occur in text, ends a
// file.
var byteVocabulary = vocabulary{
	name: "bytes", unit: "byte", size: 256,
	encode: func(text string) (tokens []int) {
		for _, b := range []byte(text) {
			tokens = append(tokens, int(b))
		}
		return tokens
	},
	decode: func(tokens []int) string {
		text := make([]byte, len(tokens))
		for i, b := range tokens {
			text[i] = byte(b)
		}
		return string(text)
	},
}

// openVocabulary reads the tokenizer in a directory. It must have a token that ends a file.
func openVocabulary(dir string) (vocabulary, error) {
	t, err := tokenizer.Open(strings.TrimSuffix(dir, "tokenizer.json"))
	if err != nil {
		return vocabulary{}, err
	}
	if t.EOS < 0 {
		return vocabulary{}, fmt.Errorf("no token ends a text: want eos_token in tokenizer_config.json of %s", dir)
	}
	sum := crc32.NewIEEE()
	for i := range t.Size {
		fmt.Fprintln(sum, t.Decode([]int{i}))
	}
	return vocabulary{fmt.Sprintf("%d tokens with checksum %08x", t.Size, sum.Sum32()), "token", t.Size, t.EOS, t.EncodePlain, t.Decode}, nil
}

// corpus is text to learn from, and text that is held out for validation.
type corpus struct {
	source           string
	train, held      section
	files, heldFiles int
}

// section is files one after the other, each with the token that ends it.
type section struct {
	tokens []int32
	bytes  int    // of the files, and one for each end
	sum    uint32 // CRC-32 of these bytes, with a zero after each file
}

func (s *section) add(v vocabulary, text []byte) {
	for _, token := range append(v.encode(string(text)), v.end) {
		s.tokens = append(s.tokens, int32(token))
	}
	s.bytes += len(text) + 1
	s.sum = crc32.Update(s.sum, crc32.IEEETable, append(text, 0))
}

// load reads the corpus. It holds out every k-th file, or the last k-th part of each file if there
// are fewer than k, where k is -holdout.
func load(ctx context.Context, c config) (*corpus, error) {
	roots, want, k := c.data, notHidden, c.holdout
	if len(roots) == 0 {
		src, err := standardLibrary(ctx)
		if err != nil {
			return nil, err
		}
		roots, want = []string{src}, isLibrarySource
	}
	var texts [][]byte
	paths, err := find(ctx, roots, want)
	// A limit takes files from all directories, always the same ones.
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(paths), func(i, j int) { paths[i], paths[j] = paths[j], paths[i] })
	for limit := c.maxBytes; err == nil && limit > 0 && len(paths) > 0; paths = paths[1:] {
		var text []byte
		if text, err = readUpTo(paths[0], limit); len(text) > 0 && isText(text) {
			texts = append(texts, text)
			limit -= len(text)
		}
	}
	if err != nil {
		return nil, err
	}
	t := &corpus{source: strings.Join(roots, ", "), files: len(texts)}
	for i, text := range texts {
		switch cut := len(text) - len(text)/k; {
		case ctx.Err() != nil: // a tokenizer takes its time
			return nil, context.Cause(ctx)
		case len(texts) < k:
			t.train.add(c.vocab, text[:cut:cut])
			t.held.add(c.vocab, text[cut:])
		case i%k == k-1:
			t.held.add(c.vocab, text)
			t.heldFiles++
		default:
			t.train.add(c.vocab, text)
		}
	}
	if n, train, held := c.context+1, len(t.train.tokens), len(t.held.tokens); train < n || held < n {
		return nil, fmt.Errorf("%s has %d %ss to train on and %d held out: both must fill a window of %d", t.source, train, c.vocab.unit, held, n)
	}
	return t, nil
}

// standardLibrary returns the directory of the Go standard library's source.
func standardLibrary(ctx context.Context) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	src := filepath.Join(strings.TrimSpace(string(root)), "src")
	if err == nil {
		_, err = os.Stat(filepath.Join(src, "fmt", "print.go"))
	}
	if err != nil {
		return "", fmt.Errorf("no source of the Go standard library: name text to train on by -data: %w", err)
	}
	return src, nil
}

// find lists the regular files under some roots that want selects. A root may be a file.
func find(ctx context.Context, roots []string, want func(name string, dir bool) bool) (paths []string, err error) {
	for _, root := range roots {
		err := filepath.WalkDir(root, func(p string, entry fs.DirEntry, err error) error {
			if err = errors.Join(err, context.Cause(ctx)); err != nil {
				return err
			}
			name, err := filepath.Rel(root, p)
			switch wanted := p == root || want(filepath.ToSlash(name), entry.IsDir()); {
			case !wanted && entry.IsDir():
				return fs.SkipDir
			case wanted && (p == root && !entry.IsDir() || entry.Type().IsRegular()):
				paths = append(paths, p)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// isLibrarySource selects the standard library itself: no commands, tests, copies of other modules,
// or long generated tables.
func isLibrarySource(name string, dir bool) bool {
	if dir {
		return !slices.Contains([]string{"cmd", "syscall", "vendor", "testdata", "unicode"}, path.Base(name))
	}
	return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
}

// notHidden selects files and directories that Unix does not hide, such as .git.
func notHidden(name string, _ bool) bool { return !strings.HasPrefix(path.Base(name), ".") }

// isText reports whether b is text, by git's rule: text has no zero byte near its beginning.
func isText(b []byte) bool { return bytes.IndexByte(b[:min(len(b), 8000)], 0) < 0 }

func readUpTo(path string, limit int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, int64(limit)))
}

// bytesPerToken is the mean over the held-out text.
func (t *corpus) bytesPerToken() float64 { return float64(t.held.bytes) / float64(len(t.held.tokens)) }

// String describes the corpus.
func (t *corpus) String() string {
	held := fmt.Sprintf("%s files, %s, held out", monitor.Count(t.heldFiles), monitor.Bytes(t.held.bytes))
	if t.heldFiles == 0 {
		held = fmt.Sprintf("the last %s of them held out", monitor.Bytes(t.held.bytes))
	}
	return fmt.Sprintf("  %s\n  %s files, %s to train on; %s\n", t.source, monitor.Count(t.files-t.heldFiles), monitor.Bytes(t.train.bytes), held)
}

// loader gives a rank its rows of the batches.
type loader = data.Loader[[]int32]

// batches returns a loader of windows to train on, at all places of the text, in a random order
// without end. The same batches are shared by any number of ranks.
func (t *corpus) batches(g comm.Group, c config) (*loader, error) {
	return c.loader(g, data.Shuffle(data.Windows(t.train.tokens, c.context+1, 1), c.seed, data.Endless))
}

// heldBatches returns a loader of windows to evaluate on, spread evenly over the held-out text.
func (t *corpus) heldBatches(g comm.Group, c config) (*loader, error) {
	tokens := float64(c.evalBytes) / t.bytesPerToken()
	count := int(math.Ceil(tokens/float64(c.batch*c.context))) * c.batch
	last := len(t.held.tokens) - c.context - 1
	return c.loader(g, data.Func(count, func(i int) ([]int32, error) {
		from := last * i / max(1, count-1)
		return t.held.tokens[from : from+c.context+1], nil
	}))
}

func (c *config) loader(g comm.Group, windows data.Source[[]int32]) (*loader, error) {
	return data.NewLoader(windows, data.TokensAndTargets[int32](c.context), data.Config{Group: g, Batch: c.batch, VirtualRanks: c.virtual})
}
