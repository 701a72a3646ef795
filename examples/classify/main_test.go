package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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

// rows writes a CSV file whose labels are easy to learn.
func rows(t *testing.T) string {
	var b strings.Builder
	b.WriteString("text,label\n")
	for i := range 101 { // the ranks hold out different numbers of rows
		fmt.Fprintf(&b, "\"a good, fine day %d\",good\nno no no %d,bad\n", i%7, i%5)
		if i%5 == 0 { // so that held out rows have both labels
			b.WriteString("never,bad\n")
		}
	}
	path := filepath.Join(t.TempDir(), "rows.csv")
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	return path
}

// pretrained makes the directory of a random BERT for masked tokens with a tokenizer.
func pretrained(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "bert")
	m, err := hf.New(&nn.BERT{Vocab: 2000, Context: 32, Layers: 1, Dim: 32, Heads: 2, Hidden: 64})
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

// TestRun learns labels with a random encoder and with one of a directory, and answers single
// texts.
func TestRun(t *testing.T) {
	for name, model := range map[string]string{"bytes": "", "directory": pretrained(t)} {
		t.Run(name, func(t *testing.T) {
			c := config{model: model, data: rows(t), out: filepath.Join(t.TempDir(), "out"), ranks: 3, epochs: 10, batch: 12, limit: 24, lr: 5e-3}
			var out bytes.Buffer
			require.NoError(t, run(t.Context(), c, &out))
			require.Contains(t, out.String(), `rows 201 to learn from, 22 held out, labels ["bad" "good"]`)
			require.Contains(t, out.String(), "epoch 10: accuracy 1.000, mean F1 1.000")
			encode, err := encoder(c)
			require.NoError(t, err)
			h, err := handler(c.out, encode)
			require.NoError(t, err)
			for text, want := range map[string]string{"a good day": "good\n", "no no": "bad\n"} {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(text)))
				require.Equal(t, want, w.Body.String())
			}
		})
	}
	other := filepath.Join(t.TempDir(), "other.csv")
	require.NoError(t, os.WriteFile(other, []byte("question,answer\na,b\n"), 0o600))
	require.ErrorContains(t, run(t.Context(), config{data: other}, &bytes.Buffer{}), `"text"`)
}
