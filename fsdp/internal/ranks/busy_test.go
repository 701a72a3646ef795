package ranks

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
)

// counted is a group that counts the all-reduces.
type counted struct {
	comm.Group
	n int
}

func (c *counted) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	c.n++
	return c.Group.AllReduce(buf, op)
}

// onAgreements runs f with an agreement of every rank, in a bubble of fake time.
func onAgreements(t *testing.T, n int, f func(t *testing.T, a *Agreement, g *counted)) {
	synctest.Test(t, func(t *testing.T) {
		var ranks sync.WaitGroup
		for _, g := range comm.Local(n) {
			ranks.Go(func() {
				c := &counted{Group: g}
				f(t, NewAgreement(c, newPeerError), c)
			})
		}
		ranks.Wait()
	})
}

// TestBusy has ranks work for different times. All hear of each other often, none is done before
// the last, and each has its own error.
func TestBusy(t *testing.T) {
	onAgreements(t, 3, func(t *testing.T, a *Agreement, g *counted) {
		begin := time.Now()
		err := a.Busy(t.Context(), nil, func(context.Context) error {
			time.Sleep(time.Duration(g.Rank()) * time.Minute)
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, 2*time.Minute, time.Since(begin))
		require.GreaterOrEqual(t, g.n, 100)
	})
}

// TestBusyStops has one rank fail: the others stop, and have nothing to say.
func TestBusyStops(t *testing.T) {
	full := errors.New("disk full")
	onAgreements(t, 3, func(t *testing.T, a *Agreement, g *counted) {
		begin := time.Now()
		err := a.Busy(t.Context(), nil, func(ctx context.Context) error {
			if g.Rank() == 1 {
				return full
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		require.Less(t, time.Since(begin), time.Minute)
		if g.Rank() == 1 {
			require.Equal(t, full, err)
		} else {
			require.NoError(t, err)
		}
	})
}

// TestBusyGroupFails fails the group while ranks work, and panics on one: all work has ended when
// busy returns.
func TestBusyGroupFails(t *testing.T) {
	gone := errors.New("gone")
	onAgreements(t, 2, func(t *testing.T, a *Agreement, g *counted) {
		ended := false
		err := a.Busy(t.Context(), nil, func(ctx context.Context) error {
			if g.Rank() == 1 {
				g.Abort(gone)
				panic("no more")
			}
			<-ctx.Done()
			time.Sleep(time.Second)
			ended = true
			return nil
		})
		var lost *LostError
		require.ErrorAs(t, err, &lost)
		require.ErrorIs(t, err, gone)
		if g.Rank() == 1 {
			require.ErrorContains(t, err, "no more")
		}
		require.Equal(t, g.Rank() == 0, ended)
	})
}

// hasty is a group that takes a rank for one that hangs after less than a second.
type hasty struct{ *counted }

func (hasty) Timeout() time.Duration { return 900 * time.Millisecond }

// TestBusyBeatsWithinTheTimeout has ranks of a hasty group work for a minute: they are heard of at
// least four times in each of its timeouts.
func TestBusyBeatsWithinTheTimeout(t *testing.T) {
	onAgreements(t, 2, func(t *testing.T, _ *Agreement, g *counted) {
		a := NewAgreement(hasty{g}, newPeerError)
		err := a.Busy(t.Context(), nil, func(context.Context) error {
			time.Sleep(time.Minute)
			return nil
		})
		require.NoError(t, err)
		require.GreaterOrEqual(t, g.n, int(4*time.Minute/(900*time.Millisecond)))
	})
}
