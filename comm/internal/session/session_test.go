package session

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/internal/limit"
	"github.com/gofsdp/gofsdp/comm/internal/local"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDisk = errors.New("disk full")

// wired returns n sessions in this process that hear each other.
func wired(n int) []*Session {
	return grouptest.Wired(n, func(w grouptest.Wires) *Session {
		s := New(Config{Rank: w.Rank, Size: n, Summed: true})
		s.Mesh = w
		return s
	})
}

// lose makes messages of a session to some ranks get lost.
func lose(s *Session, to func(rank int) bool) {
	w := s.Mesh.(grouptest.Wires)
	w.Lost = to
	s.Mesh = w
}

// lent is a Backend that borrows the collectives of a local group.
type lent struct {
	*Link
	group transport.Issuer
	ctx   context.Context // ends at Stop
	stop  context.CancelFunc
	desk  *desk
}

// desk lends the ranks of a new group the same local group.
type desk struct {
	mu     sync.Mutex
	groups map[uint64][]transport.Group // by id of the link
}

// lend makes a Serial over a local group, connected by l.
func (d *desk) lend(l *Link) *transport.Serial {
	d.mu.Lock()
	if d.groups[l.ID] == nil {
		d.groups[l.ID] = local.New(len(l.Ranks), limit.Default)
	}
	b := &lent{Link: l, group: d.groups[l.ID][l.Rank].(transport.Issuer), desk: d}
	d.mu.Unlock()
	b.ctx, b.stop = context.WithCancel(context.Background())
	s := transport.NewSerial(l.Name, l.Rank, len(l.Ranks), b)
	l.Attach(s)
	return s
}

func (b *lent) Run(ctx context.Context, _ uint64, c *transport.Call) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	return b.group.Start(*c).Wait(ctx)
}

func (b *lent) Missing() []int { return nil }

func (b *lent) Split(_ context.Context, seq uint64, color int, ranks []int) (transport.Group, error) {
	return b.desk.lend(b.Link.split(seq, color, ranks)), nil
}

func (b *lent) Tell(err error)          { b.Fail(err) }
func (b *lent) Stop()                   { b.stop() }
func (b *lent) Leave(last uint64) error { b.stop(); return b.Link.Leave(last) }

// SerialGroups returns a group of Serials on sessions of their own.
func SerialGroups(n int) (gs []transport.Group) {
	d := &desk{groups: map[uint64][]transport.Group{}}
	for _, s := range wired(n) {
		gs = append(gs, d.lend(s.World()))
	}
	return gs
}

// TestReport asks for the flight records of ranks that wait for the last one.
func TestReport(t *testing.T) {
	gs := SerialGroups(3)
	works := make([]transport.Work, 2)
	for r := range works {
		works[r] = gs[r].AllReduce(transport.Of([]float32{1}).Named("h.3"), transport.Sum)
	}
	all, err := transport.Report(context.Background(), gs[2])
	require.NoError(t, err)
	require.Len(t, all, 3)
	for r, s := range all {
		require.Equal(t, r, s.Rank)
		require.Equal(t, transport.WorldName, s.Group)
		require.Empty(t, s.Err)
		require.Zero(t, s.Completed)
	}
	require.EqualValues(t, 1, all[1].Issued)
	require.Equal(t, `all-reduce float32[1] sum "h.3"`, all[0].Recent[0].Call)
	require.Contains(t, all[0].String(), `rank 0: 0 of 1 collectives complete, last all-reduce float32[1] sum "h.3" #1`)
	require.Empty(t, all[2].Recent)
	gs[0].(*transport.Serial).Backend().(*lent).Session.Lost(2, errors.New("connection reset"))
	all, err = transport.Report(context.Background(), gs[0])
	require.NoError(t, err)
	require.Contains(t, all[2].String(), "rank 2: does not answer: process lost: connection reset")
	for _, w := range works {
		require.ErrorIs(t, w.Wait(context.Background()), transport.ErrLost)
	}
	for _, g := range gs {
		require.NoError(t, g.Close())
	}
}

