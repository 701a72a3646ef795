package tcp

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/internal/session"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/mesh"
)

// blocked is a network that makes no data connections, or fails to.
type blocked struct {
	session.Network
	trying *sync.WaitGroup // done at the first attempt
	once   *sync.Once
	err    error
}

func (b blocked) Connect(ctx context.Context, _ int, _ uint64) ([]mesh.Lane, error) {
	b.once.Do(b.trying.Done)
	if b.err != nil {
		return nil, b.err
	}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// splitting has three ranks split a group whose rank 2 can connect to nobody, calls
// strike when it tries, and returns the groups, which have failed, and what Split gave.
func splitting(t *testing.T, gs []transport.Group, sessions []*session.Session, refused error, strike func([]transport.Group, []*session.Session, context.CancelFunc)) []error {
	trying := new(sync.WaitGroup)
	trying.Add(1)
	sessions[2].Mesh = blocked{sessions[2].Mesh, trying, new(sync.Once), refused}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs := make([]error, 3)
	var ranks sync.WaitGroup
	for r, g := range gs {
		ranks.Go(func() {
			given := context.Background()
			if r == 1 {
				given = ctx
			}
			_, errs[r] = g.Split(given, 0, -r)
		})
	}
	trying.Wait()
	strike(gs, sessions, cancel)
	ranks.Wait()
	return errs
}

// TestJoinFails has something happen while a group is being made: every rank gets
// to know at once, by the name of the group that was split, and for good.
func TestJoinFails(t *testing.T) {
	for name, c := range map[string]struct {
		strike func([]transport.Group, []*session.Session, context.CancelFunc)
		blamed int
		is     error
	}{
		"abort":  {func(gs []transport.Group, _ []*session.Session, _ context.CancelFunc) { gs[1].Abort(errDisk) }, 1, nil},
		"close":  {func(gs []transport.Group, _ []*session.Session, _ context.CancelFunc) { _ = gs[1].Close() }, 1, transport.ErrClosed},
		"leave":  {func(gs []transport.Group, _ []*session.Session, _ context.CancelFunc) { _ = gs[2].Close() }, 2, transport.ErrClosed},
		"cancel": {func(_ []transport.Group, _ []*session.Session, cancel context.CancelFunc) { cancel() }, 1, context.Canceled},
		"lost": {func(_ []transport.Group, s []*session.Session, _ context.CancelFunc) {
			s[0].Lost(2, errors.New("reset"))
		}, 2, transport.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			gs, sessions := remoteGroups(t, 3, Wiring{})
			errs := splitting(t, gs, sessions, nil, c.strike)
			for r, err := range errs {
				var blame *transport.RankError
				require.ErrorAs(t, err, &blame)
				require.Equal(t, transport.WorldName, blame.Group)
				require.Equal(t, c.blamed, blame.Rank, "%v", err)
				if c.is != nil {
					require.ErrorIs(t, err, c.is)
				}
				require.ErrorAs(t, gs[r].Barrier(t.Context()), &blame, "for good")
				require.Equal(t, c.blamed, blame.Rank)
			}
			grouptest.CloseRanks(t, gs)
		})
	}
}

// TestJoinSilent has a rank of which nothing is heard while a group is being made.
func TestJoinSilent(t *testing.T) {
	t.Parallel()
	gs, sessions := remoteGroups(t, 3, Wiring{Timeout: 2 * time.Second})
	for r := range 2 {
		lose(sessions[r], func(to int) bool { return to == 2 })
	}
	lose(sessions[2], func(int) bool { return true })
	errs := splitting(t, gs, sessions, nil, func([]transport.Group, []*session.Session, context.CancelFunc) {})
	for _, err := range errs[:2] {
		var blame *transport.RankError
		require.ErrorAs(t, err, &blame)
		require.ErrorIs(t, err, transport.ErrTimeout)
		require.Equal(t, 2, blame.Rank)
		require.ErrorContains(t, err, "making group 0 of split #1: rank ")
		require.ErrorContains(t, err, "no progress for 2s (the limit is FSDP_TIMEOUT, or Config.Timeout); rank 0: does not answer")
	}
	require.ErrorIs(t, errs[2], transport.ErrTimeout)
	grouptest.CloseRanks(t, gs)
}

