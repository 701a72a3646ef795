package arena

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestPack places random places: none overlaps another that lives at the same time, all are
// aligned and inside, and the whole is no smaller than what lives at once and no larger than all
// together.
func TestPack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *Place {
			first := rapid.IntRange(0, 30).Draw(t, "first")
			return &Place{Bytes: rapid.IntRange(0, 1000).Draw(t, "bytes"), First: first, Last: first + rapid.IntRange(0, 10).Draw(t, "life")}
		}), 0, 30).Draw(t, "places")
		unit := rapid.SampledFrom([]int{1, 64, 256}).Draw(t, "alignment")
		total := Pack(all, unit)
		sum := 0
		for i, s := range all {
			require.Zero(t, s.Offset%unit)
			require.LessOrEqual(t, s.Offset+s.Bytes, total)
			sum += (s.Bytes + unit - 1) / unit * unit
			for _, o := range all[:i] {
				apartInTime := s.Last < o.First || o.Last < s.First
				apartInSpace := s.Offset+s.Bytes <= o.Offset || o.Offset+o.Bytes <= s.Offset
				require.True(t, apartInTime || apartInSpace, "%+v and %+v", s, o)
			}
		}
		require.LessOrEqual(t, total, sum)
		for now := range 41 {
			live := 0
			for _, s := range all {
				if s.First <= now && now <= s.Last {
					live += s.Bytes
				}
			}
			require.GreaterOrEqual(t, total, live)
		}
	})
}

// TestPackOfAChain needs two places for a chain in which each value is computed from the one
// before.
func TestPackOfAChain(t *testing.T) {
	var chain []*Place
	for i := range 100 {
		chain = append(chain, &Place{Bytes: 640, First: i, Last: i + 1})
	}
	require.Equal(t, 2*640, Pack(chain, 64))
}
