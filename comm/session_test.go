package comm

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// wires is a network of sessions in this process: what one sends another hears
// at once, in the same goroutine.
type wires struct {
	rank     int
	sessions []*session
}

func (w wires) SameHost(int) bool { return true }
func (w wires) Host(int) string   { return "here" }

func (w wires) Send(to int, msg []byte) error {
	w.sessions[to].Message(w.rank, slices.Clone(msg))
	return nil
}

func (w wires) Connect(context.Context, int, uint64) (net.Conn, error) {
	return nil, errors.New("no connections here")
}

func (w wires) SendFile(int, uint64, *os.File) error { return errors.New("no files here") }

func (w wires) File(context.Context, int, uint64) (*os.File, error) {
	return nil, errors.New("no files here")
}

func (w wires) Close() error { return nil }

// wired returns n sessions in this process that hear each other.
func wired(n int) []*session {
	sessions := make([]*session, n)
	for r := range sessions {
		sessions[r] = newSession(Config{Rank: r, Size: n})
		sessions[r].mesh = wires{r, sessions}
	}
	return sessions
}

// lent is a Backend that borrows the collectives of a local group.
type lent struct {
	*link
	group *local
	ctx   context.Context // ends at Stop
	stop  context.CancelFunc
	desk  *desk
}

// desk lends the ranks of a new group the same local group.
type desk struct {
	mu     sync.Mutex
	groups map[uint64][]Group // by id of the link
}

// lend makes a Serial over a local group, connected by l.
func (d *desk) lend(l *link) *Serial {
	d.mu.Lock()
	if d.groups[l.id] == nil {
		d.groups[l.id] = Local(len(l.ranks))
	}
	b := &lent{link: l, group: d.groups[l.id][l.rank].(*local), desk: d}
	d.mu.Unlock()
	b.ctx, b.stop = context.WithCancel(context.Background())
	s := NewSerial(l.name, l.rank, len(l.ranks), b)
	l.attach(s)
	return s
}

func (b *lent) Run(ctx context.Context, _ uint64, c *Call) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	return b.group.work(*c).Wait(ctx)
}

func (b *lent) Missing() []int { return nil }

func (b *lent) Split(_ context.Context, seq uint64, color int, ranks []int) (Group, error) {
	return b.desk.lend(b.link.split(seq, color, ranks)), nil
}

func (b *lent) Tell(err error)          { b.fail(err) }
func (b *lent) Stop()                   { b.stop() }
func (b *lent) Leave(last uint64) error { b.stop(); return b.leave(last) }

// SerialGroups returns a group of Serials on sessions of their own.
func SerialGroups(n int) (gs []Group) {
	d := &desk{groups: map[uint64][]Group{}}
	for _, s := range wired(n) {
		gs = append(gs, d.lend(s.world()))
	}
	return gs
}

func TestSerialDoesNotAllocate(t *testing.T) {
	s := NewSerial("alone", 0, 1, idle{})
	x := Of(make([]float32, 8)).Named("x")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		require.NoError(t, s.AllReduce(x, Sum).Wait(ctx))
	}))
	require.NoError(t, s.Close())
}

// idle is a Backend that has nothing to do.
type idle struct{ Backend }

func (idle) Run(context.Context, uint64, *Call) error { return nil }
func (idle) Stop()                                    {}
func (idle) Leave(uint64) error                       { return nil }

// TestReport asks for the flight records of ranks that wait for the last one.
func TestReport(t *testing.T) {
	gs := SerialGroups(3)
	works := make([]Work, 2)
	for r := range works {
		works[r] = gs[r].AllReduce(Of([]float32{1}).Named("h.3"), Sum)
	}
	all, err := Report(context.Background(), gs[2])
	require.NoError(t, err)
	require.Len(t, all, 3)
	for r, s := range all {
		require.Equal(t, r, s.Rank)
		require.Equal(t, worldName, s.Group)
		require.Empty(t, s.Err)
		require.Zero(t, s.Completed)
	}
	require.EqualValues(t, 1, all[1].Issued)
	require.Equal(t, `all-reduce float32[1] sum "h.3"`, all[0].Recent[0].Call)
	require.Contains(t, all[0].String(), `rank 0: 0 of 1 collectives complete, last all-reduce float32[1] sum "h.3" #1`)
	require.Empty(t, all[2].Recent)
	gs[0].(*Serial).backend.(*lent).session.Lost(2, errors.New("connection reset"))
	all, err = Report(context.Background(), gs[0])
	require.NoError(t, err)
	require.Contains(t, all[2].String(), "rank 2: does not answer: process lost: connection reset")
	for _, w := range works {
		require.ErrorIs(t, w.Wait(context.Background()), ErrLost)
	}
	for _, g := range gs {
		require.NoError(t, g.Close())
	}
}
