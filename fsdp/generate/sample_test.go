package generate

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestChooseFollowsProbabilities draws many times and compares how often each token came with its
// probability among those that are drawn from.
func TestChooseFollowsProbabilities(t *testing.T) {
	logits := []float64{1, 3, 0.5, 2.5, -1, 3}
	for name, c := range map[string]struct {
		Options
		from []int
	}{
		"all":          {Options{Temperature: 1}, []int{0, 1, 2, 3, 4, 5}},
		"cold":         {Options{Temperature: 0.5}, []int{0, 1, 2, 3, 4, 5}},
		"top k":        {Options{Temperature: 1, TopK: 3}, []int{1, 3, 5}},
		"top p":        {Options{Temperature: 1, TopP: 0.6}, []int{1, 5}},
		"both":         {Options{Temperature: 2, TopK: 4, TopP: 0.75}, []int{1, 3, 5}},
		"top k of one": {Options{Temperature: 1, TopK: 1}, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			s, sum, want := sampler{Options: c.Options}, 0.0, make([]float64, len(logits))
			for _, i := range c.from {
				want[i] = math.Exp(logits[i] / c.Temperature)
				sum += want[i]
			}
			const n = 20000
			counts := make([]float64, len(logits))
			for place := range uint64(n) {
				counts[s.choose(slices.Clone(logits), 7, place)]++
			}
			for i, got := range counts {
				p := want[i] / sum
				require.InDelta(t, n*p, got, 5*math.Sqrt(n*p*(1-p)), "token %d", i)
			}
		})
	}
}

// TestChooseIsAFunctionOfItsPlace: the same prompt and place draw the same, and others differ.
func TestChooseIsAFunctionOfItsPlace(t *testing.T) {
	draw := func(seed, prompt, place uint64) int {
		s := sampler{Options: Options{Temperature: 1, Seed: seed}}
		return s.choose(make([]float64, 1<<16), prompt, place)
	}
	require.Equal(t, draw(1, 2, 3), draw(1, 2, 3))
	require.NotEqual(t, draw(1, 2, 3), draw(2, 2, 3))
	require.NotEqual(t, draw(1, 2, 3), draw(1, 3, 3))
	require.NotEqual(t, draw(1, 2, 3), draw(1, 2, 4))
}

// TestOfferKeepsTheBest compares the list of candidates with one that was sorted.
func TestOfferKeepsTheBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := beams[float32]{Options: Options{Beams: rapid.IntRange(1, 4).Draw(t, "beams")}}
		scores := rapid.SliceOf(rapid.Map(rapid.IntRange(-5, 5), func(i int) float64 { return float64(i) })).Draw(t, "scores")
		var all []candidate
		for i, score := range scores {
			s.offer(candidate{token: i, score: score})
			all = append(all, candidate{token: i, score: score})
		}
		slices.SortStableFunc(all, func(a, b candidate) int {
			switch {
			case a.score > b.score:
				return -1
			case a.score < b.score:
				return 1
			}
			return 0
		})
		require.Equal(t, all[:min(len(all), 2*s.Beams)], append([]candidate(nil), s.next...))
	})
}
