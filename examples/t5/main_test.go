package main

import (
	"bytes"
	"context"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	lines "github.com/gofsdp/gofsdp/internal/text"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// handful is what a small model learns by heart. Of three ranks, one has nothing that is held out.
func handful() corpus {
	f := func(rank uint32, name, source, comment string) function {
		return function{file: holdOut * rank, name: name, source: source, comment: comment}
	}
	c := corpus{train: []function{
		f(0, "Len", "func Len() int { return n }", "returns the length."),
		f(0, "Sum", "func Sum() int { return a + b }", "adds."),
		f(0, "Close", "func Close() error { return unix.Close(fd) }", "closes a file."),
		f(2, "Less", "func Less() bool { return a < b }", "compares a and b."),
		f(1, "Print", "func Print() { fmt.Println() }", "prints what is, to be read by whoever reads."),
	}}
	c.held = c.train[:4]
	return c
}

var small = config{layers: 1, dim: 32, heads: 2, vocab: 300, source: 64, target: 64, rows: 2, epochs: 60, lr: 1e-2, prompts: 9, samples: 1, beams: 2}

// TestRun learns a handful of functions by heart on three ranks. Then as many ranks as may be write
// the same with what was learned.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	var weights map[string]*tensor.Dense
	require.NoError(t, comm.Run(t.Context(), 3, func(ctx context.Context, g comm.Group) error {
		r, err := newRank(ctx, g, small, handful(), &out)
		if err != nil {
			return err
		}
		defer r.model.Close()
		if err := r.write(ctx); err != nil {
			return err
		}
		if err := r.train(ctx); err != nil {
			return err
		}
		if err := r.write(ctx); err != nil {
			return err
		}
		full, err := r.model.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		if g.Rank() == 0 {
			weights = full
		}
		return err
	}))
	text := out.String()
	require.Empty(t, lines.Wider(text, 76), "80 with what fsdprun puts before a line")
	require.Contains(t, text, "rank 1 of 3 has written about 0 functions\n")
	loss := figures(t, text, `([0-9.]+) held out`)
	require.Len(t, loss, small.epochs)
	require.Less(t, loss[len(loss)-1], 0.1*loss[0])
	score := figures(t, text, `ROUGE-L over 4 functions:\n  model ([0-9.]+)`)
	require.Less(t, score[0], 0.2, "untrained")
	require.Equal(t, 1.0, score[1], text)

	for n := 1; n <= 4; n++ {
		require.NoError(t, comm.Run(t.Context(), n, func(ctx context.Context, g comm.Group) error {
			r, err := newRank(ctx, g, small, handful(), &out)
			require.NoError(t, err)
			defer r.model.Close()
			require.NoError(t, r.model.LoadStateDict(ctx, 0, weights))
			mine := r.mine(r.data.held)
			texts, err := r.comments(ctx, mine)
			require.NoError(t, err)
			for i, f := range mine {
				require.Equal(t, split(f.comment), strings.Fields(texts[i]), "%d ranks", n)
			}
			return nil
		}))
	}
}

// figures returns the numbers in text that a pattern has in parentheses.
func figures(t *testing.T, text, pattern string) (list []float64) {
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		v, err := strconv.ParseFloat(match[1], 64)
		require.NoError(t, err)
		list = append(list, v)
	}
	return list
}

func TestRead(t *testing.T) {
	tree := fstest.MapFS{
		"a/a.go": {Data: []byte(`package a

// F, a function, has another comment.
func F() {}

// Twice returns 2x. It has
// a second sentence.
func (T) Twice(x int) int {
	// not source
	return 2 * x // nor this
}

// None has no body.
func None()

// Cut is cut.
func Cut() { println() }
`)},
		"d/d.go":          {Data: []byte("package d\n\n// Cut occurs once more.\nfunc Cut() { println() }\n\n// P prints.\nfunc P() {}\n")},
		"b/b_test.go":     {Data: []byte("no Go")},
		"b/testdata/c.go": {Data: []byte("no Go")},
	}
	c, err := read(tree)
	require.NoError(t, err)
	a, d := crc32.ChecksumIEEE([]byte("a/a.go")), crc32.ChecksumIEEE([]byte("d/d.go"))
	require.Equal(t, []function{
		{file: a, name: "Cut", source: "func Cut() { println() }", comment: "is cut."},
		{file: a, name: "Twice", source: "func (T) Twice(x int) int {\n\n\treturn 2 * x\n}", comment: "returns 2x."},
	}, slices.SortedFunc(slices.Values(c.held), func(a, b function) int { return strings.Compare(a.name, b.name) }))
	require.Equal(t, []function{{file: d, name: "P", source: "func P() {}", comment: "prints."}}, c.train)

	_, err = read(os.DirFS(filepath.Join(t.TempDir(), "missing")))
	require.ErrorIs(t, err, fs.ErrNotExist)
	tree["e/bad.go"] = &fstest.MapFile{Data: []byte("no Go")}
	_, err = read(tree)
	require.ErrorContains(t, err, "e/bad.go:1:1: expected 'package'")
}