// TestReportNeedsNoPatience asks ranks that cannot answer for different reasons,
// with a context that never ends.
func TestReportNeedsNoPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sessions := wired(4)
		links := make([]*Link, 4)
		for r := range 3 { // rank 3 has not made the group yet
			links[r] = sessions[r].World()
			links[r].Attach(&ear{link: links[r]})
		}
		keep(sessions[1])
		require.NoError(t, links[1].Leave(7))
		ask := func(want ...string) {
			var all []transport.Status
			go func() { all, _ = links[0].Report(context.Background()) }()
			synctest.Wait()
			require.Len(t, all, 4)
			for r, s := range all {
				require.Equal(t, r, s.Rank)
				require.Equal(t, transport.WorldName, s.Group)
				require.Equal(t, want[r], s.Err)
			}
		}
		ask("", "has left the group", "", "has not made the group yet")
		sessions[0].Lost(3, errors.New("no route"))
		ask("", "has left the group", "", "does not answer: process lost: no route")
		require.Empty(t, sessions[0].asked)

		var all []transport.Status
		late := links[2]
		lose(sessions[2], func(to int) bool { return to == 0 }) // it does not answer any more
		go func() { all, _ = late.Report(context.Background()) }()
		synctest.Wait()
		require.Nil(t, all)
		require.NoError(t, late.Leave(0))
		synctest.Wait()
		require.Contains(t, all[0].Err, transport.ErrClosed.Error())
		_, err := late.Report(context.Background())
		require.ErrorIs(t, err, transport.ErrClosed)
	})
}

// TestReportWithLongLabels has flight records that do not fit a message as they are.
func TestReportWithLongLabels(t *testing.T) {
	gs := SerialGroups(2)
	label := strings.Repeat("\x00é<", 1<<18)
	for range recorded {
		gs[1].AllReduce(transport.Of([]float32{1}).Named(label), transport.Sum)
	}
	all, err := transport.Report(context.Background(), gs[0])
	require.NoError(t, err)
	require.Empty(t, all[1].Err)
	require.Len(t, all[1].Recent, recorded)
	for _, g := range gs {
		g.Abort(errDisk)
		require.NoError(t, g.Close())
	}
}

// ear is a member that notes what it hears.
type ear struct {
	link  *Link
	onEar func()
	close func() error

	mu    sync.Mutex
	heard []string
}

func (e *ear) note(what string) {
	e.mu.Lock()
	e.heard = append(e.heard, what)
	first := len(e.heard) == 1
	e.mu.Unlock()
	if first && e.onEar != nil {
		e.onEar()
	}
}

func (e *ear) Failed(err error)           { e.note(err.Error()) }
func (e *ear) Left(rank int, last uint64) { e.note(fmt.Sprintf("%d left after %d", rank, last)) }
func (e *ear) Status() transport.Status   { return transport.Status{} }
func (e *ear) Failure() error             { return nil }

func (e *ear) Close() error {
	if e.close != nil {
		return e.close()
	}
	return e.link.Leave(0)
}

// keep adds a group to a session, which then does not end with the others.
func keep(s *Session) {
	l := s.World()
	l.ID = 99
	l.Attach(&ear{link: l})
}

// leftAfter is the body of a message about a rank that has left.
func leftAfter(last uint64) []byte { return binary.LittleEndian.AppendUint64(nil, last) }

// TestNewsInOrder has messages come while those that came early are being heard.
func TestNewsInOrder(t *testing.T) {
	sessions := wired(3)
	s, id := sessions[0], uint64(worldID)
	require.NoError(t, sessions[1].send(0, newsLeft, id, leftAfter(3)))
	require.NoError(t, sessions[2].send(0, newsLeft, id, leftAfter(4)))
	failure := &transport.RankError{Group: transport.WorldName, Rank: 2, Err: errDisk}
	l := s.World()
	e := &ear{link: l, onEar: func() {
		require.NoError(t, sessions[2].send(0, newsFailed, id, transport.MarshalError(transport.WorldName, 2, failure)))
		s.Lost(2, errors.New("reset"))
	}}
	l.Attach(e)
	require.Equal(t, []string{"1 left after 3", "2 left after 4", failure.Error()}, e.heard)
	require.Empty(t, s.early)
	require.Zero(t, s.held)
}

