package ranks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// TestMeshesTellOfFailures ends the team of one rank: the groups that were split off tell all
// others, who may have nothing under way in them.
func TestMeshesTellOfFailures(t *testing.T) {
	pulled := errors.New("cable pulled")
	require.NoError(t, comm.Run(t.Context(), 4, func(ctx context.Context, g comm.Group) error {
		team := NewTeam(g, func(_ int, text string) error { return errors.New(text) })
		m, err := team.Mesh(ctx, nil, 2, 2)
		require.NoError(t, err)
		require.NoError(t, g.Barrier(ctx))
		if g.Rank() == 3 {
			require.ErrorIs(t, team.Fail(pulled), pulled)
		}
		for _, part := range []comm.Group{m.Shard, m.Replica} {
			require.NotNil(t, transport.Failing(part))
			<-transport.Failing(part)
			require.ErrorContains(t, part.Barrier(ctx), pulled.Error())
		}
		return team.Close()
	}))
}

// TestSecondIsTheHybridGroup checks that units of a hybrid strategy and those with a second copy
// have one group, whichever comes first. Of two the traces would have one name and each number
// twice.
func TestSecondIsTheHybridGroup(t *testing.T) {
	for _, first := range []bool{true, false} {
		require.NoError(t, comm.Run(t.Context(), 4, func(ctx context.Context, g comm.Group) error {
			team := NewTeam(g, func(_ int, text string) error { return errors.New(text) })
			defer team.Close()
			var mu sync.Mutex
			seen := make(map[string]int)
			require.NoError(t, team.Watch(func(f transport.Flight) {
				mu.Lock()
				defer mu.Unlock()
				seen[fmt.Sprint(f.Group, " #", f.Seq)]++
			}))
			var second comm.Group
			var err error
			if first {
				second, err = team.Second(ctx, 2)
				require.NoError(t, err)
			}
			m, err := team.Mesh(ctx, nil, 2, 2)
			require.NoError(t, err)
			if !first {
				second, err = team.Second(ctx, 2)
				require.NoError(t, err)
			}
			for _, part := range []comm.Group{m.Shard, second, m.Replica} {
				require.NoError(t, part.AllReduce(comm.Of([]float32{1}), comm.Sum).Wait(ctx))
			}
			require.NoError(t, g.Barrier(ctx))
			mu.Lock()
			defer mu.Unlock()
			for name, n := range seen {
				require.Equal(t, 1, n, name)
			}
			return nil
		}))
	}
}