// TestVocabulary checks what words are, and that rare ones are left out.
func TestVocabulary(t *testing.T) {
	require.Equal(t, []string{"read", "http", "body", "of", "an", "r", "2"}, split("readHTTP(body) of an R2."))
	v := learn(handful().train, 300)
	require.LessOrEqual(t, len(v.words), 300)
	require.Equal(t, "func len int", v.text(v.tokens("func Len() int, unheard")))
	require.Equal(t, []string{"", "func", "a"}, learn(handful().train, 3).words)
	long := v.tokenize(handful().train, 3, 4)
	require.Len(t, long, 4, "one has a long comment")
	require.Equal(t, append(v.tokens("Len"), end, v.tokenOf["func"]), long[0].reads)
	require.Equal(t, "a b c", typical([]function{{comment: "x"}, {comment: "a b c"}, {comment: "a b d e"}, {comment: "b c y z"}}))
}

// TestBatches checks that ranks share all functions, and that batches have every target once.
func TestBatches(t *testing.T) {
	words := learn(handful().train, 300)
	all := words.tokenize(handful().train, 64, 64)
	for n := 1; n < 5; n++ {
		var want, got float64
		for i := range n {
			for batch := range tensors(group(share(all, i, n), 2), 2) {
				require.Equal(t, 2, batch[2].Shape()[0])
				got += targets(batch)
			}
		}
		for _, f := range all {
			want += float64(len(words.tokens(f.comment)) + 1)
		}
		require.Equal(t, want, got, "%d ranks", n)
	}
	require.Zero(t, targets(nil))
}

func TestShape(t *testing.T) {
	for length, want := range map[int]int{0: 8, 7: 8, 8: 16, 15: 16, 16: 24} {
		_, got := function{says: make([]int, length)}.shape()
		require.Equal(t, want, got, "%d tokens and the end", length)
	}
}

// TestRougeL has the examples of the paper, and edges.
func TestRougeL(t *testing.T) {
	for _, c := range []struct {
		text, reference string
		want            float64
	}{
		{"police kill the gunman", "police killed the gunman", 0.75},
		{"the gunman kill police", "police killed the gunman", 0.5},
		{"a b c d e", "a c e", 2 * 1 * 0.6 / (1 + 0.6)},
		{"Returns: the LENGTH!", "returns the length", 1},
		{"b a", "a b", 0.5},
		{"a a a", "a", 0.5},
		{"x", "y", 0},
		{"", "y", 0},
		{"", "", 0},
	} {
		require.InDelta(t, c.want, rougeL(c.text, c.reference), 1e-15, "%q, %q", c.text, c.reference)
		require.InDelta(t, c.want, rougeL(c.reference, c.text), 1e-15, "%q, %q", c.reference, c.text)
	}
}

// TestSettings checks what is refused.
func TestSettings(t *testing.T) {
	c := small
	c.ranks = 1
	require.NoError(t, c.check())
	c.vocab = 1
	require.ErrorContains(t, c.check(), "-vocab 1")
	c.vocab, c.lr = 256, 0
	require.ErrorContains(t, c.check(), "-lr")
	c = small
	require.ErrorContains(t, c.check(), "-ranks")
	c.target = 0
	_, err := newRank(t.Context(), comm.Local(1)[0], c, handful(), io.Discard)
	require.EqualError(t, err, "no functions have comments of at most 0 tokens")
}