// TestOneReason has a rank lose another one, which has left because of a failure: it tells the
// failure.
func TestOneReason(t *testing.T) {
	sessions := wired(4)
	l, other := sessions[0].World(), sessions[1].World()
	mine, theirs := &ear{link: l}, &ear{link: other}
	l.Attach(mine)
	other.Attach(theirs)
	reason := &transport.RankError{Group: transport.WorldName, Rank: 3, Err: errDisk}
	require.NoError(t, sessions[3].send(0, newsFailed, worldID, transport.MarshalError(transport.WorldName, 3, reason)))
	sessions[0].Lost(2, errors.New("reset"))
	require.Equal(t, []string{reason.Error()}, theirs.heard)
	require.Equal(t, []string{reason.Error(), reason.Error()}, mine.heard)
}

// TestParentEndsDuringAttach closes the parent of a group that is being made: it
// must not keep the session.
func TestParentEndsDuringAttach(t *testing.T) {
	s := wired(2)[0]
	parent := s.World()
	parent.Attach(&ear{link: parent})
	parent.spread(errDisk)
	child := parent.split(1, 0, []int{0, 1})
	e := &ear{link: child}
	e.onEar = func() { require.NoError(t, parent.Leave(1)) }
	child.Attach(e)
	require.Equal(t, []string{errDisk.Error()}, e.heard)
	require.Empty(t, s.links)
	require.True(t, s.over)
}

// TestLeaveClosesAtOnce has children that take their time to close.
func TestLeaveClosesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := wired(2)[0]
		parent := s.World()
		parent.Attach(&ear{link: parent})
		for color := range 5 {
			child := parent.split(1, color, []int{0, 1})
			child.Attach(&ear{link: child, close: func() error {
				time.Sleep(time.Second)
				return child.Leave(0)
			}})
		}
		begin := time.Now()
		require.NoError(t, parent.Leave(1))
		require.Equal(t, time.Second, time.Since(begin))
		require.Empty(t, s.links)
	})
}

// TestSplitsAreForgotten makes and closes many groups: nothing is left of them, on
// ranks that close first and on those that close last.
func TestSplitsAreForgotten(t *testing.T) {
	gs := SerialGroups(3)
	for i := range 60 {
		subs, errs := make([]transport.Group, 3), make([]error, 3)
		var ranks sync.WaitGroup
		for r, g := range gs {
			ranks.Go(func() { subs[r], errs[r] = g.Split(context.Background(), i%2, 0) })
		}
		ranks.Wait()
		require.NoError(t, errors.Join(errs...))
		for k := range subs {
			g := subs[(i+k)%3]
			if i%5 == 0 {
				g.Abort(errDisk)
			}
			require.NoError(t, g.Close())
		}
	}
	for _, g := range gs {
		l := g.(*transport.Serial).Backend().(*lent).Link
		require.Empty(t, l.children)
		require.Len(t, l.Session.links, 1)
		require.Empty(t, l.Session.ended)
		require.Empty(t, l.Session.early)
		require.Zero(t, l.Session.held)
	}
	// A rank that dies before it leaves is not waited for, either.
	s := gs[0].(*transport.Serial).Backend().(*lent).Session
	keep(s)
	require.NoError(t, gs[0].Close())
	require.Len(t, s.ended, 1)
	require.NoError(t, gs[1].Close())
	require.Len(t, s.ended, 1)
	s.Lost(2, errors.New("reset"))
	require.Empty(t, s.ended)
	require.NoError(t, gs[2].Close())
	// One whose goodbye was on its way to the handle when that was closed has left.
	s = wired(2)[0]
	keep(s)
	l := s.World()
	l.Attach(&ear{link: l})
	require.NoError(t, l.Leave(0))
	require.Len(t, s.ended, 1)
	l.hear(news{newsLeft, 1, leftAfter(0)})
	require.Empty(t, s.ended)
}

// TestEarlyIsBounded sends news about groups that are never made.
func TestEarlyIsBounded(t *testing.T) {
	s := wired(1)[0]
	msg := make([]byte, mesh.MaxMessage)
	for id := range uint64(2 * maxEarly / mesh.MaxMessage) {
		msg[0] = newsFailed
		binary.LittleEndian.PutUint64(msg[1:], id)
		s.Message(0, msg)
	}
	require.LessOrEqual(t, s.held, maxEarly)
	require.LessOrEqual(t, len(s.early), maxEarly/mesh.MaxMessage+1)
}

