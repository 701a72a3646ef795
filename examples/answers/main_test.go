package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// small is a short training of an adapter of a given model.
func small(t *testing.T, model string) config {
	return config{model: model, out: filepath.Join(t.TempDir(), "tuned"), ask: "What does Load do?", ranks: 2, batch: 16, epochs: 2, limit: 64, rank: 4, lr: 2e-2}
}

// train runs the program and returns its output.
func train(t *testing.T, c config) string {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), t.Context(), c, &out))
	return out.String()
}

// random makes the directory of a random chat model.
func random(t *testing.T, model fsdp.Model, embedding string) string {
	dir := filepath.Join(t.TempDir(), "model")
	m, err := hf.New(model)
	require.NoError(t, err)
	require.NoError(t, comm.Run(t.Context(), 1, func(ctx context.Context, g comm.Group) error {
		s, err := fsdp.Wrap(m.Model, fsdp.Config{Group: g, Seed: 3})
		if err != nil {
			return err
		}
		defer s.Close()
		larger := func(params map[string]*tensor.Dense) error { // an adapter learns little under a random head of small weights
			_, err := params[embedding].MulScalar(float32(20), true, tensor.UseUnsafe())
			return err
		}
		if err := s.Summon(ctx, []string{embedding}, larger, fsdp.WriteBack(0)); err != nil {
			return err
		}
		return m.Save(ctx, s, dir, nil)
	}))
	require.NoError(t, (&rank{config: config{model: dir}}).copyFiles())
	return dir
}

func llama() *nn.Llama {
	return &nn.Llama{Vocab: 768, Context: 64, Layers: 2, Dim: 32, Heads: 4, Hidden: 64, Tied: true}
}

// losses returns the validation losses in the output.
func losses(t *testing.T, out string) (list []float64) {
	for _, match := range regexp.MustCompile(`validation loss ([0-9.]+)\n`).FindAllStringSubmatch(out, -1) {
		v, err := strconv.ParseFloat(match[1], 64)
		require.NoError(t, err)
		list = append(list, v)
	}
	return list
}

// adapter returns the files of the adapter.
func adapter(t *testing.T, dir string) (files [2]string) {
	for i, name := range []string{"adapter_config.json", "adapter_model.safetensors"} {
		text, err := os.ReadFile(filepath.Join(dir, "adapter", name))
		require.NoError(t, err)
		files[i] = string(text)
	}
	return files
}

// interrupter cancels a context when the output has a text.
type interrupter struct {
	bytes.Buffer
	text   string
	cancel context.CancelFunc
}

func (i *interrupter) Write(b []byte) (int, error) {
	n, err := i.Buffer.Write(b)
	if strings.Contains(i.String(), i.text) {
		i.cancel()
	}
	return n, err
}

// TestInterruption: the answers are learnt, and a training that is interrupted and goes on ends
// with the bits of one that is not. Another training begins with the adapter.
func TestInterruption(t *testing.T) {
	c := small(t, random(t, llama(), "embed.weight"))
	out := train(t, c)
	all := losses(t, out)
	require.Less(t, all[len(all)-1], all[0]-0.5, out)
	require.Contains(t, out, "What does Load do?\n")
	whole := adapter(t, c.out)
	require.FileExists(t, filepath.Join(c.out, "training.svg"))

	again := small(t, c.model)
	interrupt, cancel := context.WithCancel(t.Context())
	first := &interrupter{text: "step 6  validation", cancel: cancel}
	require.NoError(t, run(t.Context(), interrupt, again, first))
	require.NotContains(t, first.String(), "step 12  validation")
	require.NotEqual(t, whole, adapter(t, again.out))
	require.Contains(t, train(t, again), "continuing after step 7\n")
	require.Equal(t, whole, adapter(t, again.out))

	more := small(t, c.model)
	more.adapter = filepath.Join(c.out, "adapter")
	require.Less(t, losses(t, train(t, more))[0], all[0]-0.5)
}

// TestPack: several conversations share a row. Each of them has the loss that it has in a row to
// itself, in fewer steps.
func TestPack(t *testing.T) {
	steps := regexp.MustCompile(`step +1/(\d+) `)
	var ends []float64
	var counts []int
	for _, pack := range []bool{false, true} {
		c := small(t, random(t, llama(), "embed.weight"))
		c.pack, c.limit, c.epochs, c.lr = pack, 128, 1, 1e-12 // the model stays as it is
		out := train(t, c)
		all := losses(t, out)
		ends = append(ends, all[len(all)-1])
		n, err := strconv.Atoi(steps.FindStringSubmatch(out)[1])
		require.NoError(t, err)
		counts = append(counts, n)
		require.Contains(t, out, "What does Load do?\n")
	}
	require.InDelta(t, ends[0], ends[1], 2e-4)
	require.Less(t, counts[1], counts[0])
}

// TestAdapter: the base model with the adapter of the directory has the same logits as the trained
// model.
func TestAdapter(t *testing.T) {
	c := small(t, random(t, llama(), "embed.weight"))
	ids := tensor.New(tensor.WithShape(1, 6), tensor.WithBacking([]int{1, 300, 400, 2, 500, 600}))
	logits := func(ctx context.Context, s *fsdp.Sharded) ([]float32, error) {
		out, err := s.Eval(ctx, ids, ids)
		if err != nil {
			return nil, err
		}
		return out[1].Data().([]float32), nil
	}
	require.NoError(t, comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
		r := &rank{config: c, group: g, out: io.Discard, interrupted: func() bool { return false }}
		trained, err := r.open(ctx)
		if err != nil {
			return err
		}
		defer trained.Close()
		before, err := logits(ctx, trained.Sharded)
		require.NoError(t, err)
		require.NoError(t, trained.run(ctx))
		want, err := logits(ctx, trained.Sharded)
		require.NoError(t, err)
		require.NotEqual(t, before, want)
		r.out, r.adapter = io.Discard, filepath.Join(c.out, "adapter")
		r.config.out = filepath.Join(c.out, "more")
		opened, err := r.open(ctx)
		if err != nil {
			return err
		}
		defer opened.Close()
		got, err := logits(ctx, opened.Sharded)
		require.NoError(t, err)
		require.InDeltaSlice(t, want, got, 1e-5)
		return nil
	}))
}

// TestBase trains a base model, uses it again, and refuses what cannot be trained.
func TestBase(t *testing.T) {
	c := small(t, "")
	c.base, c.packages, c.epochs = 1, []string{"bufio"}, 1
	const says = "a base model learns the documentation of "
	require.Contains(t, train(t, c), says)
	require.NotContains(t, train(t, c), says)
	c.packages, c.out = []string{"none"}, filepath.Join(t.TempDir(), "other")
	require.ErrorContains(t, run(t.Context(), t.Context(), c, io.Discard), "reading the source of the standard library")

	c = small(t, random(t, &nn.GPT{Vocab: 768, Context: 64, Layers: 1, Dim: 16, Heads: 2, Act: nn.GELUTanh, Tied: true}, "wte.weight"))
	require.ErrorContains(t, run(t.Context(), t.Context(), c, io.Discard), "*nn.GPT, want a model such as Llama")
	c = small(t, random(t, llama(), "embed.weight"))
	c.data = filepath.Join(t.TempDir(), "questions.jsonl")
	require.NoError(t, os.WriteFile(c.data, []byte(`{"messages": [{"role": "user", "content": "Hi"}]}`), 0o600))
	require.ErrorContains(t, run(t.Context(), t.Context(), c, io.Discard), "the conversation of user has no answer")
}
