package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCrossEntropy(t *testing.T) {
	both(t, checkCrossEntropyTwin[float32], checkCrossEntropyTwin[float64])
}

func checkCrossEntropyTwin[T Float](t *rapid.T) {
	src := newSource[T](t)
	n := rapid.IntRange(0, 6).Draw(t, "n")
	classes := rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(classBlock-1, 2*classBlock+1)).Draw(t, "classes")
	ignore := rapid.SampledFrom([]int{-100, 0, classes}).Draw(t, "ignore")
	dloss := rapid.SampledFrom([]float64{1, -0.5, 1024, 0}).Draw(t, "dloss")
	logits, targets := src.normal(n*classes), src.ints(n, 0, classes)
	for i := range targets {
		if rapid.Bool().Draw(t, "ignored") {
			targets[i] = ignore
		}
	}
	lse := garbage[T](n)
	loss, counted, err := CrossEntropy(lse, logits, targets, n, classes, ignore, garbage[T](CrossEntropyScratch(classes)))
	require.NoError(t, err)
	wantLse, wantGrad := make([]float64, n), make([]float64, n*classes)
	want, wantCounted, err := NaiveCrossEntropy(wantLse, wide(logits), targets, n, classes, ignore, nil)
	require.NoError(t, err)
	require.Equal(t, wantCounted, counted)
	NaiveCrossEntropyGrad(wantGrad, wide(logits), wantLse, targets, n, classes, ignore, counted, dloss)
	require.InDelta(t, want, loss, tolerance[T]()*(1+want))
	requireClose(t, "lse", wantLse, lse)

	d := garbage[T](n * classes)
	CrossEntropyGrad(d, logits, lse, targets, n, classes, ignore, counted, T(dloss))
	requireWithin(t, "dlogits", tolerance[T]()*max(1, math.Abs(dloss)), wantGrad, d) // even if all are 0
	CrossEntropyGrad(logits, logits, lse, targets, n, classes, ignore, counted, T(dloss))
	requireBits(t, "dlogits in place", d, logits)
}

func TestCrossEntropyGradient(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := newSource[float64](t)
		const n, classes, ignore = 4, 7, -100
		logits, targets := src.normal(n*classes), src.ints(n, 0, classes)
		targets[rapid.IntRange(0, n-1).Draw(t, "ignored")] = ignore
		lse, d := make([]float64, n), make([]float64, n*classes)
		loss := func() float64 {
			l, _, err := CrossEntropy(lse, logits, targets, n, classes, ignore, make([]float64, classes))
			require.NoError(t, err)
			return 3 * l
		}
		loss()
		CrossEntropyGrad(d, logits, lse, targets, n, classes, ignore, n-1, 3)
		requireGradient(t, "logits", logits, d, loss)
	})
}

func TestCrossEntropyHardRows(t *testing.T) {
	const classes = 3
	for _, tc := range []struct {
		name   string
		logits []float32
		want   float64
	}{
		{"far above the range of exp", []float32{1e4, 1e4, -1e4}, math.Ln2},
		{"far below the range of exp", []float32{-1e4, -1e4, -2e4}, math.Ln2},
		{"classes ruled out", []float32{0, 0, float32(math.Inf(-1))}, math.Ln2},
		{"NaN", []float32{0, 0, float32(math.NaN())}, math.NaN()},
		{"+Inf", []float32{0, float32(math.Inf(1)), 0}, math.NaN()},
	} {
		lse := make([]float32, 1)
		loss, counted, err := CrossEntropy(lse, tc.logits, []int{0}, 1, classes, -100, make([]float32, classes))
		require.NoError(t, err, tc.name)
		require.Equal(t, 1, counted)
		if math.IsNaN(tc.want) {
			require.True(t, math.IsNaN(loss), tc.name)
			continue
		}
		require.InDelta(t, tc.want, loss, 1e-6, tc.name)
		CrossEntropyGrad(tc.logits, tc.logits, lse, []int{0}, 1, classes, -100, counted, 1)
		for j, want := range []float64{-0.5, 0.5, 0} {
			// lse is rounded to float32: 1e4 has steps of 1e-3
			require.InDelta(t, want, tc.logits[j], 1e-3, tc.name)
		}
	}
}

func TestCrossEntropyErrors(t *testing.T) {
	lse := []float64{5, 5}
	for _, tc := range []struct {
		targets []int
		want    string
	}{
		{[]int{0, 3}, "target 3 of row 1 is outside the 3 classes, which are 0 to 2"},
		{[]int{-1, 0}, "target -1 of row 0 is outside the 3 classes, which are 0 to 2"},
	} {
		_, _, err := CrossEntropy(lse, make([]float64, 6), tc.targets, 2, 3, -100, make([]float64, 3))
		require.EqualError(t, err, tc.want)
		require.Equal(t, []float64{5, 5}, lse)
	}
}

func TestEmbedding(t *testing.T) { both(t, checkEmbeddingTwin[float32], checkEmbeddingTwin[float64]) }

func checkEmbeddingTwin[T Float](t *rapid.T) {
	src := newSource[T](t)
	n, rows, d := rapid.IntRange(0, 30).Draw(t, "n"), rapid.IntRange(1, 9).Draw(t, "rows"), rapid.IntRange(1, 20).Draw(t, "d")
	acc := rapid.Bool().Draw(t, "acc")
	table, dy, idx := src.normal(rows*d), src.normal(n*d), src.ints(n, 0, rows)
	y, dtable := garbage[T](n*d), src.result(rows*d, acc)
	wantY, want := make([]float64, n*d), wide(dtable)
	require.NoError(t, Embedding(y, table, idx, rows, d))
	EmbeddingGrad(dtable, dy, idx, rows, d, acc)
	require.NoError(t, NaiveEmbedding(wantY, wide(table), idx, rows, d))
	NaiveEmbeddingGrad(want, wide(dy), idx, rows, d, acc)
	require.Equal(t, wantY, wide(y))
	requireClose(t, "dtable", want, dtable)
}

func TestEmbeddingErrors(t *testing.T) {
	y, table := []float32{7, 7, 7, 7}, make([]float32, 6)
	require.EqualError(t, Embedding(y, table, []int{0, 3}, 3, 2), "index 3 at position 1 is outside the table of 3 rows, 0 to 2: tokens need a model with the Vocab of their tokenizer, positions one with a longer Context")
	require.EqualError(t, Embedding(y, table, []int{-1, 0}, 3, 2), "index -1 at position 0 is outside the table of 3 rows, 0 to 2: tokens need a model with the Vocab of their tokenizer, positions one with a longer Context")
	require.Equal(t, []float32{7, 7, 7, 7}, y)
}
