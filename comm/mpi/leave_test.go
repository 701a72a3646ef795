//go:build mpi && cgo && unix

package mpi

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// apart are the handles of a group whose messages arrive when a test says so. Nothing is asked of
// the MPI library, so collectives can only fail.
type apart []*group

// newApart makes such a group of n ranks.
func newApart(t *testing.T, n int) apart {
	gs := make(apart, n)
	for r := range gs {
		gs[r] = handleApart(t, &engine{groups: map[uint64]*group{}}, nil, 2, r, n)
	}
	return gs
}

// handleApart makes a handle of the group that ranks 0 to n-1 of the world have split from parent.
func handleApart(t *testing.T, e *engine, parent *group, id uint64, rank, n int) *group {
	world := make([]rankInt, n)
	for r := range world {
		world[r] = rankInt(r)
	}
	g := newGroup(e, parent, id, "g", rank, world)
	letters := g.letters
	g.open()
	t.Cleanup(func() {
		require.NoError(t, g.serial.Close())
		release(letters)
	})
	return g
}

// deliver lets one rank hear what another has said to it.
func (gs apart) deliver(t *testing.T, from, to int) {
	e := gs[to].engine
	for _, l := range gs[from].engine.outbox.letters {
		if l.to == to {
			e.mu.Lock()
			err := e.accept(from, l.body)
			e.mu.Unlock()
			require.NoError(t, err)
			e.tell()
		}
	}
}

// TestLeaverTellsWhy has rank 1 leave a group because of others, which rank 0 hears before it hears
// from those.
func TestLeaverTellsWhy(t *testing.T) {
	cause := errors.New("out of coffee")
	fails := func(t *testing.T, g *group, culprit int, why error) {
		t.Helper()
		var blame *comm.RankError
		require.ErrorAs(t, g.serial.Barrier(t.Context()), &blame)
		require.Equal(t, culprit, blame.Rank)
		require.ErrorContains(t, blame, why.Error())
	}
	failing := func(g *group) bool {
		select {
		case <-transport.Failing(g.serial):
			return true
		default:
			return false
		}
	}
	t.Run("a rank has left", func(t *testing.T) {
		gs := newApart(t, 3)
		require.NoError(t, gs[2].serial.Close())
		gs.deliver(t, 2, 1)
		require.NoError(t, gs[1].serial.Close())
		gs.deliver(t, 1, 0)
		fails(t, gs[0], 2, comm.ErrClosed)
		require.False(t, failing(gs[0]), "nothing but leaving")
	})
	t.Run("a rank has failed", func(t *testing.T) {
		gs := newApart(t, 3)
		child := handleApart(t, gs[0].engine, gs[0], 3, 0, 3)
		gs[2].serial.Abort(cause)
		gs.deliver(t, 2, 1)
		require.NoError(t, gs[1].serial.Close())
		gs.deliver(t, 1, 0)
		fails(t, gs[0], 2, cause)
		fails(t, child, 2, cause)
		require.True(t, failing(gs[0]))
	})
	t.Run("a rank has left, then one has failed", func(t *testing.T) {
		gs := newApart(t, 4)
		child := handleApart(t, gs[0].engine, gs[0], 3, 0, 3) // without the rank that leaves
		require.NoError(t, gs[3].serial.Close())
		gs.deliver(t, 3, 1)
		gs[2].serial.Abort(cause)
		gs.deliver(t, 2, 1)
		require.NoError(t, gs[1].serial.Close())
		gs.deliver(t, 1, 0)
		fails(t, gs[0], 3, comm.ErrClosed)
		require.NoError(t, child.fault, "it has all of its ranks")
		gs.deliver(t, 2, 0)
		fails(t, gs[0], 3, comm.ErrClosed)
		fails(t, child, 2, cause)
	})
}

// TestChildrenFailFirst looks at what a rank that aborts a group says, and when. The others answer
// what they hear, so what this rank has split from the group must have failed by then.
func TestChildrenFailFirst(t *testing.T) {
	gs := newApart(t, 2)
	child := handleApart(t, gs[1].engine, gs[1], 3, 1, 2)
	gs[1].serial.Abort(errors.New("out of coffee"))
	var said []message
	for _, l := range gs[1].engine.outbox.letters {
		m, err := parse(l.body)
		require.NoError(t, err)
		m.body = nil
		said = append(said, m)
	}
	require.Equal(t, []message{{what: stop, group: child.id}, {what: failed, group: gs[1].id}}, said)
}
