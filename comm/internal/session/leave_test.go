package session

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// hearer is a member that keeps what it is told.
type hearer struct {
	mu   sync.Mutex
	errs []error
}

func (h *hearer) Failed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errs = append(h.errs, err)
}

func (h *hearer) Left(int, uint64)         {}
func (h *hearer) Status() transport.Status { return transport.Status{} }
func (h *hearer) Failure() error           { return errors.Join(h.errs...) }
func (h *hearer) Close() error             { return nil }

// TestLeaverMisses has a rank leave a group of which another one makes children: those
// in which it should be and never was have failed.
func TestLeaverMisses(t *testing.T) {
	sessions := wired(3)
	here, there := sessions[0].World(), sessions[1].World()
	here.Attach(new(hearer))
	there.Attach(new(hearer))
	var before, after, known, without hearer
	here.split(1, 0, []int{0, 1}).Attach(&before)
	here.split(2, 0, []int{0, 2}).Attach(&without)
	here.split(3, 0, []int{0, 1}).Attach(&known)
	made := there.split(3, 0, []int{0, 1})
	made.Attach(new(hearer))
	require.NoError(t, made.Leave(7))
	require.NoError(t, there.Leave(3))
	here.split(4, 0, []int{0, 1}).Attach(&after)
	want := []error{&transport.RankError{Group: transport.WorldName, Rank: 1, Err: transport.ErrClosed}}
	require.Equal(t, want, before.errs)
	require.Equal(t, want, after.errs)
	require.Empty(t, known.errs)
	require.Empty(t, without.errs)
}

// TestLeaverTellsWhy has rank 1 leave a group because of rank 2, before rank 0 hears of that, or
// when it has heard that rank 2 left in good order: rank 0 names rank 2, and why.
func TestLeaverTellsWhy(t *testing.T) {
	for name, c := range map[string]struct {
		relays bool
		strike func(gs []transport.Group, sessions []*Session)
		why    string
	}{
		"failure": {false, func(gs []transport.Group, _ []*Session) { gs[2].Abort(errDisk) }, "disk full"},
		"leaving": {false, func(gs []transport.Group, _ []*Session) { _ = gs[2].Close() }, "group closed"},
		"loss":    {true, func(_ []transport.Group, sessions []*Session) { sessions[1].Lost(2, errDisk) }, "process lost: disk full"},
		"loss of one that left": {true, func(_ []transport.Group, sessions []*Session) {
			_ = sessions[2].send(0, newsLeft, worldID, leftAfter(1))
			sessions[1].Lost(2, errDisk)
		}, "process lost: disk full"},
	} {
		t.Run(name, func(t *testing.T) {
			gs := SerialGroups(3)
			sessions := make([]*Session, 3)
			for r, g := range gs {
				sessions[r] = g.(*transport.Serial).Backend().(*lent).Session
				if c.relays {
					w := sessions[r].Mesh.(grouptest.Wires)
					w.Relayed = true
					sessions[r].Mesh = w
				}
			}
			detached := gs[0].(*transport.Serial).Backend().(*lent).Link.split(1, transport.Detached, []int{0, 1})
			var beside hearer
			detached.Attach(&beside) // rank 1 never makes it
			lose(sessions[2], func(to int) bool { return to == 0 })
			w := gs[0].AllReduce(transport.Of([]float32{1}), transport.Sum)
			c.strike(gs, sessions)
			want := `comm: rank 2 of group "world": ` + c.why
			require.EqualError(t, gs[1].Barrier(t.Context()), want)
			require.NoError(t, gs[1].Close())
			require.EqualError(t, w.Wait(t.Context()), want)
			require.EqualError(t, errors.Join(beside.errs...), want)
			require.NoError(t, errors.Join(gs[0].Close(), gs[2].Close()))
		})
	}
}

// TestAttachToClosed makes a child of a handle that is being closed.
func TestAttachToClosed(t *testing.T) {
	world := wired(2)[0].World()
	world.Attach(new(hearer))
	require.NoError(t, world.Leave(0))
	child := world.split(1, 0, []int{0, 1})
	var h hearer
	child.Attach(&h)
	require.Equal(t, []error{&transport.RankError{Group: transport.WorldName, Rank: 0, Err: transport.ErrClosed}}, h.errs)
	require.Empty(t, world.Session.links, "nobody would remove it")
	require.NoError(t, child.Leave(0))
}

// TestDeparture has ranks leave the group of all ranks: one takes part in no later group, and one
// does. Another rank learns the first, though it asks for that later.
func TestDeparture(t *testing.T) {
	sessions := wired(3)
	sessions[0].World().Attach(new(hearer))
	for rank := 1; rank < 3; rank++ {
		sessions[rank].Leaving = func() (bool, error) { return rank == 1, errDisk }
		w := sessions[rank].World()
		w.Attach(new(hearer))
		child := w.split(1, 0, []int{0, rank})
		child.Attach(new(hearer))
		require.NoError(t, child.Leave(2))
		require.ErrorIs(t, w.Leave(3), errDisk)
	}
	var departed []int
	sessions[0].Departed(func(rank int) { departed = append(departed, rank) })
	require.Equal(t, []int{1}, departed)
	sessions[0].Message(2, newsOf(newsDeparted, worldID, leftAfter(3)))
	require.Equal(t, []int{1, 2}, departed)
}
