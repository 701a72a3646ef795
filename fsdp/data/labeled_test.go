package data_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// labeled makes a sample of a text in which capital letters are targets.
func labeled(text string) (l data.Labeled) {
	for _, c := range text {
		target := c >= 'A' && c <= 'Z'
		if target {
			c += 'a' - 'A'
		}
		l.Tokens, l.Target = append(l.Tokens, int(c-'a'+1)), append(l.Target, target)
	}
	return l
}

func labeledSource(texts ...string) data.Source[data.Labeled] {
	list := make([]data.Labeled, len(texts))
	for i, text := range texts {
		list[i] = labeled(text)
	}
	return data.Of(list)
}

// TestTruncate cuts samples and leaves out those without a target, and says so.
func TestTruncate(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	src := labeledSource("abCD", "abcdeF", "Abc", "abcDE", "aBC")
	got := data.Truncate(src, 4)
	require.Equal(t, []int{1, 3}, got.Cut)
	require.Equal(t, []int{1, 2}, got.Dropped, "cut, and a target without a token before it")
	require.Equal(t, 5, got.Targets)
	require.Equal(t, 3, got.Len())
	for i, text := range []string{"abCD", "abcD", "aBC"} {
		l, err := got.At(i)
		require.NoError(t, err)
		require.Equal(t, labeled(text), l)
	}
	require.Contains(t, log.String(), `samples without a target are left out: raise the length if they were cut" length=4 samples=5 cut=2 "left out"=2 "the first"="[1 2]"`)

	for _, c := range []struct {
		src    data.Source[data.Labeled]
		length int
		want   string
	}{
		{src, 1, "the length is 1, want at least 2: a token and its target"},
		{labeledSource("abc", "abcdE"), 3, "none of 2 samples has a target among its first 3 tokens: raise the length, or check the answers"},
		{nil, 3, "nil"},
		{data.Of([]data.Labeled{{Tokens: []int{1, 2}}}), 3, "sample 0: there are 2 tokens, and Target has 0 elements"},
		{data.Repeat(src, data.Endless), 3, "the samples have no end"},
	} {
		_, err := data.Truncate(c.src, c.length).At(0)
		require.ErrorContains(t, err, c.want)
	}
}

// TestPackLabeled packs samples with their targets, and names what does not fit.
func TestPackLabeled(t *testing.T) {
	size := func(l data.Labeled) int { return len(l.Tokens) }
	src := labeledSource("abCD", "aBC", "abcdE", "Ab", "AB")
	packed := data.PackLabeled(src, data.Measure(src, size), 7)
	require.Equal(t, 3, packed.Len())
	require.Equal(t, 3*7-16, packed.Padding)
	for i, want := range []string{"abCDaBC", "abcdEAb", "AB"} {
		row, err := packed.At(i)
		require.NoError(t, err)
		all := labeled(want)
		require.Equal(t, data.Packed[int]{Elements: all.Tokens, Starts: [][]int{{0, 4}, {0, 5}, {0}}[i], Target: all.Target}, row)
	}
	require.Equal(t, "PackLabeled(Of(5 × data.Labeled), length 7) of 16 elements", packed.String())

	_, err := data.PackLabeled(src, data.Measure(src, size), 4).At(0)
	require.EqualError(t, err, "data.PackLabeled(Of(5 × data.Labeled), length 4): document 2 has 5 elements, want at most 4")
	torn := data.Of([]data.Labeled{{Tokens: []int{1, 2}}})
	_, err = data.PackLabeled(torn, data.Measure(torn, size), 4).At(0)
	require.EqualError(t, err, "document 0: there are 2 tokens, and Target has 0 elements")
	_, err = data.PackLabeled(data.Truncate(src, 1), data.Of([]int{1}), 4).At(0)
	require.ErrorContains(t, err, "the length is 1, want at least 2")
}

// TestTokensAndLabels makes batches whose targets are those of the samples, up to the padding.
func TestTokensAndLabels(t *testing.T) {
	loader, err := data.NewLoader(labeledSource("abCD", "aB"), data.TokensAndLabels(data.MultipleOf(4)), data.Config{Batch: 2})
	require.NoError(t, err)
	for batch, err := range loader.Batches(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, []int{1, 2, 3, 0, 1, 0, 0, 0}, batch[0].Data())
		require.Equal(t, []int{-1, 3, 4, -1, 2, -1, -1, -1}, batch[1].Data())
	}
	loader, err = data.NewLoader(labeledSource("ab", "A"), data.TokensAndLabels(nil), data.Config{Batch: 2})
	require.NoError(t, err)
	for _, err := range loader.Batches(t.Context()) {
		require.ErrorContains(t, err, "there are 1 tokens, and Target has 1 elements: want at least 2 of each")
	}
}

// TestLabeledTraining: the gradients of a step are those of the mean over its targets, however
// ranks and micro batches share them: the training is the same.
func TestLabeledTraining(t *testing.T) {
	src := data.Repeat(labeledSource("abCDEFG", "abC", "abcdefgH", "aB", "abcdEF", "abCdEf"), 3)
	train := func(ranks, micro int) (weights map[string][]float64) {
		var lock sync.Mutex
		require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
			m, err := fsdp.Wrap(&nn.Llama{Vocab: 9, Layers: 1, Dim: 8, Heads: 2, Hidden: 12},
				fsdp.Config{Group: g, Precision: fsdp.Precision{Compute: fsdp.Float64}, Seed: 3})
			require.NoError(t, err)
			defer m.Close()
			opt, err := optim.SGD{Momentum: 0.9}.New(m.Params())
			require.NoError(t, err)
			loader, err := data.NewLoader(src, data.TokensAndLabels(nil), data.Config{Group: g, Batch: 6, Micro: micro})
			require.NoError(t, err)
			for batch, err := range m.Join(ctx, loader.Batches(ctx)) {
				require.NoError(t, err)
				_, err = m.Forward(ctx, batch...)
				require.NoError(t, err)
				require.NoError(t, m.Backward(ctx, loader.Share()))
				if loader.StepEnds() {
					require.NoError(t, opt.Step(0.5))
					m.ZeroGrad()
				}
			}
			counted, all := m.Targets()
			sums := []float64{float64(counted), float64(all)}
			require.NoError(t, g.AllReduce(comm.Of(sums), comm.Sum).Wait(ctx))
			require.Equal(t, 3*12.0, sums[0], "3 epochs of 12 targets")
			require.Greater(t, sums[1], sums[0])
			state, err := m.StateDict(ctx, nil)
			require.NoError(t, err)
			lock.Lock()
			defer lock.Unlock()
			if g.Rank() == 0 {
				weights = make(map[string][]float64)
				for name, w := range state {
					weights[name] = w.Data().([]float64)
				}
			}
			return nil
		}))
		return weights
	}
	want := train(1, 0)
	require.NotEmpty(t, want)
	for ranks := 1; ranks <= 4; ranks++ {
		for _, micro := range []int{1, 2, 4} {
			got := train(ranks, micro)
			for name := range want {
				require.InDeltaSlice(t, want[name], got[name], 1e-10, fmt.Sprint(name, ranks, micro))
			}
		}
	}
}
