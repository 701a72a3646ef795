package data

import (
	"encoding/json"
	"errors"
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
