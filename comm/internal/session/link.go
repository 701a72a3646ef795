package session

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/text"
)

// Member is a group as the control side sees it. Goroutines of the mesh call the methods, which
// must not block, except for Close.
type Member interface {
	Failed(err error)           // another rank reports that the group has failed
	Left(rank int, last uint64) // a rank has left after completing collective last
	Status() transport.Status
	Failure() error // error of the next collective: also that a rank, or this one, has left; or nil
	Close() error
}

// Link is the control side of one rank's handle of a group.
type Link struct {
	Session *Session
	ID      uint64
	Name    string
	Rank    int   // of this process in the group
	Ranks   []int // world rank of every rank

	mu       sync.Mutex
	member   Member // nil until attached
	parent   *Link
	children map[*Link]struct{}
	fault    error         // of the group, if it has failed
	leavers  map[int]error // ranks that have left, and why: see Leave
	closed   bool
	detached bool // it does not fail with its parent
}

// worldID is the id of the group that all ranks are in.
const worldID = 1

// World makes the link of the group of all ranks.
func (s *Session) World() *Link {
	ranks := make([]int, s.Config.Size)
	for r := range ranks {
		ranks[r] = r
	}
	return &Link{
		Session: s, ID: worldID, Name: transport.WorldName, Rank: s.Config.Rank, Ranks: ranks,
		children: map[*Link]struct{}{}, leavers: map[int]error{},
	}
}

// split makes the link of the group that collective seq of l has formed under
// color, of the given ranks of l.
func (l *Link) split(seq uint64, color int, ranks []int) *Link {
	world := make([]int, len(ranks))
	for i, r := range ranks {
		world[i] = l.Ranks[r]
	}
	child := l.Derive(transport.ChildName(l.Name, color), text.Hash(fmt.Sprintf("%x/%d/%d", l.ID, seq, color)), world)
	child.detached = color == transport.Detached
	return child
}

// Form makes the group that collective seq of l has formed under color.
func (l *Link) Form(ctx context.Context, seq uint64, color int, ranks []int) (transport.Group, error) {
	return l.Session.NewGroup(ctx, l.split(seq, color, ranks))
}

// Derive makes the link of a group of some of l's ranks, given by world rank,
// that ends with l.
func (l *Link) Derive(name string, id uint64, world []int) *Link {
	return &Link{
		Session: l.Session, ID: id, Name: name, Ranks: world, Rank: slices.Index(world, l.Ranks[l.Rank]),
		parent: l, children: map[*Link]struct{}{}, leavers: map[int]error{},
	}
}

// Attach lets m receive the messages of the other ranks, including earlier ones. If the parent of
// the group was closed meanwhile, the group fails.
func (l *Link) Attach(m Member) {
	l.mu.Lock()
	l.member = m
	l.mu.Unlock()
	if p := l.parent; p != nil {
		p.mu.Lock()
		closed, fault := p.closed, p.fault
		if l.detached {
			fault = nil
		}
		if !closed {
			p.children[l] = struct{}{}
		}
		p.mu.Unlock()
		if closed && fault == nil {
			fault = &transport.RankError{Group: p.Name, Rank: p.Rank, Err: transport.ErrClosed}
		}
		if fault != nil {
			l.spread(fault)
		}
		if closed {
			return // it would not be closed with its parent
		}
	}
	early, gone := l.Session.register(l)
	for ; len(early) > 0; early, gone = l.Session.register(l) {
		for _, n := range early {
			l.hear(n)
		}
	}
	for r, err := range gone {
		l.ended(r, err)
	}
	if p := l.parent; p != nil {
		p.mu.Lock()
		leavers := maps.Clone(p.leavers)
		p.mu.Unlock()
		for r, why := range leavers {
			l.peerLeftParent(p.Ranks[r], why)
		}
	}
}

// Fail reports to all other ranks that the group has failed on this one, with err or with its
// earlier failure, and makes this rank's children fail.
func (l *Link) Fail(err error) {
	l.tell(newsFailed, transport.MarshalError(l.Name, l.Rank, l.blame(err)))
	l.spread(err)
}

// blame makes err the failure of the group unless it has failed before, and returns the failure. So
// a rank reports the same failure to all: others leave because of a failure, and their connections
// end.
func (l *Link) blame(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault == nil {
		l.fault = err
	}
	return l.fault
}

// Failed reports whether the group has failed, except because a rank left.
func (l *Link) Failed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fault != nil
}

// Lost reports whether the process of a rank has ended without closing its groups, whatever the
// group has failed with.
func (l *Link) Lost(rank int) bool {
	l.Session.mu.Lock()
	defer l.Session.mu.Unlock()
	return errors.Is(l.Session.gone[l.Ranks[rank]], transport.ErrLost)
}

