package data

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestResumeOfOtherSamples resumes on a source with the same description. If its first, middle or
// last sample differs, rank 0 warns, and it warns in no other case: for other numbers of ranks,
// after JSON, without a Sum, or where a sample cannot be read.
func TestResumeOfOtherSamples(t *testing.T) {
	log := logged(t)
	samples := func(n, changed int) Source[int] {
		return Func(n, func(i int) (int, error) {
			if i == changed {
				return -1, nil
			}
			return i, nil
		})
	}
	loader := func(src Source[int], rank, ranks int) *Loader[int] {
		l, err := NewLoader(src, column, Config{Group: rankOf{rank, ranks}, Batch: 4})
		require.NoError(t, err)
		return l
	}
	for _, c := range []struct{ n, last int }{{9, 8}, {1 << 17, 1<<17 - 1}, {1, 0}, {Endless, 1<<16 - 1}} {
		text, err := json.Marshal(loader(samples(c.n, -1), 0, 1).Position())
		require.NoError(t, err)
		var p Position
		require.NoError(t, json.Unmarshal(text, &p))
		require.Len(t, p.Sum, 8)
		for rank := range 3 {
			require.Equal(t, p, loader(samples(c.n, -1), rank, 3).Position())
			require.NoError(t, loader(samples(c.n, -1), rank, 3).Resume(p))
		}
		require.Empty(t, log.String())
		for _, changed := range []int{0, c.last / 2, c.last} {
			require.NoError(t, loader(samples(c.n, changed), 1, 2).Resume(p))
			require.NoError(t, loader(samples(c.n, changed), 0, 2).Resume(Position{Source: p.Source}))
			require.Empty(t, log.String())
			require.NoError(t, loader(samples(c.n, changed), 0, 2).Resume(p))
			require.Equal(t, 1, strings.Count(log.String(), "some samples differ from the saved training"), log.String())
			log.Reset()
		}
	}

	torn := Func(9, func(i int) (int, error) { return 0, errors.New("torn") })
	require.Empty(t, loader(torn, 0, 1).Position().Sum)
	require.NoError(t, loader(torn, 0, 1).Resume(loader(samples(9, -1), 0, 1).Position()))
	require.Empty(t, log.String())
}

// TestPositionReadsOnce: a position may be taken after every step.
func TestPositionReadsOnce(t *testing.T) {
	reads := 0
	l, err := NewLoader(Func(9, func(i int) (int, error) { reads++; return i, nil }), column, Config{Batch: 4})
	require.NoError(t, err)
	for range 3 {
		require.NotEmpty(t, l.Position().Sum)
	}
	require.Equal(t, 3, reads)
}

// TestResumeWithOtherEpochs continues a training for more epochs, or fewer. The samples after the
// position equal the samples of a training that had the other number from the beginning.
func TestResumeWithOtherEpochs(t *testing.T) {
	log := logged(t)
	sources := map[string]func(src Source[int], epochs int) Source[int]{
		"shuffle": func(src Source[int], epochs int) Source[int] { return Shuffle(src, 1, epochs) },
		"repeat":  Repeat[int],
		"nested": func(src Source[int], epochs int) Source[int] {
			shuffled := Map(Shuffle(Concat(src, Repeat(src, 2)), 1, epochs), func(i int) (int, error) { return i, nil })
			return Augment(shuffled, 7, func(random *rand.Rand, i int) (int, error) { return 100*i + random.IntN(100), nil })
		},
	}
	read := func(src Source[int], p Position, samples int) (all []int, position Position) {
		l, err := NewLoader(src, column, Config{Batch: 3})
		require.NoError(t, err)
		require.NoError(t, l.Resume(p))
		for batch, err := range l.Batches(t.Context()) {
			require.NoError(t, err)
			if all = append(all, batch[0].Data().([]int)...); len(all) >= samples {
				break
			}
		}
		return all, l.Position()
	}
	for name, source := range sources {
		for _, c := range [][2]int{{2, 4}, {4, 2}, {1, 12}} {
			before, now := source(numbers(7), c[0]), source(numbers(7), c[1])
			want, _ := read(now, Position{Source: describe(now)}, Endless)
			first, p := read(before, Position{Source: describe(before)}, 6)
			rest, _ := read(now, p, Endless)
			require.Equal(t, want, append(first, rest...), name)
			require.Empty(t, log.String())

			other := source(Func(7, func(i int) (int, error) { return i + 1, nil }), c[1])
			read(other, p, 1)
			require.Equal(t, c[0] < c[1], strings.Contains(log.String(), "some samples differ"), log.String())
			log.Reset()
		}
	}

	// If another order contains the epochs, their number changes the samples before the position.
	for _, order := range []func(epochs int) Source[int]{
		func(epochs int) Source[int] { return Concat(Shuffle(numbers(7), 1, epochs), numbers(7)) },
		func(epochs int) Source[int] { return Shuffle(Repeat(numbers(7), epochs), 1, Endless) },
		func(epochs int) Source[int] { return Shuffle(numbers(7), uint64(epochs), epochs) },
		func(epochs int) Source[int] { return Shuffle(Range(Repeat(numbers(7), epochs), 0, 7), 1, epochs) },
	} {
		l, err := NewLoader(order(4), column, Config{Batch: 3})
		require.NoError(t, err)
		require.ErrorContains(t, l.Resume(Position{Samples: 3, Source: describe(order(2))}), "the saved position belongs to")
	}
	l, err := NewLoader(Repeat(numbers(7), 2), column, Config{Batch: 3})
	require.NoError(t, err)
	for _, epochs := range []string{"0", "99999999999999999999", "9223372036854775807"} {
		require.ErrorContains(t, l.Resume(Position{Source: "Repeat(Func(7 samples), " + epochs + " epochs)"}), "the saved position belongs to")
	}
	require.ErrorContains(t, l.Resume(Position{Samples: 15, Source: "Repeat(Func(7 samples), 4 epochs)"}), "the saved position is after 15 samples, but the source has 14 samples")
}
