package exec

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/arena"
)

// TestPack places random storages: none overlaps another that lives at the same time, all are
// aligned and inside, and the whole is no smaller than what lives at once and no larger than all
// together.
func TestPack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *storage {
			first := rapid.IntRange(0, 30).Draw(t, "first")
			return &storage{bytes: rapid.IntRange(0, 1000).Draw(t, "bytes"), first: first, last: first + rapid.IntRange(0, 10).Draw(t, "life")}
		}), 0, 30).Draw(t, "storages")
		total := pack(all)
		sum := 0
		for i, s := range all {
			require.Zero(t, s.offset%arena.Align)
			require.LessOrEqual(t, s.offset+s.bytes, total)
			sum += align(s.bytes)
			for _, o := range all[:i] {
				apartInTime := s.last < o.first || o.last < s.first
				apartInSpace := s.offset+s.bytes <= o.offset || o.offset+o.bytes <= s.offset
				require.True(t, apartInTime || apartInSpace, "%+v and %+v", s, o)
			}
		}
		require.LessOrEqual(t, total, sum)
		for now := range 41 {
			live := 0
			for _, s := range all {
				if s.first <= now && now <= s.last {
					live += s.bytes
				}
			}
			require.GreaterOrEqual(t, total, live)
		}
	})
}

// TestPackOfAChain needs two places for a chain in which each value is computed from the one
// before.
func TestPackOfAChain(t *testing.T) {
	var chain []*storage
	for i := range 100 {
		chain = append(chain, &storage{bytes: 640, first: i, last: i + 1})
	}
	require.Equal(t, 2*640, pack(chain))
}
