package fsdp_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
)

// TestWrapHasNoMemory wraps a model whose shards are larger than what is left, for all ranks that share a
// limit: an error on every rank before anything is allocated, with all numbers, the limit and advice. Ranks
// of other limits are not counted.
func TestWrapHasNoMemory(t *testing.T) {
	need := 0
	kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g})
		p, err := m.Plan(kit.TinyBatch(0, 0, 1, 4)...)
		require.NoError(t, err)
		require.NoError(t, m.Close())
		if g.Rank() == 0 {
			need = p.ShardBytes
		}
	})
	wide, host := arena.Limit{ID: 9, Left: 4 * need, Name: "a wider limit"}, "what a test leaves"
	one := func(id uint64, ranks int) arena.Limit { return arena.Limit{ID: id, Left: ranks * need, Name: host} }
	var looks [4]int
	for name, c := range map[string]struct {
		limits func(rank int) []arena.Limit
		alike  int            // ranks that share the limit that is short, or 0
		who    func(int) bool // has it
	}{
		"all fit":           {limits: func(int) []arena.Limit { return []arena.Limit{wide, one(1, 4)} }},
		"no limit is known": {limits: func(int) []arena.Limit { return nil }},
		"each fits alone":   {func(int) []arena.Limit { return []arena.Limit{wide, one(1, 1)} }, 4, func(int) bool { return true }},
		"a byte":            {func(int) []arena.Limit { return []arena.Limit{{ID: 1, Left: 4*need - 1, Name: host}, wide} }, 4, func(int) bool { return true }},
		"two hosts":         {limits: func(r int) []arena.Limit { return []arena.Limit{one(uint64(1+r/2), 2)} }},
		"one host of two":   {func(r int) []arena.Limit { return []arena.Limit{one(uint64(1+r/2), 1+r/2)} }, 2, func(r int) bool { return r < 2 }},
		"of containers of one pod": {func(r int) []arena.Limit {
			return []arena.Limit{one(uint64(1+r), 1), {ID: 7, Left: 3 * need, Name: host}}
		}, 4, func(int) bool { return true }},
		"one listed twice":     {limits: func(int) []arena.Limit { return []arena.Limit{one(1, 4), one(1, 4)} }},
		"the last look counts": {func(r int) []arena.Limit { return []arena.Limit{{ID: 1, Left: 4*need - r, Name: host}} }, 4, func(int) bool { return true }},
		"garbage is collected": {limits: func(r int) []arena.Limit {
			looks[r]++
			return []arena.Limit{one(1, 4*(looks[r]-1))}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			defer fsdp.WithLimits(c.limits)()
			kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
				m, err := fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Group: g})
				if c.alike == 0 {
					require.NoError(t, err)
					require.NoError(t, m.Close())
					return
				}
				parts := []string{fmt.Sprintf("fsdp: rank %d: ", g.Rank()), "group root, the largest: parameters and gradients of this rank take ",
					fmt.Sprintf("The %d ranks that share this memory need ", c.alike), host, "Config.Offload.Dir", "Fits of fsdp.Planner"}
				if !c.who(g.Rank()) {
					require.ErrorAs(t, err, new(*fsdp.PeerError))
				}
				for _, part := range parts {
					require.ErrorContains(t, err, part)
				}
				require.NoError(t, g.Barrier(ctx))
			})
		})
	}
	defer fsdp.WithLimits(func(int) []arena.Limit { return []arena.Limit{one(1, 0)} })()
	kit.OnRanks(t, 2, func(_ context.Context, g comm.Group) {
		require.NoError(t, kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, Offload: fsdp.Offload{Dir: t.TempDir()}}).Close())
	})
}

// TestLatestEndsWithTheTimeout has no answer of the file system when LatestCheckpoint reads a manifest.
func TestLatestEndsWithTheTimeout(t *testing.T) {
	disk := crashfs.New()
	f := kit.NewFiller(t, t.Context(), comm.Local(1)[0])
	require.NoError(t, f.SaveStep(kit.OnFS(t.Context(), disk), kit.Ckpt, 1))
	require.NoError(t, f.Close())
	t.Setenv("FSDP_TIMEOUT", "10ms")
	back := make(chan struct{})
	_, err := fsdp.LatestOnFS(kit.Mute{FS: disk, Back: back}, kit.Ckpt)
	close(back)
	require.ErrorContains(t, err, "the file system does not answer within 10ms (FSDP_TIMEOUT)")
	t.Setenv("FSDP_TIMEOUT", "soon")
	_, err = fsdp.LatestCheckpoint(kit.Ckpt)
	require.ErrorContains(t, err, `FSDP_TIMEOUT="soon" is not a duration such as 90s`)
}
