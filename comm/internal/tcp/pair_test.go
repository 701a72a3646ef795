package tcp

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// TestSmallIsBegun issues small collectives on one rank that does not wait for them: the others
// complete, and nothing of the group's own is running.
func TestSmallIsBegun(t *testing.T) {
	for _, n := range []int{2, 3} {
		gs := RemoteGroups(t, n, Wiring{})
		ctx := context.Background()
		var late []transport.Work
		issue := func(g transport.Group) []transport.Work {
			x, all := make([]float32, 8), make([]float32, 8*n)
			return []transport.Work{g.AllGather(transport.Of(all), transport.Of(x))}
		}
		late = issue(gs[0])
		require.True(t, remoteOf(gs[0]).begun)
		everyRank(t, gs[1:], func(r *remote) error { return issue(gs[r.rank])[0].Wait(ctx) })
		require.NoError(t, late[0].Wait(ctx))

		// What follows one that is begun is run by the group, which runs both.
		late = append(issue(gs[0]), issue(gs[0])...)
		everyRank(t, gs[1:], func(r *remote) error {
			first, second := issue(gs[r.rank]), issue(gs[r.rank])
			require.NoError(t, first[0].Wait(ctx))
			return second[0].Wait(ctx)
		})
		require.NoError(t, late[1].Wait(ctx))

		// Whoever differs is told, whether it has begun or not.
		bad := gs[0].AllReduce(transport.Of(make([]float32, 8)), transport.Sum)
		for _, g := range gs[1:] {
			require.ErrorAs(t, g.AllReduce(transport.Of(make([]float32, 9)), transport.Sum).Wait(ctx), new(*transport.MismatchError))
		}
		require.ErrorAs(t, bad.Wait(ctx), new(*transport.MismatchError))
		grouptest.CloseRanks(t, gs)

		// Close completes what was begun.
		gs = RemoteGroups(t, n, Wiring{})
		for _, g := range gs {
			issue(g)
		}
		grouptest.CloseRanks(t, gs)
	}
}

// TestWholeSums tells which all-reduces take one step: small ones of few ranks, and of two ranks
// larger ones too.
func TestWholeSums(t *testing.T) {
	for _, c := range []struct {
		ranks, bytes int
		one          bool
	}{{2, smallMessage + 4, true}, {2, block, true}, {2, block + 4, false}, {3, smallMessage, true}, {3, smallMessage + 4, false}} {
		sum := transport.Of(make([]float32, c.bytes/4))
		r := &remote{size: c.ranks}
		require.Equal(t, c.one, r.pairwise(&transport.Call{Kind: transport.KindAllReduce, Dst: sum, Src: sum}), "%+v", c)
	}
}
