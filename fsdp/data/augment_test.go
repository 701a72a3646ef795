package data

import (
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp"
)

// batchesOf returns all that the ranks of a group read, in the order of the source.
func batchesOf(t *testing.T, src Source[int], collate Collate[int], ranks, workers int) []int {
	steps := make([][]int, 0)
	for rank := range ranks {
		l, err := NewLoader(src, collate, Config{Group: rankOf{rank, ranks}, Batch: 12, Workers: workers})
		require.NoError(t, err)
		i := 0
		for batch, err := range l.Batches(t.Context()) {
			require.NoError(t, err)
			if len(steps) == i {
				steps = append(steps, nil)
			}
			steps[i] = append(steps[i], values(batch)...)
			i++
		}
	}
	var list []int
	for _, step := range steps {
		list = append(list, step...)
	}
	return list
}

// TestAugment changes samples at random: alike on any number of ranks and workers, differently in
// each epoch and for each seed.
func TestAugment(t *testing.T) {
	log := logged(t)
	augmented := func(seed uint64) Source[int] {
		return Augment(Repeat(numbers(60), 2), seed, func(random *rand.Rand, i int) (int, error) { return 1000*i + random.IntN(1000), nil })
	}
	want := all(t, augmented(1))
	require.NotEqual(t, want[:60], want[60:])
	require.NotEqual(t, want, all(t, augmented(2)))
	for ranks := 1; ranks <= 3; ranks++ {
		require.Equal(t, want, batchesOf(t, augmented(1), column, ranks, ranks))
	}
	require.Empty(t, log.String())
	require.Equal(t, "Augment(Func(3 samples), seed 4)", describe(Augment(numbers(3), 4, func(_ *rand.Rand, i int) (int, error) { return i, nil })))
	require.Equal(t, "data.Augment(Func(3 samples), seed 4): the function is nil", firstError(t, Augment[int, int](numbers(3), 4, nil)))
}

// TestSharedGenerator reads samples that depend on earlier reads: rank 0 warns once.
func TestSharedGenerator(t *testing.T) {
	calls := 0
	for name, c := range map[string]struct {
		src     Source[int]
		collate Collate[int]
		want    string
	}{
		"map": {Map(numbers(60), func(int) (int, error) { calls++; return calls, nil }), column, "samples change when they are read again"},
		"collate": {numbers(60), func(b *Batch, samples []int) error {
			Column(b, samples, func(i int) float32 { return rand.Float32() })
			return nil
		}, "the collate function returns different batches for the same samples"},
		"width": {numbers(60), func(b *Batch, _ []int) error {
			calls++
			Tensor[int](b, calls%2+1)
			return nil
		}, "the collate function returns different batches"},
		"read once": {Func(60, func(i int) (int, error) {
			if calls++; calls > 15 {
				return 0, errors.New("used up")
			}
			return i, nil
		}), column, "reading a sample again returns an error"},
	} {
		t.Run(name, func(t *testing.T) {
			calls = 0
			log := logged(t)
			for rank := range 2 {
				l, err := NewLoader(c.src, c.collate, Config{Group: rankOf{rank, 2}, Batch: 30})
				require.NoError(t, err)
				for batch, err := range l.Batches(t.Context()) {
					if name != "read once" {
						require.NoError(t, err)
						require.NotEmpty(t, batch)
					}
				}
				require.NoError(t, l.Rewind())
			}
			require.Contains(t, log.String(), c.want)
			require.Equal(t, 1, strings.Count(log.String(), "data: "), log.String())
			require.Contains(t, log.String(), "data.Augment")
		})
	}
	// A function of Map that changes its sample changes it again in each epoch.
	log := logged(t)
	rows := [][]float32{{1}, {2}, {3}}
	l, err := NewLoader(Map(Repeat(Of(rows), 2), func(x []float32) ([]float32, error) { x[0] /= 2; return x, nil }),
		func(b *Batch, samples [][]float32) error {
			return Stack(b, samples, func(x []float32) []float32 { return x })
		}, Config{Batch: 3})
	require.NoError(t, err)
	for _, err := range l.Batches(t.Context()) {
		require.NoError(t, err)
	}
	require.Contains(t, log.String(), "a function of Map or Func must write its result into new memory")
	require.Equal(t, 1, strings.Count(log.String(), "data: "), log.String())

	// A source that ends its goroutine in the end does not stop the loop.
	counted, err := NewLoader(Func(60, func(i int) (int, error) {
		if calls++; calls == 31 {
			runtime.Goexit()
		}
		return i, nil
	}), column, Config{Batch: 30})
	require.NoError(t, err)
	calls = 0
	n, err := drive(counted, t.Context(), func(int) bool { return false })
	require.NoError(t, err)
	require.Equal(t, 2, n)

	log = logged(t)
	nan := func(b *Batch, samples []int) error {
		Column(b, samples, func(int) float64 { return math.NaN() })
		Tensor[float32](b)[0] = 1
		return nil
	}
	counted, err = NewLoader(numbers(60), nan, Config{Batch: 30})
	require.NoError(t, err)
	var batches [][]fsdp.Tensor
	for batch, err := range counted.Batches(t.Context()) {
		require.NoError(t, err)
		batches = append(batches, batch)
	}
	require.Len(t, batches, 2)
	require.Empty(t, log.String())
}