// lose makes messages of a session to some ranks get lost.
func lose(s *session.Session, to func(rank int) bool) {
	w := s.Mesh.(sockets)
	w.Lost = to
	s.Mesh = w
}

// TestJoinRefused has a rank whose connections fail for no reason that anybody tells.
func TestJoinRefused(t *testing.T) {
	gs, sessions := remoteGroups(t, 3, Wiring{})
	errs := splitting(t, gs, sessions, errDisk, func([]transport.Group, []*session.Session, context.CancelFunc) {})
	for _, err := range errs {
		require.ErrorIs(t, err, transport.ErrLost)
		require.ErrorContains(t, err, errDisk.Error())
		require.ErrorContains(t, err, `comm: rank `)
		require.Equal(t, errs[0].Error(), err.Error())
	}
	grouptest.CloseRanks(t, gs)
}

// TestJoinThenLeave has a rank leave a new group at once: the others have made it all the same.
func TestJoinThenLeave(t *testing.T) {
	gs := RemoteGroups(t, 3, Wiring{})
	errs := make([]error, 3)
	for range 20 {
		var ranks sync.WaitGroup
		for r, g := range gs {
			ranks.Go(func() {
				child, err := g.Split(t.Context(), 0, 0)
				if err == nil {
					err = child.Close()
				}
				errs[r] = err
			})
		}
		ranks.Wait()
		require.NoError(t, errors.Join(errs...))
	}
	grouptest.CloseRanks(t, gs)
}

// TestConnectsOnDemand counts the ranks that each rank of a large group is connected to.
func TestConnectsOnDemand(t *testing.T) {
	const n = 20
	gs := RemoteGroups(t, n, Wiring{})
	ctx := context.Background()
	everyRank(t, gs, func(r *remote) error {
		g, failed := gs[r.rank], []error{gs[r.rank].Barrier(ctx)}
		for _, share := range []int{8, 8192} {
			full := make([]float32, share*n)
			failed = append(failed, g.AllGather(transport.Of(full), transport.Of(make([]float32, share))).Wait(ctx), g.Broadcast(transport.Of(full), 3).Wait(ctx))
		}
		failed = append(failed, g.ReduceScatter(transport.Of(make([]float32, 4)), transport.Of(make([]float32, 4*n)), transport.Sum).Wait(ctx))
		return errors.Join(failed...)
	})
	for _, g := range gs {
		require.LessOrEqual(t, len(remoteOf(g).used), 2*5, "log2 of 20 is less than 5")
	}
	everyRank(t, gs, func(r *remote) error {
		return gs[r.rank].ReduceScatter(transport.Of(make([]float32, smallMessage)), transport.Of(make([]float32, smallMessage*n)), transport.Sum).Wait(ctx)
	})
	require.Len(t, remoteOf(gs[0]).used, n-1, "whoever sums much hears everybody")
	grouptest.CloseRanks(t, gs)
}

// TestConnectFailsLate has a connection fail that a group first needs after a while: that is an
// error on all ranks.
func TestConnectFailsLate(t *testing.T) {
	const n = 6
	gs, sessions := remoteGroups(t, n, Wiring{})
	trying := new(sync.WaitGroup)
	trying.Add(1)
	sessions[2].Mesh = blocked{sessions[2].Mesh, trying, new(sync.Once), errDisk}
	errs := make([]error, n)
	var ranks sync.WaitGroup
	for r, g := range gs {
		ranks.Go(func() {
			errs[r] = g.ReduceScatter(transport.Of(make([]float32, 4)), transport.Of(make([]float32, 4*n)), transport.Sum).Wait(t.Context())
			if errs[r] == nil { // it has all that it needs
				errs[r] = g.Barrier(t.Context())
			}
		})
	}
	ranks.Wait()
	for _, err := range errs {
		require.ErrorIs(t, err, transport.ErrLost)
		require.ErrorContains(t, err, errDisk.Error())
		require.ErrorContains(t, err, "connection to rank 2")
		require.Equal(t, errs[0].Error(), err.Error())
	}
	grouptest.CloseRanks(t, gs)
}
