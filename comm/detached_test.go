package comm_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
)

// TestDetached aborts a group: a detached group of the same ranks goes on, an
// ordinary one does not. It ends when a rank closes the group it was split from.
func TestDetached(t *testing.T) {
	const n = 4
	connected := func(change func(*comm.Config)) func(*testing.T) []comm.Group {
		return func(t *testing.T) []comm.Group {
			gs, errs := connect(t, n, change)
			require.NoError(t, errors.Join(errs...))
			return gs
		}
	}
	for name, groups := range map[string]func(*testing.T) []comm.Group{
		"goroutines":    func(*testing.T) []comm.Group { return comm.Local(n) },
		"shared memory": connected(func(c *comm.Config) { c.Transport = comm.SharedMemory }),
		"tcp":           connected(func(c *comm.Config) { c.Transport = comm.TCP }),
		"hosts of 2":    connected(func(c *comm.Config) { c.Host = fmt.Sprint("host", c.Rank/2) }),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cause := context.Background(), errors.New("no more")
			// A barrier that one rank has left may still be under way on another.
			var left, summed sync.WaitGroup
			left.Add(n)
			summed.Add(n)
			errs := grouptest.PerRank(groups(t), func(g comm.Group) error {
				detached, err := g.Split(ctx, comm.Detached, g.Rank())
				require.NoError(t, err)
				ordinary, err := g.Split(ctx, 0, g.Rank())
				require.NoError(t, err)
				err = ordinary.Barrier(ctx) // all have both
				left.Done()
				require.NoError(t, err)
				left.Wait()
				if g.Rank() == 1 {
					g.Abort(cause)
				}
				require.ErrorContains(t, g.Barrier(ctx), "no more")
				require.ErrorContains(t, ordinary.Barrier(ctx), "no more")
				sum := []int64{int64(g.Rank())}
				err = detached.AllReduce(comm.Of(sum), comm.Sum).Wait(ctx)
				summed.Done()
				require.NoError(t, err)
				require.EqualValues(t, 6, sum[0])
				summed.Wait()
				if g.Rank() == 2 {
					return g.Close()
				}
				require.ErrorIs(t, detached.Barrier(ctx), comm.ErrClosed)
				return g.Close()
			})
			require.NoError(t, errors.Join(errs...))
		})
	}
}