// tell sends a message to all other ranks of the group.
func (l *Link) tell(what byte, body []byte) {
	l.Session.Mesh.Tell(l.sorted(), newsOf(what, l.ID, body))
}

// sorted returns the world ranks of the group in ascending order.
func (l *Link) sorted() []int {
	if slices.IsSorted(l.Ranks) {
		return l.Ranks
	}
	return slices.Sorted(slices.Values(l.Ranks))
}

// spread makes err the failure of this handle and of all handles below it that are not detached. It
// begins with the lowest, so a caller that sees the group fail finds its children failed as well.
func (l *Link) spread(err error) {
	err = l.blame(err)
	l.mu.Lock()
	m := l.member
	children := make([]*Link, 0, len(l.children))
	for c := range l.children {
		if !c.detached {
			children = append(children, c)
		}
	}
	l.mu.Unlock()
	for _, c := range children {
		c.spread(err)
	}
	if m != nil {
		m.Failed(err)
	}
}

// Leave reports to all other ranks that this one has left after collective last, and closes this
// rank's children. The same message says why: a rank that learns of the leaving first, or has
// learnt that the rank to blame left in good order, must not blame this one.
func (l *Link) Leave(last uint64) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	own := l.member
	var members []Member
	for c := range l.children {
		members = append(members, c.member)
	}
	l.mu.Unlock()
	errs := make([]error, len(members))
	var closing sync.WaitGroup
	for i, m := range members {
		closing.Go(func() { errs[i] = m.Close() }) // each may take its time
	}
	closing.Wait()
	what := newsLeft
	if leaving := l.Session.Leaving; leaving != nil && l.ID == worldID {
		departs, err := leaving()
		if errs = append(errs, err); departs {
			what = newsDeparted
		}
	}
	body := binary.LittleEndian.AppendUint64(nil, last)
	if why := own.Failure(); why != nil {
		body = append(body, transport.MarshalError(l.Name, l.Rank, why)...)
	}
	l.tell(what, body)
	if p := l.parent; p != nil {
		p.mu.Lock()
		delete(p.children, l)
		p.mu.Unlock()
	}
	return errors.Join(append(errs, l.Session.remove(l))...)
}

// hear handles a message from another rank.
func (l *Link) hear(n news) {
	rank := slices.Index(l.Ranks, n.from)
	if rank < 0 {
		return // not of this group
	}
	switch n.what {
	case newsFailed:
		if failure, err := transport.UnmarshalError(n.body); err == nil {
			l.spread(failure)
		} else {
			l.spread(&transport.RankError{Group: l.Name, Rank: rank, Err: err})
		}
	case newsLeft:
		if len(n.body) < 8 {
			return
		}
		why, err := transport.UnmarshalError(n.body[8:])
		if err != nil { // the message does not say
			why = &transport.RankError{Group: l.Name, Rank: rank, Err: transport.ErrClosed}
		}
		l.mu.Lock()
		l.leavers[rank] = why
		closed := l.closed
		children := slices.Collect(maps.Keys(l.children))
		l.mu.Unlock()
		if closed {
			l.Session.peerLeft(l.ID, n.from)
		}
		for _, c := range children {
			c.peerLeftParent(n.from, why)
		}
		if first, left := transport.WhoLeft(l.Name, why); left {
			l.member.Left(first, binary.LittleEndian.Uint64(n.body))
		} else {
			l.spread(why)
		}
	case newsAsk:
		l.Session.reply(l.ID, n, l.member.Status())
	}
}

// peerLeftParent fails the group if a world rank has left its parent, but not the group. A rank
// leaves the groups that it has split from a group first, so that rank has not made this group and
// never will.
func (l *Link) peerLeftParent(world int, why error) {
	rank := slices.Index(l.Ranks, world)
	l.mu.Lock()
	_, left := l.leavers[rank]
	l.mu.Unlock()
	if rank >= 0 && !left {
		l.spread(why)
	}
}

// ended handles the end of the process of a world rank.
func (l *Link) ended(world int, err error) {
	rank := slices.Index(l.Ranks, world)
	if rank < 0 {
		return
	}
	l.mu.Lock()
	_, left := l.leavers[rank]
	left = left || l.closed
	l.mu.Unlock()
	switch blame := (&transport.RankError{Group: l.Name, Rank: rank, Err: err}); {
	case left: // the rank was not needed any more, or this one needs no other
	case errors.Is(err, transport.ErrLost) && !l.Session.Mesh.Relays():
		l.Fail(blame) // others may not have noticed it yet, behind a cut link
	default:
		l.spread(blame)
	}
}
