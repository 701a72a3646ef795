package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pairs writes a CSV file whose anchors and positives share a word.
func pairs(t *testing.T) string {
	var b strings.Builder
	b.WriteString("anchor,positive\n")
	for i := range 61 {
		fmt.Fprintf(&b, "who is %c%c,\"%c%c, of course\"\n", 'a'+i%8, 'h'+i/8, 'a'+i%8, 'h'+i/8)
	}
	path := filepath.Join(t.TempDir(), "pairs.csv")
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	return path
}

// pretrained makes the directory of a random ModernBERT for masked tokens with a tokenizer.
func pretrained(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "modernbert")
	m, err := hf.New(&nn.ModernBERT{Vocab: 2000, Context: 32, Layers: 1, Dim: 32, Heads: 2, Hidden: 64})
	require.NoError(t, err)
	require.NoError(t, comm.Run(t.Context(), 1, func(ctx context.Context, g comm.Group) error {
		s, err := fsdp.Wrap(m.Model, fsdp.Config{Group: g, Seed: 3})
		if err != nil {
			return err
		}
		defer s.Close()
		return m.Save(ctx, s, dir, nil)
	}))
	words := filepath.Join("..", "..", "fsdp", "nn", "hf", "tokenizer", "testdata", "bert")
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		text, err := os.ReadFile(filepath.Join(words, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	return dir
}

// TestRun trains a random encoder and one of a directory, whose result it opens again. Steps have
// one or several micro batches, and the last step has fewer rows than the others.
func TestRun(t *testing.T) {
	recall := regexp.MustCompile(`recall@1 (\S+)`)
	out := filepath.Join(t.TempDir(), "out")
	for _, c := range []config{
		{ranks: 2, batch: 16, micro: 3, limit: 24},
		{ranks: 3, batch: 20, micro: 20, limit: 24, model: pretrained(t), out: out},
		{ranks: 1, batch: 16, micro: 8, limit: 24, model: out},
	} {
		c.data, c.epochs, c.lr, c.find = pairs(t), 8, 5e-3, "who is aj"
		var text bytes.Buffer
		require.NoError(t, run(t.Context(), c, &text))
		require.Contains(t, text.String(), "rows 55 to learn from, 6 held out")
		values := recall.FindAllStringSubmatch(text.String(), -1)
		require.Len(t, values, 9, text.String())
		require.GreaterOrEqual(t, values[8][1], values[0][1], text.String())
		require.GreaterOrEqual(t, values[8][1], "0.6", text.String())
		require.Contains(t, text.String(), "who is aj\n   aj, of course\n")
	}
	other := filepath.Join(t.TempDir(), "other.csv")
	require.NoError(t, os.WriteFile(other, []byte("question,answer\na,b\n"), 0o600))
	require.ErrorContains(t, run(t.Context(), config{data: other}, &bytes.Buffer{}), `"anchor"`)
}

// TestFunctions reads documentation.
func TestFunctions(t *testing.T) {
	rows, err := functions([]string{"strings"})
	require.NoError(t, err)
	require.Contains(t, rows, row{"reports whether substr is within s.", "strings.Contains(s, substr string) bool"})
}

// TestNoModel: a directory without a model is an error that names the missing file.
func TestNoModel(t *testing.T) {
	r := &rank{}
	r.model = t.TempDir()
	require.ErrorContains(t, r.openModel(), "config.json")
}