// TestAbandon has one rank that cannot make its world group: the others hear why,
// whatever they fail with themselves.
func TestAbandon(t *testing.T) {
	sessions := wired(3)
	require.EqualError(t, sessions[1].Abandon(errDisk), "disk full")
	want := (&transport.RankError{Group: transport.WorldName, Rank: 1, Err: errDisk}).Error()
	require.EqualError(t, sessions[0].Abandon(errors.New("rank 1 has left the job")), want)
	delete(sessions[2].early, worldID) // as if only what rank 0 says had come
	sessions[0].over = false
	require.NoError(t, sessions[0].send(2, newsFailed, worldID, transport.MarshalError(transport.WorldName, 0, &transport.RankError{Group: transport.WorldName, Rank: 1, Err: errDisk})))
	require.EqualError(t, sessions[2].Abandon(errors.New("rank 0 has left the job")), want)
}

// FuzzMessage has ranks say anything, about a group that is there, one that is made
// later, and one that is over.
func FuzzMessage(f *testing.F) {
	say := func(from, what byte, id uint64, body []byte) []byte {
		msg := append([]byte{from, 0, what}, binary.LittleEndian.AppendUint64(nil, id)...)
		msg = append(msg, body...)
		msg[1] = byte(len(msg) - 2)
		return msg
	}
	failure := transport.MarshalError(transport.WorldName, 1, transport.ErrLost)
	f.Add(slices.Concat(say(1, newsFailed, 1, failure), say(2, newsLeft, 1, leftAfter(3))))
	f.Add(slices.Concat(say(2, newsLeft, 1, append(leftAfter(3), failure...)), say(1, newsLeft, 2, append(leftAfter(3), failure...))))
	f.Add(slices.Concat(say(1, newsAsk, 1, leftAfter(1)), say(2, newsAnswer, 1, append(leftAfter(1), `{"Err":"x"}`...))))
	f.Add(slices.Concat(say(1, newsLeft, 2, leftAfter(3)), say(2, newsFailed, 2, failure), say(1, newsAsk, 2, nil)))
	f.Add(slices.Concat(say(1, newsDeparted, 1, leftAfter(3)), say(2, newsDeparted, 2, nil)))
	f.Add(slices.Concat(say(1, newsLeft, 3, leftAfter(3)), say(1, newsAsk, 3, leftAfter(9)), say(9, newsFailed, 3, failure)))
	f.Add([]byte{1, 2, 0, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		s := wired(3)[0]
		lose(s, func(int) bool { return true })
		open := func(id uint64) (*Link, *transport.Serial) {
			l := s.World().Derive("g", id, []int{0, 1, 2})
			g := transport.NewSerial("g", 0, 3, &stuck{halt: make(chan struct{})})
			l.Attach(g)
			return l, g
		}
		_, now := open(1)
		old, gone := open(3)
		require.NoError(t, gone.Close())
		require.NoError(t, old.Leave(0))
		s.asked[1] = &question{map[int]struct{}{1: {}, 2: {}}, make(chan answer, 2)}
		for len(script) >= 2 {
			from, n := int(script[0]), min(int(script[1]), len(script)-2)
			msg := bytes.Clone(script[2:][:n])
			s.Message(from%3, msg)
			clear(msg) // it is only valid during the call
			script = script[2+n:]
		}
		_, later := open(2)
		s.Gone(1)
		s.Lost(2, errDisk)
		ended, cancel := context.WithCancel(context.Background())
		cancel() // a rank may say that it leaves after what is never to be
		for _, g := range []*transport.Serial{now, later} {
			require.Error(t, g.Barrier(ended))
			require.NoError(t, g.Close())
		}
		require.Empty(t, s.ended)
	})
}

// stuck is a Backend whose collectives never complete.
type stuck struct {
	transport.Backend
	halt chan struct{}
	once sync.Once
}

func (b *stuck) Run(ctx context.Context, _ uint64, _ *transport.Call) error {
	select {
	case <-b.halt:
		return errDisk
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *stuck) Missing() []int     { return []int{1} }
func (b *stuck) Tell(error)         {}
func (b *stuck) Stop()              { b.once.Do(func() { close(b.halt) }) }
func (b *stuck) Leave(uint64) error { return nil }

// recorded is how many collectives a flight record holds.
const recorded = 16
